"""From the books and one cycle's figures to the frozen Attribution that everybody reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.hidden import HiddenSplit
from otel_gpu.attribution.ledger import DeviceSums, Ledger
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.places import Place, ProcessLine, WorkloadAt, WorkloadLine, workload_at
from otel_gpu.attribution.shown import GpuBooks, Shown
from otel_gpu.attribution.tracker import GpuCycle
from otel_gpu.model import (
    START_UNKNOWN,
    Attribution,
    DeviceTotals,
    EnergyBasis,
    EnergySplit,
    GpuAttribution,
    GpuReading,
    GpuState,
    Grant,
    MethodEnergy,
    MigAttribution,
    ProcessAttribution,
    Snapshot,
    WorkloadAttribution,
    WorkloadGpu,
    WorkloadRef,
)
from otel_gpu.model.result import NO_ENERGY

Figure = TypeVar("Figure", int, float)


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU in this cycle; ``cycle`` is ``None`` where it did not answer."""

    reading: GpuReading
    cycle: GpuCycle | None
    books: GpuBooks
    energy_source: str


_Identity = tuple[str, str, int]
"""A workload under one of the names it had: its kind, id and the number of its names."""


@dataclass(frozen=True, slots=True)
class _Order:
    """The lines of the books in the order in which they are told, while there are no others: see ``Lines.changes``."""

    changes: tuple[int, int]
    processes: list[tuple[ProcessLine, Entry]]
    workloads: list[tuple[_Identity, list[tuple[WorkloadLine, Entry]]]]


class Composer:
    """Makes the answers of the cycles of one ledger. It remembers nothing but in which order its lines are told."""

    def __init__(self, ledger: Ledger, options: AttributionOptions) -> None:
        self._ledger = ledger
        self._options = options
        self._kept: _Order | None = None

    def compose(
        self, snapshot: Snapshot, views: tuple[GpuView, ...], *, window_s: float | None, anomalies: int
    ) -> Attribution:
        """The answer of this cycle: everybody who is there, and who ended within the retention."""
        ledger, order = self._ledger, self._order()
        errors_mj = ledger.energy_errors_mj()
        scenes = _Scenes(ledger, views)
        return Attribution(
            wall_ns=snapshot.wall_ns,
            monotonic_ns=snapshot.monotonic_ns,
            window_s=window_s,
            gpus=tuple(_gpu(view, ledger, self._options, errors_mj) for view in views),
            workloads=self._workloads(order, scenes, snapshot),
            processes=self._processes(order, scenes),
            sources=snapshot.sources,
            driver=snapshot.driver,
            anomalies=anomalies,
            epoch_ns=ledger.epoch_ns,
        )

    def _order(self) -> _Order:
        processes, workloads = self._ledger.processes, self._ledger.workloads
        changes = (processes.changes, workloads.changes)
        if self._kept is None or self._kept.changes != changes:
            by_place = sorted(processes.entries.items(), key=lambda item: (item[0].at.place, item[0]))
            by_identity: dict[_Identity, list[tuple[WorkloadLine, Entry]]] = {}
            for line, entry in sorted(workloads.entries.items()):
                by_identity.setdefault((line.at.kind, line.at.id, line.naming), []).append((line, entry))
            self._kept = _Order(changes, by_place, sorted(by_identity.items()))
        return self._kept

    def _processes(self, order: _Order, scenes: _Scenes) -> tuple[ProcessAttribution, ...]:
        told = []
        for line, entry in order.processes:
            told.append(_process(line, entry, scenes[line.at.place.gpu_uuid]))
        return tuple(told)

    def _workloads(self, order: _Order, scenes: _Scenes, snapshot: Snapshot) -> tuple[WorkloadAttribution, ...]:
        ledger, namings, prices = self._ledger, self._ledger.namings, self._options.prices
        shares = {_at(grant): grant.share for grant in snapshot.grants if not grant.possible}
        told = []
        for (_, _, naming), lines in order.workloads:
            parts = []
            for line, entry in lines:
                allocation = 0.0 if entry.ended_ns is not None else shares.get(line.at) if shares else None
                scene = scenes[line.at.place.gpu_uuid]
                parts.append(_workload_gpu(line, entry, scene, prices=prices, allocation=allocation))
            ref = lines[-1][1].ref
            names, held = namings.names(ref, naming), namings.waiting(ref)
            told.append(WorkloadAttribution(ref, names, tuple(parts), naming, held))
        return (*told, *_possible(ledger, snapshot))


