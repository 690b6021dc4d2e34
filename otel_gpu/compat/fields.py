"""Fields of the table: the GPUs, processes and containers that series are about, with functions for their labels and
values, in the units of other exporters.

A value that is not known is ``None``, a label that is not known is empty. Shares of a GPU are in ``shares``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from otel_gpu.compat.schema import RenderContext
from otel_gpu.metrics import workload_values
from otel_gpu.metrics.device_values import lists_processes
from otel_gpu.metrics.rows import GpuRow, Use, UseRow
from otel_gpu.model import MemorySplit, ProcessReport, WorkloadGpu, WorkloadKind

MIB = 1 << 20
_SHORT_ID = 12
"""The length of a container id as Docker prints it."""


# ---------------------------------------------------------------------------- subjects

_IDENTITY = ("gpu.workload.kind", "gpu.workload.id", "gpu.workload.outer.id")
_CONTAINERS = frozenset({WorkloadKind.CONTAINER.value, WorkloadKind.LXC.value})


@dataclass(frozen=True, slots=True)
class DeviceSubject:
    """A GPU."""

    context: RenderContext
    device: GpuRow


@dataclass(frozen=True, slots=True)
class ProcessSubject:
    """A process on a GPU; ``device`` is ``None`` if the GPU has gone.

    ``estimated`` selects the part of its energy that was not measured.
    """

    context: RenderContext
    row: UseRow[ProcessReport]
    device: GpuRow | None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ContainerSubject:
    """A container on a GPU. ``inferred`` selects the inferred part of its memory."""

    context: RenderContext
    row: UseRow[WorkloadGpu]
    device: GpuRow | None
    inferred: bool = False


def held_bytes(use: WorkloadGpu) -> int | None:
    """Memory of a workload on a GPU in bytes, measured and inferred; ``None`` if neither is known."""
    known = [part for part in (use.measured_bytes, use.inferred_bytes) if part is not None]
    return sum(known) if known else None


def identity_label(row: UseRow[WorkloadGpu] | UseRow[ProcessReport], key: str) -> str:
    """An attribute of a workload's identity; empty if unknown."""
    return next((value for name, value in row.workload.attributes if name == key), "")


def devices(context: RenderContext) -> Iterator[DeviceSubject]:
    """Every GPU."""
    return (DeviceSubject(context, device) for device in context.rows.gpus)


def processes(context: RenderContext) -> Iterator[ProcessSubject]:
    """Every process on a GPU, including those that have ended and are still reported."""
    by_uuid = _devices(context)
    return (ProcessSubject(context, row, by_uuid.get(row.use.gpu_uuid)) for row in newest(context.rows.processes))


def living_processes(context: RenderContext) -> Iterator[ProcessSubject]:
    """Every process that is on a GPU now."""
    return (each for each in processes(context) if each.row.use.active)


def container_processes(context: RenderContext) -> Iterator[ProcessSubject]:
    """Every process of a container that is on a GPU now."""
    return (each for each in living_processes(context) if _in_container(each.row))


def process_energies(context: RenderContext) -> Iterator[ProcessSubject]:
    """Every process twice: for its measured energy and for the rest."""
    for each in processes(context):
        for estimated in (False, True):
            yield ProcessSubject(context, each.row, each.device, estimated)


def containers(context: RenderContext) -> Iterator[ContainerSubject]:
    """Every container that uses a GPU or was granted one."""
    by_uuid = _devices(context)
    for row in newest(context.rows.workloads):
        if _in_container(row) and row.use.active:
            yield ContainerSubject(context, row, by_uuid.get(row.use.gpu_uuid))


def container_memories(context: RenderContext) -> Iterator[ContainerSubject]:
    """Every container on a GPU for its measured memory, and again if it has inferred memory."""
    for each in containers(context):
        yield each
        if each.row.use.inferred_bytes:
            yield ContainerSubject(context, each.row, each.device, inferred=True)


def newest(rows: Iterable[UseRow[Use]]) -> Iterable[UseRow[Use]]:
    """The latest row of each workload or process on a GPU or MIG instance.

    After a rename the old name is left out: labels of most exporters do not tell the two apart. The counter starts at
    zero again, which Prometheus treats as a reset.
    """
    found: dict[tuple[str, ...], UseRow[Use]] = {}
    for row in rows:  # older names come first
        found[_series(row)] = row
    return found.values()


def _series(row: UseRow[WorkloadGpu] | UseRow[ProcessReport]) -> tuple[str, ...]:
    identity = tuple(identity_label(row, key) for key in _IDENTITY)
    return *identity, row.use.gpu_uuid, row.use.mig_uuid or "", str(row.attributes.get("process.pid"))


