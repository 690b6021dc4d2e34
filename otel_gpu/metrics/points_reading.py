"""One cycle as instruments read it: its Attribution, laid out once by what has points of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeAlias, TypeVar

from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    Attribution,
    GpuAttribution,
    ProcessAttribution,
    WorkloadAttribution,
    WorkloadGpu,
)

Attributes: TypeAlias = Mapping[str, str | int | bool]
Use = TypeVar("Use", WorkloadGpu, ProcessAttribution)

NONE: Final[Attributes] = MappingProxyType({})
_OVERFLOW: Final[Attributes] = MappingProxyType({"otel.metric.overflow": True})


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a metric. ``workload`` is ``None`` where it is of the host; ``start_ns`` (Unix time) is a counter's.

    A counter without a start has counted since before anybody can tell.
    """

    value: int | float
    attributes: Attributes
    workload: WorkloadIdentity | None = None
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. ``places`` are the attributes of the GPU itself, under "", and of its MIG instances by UUID.

    ``tells_energy`` and ``tells_work`` are false where 0 would only mean that nobody counts.
    """

    gpu: GpuAttribution
    attributes: Attributes
    places: Mapping[str, Attributes]
    tells_energy: bool
    tells_work: bool

    def place(self, mig_uuid: str | None) -> Attributes:
        """The attributes of an instance, or of the GPU itself where there is no such instance."""
        return self.places.get(mig_uuid or "", self.places[""])


@dataclass(frozen=True, slots=True)
class Row(Generic[Use]):
    """A workload's or process's use of one place, with the attributes of all its points."""

    identity: WorkloadIdentity
    attributes: Attributes
    use: Use
    tells_energy: bool
    tells_work: bool

    def point(self, value: float, own: Attributes = NONE, *, start_ns: int | None = None) -> Point:
        """A point with attributes of its own beside the row's."""
        return Point(value, {**self.attributes, **own} if own else self.attributes, self.identity, start_ns)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a collection reads. Made once for a cycle, so that no instrument has to look anything up."""

    attribution: Attribution
    stats: SelfStats
    currency: str
    devices: tuple[Device, ...]
    workloads: tuple[Row[WorkloadGpu], ...]
    processes: tuple[Row[ProcessAttribution], ...]

    @classmethod
    def of(
        cls,
        attribution: Attribution,
        stats: SelfStats,
        *,
        currency: str = "",
        process_level: bool = True,
        held_too: bool = False,
    ) -> Reading:
        """Lay out a cycle; ``currency`` is that of its costs. Who is held back has rows only ``held_too``."""
        devices = {gpu.identity.uuid: _device(gpu) for gpu in attribution.gpus}
        told = [workload for workload in attribution.workloads if held_too or not workload.held]
        identities = {_key(workload): WorkloadIdentity.of(workload.ref, workload.names) for workload in told}
        held = {_key(workload) for workload in attribution.workloads if workload.held and not held_too}
        processes = attribution.processes if process_level else ()
        return cls(
            attribution=attribution,
            stats=stats,
            currency=currency,
            devices=tuple(devices.values()),
            workloads=tuple(_workload_rows(told, identities, devices)),
            processes=tuple(_process_rows((p for p in processes if _owner(p) not in held), identities, devices)),
        )


_WorkloadKey: TypeAlias = tuple[str, str, int]


def _key(workload: WorkloadAttribution) -> _WorkloadKey:
    return workload.ref.kind.value, workload.ref.id, workload.naming


def _owner(process: ProcessAttribution) -> _WorkloadKey:
    return process.workload.kind.value, process.workload.id, process.naming


def _device(gpu: GpuAttribution) -> Device:
    counted = gpu.counted
    attributes: Attributes = {"hw.id": gpu.identity.uuid, "gpu.index": str(gpu.identity.index)}
    profiles = {"": ""} | {mig.uuid: mig.profile or "" for mig in gpu.mig or ()}
    return Device(
        gpu=gpu,
        attributes=attributes,
        places={
            uuid: {**attributes, "gpu.mig.uuid": uuid, "gpu.mig.profile": profile} for uuid, profile in profiles.items()
        },
        tells_energy=counted.energy,
        tells_work=counted.work,
    )


def _place(use: WorkloadGpu | ProcessAttribution) -> Attributes:
    """Where somebody is, or was: a GPU or an instance that does not answer, or has gone, keeps what names it."""
    return {
        "hw.id": use.gpu_uuid,
        "gpu.index": "" if use.gpu_index is None else str(use.gpu_index),
        "gpu.mig.uuid": use.mig_uuid or "",
        "gpu.mig.profile": use.mig_profile or "",
    }


def _row(identity: WorkloadIdentity, own: Attributes, use: Use, devices: Mapping[str, Device]) -> Row[Use]:
    device, totals = devices.get(use.gpu_uuid), use.totals
    attributes = {**_place(use), **own}
    tells_energy = device is not None and device.tells_energy
    tells_work = device is not None and device.tells_work
    return Row(
        identity,
        attributes,
        use,
        tells_energy=totals is not None and (tells_energy or bool(totals.energy.total_mj)),
        tells_work=tells_work or (totals is not None and totals.compute_us > 0),
    )


def _workload_rows(
    workloads: Iterable[WorkloadAttribution],
    identities: Mapping[_WorkloadKey, WorkloadIdentity],
    devices: Mapping[str, Device],
) -> Iterator[Row[WorkloadGpu]]:
    """One row per series: renamed and renamed back within the retention, only the newest is told."""
    newest: dict[tuple[WorkloadIdentity, str, str | None], Row[WorkloadGpu]] = {}
    for workload in sorted(workloads, key=lambda workload: workload.naming):
        identity = identities[_key(workload)]
        own = _OVERFLOW if workload.ref == OVERFLOW_WORKLOAD else NONE
        for part in workload.gpus:
            newest[identity, part.gpu_uuid, part.mig_uuid] = _row(identity, own, part, devices)
    yield from newest.values()


def _process_rows(
    processes: Iterable[ProcessAttribution],
    identities: Mapping[_WorkloadKey, WorkloadIdentity],
    devices: Mapping[str, Device],
) -> Iterator[Row[ProcessAttribution]]:
    """One row per series: of two processes with one pid, name and place, only the younger is told."""
    newest: dict[tuple[WorkloadIdentity, int, str, str, str | None], Row[ProcessAttribution]] = {}
    for process in sorted(processes, key=lambda process: (process.naming, process.key.start_ticks)):
        identity = identities.get(_owner(process)) or WorkloadIdentity.of(process.workload, None)
        pid, name = process.key.pid, process.name or ""
        own: Attributes = {"process.pid": pid, "process.executable.name": name}
        if process.key == OVERFLOW_PROCESS:
            own = {**own, **_OVERFLOW}
        newest[identity, pid, name, process.gpu_uuid, process.mig_uuid] = _row(identity, own, process, devices)
    yield from newest.values()