# ---------------------------------------------------------------------------- GPUs


def _gpu(view: GpuView, ledger: Ledger, options: AttributionOptions, errors_mj: Mapping[str, int]) -> GpuAttribution:
    cycle, reading = view.cycle, view.reading
    sums = ledger.device(reading.identity.uuid)
    mig = None
    if reading.mig is not None:
        mig = tuple(
            MigAttribution(m.uuid, m.profile, cycle.memory[m.uuid] if cycle is not None else None) for m in reading.mig
        )
    return GpuAttribution(
        reading=reading,
        memory=cycle.memory[""] if cycle is not None else None,
        energy=_energy(cycle),
        mig=mig,
        totals=DeviceTotals(sums.attributed_mj, sums.idle_mj, sums.unattributed_mj),
        basis=_basis(view, options),
        energy_error_mj=errors_mj[reading.identity.uuid],
    )


def _energy(cycle: GpuCycle | None) -> EnergySplit | None:
    if cycle is None or cycle.metered is None or cycle.division is None:
        return None
    division = cycle.division
    return EnergySplit(
        delta_mj=cycle.metered.delta_mj,
        attributed_mj=sum(division.parts.values()),
        idle_mj=division.idle_mj,
        unattributed_mj=division.unattributed_mj,
    )


def _basis(view: GpuView, options: AttributionOptions) -> EnergyBasis | None:
    if view.cycle is None or view.cycle.baseline is None:
        return None
    estimate = view.cycle.baseline
    return EnergyBasis(
        source=view.energy_source,
        policy=options.energy_policy.value,
        model=options.energy_model.value,
        idle_w=estimate.idle_w,
        idle_origin=estimate.idle_origin.value,
        held_w=estimate.held_w,
        held_origin=estimate.held_origin.value,
    )


# ---------------------------------------------------------------------------- processes


def _process(line: ProcessLine, entry: Entry, scene: _Scene) -> ProcessAttribution:
    key, place = line.at
    device = scene.device
    return ProcessAttribution(
        key,
        entry.name,
        entry.start_time_s if key.start_ticks != START_UNKNOWN else None,
        entry.ref,
        place.gpu_uuid,
        place.mig_uuid or None,
        *_part(entry, scene),
        entry.sums.frozen(entry.since_ns),
        entry.ended_ns is None,
        line.naming,
        device.index,
        device.profiles.get(place.mig_uuid),
    )


# ---------------------------------------------------------------------------- lines


class _Scene:
    """One GPU in this cycle, and figures of those in its lists, by their number in its books.

    ``shown`` is empty for one that was not in the snapshot, and nothing has figures where a GPU did not answer.
    """

    __slots__ = ("bandwidth_ratios", "device", "hidden", "memory_bytes", "shown", "sm_ratios")

    def __init__(self, device: DeviceSums, view: GpuView | None) -> None:
        cycle = view.cycle if view is not None else None
        self.device = device
        self.shown: Mapping[Entry, Shown] = view.books.shown if view is not None else {}
        self.hidden: Mapping[str, HiddenSplit] = cycle.hidden if cycle is not None else {}
        self.memory_bytes: list[int | None] | None = None
        self.sm_ratios: list[float | None] | None = None
        self.bandwidth_ratios: list[float | None] | None = None
        if view is not None and cycle is not None:
            self.memory_bytes = view.books.memory_bytes
            if cycle.compute is not None:
                self.sm_ratios = cycle.compute.shares(view.books.pids)
                self.bandwidth_ratios = cycle.compute.bandwidth_shares(view.books.pids)


class _Scenes(dict[str, _Scene]):
    """Every GPU that a line is on, by its UUID."""

    def __init__(self, ledger: Ledger, views: Iterable[GpuView]) -> None:
        super().__init__()
        self._ledger = ledger
        for view in views:
            uuid = view.reading.identity.uuid
            self[uuid] = _Scene(ledger.device(uuid), view)

    def __missing__(self, uuid: str) -> _Scene:
        """A GPU that was not in the snapshot."""
        scene = self[uuid] = _Scene(self._ledger.device(uuid), None)
        return scene


_Part = tuple[int | None, float | None, float | None, MethodEnergy, GpuState | None, float | None, int | None]
"""What a line shows in this cycle: its memory, SM and bandwidth ratios, energy, state, idle seconds and idle bytes."""