def _devices(context: RenderContext) -> dict[str, GpuRow]:
    return {device.gpu.identity.uuid: device for device in context.rows.gpus}


def _in_container(row: UseRow[WorkloadGpu] | UseRow[ProcessReport]) -> bool:
    return identity_label(row, "gpu.workload.kind") in _CONTAINERS


OnGpu: TypeAlias = ProcessSubject | ContainerSubject


# ---------------------------------------------------------------------------- labels


def gpu_index(subject: DeviceSubject | OnGpu) -> str:
    """The GPU's index."""
    if isinstance(subject, DeviceSubject):
        return str(subject.device.gpu.identity.index)
    index = subject.row.use.gpu_index
    return "" if index is None else str(index)


def gpu_uuid(subject: DeviceSubject | OnGpu) -> str:
    """The GPU's UUID."""
    return subject.device.gpu.identity.uuid if isinstance(subject, DeviceSubject) else subject.row.use.gpu_uuid


def gpu_name(subject: DeviceSubject | OnGpu) -> str:
    """The GPU's name, with its vendor."""
    return "" if subject.device is None else subject.device.gpu.identity.name


def pid(subject: ProcessSubject) -> str:
    """The process's pid on the host."""
    return str(subject.row.use.key.pid)


def process_name(subject: ProcessSubject) -> str:
    """The name of its executable."""
    return subject.row.use.name or ""


def estimated(subject: ProcessSubject) -> str:
    """Whether this part of its energy was not measured."""
    return "true" if subject.estimated else "false"


def method(subject: ContainerSubject) -> str:
    """How this part of its memory was obtained."""
    return "inference" if subject.inferred else "nvidia-smi"


def container_name(subject: OnGpu) -> str:
    """The container's name."""
    return identity_label(subject.row, "container.name")


def container_id(subject: OnGpu) -> str:
    """The container's full id; for a nested container without a name, the ids of both containers."""
    return identity_label(subject.row, "container.id") or (
        identity_label(subject.row, "gpu.workload.outer.id") and identity_label(subject.row, "gpu.workload.name")
    )


def short_container_id(subject: OnGpu) -> str:
    """The container's id as Docker prints it."""
    found = container_id(subject)
    return found if "/" in found else found[:_SHORT_ID]


def docker_id(subject: OnGpu) -> str:
    """The short id of a container outside of pods."""
    return "" if pod(subject) else short_container_id(subject)


def docker_name(subject: OnGpu) -> str:
    """The name of a container outside of pods."""
    return "" if pod(subject) else container_name(subject)


def _pod_label(key: str) -> Callable[[OnGpu], str]:
    """A label of Kubernetes; empty if the listener reports no pods."""

    def label(subject: OnGpu) -> str:
        return identity_label(subject.row, key) if subject.context.kubernetes else ""

    return label


pod = _pod_label("k8s.pod.name")
namespace = _pod_label("k8s.namespace.name")
pod_uid = _pod_label("k8s.pod.uid")
pod_container = _pod_label("container.name")


# ---------------------------------------------------------------------------- values of a GPU


def _memory(read: Callable[[MemorySplit], int]) -> Callable[[DeviceSubject], float | None]:
    def value(subject: DeviceSubject) -> float | None:
        split = subject.device.gpu.memory
        return None if split is None else read(split)

    return value


def _unknown_bytes(split: MemorySplit) -> int:
    return split.inferred_bytes + split.unattributed_bytes


memory_total = _memory(lambda split: split.limit_bytes)
memory_used = _memory(lambda split: split.used_bytes)
memory_free = _memory(lambda split: split.free_bytes)
memory_known = _memory(lambda split: split.measured_bytes - split.overcount_bytes)
memory_unknown = _memory(_unknown_bytes)
inference_active = _memory(lambda split: int(_unknown_bytes(split) > 0))


def gpu_percent(subject: DeviceSubject) -> float | None:
    """Utilisation in percent."""
    return scaled(subject.device.gpu.reading.gpu_ratio, 100)


def memory_controller_percent(subject: DeviceSubject) -> float | None:
    """Time with memory traffic in percent."""
    return scaled(subject.device.gpu.reading.memory_controller_ratio, 100)


def power_watts(subject: DeviceSubject) -> float | None:
    """Watts drawn."""
    return subject.device.gpu.reading.power_w


def power_limit_watts(subject: DeviceSubject) -> float | None:
    """Watts allowed."""
    return subject.device.gpu.reading.power_limit_w


