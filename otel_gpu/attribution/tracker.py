"""One GPU from cycle to cycle: who is on it, who holds its memory, who worked, and who gets its energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_gpu.attribution.baseline import Baseline, BaselineEstimate
from otel_gpu.attribution.compute import ComputeRows, ComputeWindow
from otel_gpu.attribution.energy import Division, EnergyDivider, Interval
from otel_gpu.attribution.hidden import Candidate, Evidence, HiddenMemory, HiddenSplit
from otel_gpu.attribution.learned import LearnedPower
from otel_gpu.attribution.memory import split
from otel_gpu.attribution.meter import EnergyMeter, Metered
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.attribution.places import ProcessAt, workload_at
from otel_gpu.attribution.presence import UNEXPLAINED_BYTES, Resident, residents
from otel_gpu.attribution.span import PRESENCE_UNKNOWN, Span
from otel_gpu.model import DeviceMemory, GpuReading, MemorySplit, ProcessFacts


@dataclass(frozen=True, slots=True)
class Cycle:
    """When a cycle was. ``window_us`` is 0 for the first; ``complete`` is false where pids may be invisible."""

    wall_s: float
    now_s: float
    window_us: int
    complete: bool


@dataclass(frozen=True, slots=True)
class GpuCycle:
    """What one cycle showed of one GPU. ``memory`` and ``hidden`` are by MIG instance, "" for the GPU itself."""

    residents: Mapping[ProcessAt, Resident]
    memory: Mapping[str, MemorySplit | None]
    hidden: Mapping[str, HiddenSplit]
    compute: ComputeWindow | None
    metered: Metered | None
    division: Division | None
    baseline: BaselineEstimate | None
    anomalies: int


class GpuTracker:
    """All that is remembered of one GPU between cycles."""

    def __init__(self, options: AttributionOptions) -> None:
        self._options = options
        self._rows = ComputeRows()
        self.meter = EnergyMeter()
        self._baseline = Baseline(options.assumed_idle_fraction)
        self._learned = LearnedPower()
        self._divider = EnergyDivider(options.energy_policy)
        self._hidden: dict[str, HiddenMemory] = {}
        self._here: dict[ProcessAt, Resident] = {}
        self._span = Span()

    def observe(self, reading: GpuReading, processes: Mapping[int, ProcessFacts], cycle: Cycle) -> GpuCycle:
        """Take in a cycle's reading."""
        now = {resident.at: resident for resident in residents(reading, processes)}
        memory, hidden = self._memory(reading, now, cycle)
        compute = self._rows.observe(reading.utilization, cycle.window_us)
        strangers = sum(parts.unattributed_bytes for parts in memory.values() if parts is not None) >= UNEXPLAINED_BYTES
        self._add_to_span(now, processes, compute, cycle, strangers=strangers)
        inferred = {
            at: held.bytes
            for parts in hidden.values()
            for at, held in parts.inferred.items()
            if isinstance(at, ProcessAt)
        }
        metered = self.meter.read(reading)
        lists_told = reading.processes is not None or reading.mig is not None
        known = lists_told and cycle.complete
        division = self._divide(metered, reading, inferred, known=known) if metered is not None else None
        if metered is not None or self._span.duration_us == 0:
            self._span = Span(now.values(), complete=cycle.complete)
        # Missing from one poll is not gone: whoever /proc still shows is here until the ledger ends it.
        missing = {at: r for at, r in self._here.items() if at not in now and _alive(at, processes)}
        self._here = missing | now
        anomalies = (compute.anomalies if compute is not None else 0) + (
            metered is not None and (metered.anomalous or metered.reset)
        )
        estimate = self._baseline.estimate()
        return GpuCycle(now, memory, hidden, compute, metered, division, estimate, anomalies)

    def forget(self, ended: frozenset[ProcessAt]) -> None:
        """Drop what is remembered of processes that have ended."""
        self._learned.forget({at.key for at in ended})
        self._here = {at: resident for at, resident in self._here.items() if at not in ended}

    def gap(self, cycle: Cycle) -> None:
        """The GPU did not answer in this cycle."""
        self._rows.observe(None, cycle.window_us)
        self._span.gap(cycle.window_us)

    # -- memory ---------------------------------------------------------------------

    def _memory(
        self, reading: GpuReading, now: Mapping[ProcessAt, Resident], cycle: Cycle
    ) -> tuple[dict[str, MemorySplit | None], dict[str, HiddenSplit]]:
        devices: dict[str, DeviceMemory | None] = {"": reading.memory}
        devices |= {mig.uuid: mig.memory for mig in reading.mig or ()}
        memory: dict[str, MemorySplit | None] = {}
        hidden: dict[str, HiddenSplit] = {}
        for place, device in devices.items():
            # The GPU's own split speaks of all its instances together; nothing is inferred twice.
            members = [r for r in now.values() if place in ("", r.at.place.mig_uuid)]
            parts = split(device, (resident.memory_bytes for resident in members))
            if parts is not None and (place or reading.mig is None):
                hidden[place] = self._infer(place, parts.unattributed_bytes, members, cycle)
                parts = _with_inferred(parts, hidden[place])
            memory[place] = parts
        if reading.mig is not None and (whole := memory[""]) is not None:
            inferred = sum(h.bytes for parts in hidden.values() for h in parts.inferred.values())
            moved = min(inferred, whole.unattributed_bytes)
            memory[""] = _moved(whole, moved)
        self._hidden = {place: state for place, state in self._hidden.items() if place in devices}
        return memory, hidden

    def _infer(self, place: str, unknown_bytes: int, members: list[Resident], cycle: Cycle) -> HiddenSplit:
        state = self._hidden.setdefault(place, HiddenMemory())
        arrivals = sum(1 for r in members if r.memory_bytes is not None and r.at not in self._here)
        present = {resident.at for resident in members}
        departures = sum(
            1
            for at, before in self._here.items()
            if before.memory_bytes is not None and at.place.mig_uuid == place and at not in present
        )
        return state.observe(
            unknown_bytes=unknown_bytes,
            candidates=[_candidate(resident, cycle) for resident in members if resident.memory_bytes is None],
            visible_arrivals=arrivals,
            visible_departures=departures,
            now_s=cycle.now_s,
        )

    # -- energy ---------------------------------------------------------------------

    def _add_to_span(
        self,
        now: Mapping[ProcessAt, Resident],
        processes: Mapping[int, ProcessFacts],
        compute: ComputeWindow | None,
        cycle: Cycle,
        *,
        strangers: bool,
    ) -> None:
        if cycle.window_us <= 0:
            return
        present = {at: (resident, self._part(resident, cycle)) for at, resident in now.items()}
        for at, resident in self._here.items():
            if at not in present:
                present[at] = (resident, 1.0 if _alive(at, processes) else PRESENCE_UNKNOWN)
        work_us = None
        foreign_us = 0
        at_of: dict[int, ProcessAt] = {}
        if compute is not None:
            # A pid that was reused in the cycle speaks for whoever has it now.
            at_of = {at.key.pid: at for at in (*present, *now)}
            work_us = {at_of[pid]: work.sm_us for pid, work in compute.work.items() if pid in at_of}
            foreign_us = sum(work.sm_us for pid, work in compute.work.items() if pid not in at_of)
        self._span.add(
            cycle.window_us,
            present,
            work_us,
            covered_us=compute.covered_us if compute is not None else 0,
            samples=compute.samples if compute is not None else 0,
            foreign_us=foreign_us,
            foreign=compute is not None and any(pid not in at_of for pid in compute.work),
            strangers=strangers,
            complete=cycle.complete,
        )

    def _part(self, resident: Resident, cycle: Cycle) -> float:
        """The part of the cycle that somebody was there who is there now."""
        if resident.at in self._here:
            return 1.0
        window_s = cycle.window_us / 1e6
        age_s = cycle.wall_s - resident.start_time_s if resident.start_time_s is not None else window_s
        return age_s / window_s if 0 <= age_s < window_s else PRESENCE_UNKNOWN

    def _divide(
        self, metered: Metered, reading: GpuReading, inferred: Mapping[ProcessAt, int], *, known: bool
    ) -> Division:
        span = self._span
        parties = span.parties(inferred)
        # Shares over the span, of the time that its figures of work speak of.
        told = [party for party in parties if party.sm_us is not None]
        told_us = max(1, span.told_us)
        shares = {party.at.key: (party.sm_us or 0) / told_us for party in told}
        utilization = sum(shares.values()) + span.foreign_us / told_us if span.told_us else None
        usable = not metered.anomalous and not metered.reset and metered.duration_s > 0
        if usable and known:  # a GPU whose users may be invisible teaches nothing about being idle
            power_w = metered.delta_mj / 1000 / metered.duration_s
            self._baseline.observe(
                power_w=power_w,
                utilization=0.0 if utilization is None and not parties else utilization,
                resident=bool(parties) or span.strangers,
                power_limit_w=reading.power_limit_w,
                dt_s=metered.duration_s,
            )
        estimate = self._baseline.estimate()
        factors: dict[ProcessAt, float] = {}
        if usable and utilization is not None and not span.foreign_us:
            self._learned.observe(
                shares,
                power_w=metered.delta_mj / 1000 / metered.duration_s,
                power_limit_w=reading.power_limit_w,
                held_w=estimate.held_w,
                samples=span.samples,
                dt_s=metered.duration_s,
            )
        if self._options.energy_model is EnergyModel.LEARNED:
            by_key = self._learned.factors(shares)
            factors = {party.at: by_key.get(party.at.key, 1.0) for party in parties}
        interval = Interval(
            delta_mj=metered.delta_mj,
            duration_s=metered.duration_s,
            parties=parties,
            foreign_sm_us=span.foreign_us,
            alone=span.alone,
            strangers=span.strangers,
            held_w=estimate.held_w,
            anomalous=metered.anomalous,
            known=known,
        )
        return self._divider.divide(interval, factors)


