"""One cycle as instruments read it: its Attribution, laid out once by what has points of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.metrics.tags import Attributes, Kept, Tags
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    Attribution,
    GpuAttribution,
    GpuHealth,
    ProcessAttribution,
    WorkloadAttribution,
    WorkloadGpu,
    WorkloadNames,
    WorkloadRef,
)

_WorkloadKey: TypeAlias = tuple[str, str, int]
Use = TypeVar("Use", WorkloadGpu, ProcessAttribution)

NONE: Final[Attributes] = Tags({})
_Own: TypeAlias = tuple[tuple[str, str | int | bool], ...]
"""Attributes of a row beside its place."""

_OVERFLOW: Final[_Own] = (("otel.metric.overflow", True),)


class Point(NamedTuple):
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
    attributes: Tags
    places: Mapping[str, Tags]
    tells_energy: bool
    tells_work: bool

    def place(self, mig_uuid: str | None) -> Tags:
        """The attributes of an instance, or of the GPU itself where there is no such instance."""
        return self.places.get(mig_uuid or "", self.places[""])


@dataclass(frozen=True, slots=True)
class Row(Generic[Use]):
    """A workload's or process's use of one place, with the attributes of all its points.

    ``watched`` is false while the agent is paused: that somebody was there when it let go says nothing of now.
    """

    identity: WorkloadIdentity
    attributes: Tags
    use: Use
    tells_energy: bool
    tells_work: bool
    watched: bool = True

    def point(self, value: float, own: Attributes = NONE, *, start_ns: int | None = None) -> Point:
        """A point with attributes of its own beside the row's."""
        return Point(value, self.attributes.adding(own) if own else self.attributes, self.identity, start_ns)