def temperature(subject: DeviceSubject) -> float | None:
    """Degrees Celsius."""
    return subject.device.gpu.reading.temperature_c


def attributed_joules(subject: DeviceSubject) -> float | None:
    """Joules of all processes since the ledger began, including processes no longer reported."""
    totals = subject.device.gpu.totals
    return totals.attributed_mj / 1e3 if totals is not None and subject.device.gpu.has_energy else None


def process_count(subject: DeviceSubject) -> float | None:
    """Processes on the GPU now; ``None`` in a sidecar, which reports no whole GPU."""
    in_sidecar = subject.context.rows.report.pod is not None
    return len(subject.device.residents) if lists_processes(subject.device) and not in_sidecar else None


def idle_memory_total(subject: DeviceSubject) -> float | None:
    """Bytes held by its idle processes; ``None`` without utilisation data."""
    device = subject.device
    if process_count(subject) is None or not (device.gpu.has_utilization or not device.residents):
        return None
    return sum(process.idle_bytes or 0 for process in device.residents)


# ---------------------------------------------------------------------------- values of processes and containers


def process_joules(subject: ProcessSubject) -> float | None:
    """Joules since it was first seen, by all methods."""
    totals = subject.row.use.totals
    if totals is None or not subject.row.has_energy:
        return None
    return (totals.energy.total_mj or 0) / 1e3


def process_joules_by_method(subject: ProcessSubject) -> float | None:
    """Measured joules, or estimated and inferred ones."""
    totals = subject.row.use.totals
    if totals is None or not subject.row.has_energy:
        return None
    energy = totals.energy
    parts = (energy.estimated_mj, energy.inferred_mj) if subject.estimated else (energy.measured_mj,)
    return sum(part or 0 for part in parts) / 1e3


def sm_ratio(subject: ProcessSubject) -> float | None:
    """SM share of the last window, 0 to 1."""
    return workload_values.utilization(subject.row)


def sm_percent(subject: ProcessSubject) -> float | None:
    """SM share of the last window in percent."""
    return scaled(sm_ratio(subject), 100)


def bandwidth_ratio(subject: ProcessSubject) -> float | None:
    """Share of the last window with memory traffic, 0 to 1."""
    return workload_values.bandwidth_utilization(subject.row)


def process_memory(subject: ProcessSubject) -> float | None:
    """Bytes in the driver's list; 0 for a process that has ended."""
    return workload_values.process_memory_bytes(subject.row)


def idle_seconds(subject: ProcessSubject) -> float | None:
    """Seconds without work, 0 while it works, ``None`` if unknown."""
    return workload_values.idle_duration_s(subject.row)


def idle_memory(subject: ProcessSubject) -> float | None:
    """Bytes held while idle, 0 while it works."""
    return workload_values.idle_memory_bytes(subject.row)


def start_time(subject: ProcessSubject) -> float | None:
    """Unix time in seconds."""
    return subject.row.use.start_time_s


def active(subject: ProcessSubject) -> int:
    """1 while it runs, 0 once it has ended."""
    return int(subject.row.use.active)


def memory_in_container(subject: ProcessSubject) -> float | None:
    """Bytes of a process in a container outside of pods."""
    return None if pod(subject) else process_memory(subject)


def memory_in_pod(subject: ProcessSubject) -> float | None:
    """Bytes of a process in a container of a pod."""
    return process_memory(subject) if pod(subject) else None


def memory_percent(subject: ProcessSubject) -> float | None:
    """The process's part of the GPU's memory in percent."""
    held, limit = process_memory(subject), _limit(subject.device)
    return None if held is None or not limit else held / limit * 100


def container_memory(subject: ContainerSubject) -> float | None:
    """Measured or inferred bytes."""
    return subject.row.use.inferred_bytes if subject.inferred else subject.row.use.measured_bytes


def container_memory_mib(subject: ContainerSubject) -> float | None:
    """Measured and inferred MiB."""
    return scaled(held_bytes(subject.row.use), 1 / MIB)


def present(_: ContainerSubject) -> int:
    """Always 1."""
    return 1


def in_mib(value: Callable[[DeviceSubject], float | None]) -> Callable[[DeviceSubject], float | None]:
    """A function of bytes, as MiB."""
    return lambda subject: scaled(value(subject), 1 / MIB)


def scaled(value: float | None, factor: float) -> float | None:
    """A value in another unit."""
    return None if value is None else value * factor


def _limit(device: GpuRow | None) -> int | None:
    return None if device is None or device.gpu.memory is None else device.gpu.memory.limit_bytes
