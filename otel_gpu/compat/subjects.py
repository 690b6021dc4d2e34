"""Whom series of other exporters are of: GPUs, processes, containers. Shares of a GPU are in ``shares``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from otel_gpu.compat.form import Scene
from otel_gpu.metrics.rows import GpuRow, Use, UseRow
from otel_gpu.model import ProcessReport, WorkloadGpu, WorkloadKind

_IDENTITY = ("gpu.workload.kind", "gpu.workload.id", "gpu.workload.outer.id")
_CONTAINERS = frozenset({WorkloadKind.CONTAINER.value, WorkloadKind.LXC.value})


@dataclass(frozen=True, slots=True)
class OfDevice:
    """A GPU."""

    scene: Scene
    device: GpuRow


@dataclass(frozen=True, slots=True)
class OfProcess:
    """A process on a GPU; ``device`` is ``None`` where the GPU has gone. ``estimated`` is which part of its energy."""

    scene: Scene
    row: UseRow[ProcessReport]
    device: GpuRow | None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class OfContainer:
    """A container on a GPU. ``inferred`` is which part of its memory."""

    scene: Scene
    row: UseRow[WorkloadGpu]
    device: GpuRow | None
    inferred: bool = False


def held_bytes(use: WorkloadGpu) -> int | None:
    """Memory of a workload on a GPU, listed by the driver or inferred; ``None`` where neither is known."""
    known = [part for part in (use.measured_bytes, use.inferred_bytes) if part is not None]
    return sum(known) if known else None


def named(row: UseRow[WorkloadGpu] | UseRow[ProcessReport], key: str) -> str:
    """What a workload is called under a key of its identity; empty where nobody knows."""
    return next((value for name, value in row.workload.attributes if name == key), "")


# ---------------------------------------------------------------------------- whom there is


def devices(scene: Scene) -> Iterator[OfDevice]:
    """Every GPU."""
    return (OfDevice(scene, device) for device in scene.rows.gpus)


def processes(scene: Scene) -> Iterator[OfProcess]:
    """Every process on a GPU, those that ended and are still told of too."""
    by_uuid = _devices(scene)
    return (OfProcess(scene, row, by_uuid.get(row.use.gpu_uuid)) for row in newest(scene.rows.processes))


def living_processes(scene: Scene) -> Iterator[OfProcess]:
    """Every process that is on a GPU now."""
    return (each for each in processes(scene) if each.row.use.active)


def container_processes(scene: Scene) -> Iterator[OfProcess]:
    """Every process of a container that is on a GPU now."""
    return (each for each in living_processes(scene) if _in_container(each.row))


def process_energies(scene: Scene) -> Iterator[OfProcess]:
    """Every process twice: for energy that was measured, and for energy that was not."""
    for each in processes(scene):
        for estimated in (False, True):
            yield OfProcess(scene, each.row, each.device, estimated)


def containers(scene: Scene) -> Iterator[OfContainer]:
    """Every container that uses a GPU or was given one."""
    by_uuid = _devices(scene)
    for row in newest(scene.rows.workloads):
        if _in_container(row) and row.use.active:
            yield OfContainer(scene, row, by_uuid.get(row.use.gpu_uuid))


def container_memories(scene: Scene) -> Iterator[OfContainer]:
    """Every container on a GPU, for memory that the driver lists, and again where some was inferred."""
    for each in containers(scene):
        yield each
        if each.row.use.inferred_bytes:
            yield OfContainer(scene, each.row, each.device, inferred=True)


def newest(rows: Iterable[UseRow[Use]]) -> Iterable[UseRow[Use]]:
    """One row for each workload or process and place. After a rename, the old name is left out: the new one counts on
    from zero, which Prometheus takes for a restart. Most exporters do not have the names that tell the two apart.
    """
    found: dict[tuple[str, ...], UseRow[Use]] = {}
    for row in rows:  # older names come first
        found[_series(row)] = row
    return found.values()


def _series(row: UseRow[WorkloadGpu] | UseRow[ProcessReport]) -> tuple[str, ...]:
    who = tuple(named(row, key) for key in _IDENTITY)
    return *who, row.use.gpu_uuid, row.use.mig_uuid or "", str(row.attributes.get("process.pid"))


def _devices(scene: Scene) -> dict[str, GpuRow]:
    return {device.gpu.identity.uuid: device for device in scene.rows.gpus}


def _in_container(row: UseRow[WorkloadGpu] | UseRow[ProcessReport]) -> bool:
    return named(row, "gpu.workload.kind") in _CONTAINERS
