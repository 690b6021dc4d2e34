"""The vocabulary of the table: labels and values of GPUs, processes and containers, in units that others use.

What is not known is ``None`` as a value, and empty as a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from otel_gpu.compat.subjects import OfContainer, OfDevice, OfProcess, held_bytes, named
from otel_gpu.metrics import device_values, process_values, use_values
from otel_gpu.metrics.rows import GpuRow, GpuValues
from otel_gpu.model import MemorySplit

MIB = 1 << 20
_SHORT_ID = 12
"""As many characters of a container's id as Docker shows."""

OnGpu: TypeAlias = OfProcess | OfContainer


# ---------------------------------------------------------------------------- labels


def gpu_index(subject: OfDevice | OnGpu) -> str:
    """The GPU's index."""
    if isinstance(subject, OfDevice):
        return str(subject.device.gpu.identity.index)
    index = subject.row.use.gpu_index
    return "" if index is None else str(index)


def gpu_uuid(subject: OfDevice | OnGpu) -> str:
    """The GPU's UUID."""
    return subject.device.gpu.identity.uuid if isinstance(subject, OfDevice) else subject.row.use.gpu_uuid


def gpu_name(subject: OfDevice | OnGpu) -> str:
    """The GPU's name, with its vendor."""
    return "" if subject.device is None else subject.device.gpu.identity.name


def pid(subject: OfProcess) -> str:
    """The process's pid on the host."""
    return str(subject.row.use.key.pid)


def process_name(subject: OfProcess) -> str:
    """The name of what it executes."""
    return subject.row.use.name or ""


def estimated(subject: OfProcess) -> str:
    """Whether this part of its energy was not measured."""
    return "true" if subject.estimated else "false"


def method(subject: OfContainer) -> str:
    """How this part of its memory was found."""
    return "inference" if subject.inferred else "nvidia-smi"


def container_name(subject: OnGpu) -> str:
    """What the container is called, by whoever started it."""
    return named(subject.row, "container.name")


def container_id(subject: OnGpu) -> str:
    """The container's id, all of it; of who is inside of another and whom nobody knows, the ids of both."""
    return named(subject.row, "container.id") or (
        named(subject.row, "gpu.workload.outer.id") and named(subject.row, "gpu.workload.name")
    )


def short_container_id(subject: OnGpu) -> str:
    """The container's id as Docker shows it."""
    found = container_id(subject)
    return found if "/" in found else found[:_SHORT_ID]


def docker_id(subject: OnGpu) -> str:
    """The same of a container that is in no pod."""
    return "" if pod(subject) else short_container_id(subject)


def docker_name(subject: OnGpu) -> str:
    """The name of a container that is in no pod."""
    return "" if pod(subject) else container_name(subject)


def of_pod(key: str) -> Callable[[OnGpu], str]:
    """What Kubernetes calls it; nothing where the listener tells nothing of pods."""

    def label(subject: OnGpu) -> str:
        return named(subject.row, key) if subject.scene.kubernetes else ""

    return label


pod = of_pod("k8s.pod.name")
namespace = of_pod("k8s.namespace.name")
pod_uid = of_pod("k8s.pod.uid")
pod_container = of_pod("container.name")


# ---------------------------------------------------------------------------- values of a GPU


def _memory(read: Callable[[MemorySplit], int]) -> Callable[[OfDevice], float | None]:
    def value(subject: OfDevice) -> float | None:
        split = subject.device.gpu.memory
        return None if split is None else read(split)

    return value


def used_bytes(split: MemorySplit) -> int:
    """What is in use, without what the driver keeps for itself where it tells that apart."""
    return split.limit_bytes - (split.reserved_bytes or 0) - split.free_bytes


def _unknown_bytes(split: MemorySplit) -> int:
    return split.inferred_bytes + split.unattributed_bytes


memory_total = _memory(lambda split: split.limit_bytes)
memory_used = _memory(used_bytes)
memory_free = _memory(lambda split: split.free_bytes)
memory_known = _memory(lambda split: split.measured_bytes - split.overcount_bytes)
memory_unknown = _memory(_unknown_bytes)
inferring = _memory(lambda split: int(_unknown_bytes(split) > 0))


def gpu_percent(subject: OfDevice) -> float | None:
    """Percent of the time that the GPU worked."""
    return scaled(subject.device.gpu.reading.gpu_ratio, 100)


def memory_controller_percent(subject: OfDevice) -> float | None:
    """Percent of the time that its memory was read or written."""
    return scaled(subject.device.gpu.reading.memory_controller_ratio, 100)


def power_watts(subject: OfDevice) -> float | None:
    """Watts drawn."""
    return subject.device.gpu.reading.power_w


