"""One GPU from cycle to cycle: who is on it, who holds its memory, who worked, and who gets its energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self

from otel_gpu.attribution.baseline import Baseline
from otel_gpu.attribution.compute import ComputeRows, ComputeWindow
from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.cycle_shown import GpuCycle
from otel_gpu.attribution.energy import Division, EnergyDivider, Interval
from otel_gpu.attribution.holdings import Holdings, unexplained_bytes
from otel_gpu.attribution.learned import LearnedPower
from otel_gpu.attribution.memory import Oddities
from otel_gpu.attribution.meter import EnergyMeter, Metered
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.attribution.places import ProcessAt, WorkloadAt
from otel_gpu.attribution.plain import resident_from, resident_state
from otel_gpu.attribution.presence import UNEXPLAINED_BYTES, Presence, Resident, same_processes
from otel_gpu.attribution.span import PRESENCE_UNKNOWN, QuietParties, Span
from otel_gpu.model import GpuReading, MemorySplit, ProcessKey
from otel_gpu.model.made import maker

NO_GRANTS: Final[Mapping[WorkloadAt, float]] = MappingProxyType({})


_interval: Final = maker(Interval)


class GpuTracker:
    """All that is remembered of one GPU between cycles."""

    __slots__ = (
        "_baseline",
        "_divider",
        "_here",
        "_holdings",
        "_learned",
        "_learns",
        "_oddities",
        "_quiet_parties",
        "_rows",
        "_span",
        "meter",
        "presence",
    )

    def __init__(self, options: AttributionOptions) -> None:
        self._learns = options.energy_model is EnergyModel.LEARNED
        self.presence = Presence()
        self._rows = ComputeRows()
        self.meter = EnergyMeter()
        self._baseline = Baseline(options.assumed_idle_fraction)
        self._learned = LearnedPower()
        self._divider = EnergyDivider(options.energy_policy)
        self._holdings = Holdings()
        self._oddities = Oddities()
        self._here: Mapping[ProcessAt, Resident] = {}
        self._span = Span()
        self._quiet_parties = QuietParties()

    def observe(
        self,
        reading: GpuReading,
        now: Mapping[ProcessAt, Resident],
        owners: Mapping[ProcessAt, WorkloadAt],
        cycle: Cycle,
        *,
        granted: Mapping[WorkloadAt, float] = NO_GRANTS,
        visited: bool = False,
    ) -> GpuCycle:
        """Take in a cycle's reading, with who is on the GPU ``now``.

        ``owners`` are the workloads that those without a figure of memory are booked to.
        ``granted`` are workloads that were given the GPU and have nobody in sight, with their age in seconds.
        ``visited`` says that somebody came and went since the last cycle.
        """
        metered = self.meter.read(reading)
        memory, hidden = self._holdings.observe(reading, now, self._here, owners, cycle, granted=granted)
        compute = self._rows.observe(reading.utilization, cycle.window_us)
        strangers = unexplained_bytes(memory) >= UNEXPLAINED_BYTES or (not cycle.infers and _cannot_tell(memory))
        lists_told = _lists_told(reading)
        known = lists_told and cycle.complete
        self._add_to_span(now, compute, cycle, strangers=strangers or visited, known=known)
        inferred = {
            at: held.bytes
            for parts in hidden.values()
            for at, held in parts.inferred.items()
            if isinstance(at, ProcessAt)
        }
        crowded = not cycle.infers and (strangers or self._span.strangers)
        division = None
        if metered is not None:
            division = self._divide(metered, reading, inferred, known=known, crowded=crowded)
        if metered is not None or self._span.duration_us == 0 or self.meter.is_silent:
            self._span = Span(now.keys(), complete=known, strangers=strangers)
        # Missing from one poll is not gone: whoever /proc still shows is here until the ledger ends it.
        if same_processes(self._here, now):
            self._here = now
        else:
            missing = {at: r for at, r in self._here.items() if at not in now and cycle.alive(at)}
            self._here = {**missing, **now} if missing else now
        anomalies = self._oddities.of(reading) + (compute.anomalies if compute is not None else 0)
        if metered is not None and (metered.anomalous or metered.reset):
            anomalies += 1
        estimate = self._baseline.estimate()
        return GpuCycle(now, memory, hidden, compute, metered, division, estimate, anomalies, lists_told, crowded)

    def forget(self, ended: frozenset[ProcessAt]) -> None:
        """Drop what is remembered of processes that have ended."""
        self._learned.forget({at.key for at in ended})
        self._here = {at: resident for at, resident in self._here.items() if at not in ended}

    def gap(self, window_us: int, gone: Callable[[ProcessAt], bool] = lambda _: False) -> None:
        """The GPU did not answer for so long, or was not asked; whoever is ``gone`` from the books is from here."""
        self._rows.observe(None, window_us)
        self._span.gap(window_us)
        if ended := frozenset(filter(gone, self._here)):
            self.forget(ended)

    def be_away(self, window_us: int) -> None:
        """The agent did not run for so long."""
        self._rows.observe(None, window_us)
        self._span.be_away(window_us)

    # -- energy ---------------------------------------------------------------------

    def _add_to_span(
        self,
        now: Mapping[ProcessAt, Resident],
        compute: ComputeWindow | None,
        cycle: Cycle,
        *,
        strangers: bool,
        known: bool,
    ) -> None:
        if cycle.window_us <= 0 and not self._span.away:
            return
        here = self._here
        gone: dict[ProcessAt, Resident] = {}
        parts: dict[ProcessAt, float] = {}
        if not same_processes(here, now):
            gone = {at: resident for at, resident in here.items() if at not in now}
            parts = {at: _part(resident, cycle) for at, resident in now.items() if at not in here}
            parts |= {at: PRESENCE_UNKNOWN for at in gone if not cycle.alive(at)}
        present = {**now, **gone} if gone else now
        # A pid that was reused in the cycle speaks for whoever has it now.
        at_of: dict[int, ProcessAt] = {}
        if compute is not None and not compute.is_quiet:
            at_of = {at.key.pid: at for at in (*sorted(present), *now)} if gone else {at.key.pid: at for at in now}
        # Where one figure cannot be true the others' shares of the work are not known either.
        told = compute if compute is not None and not compute.untold else None
        work = told.work if told is not None else {}
        self._span.add(
            cycle.window_us,
            present,
            parts,
            {at_of[pid]: done.sm_us for pid, done in work.items() if pid in at_of} if told is not None else None,
            covered_us=told.covered_us if told is not None else 0,
            samples=told.samples if told is not None else 0,
            foreign_us=sum(done.sm_us for pid, done in work.items() if pid not in at_of),
            foreign=compute is not None and not compute.is_quiet and not compute.pids <= at_of.keys(),
            strangers=strangers,
            complete=known,
        )

    def _divide(
        self, metered: Metered, reading: GpuReading, inferred: Mapping[ProcessAt, int], *, known: bool, crowded: bool
    ) -> Division:
        span = self._span
        parties = span.parties(inferred, self._quiet_parties)
        # Of others who cannot be seen no more is known than that they did not work while these did.
        unseen_us = span.told_us - sum(party.sm_us or 0 for party in parties) if crowded else 0
        foreign_us = max(span.foreign_us, unseen_us)
        # Shares over the span, of the time that its figures of work speak of.
        told_us = max(1, span.told_us)
        shares: dict[ProcessKey, float] = {}  # of who worked: where MIG is switched, one can be at several places
        for party in parties:
            if party.sm_us:
                shares[party.at.key] = shares.get(party.at.key, 0.0) + party.sm_us / told_us
        utilization = sum(shares.values()) + foreign_us / told_us if span.told_us else None
        usable = not (metered.anomalous or metered.reset or span.away) and metered.duration_s > 0
        # A GPU whose users may be invisible teaches nothing about being idle: only what it may draw, and drew at least.
        if usable and (known or crowded):
            power_w = metered.delta_mj / 1000 / metered.duration_s
            seen = 0.0 if utilization is None and not parties else utilization
            self._baseline.observe(
                power_w=power_w,
                utilization=None if crowded else seen,
                resident=bool(parties) or span.strangers,
                power_limit_w=reading.power_limit_w,
                dt_s=metered.duration_s,
            )
        estimate = self._baseline.estimate()
        if usable and utilization is not None and not foreign_us and not crowded:
            self._learned.observe(
                shares,
                power_w=metered.delta_mj / 1000 / metered.duration_s,
                power_limit_w=reading.power_limit_w,
                held_w=estimate.held_w,
                samples=span.samples,
                dt_s=metered.duration_s,
                sm_clock_mhz=reading.sm_clock_mhz,
            )
        factors: dict[ProcessAt, float] = {}
        if self._learns and not crowded and self._learned.gate > 0:  # else all of them are 1
            by_key = self._learned.factors(shares)
            factors = {party.at: by_key.get(party.at.key, 1.0) for party in parties}
        interval = _interval(
            delta_mj=metered.delta_mj,
            duration_s=metered.duration_s,
            parties=parties,
            foreign_sm_us=foreign_us,
            alone=span.alone,
            strangers=span.strangers,
            held_w=estimate.held_w,
            anomalous=metered.anomalous,
            known=known,
            crowded=crowded,
            away=span.away,
        )
        return self._divider.divide(interval, factors)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All that is remembered, as plain data."""
        return {
            "rows": self._rows.to_state(),
            "meter": self.meter.to_state(),
            "baseline": self._baseline.to_state(),
            "learned": self._learned.to_state(),
            "divider": self._divider.to_state(),
            "holdings": self._holdings.to_state(),
            "here": [resident_state(resident) for _, resident in sorted(self._here.items())],
            "span": self._span.to_state(),
        }

    @classmethod
    def from_state(cls, options: AttributionOptions, data: Any, *, same_boot: bool) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave.

        After a reboot the counters start anew, and nobody is there who was: what was learnt of the GPU stands.
        """
        restored = cls(options)
        try:
            restored._baseline = Baseline.from_state(data["baseline"], options.assumed_idle_fraction)
            if same_boot:
                restored._rows = ComputeRows.from_state(data["rows"])
                restored.meter = EnergyMeter.from_state(data["meter"])
                restored._learned = LearnedPower.from_state(data["learned"])
                restored._divider.restore(data["divider"])
                restored._holdings = Holdings.from_state(data["holdings"])
                here = [resident_from(each) for each in data["here"]]
                restored._here = {resident.at: resident for resident in here}
                restored._span = Span.from_state(data["span"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not a state of a GPU") from error
        return restored


def _part(resident: Resident, cycle: Cycle) -> float:
    """The part of the cycle that somebody was there who has come in it."""
    window_s = cycle.window_us / 1e6
    age_s = cycle.wall_s - resident.start_time_s if resident.start_time_s is not None else window_s
    return age_s / window_s if 0 <= age_s < window_s else PRESENCE_UNKNOWN


def _cannot_tell(memory: Mapping[str, MemorySplit | None]) -> bool:
    """Whether memory does not show if others are there: none is told, or the GPU is divided among instances.

    An agent in a container sees the instances that the container was given, and the energy of the whole GPU.
    """
    return memory.get("") is None or len(memory) > 1


def _lists_told(reading: GpuReading) -> bool:
    """Whether everybody who is listed at all could be read; under MIG, the lists of every instance."""
    if reading.mig is None:
        return reading.processes is not None
    return all(mig.processes is not None for mig in reading.mig)
