"""Who is told of in a cycle and under which attributes: laid out anew when somebody came, went or was renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.rows import Seats
from otel_gpu.metrics.tags import Attributes, Kept, Tags
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    GpuReport,
    ProcessReport,
    WorkloadGpu,
    WorkloadNames,
    WorkloadRef,
    WorkloadReport,
)

_WorkloadKey: TypeAlias = tuple[str, str, int]
_Own: TypeAlias = tuple[tuple[str, str | int | bool], ...]
"""Attributes of a row beside its place."""

_OVERFLOW: Final[_Own] = (("otel.metric.overflow", True),)

# What a layout follows from. Read by C, since it is read of everybody in every cycle.
_BASIS: Final = attrgetter("source", "policy", "model", "idle_origin", "held_origin")
_WHO: Final = attrgetter("ref", "names", "naming", "held")
_PLACE: Final = attrgetter("gpu_uuid", "gpu_index", "mig_uuid", "mig_profile")
_PROCESS: Final = attrgetter("key", "name", "workload", "naming", "gpu_uuid", "gpu_index", "mig_uuid", "mig_profile")


class DeviceTags(NamedTuple):
    """The attributes of a GPU, and those of its places as ``Device`` has them.

    ``basis`` is what the division of its energy rests on, as far as that is told in attributes.
    """

    name: str
    attributes: Tags
    places: Mapping[str, Tags]
    basis: tuple[str, ...] | None


class Told(NamedTuple):
    """Which of all uses are rows, in this order, and who sits there."""

    numbers: tuple[int, ...]
    seats: Seats


class Plan(NamedTuple):
    """A cycle laid out; numbers of workloads count the parts of all of them, one after the other.

    Its GPUs are the same object while there are the same.
    """

    devices: tuple[DeviceTags, ...]
    workloads: Told
    processes: Told


class Layout:
    """What cycles laid out one after the other have in common: the names of those who are still there."""

    def __init__(self) -> None:
        self._tags: Kept[tuple[object, ...], Tags] = Kept()
        self._named: Kept[_WorkloadKey, tuple[WorkloadRef, WorkloadNames | None, WorkloadIdentity]] = Kept()
        self._identities: Kept[WorkloadIdentity, WorkloadIdentity] = Kept()
        self._last: tuple[object, Plan] | None = None
        self._sources: tuple[str, ...] = ()
        self.agent = Tags({})

    def plan(
        self,
        gpus: Sequence[GpuReport],
        workloads: Sequence[WorkloadReport],
        processes: Sequence[ProcessReport],
        *,
        held_too: bool,
    ) -> Plan:
        """Lay out a cycle; who is held back has no row unless ``held_too``. Who is not in it is forgotten."""
        basis = (
            [_gpu(gpu) for gpu in gpus],
            list(map(_WHO, workloads)),
            [len(workload.gpus) for workload in workloads],
            [_PLACE(part) for workload in workloads for part in workload.gpus],
            list(map(_PROCESS, processes)),
            held_too,
        )
        if self._last is not None and basis == self._last[0]:
            return self._last[1]
        kept = (self._tags, self._named, self._identities)
        for each in kept:
            each.begin()
        told = [workload for workload in workloads if held_too or not workload.held]
        held = {_key(workload) for workload in workloads if workload.held and not held_too}
        identities = {_key(workload): self._identity(workload) for workload in told}
        before = None if self._last is None else self._last[1]
        devices = tuple(map(self._device, gpus))
        plan = Plan(
            devices if before is None or devices != before.devices else before.devices,
            self._workloads(workloads, identities, None if before is None else before.workloads.seats),
            self._processes(processes, identities, held, None if before is None else before.processes.seats),
        )
        for each in kept:
            each.end()
        self._last = basis, plan
        return plan

    def sources(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the agent's sources: the same object while they are the same."""
        if names != self._sources:
            self._sources = names
        return self._sources

    # -- attributes -----------------------------------------------------------------

    def _tags_of(self, key: tuple[object, ...], make: Callable[[], Attributes]) -> Tags:
        """Attributes by what they follow from."""
        return self._tags.get(key, lambda: Tags(make()))

    def _device(self, gpu: GpuReport) -> DeviceTags:
        identity = gpu.identity
        attributes = self._tags_of(
            (identity.uuid, identity.index), lambda: {"hw.id": identity.uuid, "gpu.index": str(identity.index)}
        )

        def place(uuid: str, profile: str) -> Tags:
            key = (identity.uuid, identity.index, uuid, profile)
            return self._tags_of(key, lambda: {**attributes, "gpu.mig.uuid": uuid, "gpu.mig.profile": profile})

        profiles = {"": ""} | {mig.uuid: mig.profile or "" for mig in gpu.mig or ()}
        places = {uuid: place(uuid, profile) for uuid, profile in profiles.items()}
        return DeviceTags(identity.name, attributes, places, None if gpu.basis is None else _BASIS(gpu.basis))

    def _place(self, use: WorkloadGpu | ProcessReport, own: _Own) -> Tags:
        """Where somebody is, or was: a GPU or an instance that does not answer, or has gone, keeps what names it."""

        def make() -> Attributes:
            return {
                "hw.id": use.gpu_uuid,
                "gpu.index": "" if use.gpu_index is None else str(use.gpu_index),
                "gpu.mig.uuid": use.mig_uuid or "",
                "gpu.mig.profile": use.mig_profile or "",
                **dict(own),
            }

        return self._tags_of((use.gpu_uuid, use.gpu_index, use.mig_uuid, use.mig_profile, own), make)

    # -- identities -----------------------------------------------------------------

    def _identity(self, workload: WorkloadReport) -> WorkloadIdentity:
        """Of workloads that are told under the same attributes, it is the same object."""
        key, ref, names = _key(workload), workload.ref, workload.names
        found = self._named.get(key, lambda: (ref, names, WorkloadIdentity.of(ref, names)))
        identity = found[2]
        if (found[0] is not ref and found[0] != ref) or (found[1] is not names and found[1] != names):
            identity = WorkloadIdentity.of(ref, names)
            self._named.put(key, (ref, names, identity))
        return self._identities.get(identity, lambda: identity)

    def _stranger(self, ref: WorkloadRef) -> WorkloadIdentity:
        """Who is told of as a process only."""
        identity = WorkloadIdentity.of(ref, None)
        return self._identities.get(identity, lambda: identity)

    # -- rows -----------------------------------------------------------------------

    def _workloads(
        self,
        workloads: Iterable[WorkloadReport],
        identities: Mapping[_WorkloadKey, WorkloadIdentity],
        last: Seats | None,
    ) -> Told:
        """One row per series: renamed and renamed back within the retention, only the newest is told."""
        numbered, count = [], 0
        for workload in workloads:
            numbered.append((workload, count))
            count += len(workload.gpus)
        newest: dict[tuple[int, str, str | None], tuple[int, WorkloadIdentity, Tags]] = {}
        for workload, first in sorted(numbered, key=lambda each: each[0].naming):
            identity = identities.get(_key(workload))
            if identity is None:
                continue
            own = _OVERFLOW if workload.ref == OVERFLOW_WORKLOAD else ()
            for number, part in enumerate(workload.gpus, first):
                found = number, identity, self._place(part, own)
                newest[id(identity), part.gpu_uuid, part.mig_uuid] = found
        return _told(newest.values(), last)

    def _processes(
        self,
        processes: Iterable[ProcessReport],
        identities: Mapping[_WorkloadKey, WorkloadIdentity],
        held: set[_WorkloadKey],
        last: Seats | None,
    ) -> Told:
        """One row per series: of two processes with one pid, name and place, only the younger is told."""
        newest: dict[tuple[int, int, str, str, str | None], tuple[int, WorkloadIdentity, Tags]] = {}
        strangers: dict[_WorkloadKey, WorkloadIdentity] = {}
        in_turn = sorted(enumerate(processes), key=lambda each: (each[1].naming, each[1].key.start_ticks))
        for number, process in in_turn:
            owner = _owner(process)
            if owner in held:
                continue
            identity = identities.get(owner) or strangers.get(owner)
            if identity is None:
                identity = strangers[owner] = self._stranger(process.workload)
            pid, name = process.key.pid, process.name or ""
            own: _Own = (("process.pid", pid), ("process.executable.name", name))
            if process.key == OVERFLOW_PROCESS:
                own += _OVERFLOW
            found = number, identity, self._place(process, own)
            newest[id(identity), pid, name, process.gpu_uuid, process.mig_uuid] = found
        return _told(newest.values(), last)


def _told(found: Iterable[tuple[int, WorkloadIdentity, Tags]], last: Seats | None) -> Told:
    """Rows by number; in the seats that the last cycle had, if the same sit there."""
    numbers, identities, attributes = zip(*found, strict=True) if (found := tuple(found)) else ((), (), ())
    if last is not None and _same(identities, last.identities) and _same(attributes, last.attributes):
        return Told(numbers, last)
    return Told(numbers, Seats(identities, attributes))


def _same(these: tuple[object, ...], those: tuple[object, ...]) -> bool:
    """Whether they are the same objects."""
    return list(map(id, these)) == list(map(id, those))


def _gpu(gpu: GpuReport) -> tuple[object, ...]:
    identity = gpu.identity
    instances = gpu.mig and [(mig.uuid, mig.profile) for mig in gpu.mig]
    return identity.uuid, identity.index, identity.name, instances, gpu.basis and _BASIS(gpu.basis)


def _key(workload: WorkloadReport) -> _WorkloadKey:
    return *workload.ref.key, workload.naming


def _owner(process: ProcessReport) -> _WorkloadKey:
    return *process.workload.key, process.naming