def power_limit_watts(subject: OfDevice) -> float | None:
    """Watts allowed."""
    return subject.device.gpu.reading.power_limit_w


def temperature(subject: OfDevice) -> float | None:
    """Degrees Celsius."""
    return subject.device.gpu.reading.temperature_c


def attributed_joules(subject: OfDevice) -> float | None:
    """Joules of all processes since the books began, those forgotten since then too."""
    totals = subject.device.gpu.totals
    return totals.attributed_mj / 1e3 if totals is not None and subject.device.gpu.has_energy else None


def process_count(subject: OfDevice) -> float | None:
    """Processes on the GPU now."""
    return _of_gpu(device_values.process_count, subject)


def idle_memory_total(subject: OfDevice) -> float | None:
    """Bytes held by its idle processes; unknown where nobody can tell who is idle."""
    return _of_gpu(device_values.idle_memory, subject)


def _of_gpu(values: Callable[[GpuRow], GpuValues], subject: OfDevice) -> float | None:
    """The sum of a metric of our own over a GPU. An agent of one pod has no figures of whole GPUs."""
    if subject.scene.rows.report.pod is not None:
        return None
    found = [value for value, _ in values(subject.device) if value is not None]
    return sum(found) if found else None


# ---------------------------------------------------------------------------- values of processes and containers


def process_joules(subject: OfProcess) -> float | None:
    """Joules since it was first seen, however they were found."""
    totals = subject.row.use.totals
    if totals is None or not subject.row.has_energy:
        return None
    return (totals.energy.total_mj or 0) / 1e3


def process_joules_by_method(subject: OfProcess) -> float | None:
    """Joules that were measured, or those that were not."""
    totals = subject.row.use.totals
    if totals is None or not subject.row.has_energy:
        return None
    energy = totals.energy
    parts = (energy.estimated_mj, energy.inferred_mj) if subject.estimated else (energy.measured_mj,)
    return sum(part or 0 for part in parts) / 1e3


def sm_ratio(subject: OfProcess) -> float | None:
    """SM share of the last window, 0 to 1."""
    return use_values.utilization(subject.row)


def sm_percent(subject: OfProcess) -> float | None:
    """The same in percent."""
    return scaled(sm_ratio(subject), 100)


def bandwidth_ratio(subject: OfProcess) -> float | None:
    """Share of the last window with memory traffic, 0 to 1."""
    return use_values.bandwidth_utilization(subject.row)


def process_memory(subject: OfProcess) -> float | None:
    """Bytes as the driver lists them; none are held by what has ended."""
    return process_values.memory_bytes(subject.row)


def idle_seconds(subject: OfProcess) -> float | None:
    """Seconds without work, 0 while it works; unknown is not idle."""
    return use_values.idle_duration_s(subject.row)


def idle_memory(subject: OfProcess) -> float | None:
    """Bytes held while idle, 0 while it works."""
    return use_values.idle_memory_bytes(subject.row)


def start_time(subject: OfProcess) -> float | None:
    """Unix time in seconds."""
    return subject.row.use.start_time_s


def active(subject: OfProcess) -> int:
    """1 while it is there, 0 when it has ended."""
    return int(subject.row.use.active)


def memory_in_container(subject: OfProcess) -> float | None:
    """Bytes of a process of a container that is in no pod."""
    return None if pod(subject) else process_memory(subject)


def memory_in_pod(subject: OfProcess) -> float | None:
    """Bytes of a process of a container that is in a pod."""
    return process_memory(subject) if pod(subject) else None


def memory_percent(subject: OfProcess) -> float | None:
    """Percent of the GPU's memory that it holds."""
    held, whole = process_memory(subject), _limit(subject.device)
    return None if held is None or not whole else held / whole * 100


def container_memory(subject: OfContainer) -> float | None:
    """Bytes that the driver lists, or those inferred."""
    return subject.row.use.inferred_bytes if subject.inferred else subject.row.use.measured_bytes


def container_memory_mib(subject: OfContainer) -> float | None:
    """MiB that it holds, listed or inferred."""
    return scaled(held_bytes(subject.row.use), 1 / MIB)


def present(_: OfContainer) -> int:
    """1: it is there."""
    return 1


def in_mib(value: Callable[[OfDevice], float | None]) -> Callable[[OfDevice], float | None]:
    """Bytes in MiB."""
    return lambda subject: scaled(value(subject), 1 / MIB)


def scaled(value: float | None, factor: float) -> float | None:
    """A value in another unit."""
    return None if value is None else value * factor


def _limit(device: GpuRow | None) -> int | None:
    return None if device is None or device.gpu.memory is None else device.gpu.memory.limit_bytes