def _alive(at: ProcessAt, processes: Mapping[int, ProcessFacts]) -> bool:
    facts = processes.get(at.key.pid)
    return facts is not None and facts.alive and facts.key == at.key


def _candidate(resident: Resident, cycle: Cycle) -> Candidate:
    started_s = resident.start_time_s
    return Candidate(
        id=resident.at,
        evidence=Evidence.NO_FIGURE if resident.listed else Evidence.DEVICE_OPEN,
        mapping_bytes=resident.mapping_bytes,
        age_s=max(0.0, cycle.wall_s - started_s) if started_s is not None else 0.0,
        workload=workload_at(resident.ref, resident.at.place),
    )


def _with_inferred(parts: MemorySplit, hidden: HiddenSplit) -> MemorySplit:
    return _moved(parts, parts.unattributed_bytes - hidden.unattributed_bytes)


def _moved(parts: MemorySplit, inferred_bytes: int) -> MemorySplit:
    """Count this much as inferred instead of unattributed."""
    return MemorySplit(
        parts.limit_bytes,
        parts.reserved_bytes,
        parts.measured_bytes,
        parts.overcount_bytes,
        parts.inferred_bytes + inferred_bytes,
        parts.unattributed_bytes - inferred_bytes,
        parts.free_bytes,
    )