class Layout:
    """What cycles laid out one after the other have in common: the names of those who are still there."""

    def __init__(self) -> None:
        self._tags: Kept[tuple[object, ...], Tags] = Kept()
        self._named: Kept[_WorkloadKey, tuple[WorkloadRef, WorkloadNames | None, WorkloadIdentity]] = Kept()
        self._identities: Kept[WorkloadIdentity, WorkloadIdentity] = Kept()
        self.agent = Tags({})

    def begin(self) -> None:
        """Another cycle."""
        self._tags.begin()
        self._named.begin()
        self._identities.begin()

    def end(self) -> None:
        """Who was not met in this cycle has left."""
        self._tags.end()
        self._named.end()
        self._identities.end()

    def tags(self, key: tuple[object, ...], make: Callable[[], Attributes]) -> Tags:
        """Attributes by what they follow from."""
        return self._tags.get(key, lambda: Tags(make()))

    def identity(self, workload: WorkloadAttribution) -> WorkloadIdentity:
        """Of workloads that are told under the same attributes, it is the same object."""
        key, ref, names = _key(workload), workload.ref, workload.names
        found = self._named.get(key, lambda: (ref, names, WorkloadIdentity.of(ref, names)))
        identity = found[2]
        if (found[0] is not ref and found[0] != ref) or (found[1] is not names and found[1] != names):
            identity = WorkloadIdentity.of(ref, names)
            self._named.put(key, (ref, names, identity))
        return self._identities.get(identity, lambda: identity)

    def stranger(self, ref: WorkloadRef) -> WorkloadIdentity:
        """Who is told of as a process only."""
        identity = WorkloadIdentity.of(ref, None)
        return self._identities.get(identity, lambda: identity)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a collection reads. Made once for a cycle, so that no instrument has to look anything up."""

    attribution: Attribution
    stats: SelfStats
    currency: str
    devices: tuple[Device, ...]
    workloads: tuple[Row[WorkloadGpu], ...]
    processes: tuple[Row[ProcessAttribution], ...]
    agent: Tags = field(default_factory=lambda: Tags({}))

    @classmethod
    def of(
        cls,
        attribution: Attribution,
        stats: SelfStats,
        *,
        currency: str = "",
        process_level: bool = True,
        held_too: bool = False,
        layout: Layout | None = None,
    ) -> Reading:
        """Lay out a cycle; ``currency`` is that of its costs. Who is held back has rows only ``held_too``.

        ``layout`` is what earlier cycles have left.
        """
        layout = layout or Layout()
        layout.begin()
        devices = {gpu.identity.uuid: _device(gpu, layout) for gpu in attribution.gpus}
        told = [workload for workload in attribution.workloads if held_too or not workload.held]
        identities = {_key(workload): layout.identity(workload) for workload in told}
        held = {_key(workload) for workload in attribution.workloads if workload.held and not held_too}
        processes = attribution.processes if process_level else ()
        reading = cls(
            attribution=attribution,
            stats=stats,
            currency=currency,
            devices=tuple(devices.values()),
            workloads=tuple(_workload_rows(told, identities, devices, layout)),
            processes=tuple(
                _process_rows((p for p in processes if _owner(p) not in held), identities, devices, layout)
            ),
            agent=layout.agent,
        )
        layout.end()
        return reading


def _key(workload: WorkloadAttribution) -> _WorkloadKey:
    return *workload.ref.key, workload.naming


def _owner(process: ProcessAttribution) -> _WorkloadKey:
    return *process.workload.key, process.naming


def _device(gpu: GpuAttribution, layout: Layout) -> Device:
    counted, identity = gpu.counted, gpu.identity
    attributes = layout.tags(
        (identity.uuid, identity.index), lambda: {"hw.id": identity.uuid, "gpu.index": str(identity.index)}
    )
    profiles = {"": ""} | {mig.uuid: mig.profile or "" for mig in gpu.mig or ()}

    def place(uuid: str, profile: str) -> Tags:
        key = (identity.uuid, identity.index, uuid, profile)
        return layout.tags(key, lambda: {**attributes, "gpu.mig.uuid": uuid, "gpu.mig.profile": profile})

    return Device(
        gpu=gpu,
        attributes=attributes,
        places={uuid: place(uuid, profile) for uuid, profile in profiles.items()},
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


def _row(identity: WorkloadIdentity, own: _Own, use: Use, devices: Mapping[str, Device], layout: Layout) -> Row[Use]:
    device, totals = devices.get(use.gpu_uuid), use.totals
    key = (use.gpu_uuid, use.gpu_index, use.mig_uuid, use.mig_profile, own)
    tells_energy = device is not None and device.tells_energy
    tells_work = device is not None and device.tells_work
    return Row(
        identity,
        layout.tags(key, lambda: {**_place(use), **dict(own)}),
        use,
        tells_energy=totals is not None and (tells_energy or bool(totals.energy.total_mj)),
        tells_work=tells_work or (totals is not None and totals.compute_us > 0),
        watched=device is None or device.gpu.reading.health is not GpuHealth.PAUSED,
    )


def _workload_rows(
    workloads: Iterable[WorkloadAttribution],
    identities: Mapping[_WorkloadKey, WorkloadIdentity],
    devices: Mapping[str, Device],
    layout: Layout,
) -> Iterator[Row[WorkloadGpu]]:
    """One row per series: renamed and renamed back within the retention, only the newest is told."""
    newest: dict[tuple[int, str, str | None], Row[WorkloadGpu]] = {}
    for workload in sorted(workloads, key=lambda workload: workload.naming):
        identity = identities[_key(workload)]
        own = _OVERFLOW if workload.ref == OVERFLOW_WORKLOAD else ()
        for part in workload.gpus:
            newest[id(identity), part.gpu_uuid, part.mig_uuid] = _row(identity, own, part, devices, layout)
    yield from newest.values()


def _process_rows(
    processes: Iterable[ProcessAttribution],
    identities: Mapping[_WorkloadKey, WorkloadIdentity],
    devices: Mapping[str, Device],
    layout: Layout,
) -> Iterator[Row[ProcessAttribution]]:
    """One row per series: of two processes with one pid, name and place, only the younger is told."""
    newest: dict[tuple[int, int, str, str, str | None], Row[ProcessAttribution]] = {}
    strangers: dict[_WorkloadKey, WorkloadIdentity] = {}
    for process in sorted(processes, key=lambda process: (process.naming, process.key.start_ticks)):
        owner = _owner(process)
        identity = identities.get(owner) or strangers.get(owner)
        if identity is None:
            identity = strangers[owner] = layout.stranger(process.workload)
        pid, name = process.key.pid, process.name or ""
        own: _Own = (("process.pid", pid), ("process.executable.name", name))
        if process.key == OVERFLOW_PROCESS:
            own += _OVERFLOW
        row = _row(identity, own, process, devices, layout)
        newest[id(identity), pid, name, process.gpu_uuid, process.mig_uuid] = row
    yield from newest.values()