def _part(entry: Entry, scene: _Scene) -> _Part:
    """Who has ended holds and does nothing; who was not seen, nobody knows."""
    shown = scene.shown.get(entry)
    energy = shown.energy if shown is not None else NO_ENERGY
    if entry.ended_ns is not None:
        return 0, 0.0, 0.0, energy, None, None, None
    if shown is None:
        return None, None, None, energy, None, None, None
    state, idle_s, _ = shown.step or _UNDECIDED
    members = shown.members
    if scene.memory_bytes is None or not members:
        return None, None, None, energy, state, idle_s, None
    idle_bytes = shown.held_bytes if state is _IDLE else 0
    memory_bytes, sm_ratios, bandwidth_ratios = scene.memory_bytes, scene.sm_ratios, scene.bandwidth_ratios
    if len(members) == 1:
        number = members[0]
        return (
            memory_bytes[number],
            None if sm_ratios is None else sm_ratios[number],
            None if bandwidth_ratios is None else bandwidth_ratios[number],
            energy,
            state,
            idle_s,
            idle_bytes,
        )
    return (
        _sum_known(memory_bytes, members),
        None if sm_ratios is None else _sum_known(sm_ratios, members),
        None if bandwidth_ratios is None else _sum_known(bandwidth_ratios, members),
        energy,
        state,
        idle_s,
        idle_bytes,
    )


_IDLE: Final = GpuState.IDLE
_UNDECIDED: Final = (None, None, ())


def _sum_known(figures: Sequence[Figure | None], members: Sequence[int]) -> Figure | None:
    known = [figure for number in members if (figure := figures[number]) is not None]
    return sum(known[1:], start=known[0]) if known else None


# ---------------------------------------------------------------------------- workloads


def _possible(ledger: Ledger, snapshot: Snapshot) -> Iterator[WorkloadAttribution]:
    """Who could use a GPU and has never been seen there: that it could is all there is to tell."""
    possible = [grant for grant in snapshot.grants if grant.possible]
    if not possible:
        return
    profiles = {mig.uuid: mig.profile for gpu in snapshot.gpus for mig in gpu.mig or ()}
    there = {line.at for line in ledger.workloads.entries}
    could: dict[WorkloadRef, list[WorkloadGpu]] = {}
    for grant in possible:
        if _at(grant) not in there and grant.workload.key not in snapshot.names_pending:
            part = WorkloadGpu(
                gpu_uuid=grant.gpu_uuid,
                mig_uuid=grant.mig_uuid or None,
                measured_bytes=None,
                active=False,
                gpu_index=ledger.device(grant.gpu_uuid).index,
                mig_profile=profiles.get(grant.mig_uuid),
                possible=True,
            )
            could.setdefault(grant.workload, []).append(part)
    for ref, gpus in could.items():
        yield WorkloadAttribution(ref=ref, names=snapshot.names.get(ref.key), gpus=tuple(gpus))


def _at(grant: Grant) -> WorkloadAt:
    return workload_at(grant.workload, Place(grant.gpu_uuid, grant.mig_uuid))


def _workload_gpu(
    line: WorkloadLine,
    entry: Entry,
    scene: _Scene,
    *,
    prices: Prices | None,
    allocation: float | None,
) -> WorkloadGpu:
    place, device = line.at.place, scene.device
    memory_bytes, sm_ratio, bandwidth_ratio, energy, state, idle_s, idle_bytes = _part(entry, scene)
    totals = entry.sums.frozen(entry.since_ns)
    inferred_bytes, confidence = _inferred(line, entry, scene)
    return WorkloadGpu(
        place.gpu_uuid,
        place.mig_uuid or None,
        memory_bytes,
        inferred_bytes,
        confidence,
        sm_ratio,
        bandwidth_ratio,
        energy,
        state,
        idle_s,
        idle_bytes,
        totals,
        entry.ended_ns is None,
        () if prices is None else costs(totals, device.name, prices),
        device.index,
        device.profiles.get(place.mig_uuid),
        allocation,
    )


def _inferred(line: WorkloadLine, entry: Entry, scene: _Scene) -> tuple[int | None, float | None]:
    """Inferred bytes and how sure they are; no confidence where nobody of the workload is a candidate."""
    if entry.ended_ns is not None:
        return 0, None
    hidden = scene.hidden.get(line.at.place.mig_uuid)
    if hidden is None:
        return None, None
    held = hidden.workloads.get(line.at) if hidden.workloads else None
    return (0, None) if held is None else (held.bytes, held.confidence)
