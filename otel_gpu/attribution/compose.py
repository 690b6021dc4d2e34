"""Builds the frozen Report of a cycle from the ledger and the cycle's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_gpu.attribution.baseline import BaselineEstimate, Origin
from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.cycle_shown import GpuCycle
from otel_gpu.attribution.energy import EnergyPolicy
from otel_gpu.attribution.hidden import HiddenSplit
from otel_gpu.attribution.ledger import DeviceSums, Ledger
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.attribution.order import Order
from otel_gpu.attribution.places import Place, WorkloadAt, workload_at
from otel_gpu.attribution.shown import GpuBooks, Shown
from otel_gpu.model import (
    DeviceTotals,
    EnergyBasis,
    EnergySplit,
    GpuReading,
    GpuReport,
    GpuState,
    Grant,
    MethodEnergy,
    MigReport,
    ProcessReport,
    Report,
    Snapshot,
    WorkloadGpu,
    WorkloadRef,
    WorkloadReport,
)
from otel_gpu.model.made import maker
from otel_gpu.model.report import NO_ENERGY


class GpuView(NamedTuple):
    """One GPU in this cycle; ``cycle`` is ``None`` where it did not answer."""

    reading: GpuReading
    cycle: GpuCycle | None
    books: GpuBooks
    energy_source: str


class Composer:
    """Makes the answers of the cycles of one ledger. It remembers in which order its lines are told, and what was told
    of them before only idle time and energy went on."""

    def __init__(self, ledger: Ledger, options: AttributionOptions) -> None:
        self._ledger = ledger
        self._options = options
        self._order = Order(ledger)
        self._bases: dict[str, tuple[BaselineEstimate, EnergyBasis]] = {}

    def compose(
        self,
        snapshot: Snapshot,
        views: tuple[GpuView, ...],
        *,
        window_s: float | None,
        anomalies: int,
    ) -> Report:
        """Build the report of this cycle: active workloads and processes, and those that ended within the retention."""
        ledger = self._ledger
        self._order.follow()
        scenes, errors_mj = _Scenes(ledger, views), ledger.energy_errors_mj()
        return Report(
            wall_ns=snapshot.wall_ns,
            monotonic_ns=snapshot.monotonic_ns,
            window_s=window_s,
            gpus=tuple([_gpu(view, ledger, self._basis(view), errors_mj) for view in views]),
            workloads=self._workloads(scenes, snapshot),
            processes=self._processes(scenes),
            sources=snapshot.sources,
            driver=snapshot.driver,
            anomalies=anomalies,
            epoch_ns=ledger.epoch_ns,
        )

    def _basis(self, view: GpuView) -> EnergyBasis | None:
        """The same object for as long as it rests on the same."""
        uuid = view.reading.identity.uuid
        estimate = None if view.cycle is None else view.cycle.baseline
        if estimate is None:
            return None
        known = self._bases.get(uuid)
        if known is not None and known[0] is estimate and known[1].source == view.energy_source:
            return known[1]
        basis = _energy_basis(
            view.energy_source,
            _TEXTS[self._options.energy_policy],
            _TEXTS[self._options.energy_model],
            estimate.idle_w,
            _TEXTS[estimate.idle_origin],
            estimate.held_w,
            _TEXTS[estimate.held_origin],
        )
        self._bases[uuid] = estimate, basis
        return basis

    def _processes(self, scenes: _Scenes) -> tuple[ProcessReport, ...]:
        told = []
        for (gpu_uuid, mig_uuid), lines in self._order.processes:
            scene = scenes[gpu_uuid]
            instance, index, profile = mig_uuid or None, scene.device.index, scene.device.profiles.get(mig_uuid)
            for entry, key, name, start_time_s, ref, naming in lines:
                part, totals = _part(entry, scene), entry.sums.frozen(entry.since_ns)
                active = entry.ended_ns is None
                told.append(
                    _process(
                        key, name, start_time_s, ref, gpu_uuid, instance, *part, totals, active, naming, index, profile
                    )
                )
        return tuple(told)

    def _workloads(self, scenes: _Scenes, snapshot: Snapshot) -> tuple[WorkloadReport, ...]:
        prices = self._options.prices
        shares = {_at(grant): grant.share for grant in snapshot.grants if not grant.possible}
        told = []
        for (ref, naming, lines), (names, held) in zip(self._order.workloads, self._order.names(), strict=True):
            parts = tuple([_part_of_gpu(line, scenes[line[1].gpu_uuid], shares, prices) for line in lines])
            told.append(_workload(ref, names, parts, naming, held))
        return (*told, *_possible(self._ledger, snapshot))


_TEXTS: Final[Mapping[str, str]] = {each: each.value for kind in (EnergyPolicy, EnergyModel, Origin) for each in kind}
_process: Final = maker(ProcessReport)
_workload: Final = maker(WorkloadReport)
_workload_gpu: Final = maker(WorkloadGpu)
_gpu_attribution: Final = maker(GpuReport)
_energy_split: Final = maker(EnergySplit)
_device_totals: Final = maker(DeviceTotals)
_energy_basis: Final = maker(EnergyBasis)


# ---------------------------------------------------------------------------- GPUs


def _gpu(view: GpuView, ledger: Ledger, basis: EnergyBasis | None, errors_mj: Mapping[str, int]) -> GpuReport:
    cycle, reading = view.cycle, view.reading
    sums = ledger.device(reading.identity.uuid)
    mig = None
    if reading.mig is not None:
        mig = tuple(
            MigReport(m.uuid, m.profile, cycle.memory[m.uuid] if cycle is not None else None) for m in reading.mig
        )
    return _gpu_attribution(
        reading,
        cycle.memory[""] if cycle is not None else None,
        _energy(cycle),
        mig,
        _device_totals(sums.attributed_mj, sums.idle_mj, sums.unattributed_mj),
        basis,
        errors_mj[reading.identity.uuid],
    )


def _energy(cycle: GpuCycle | None) -> EnergySplit | None:
    if cycle is None or cycle.metered is None or cycle.division is None:
        return None
    division = cycle.division
    return _energy_split(cycle.metered.delta_mj, division.attributed_mj, division.idle_mj, division.unattributed_mj)


# ---------------------------------------------------------------------------- lines


class _Scene:
    """One GPU in this cycle, and figures of those in its lists, by their number in its books.

    ``shown`` is empty for one that was not in the snapshot, and nothing has figures where a GPU did not answer.
    """

    __slots__ = ("answered", "bandwidth_ratios", "device", "hidden", "ratio", "shown", "sm_ratios")

    def __init__(self, device: DeviceSums, view: GpuView | None) -> None:
        cycle = view.cycle if view is not None else None
        self.device = device
        self.shown: Mapping[Entry, Shown] = view.books.shown if view is not None else {}
        self.hidden: Mapping[str, HiddenSplit] = cycle.hidden if cycle is not None else {}
        self.answered = cycle is not None
        self.ratio: float | None = None
        """Of everybody, of SMs and of bandwidth alike, where that is not told of each: nothing, or 0."""
        self.sm_ratios: list[float | None] | None = None
        self.bandwidth_ratios: list[float | None] | None = None
        if view is not None and cycle is not None and cycle.compute is not None:
            if cycle.compute.is_quiet:
                self.ratio = 0.0 if cycle.compute.covered_us else None
            else:
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
    state, idle_s, members = shown.state, shown.idle_s, shown.members
    if not scene.answered or not members:
        return None, None, None, energy, state, idle_s, None
    idle_bytes = shown.held_bytes if state is _IDLE else 0
    sm_ratios, bandwidth_ratios = scene.sm_ratios, scene.bandwidth_ratios
    if sm_ratios is None or bandwidth_ratios is None:
        return shown.memory_bytes, scene.ratio, scene.ratio, energy, state, idle_s, idle_bytes
    if len(members) == 1:
        number = members[0]
        sm_ratio, bandwidth_ratio = sm_ratios[number], bandwidth_ratios[number]
    else:
        sm_ratio, bandwidth_ratio = _sum_known(sm_ratios, members), _sum_known(bandwidth_ratios, members)
    return shown.memory_bytes, sm_ratio, bandwidth_ratio, energy, state, idle_s, idle_bytes


_IDLE: Final = GpuState.IDLE


def _sum_known(figures: Sequence[float | None], members: Sequence[int]) -> float | None:
    known = [figure for number in members if (figure := figures[number]) is not None]
    return sum(known[1:], start=known[0]) if known else None


# ---------------------------------------------------------------------------- workloads


def _possible(ledger: Ledger, snapshot: Snapshot) -> Iterator[WorkloadReport]:
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
        yield WorkloadReport(ref=ref, names=snapshot.names.get(ref.key), gpus=tuple(gpus))


def _at(grant: Grant) -> WorkloadAt:
    return workload_at(grant.workload, Place(grant.gpu_uuid, grant.mig_uuid))


def _part_of_gpu(
    line: tuple[WorkloadAt, Place, Entry],
    scene: _Scene,
    shares: Mapping[WorkloadAt, float | None],
    prices: Prices | None,
) -> WorkloadGpu:
    at, (gpu_uuid, mig_uuid), entry = line
    device, ended = scene.device, entry.ended_ns is not None
    memory_bytes, sm_ratio, bandwidth_ratio, energy, state, idle_s, idle_bytes = _part(entry, scene)
    totals = entry.sums.frozen(entry.since_ns)
    inferred_bytes, confidence = (0, None) if ended else _inferred(at, scene.hidden.get(mig_uuid))
    return _workload_gpu(
        gpu_uuid,
        mig_uuid or None,
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
        not ended,
        () if prices is None else costs(totals, device.name, prices),
        device.index,
        device.profiles.get(mig_uuid),
        0.0 if ended else shares.get(at),
    )


def _inferred(at: WorkloadAt, hidden: HiddenSplit | None) -> tuple[int | None, float | None]:
    """Inferred bytes and how sure they are; no confidence where nobody of the workload is a candidate."""
    if hidden is None:
        return None, None
    held = hidden.workloads.get(at) if hidden.workloads else None
    return (0, None) if held is None else (held.bytes, held.confidence)
