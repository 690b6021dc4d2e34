"""One GPU from cycle to cycle: how its memory divides, which processes worked, and how its energy divides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.energy import Consumer, Division, EnergyDivider, Interval
from otel_gpu.attribution.interval import PRESENCE_UNKNOWN, EnergyMeter, IntervalBuilder, Metered
from otel_gpu.attribution.keys import ProcessOnDevice, WorkloadOnDevice
from otel_gpu.attribution.memory import MemoryResult, MemoryTracker
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.attribution.power.baseline import Baseline, BaselineEstimate
from otel_gpu.attribution.power.learned import LearnedPower
from otel_gpu.attribution.residents import MAX_BYTES, UNEXPLAINED_BYTES, Resident, Residents, ShortLivedProcess
from otel_gpu.attribution.saved_values import restoring
from otel_gpu.attribution.utilization import ComputeWindow, UtilizationRows
from otel_gpu.model import DeviceMemory, GpuReading, ProcessKey

_NO_GRANTS: Final[Mapping[WorkloadOnDevice, float]] = MappingProxyType({})


class Visibility(NamedTuple):
    """What one cycle shows of the users of a GPU.

    ``lists_read`` is false where a process list could not be read, and ``lists_complete`` also where the driver may
    leave processes out. ``has_unexplained_memory``: memory is in use that neither lists nor evidence explain, so there
    are further users. ``may_have_unseen_users``: processes that the agent cannot see may have used the GPU since the
    last division of its energy; their number and work are unknown.
    """

    lists_read: bool
    lists_complete: bool
    has_unexplained_memory: bool
    may_have_unseen_users: bool


class GpuResult(NamedTuple):
    """What one cycle showed of one GPU that answered."""

    reading: GpuReading
    residents: Residents
    memory: MemoryResult
    compute: ComputeWindow | None
    metered: Metered | None
    division: Division | None
    baseline: BaselineEstimate
    energy_source: str
    short_lived: Sequence[ShortLivedProcess]
    anomalies: int
    visibility: Visibility

    def held_bytes(self, at: ProcessOnDevice) -> int | None:
        """Memory of a process: the driver's figure, else the inferred one, else ``None``."""
        resident = self.residents.get(at)
        if resident is not None and resident.memory_bytes is not None:
            return resident.memory_bytes
        hidden = self.memory.hidden.get(at.device.mig_uuid)
        inferred = hidden.inferred.get(at) if hidden is not None else None
        return None if inferred is None else inferred.bytes


class GpuTracker:
    """All that is remembered of one GPU between cycles."""

    __slots__ = (
        "_baseline",
        "_divider",
        "_interval",
        "_learned",
        "_memory",
        "_meter",
        "_residents",
        "_rows",
        "_uses_learned",
    )

    def __init__(self, options: AttributionOptions) -> None:
        self._uses_learned = options.energy_model is EnergyModel.LEARNED
        self._meter = EnergyMeter()
        self._rows = UtilizationRows()
        self._baseline = Baseline(options.assumed_idle_fraction)
        self._learned = LearnedPower()
        self._divider = EnergyDivider(options.energy_policy)
        self._memory = MemoryTracker()
        self._residents: Residents = {}
        """The residents of the last cycle, with those missing from its lists that still run."""
        self._interval = IntervalBuilder()

    def observe(
        self,
        reading: GpuReading,
        residents: Residents,
        cycle: Cycle,
        *,
        owners: Mapping[ProcessOnDevice, WorkloadOnDevice],
        grant_ages_s: Mapping[WorkloadOnDevice, float] = _NO_GRANTS,
        short_lived: Sequence[ShortLivedProcess] = (),
    ) -> GpuResult:
        """Take in a cycle's reading, with the processes that are on the GPU.

        ``owners`` are their workloads. ``grant_ages_s`` are workloads that were granted the GPU and have no process
        on it, with the age of the grant. ``short_lived`` are processes that came and went since the last cycle.
        """
        metered = self._meter.read(reading)
        memory = self._memory.observe(
            reading, residents, self._residents, cycle, owners=owners, grant_ages_s=grant_ages_s
        )
        compute = self._rows.observe(reading.utilization, cycle.window_us)
        visibility = self._visibility(reading, memory, cycle, has_short_lived=bool(short_lived))
        self._add_to_interval(residents, compute, cycle, visibility, has_short_lived=bool(short_lived))
        if metered is None:
            division, baseline = None, self._baseline.estimate()
        else:
            division, baseline = self._divide(metered, reading, memory, visibility)
        if metered is not None or self._interval.duration_us == 0 or not self._meter.has_read:
            self._interval = IntervalBuilder(
                residents.keys(),
                complete=visibility.lists_complete,
                has_unexplained_memory=visibility.has_unexplained_memory,
            )
        # A process missing from one poll has not left: while /proc shows it, it stays until the ledger ends it.
        missing = {at: each for at, each in self._residents.items() if at not in residents and cycle.is_alive(at)}
        self._residents = {**missing, **residents}
        return GpuResult(
            reading=reading,
            residents=residents,
            memory=memory,
            compute=compute,
            metered=metered,
            division=division,
            baseline=baseline,
            energy_source=self._meter.source,
            short_lived=short_lived,
            anomalies=_anomalies(reading, compute, metered),
            visibility=visibility,
        )

    def _visibility(
        self, reading: GpuReading, memory: MemoryResult, cycle: Cycle, *, has_short_lived: bool
    ) -> Visibility:
        """What this cycle and, for unseen users, the interval before it show."""
        lists = (reading,) if reading.mig is None else reading.mig
        lists_read = all(each.processes is not None for each in lists)
        is_unexplained = memory.unexplained_bytes >= UNEXPLAINED_BYTES or (
            not cycle.may_infer and memory.cannot_rule_out_users
        )
        had_unexplained = has_short_lived or self._interval.has_unexplained_memory
        return Visibility(
            lists_read=lists_read,
            lists_complete=lists_read and cycle.pids_complete,
            has_unexplained_memory=is_unexplained,
            may_have_unseen_users=not cycle.may_infer and (is_unexplained or had_unexplained),
        )

    def forget(self, ended: frozenset[ProcessOnDevice]) -> None:
        """Drop what is remembered of processes that have ended."""
        self._learned.forget({at.process for at in ended})
        self._residents = {at: resident for at, resident in self._residents.items() if at not in ended}

    def add_gap(self, window_us: int, is_dropped: Callable[[ProcessOnDevice], bool]) -> None:
        """The GPU did not answer for this long. Processes that the ledger has dropped are forgotten."""
        self._rows.observe(None, window_us)
        self._interval.add_gap(window_us)
        if ended := frozenset(filter(is_dropped, self._residents)):
            self.forget(ended)

    def add_absence(self, window_us: int) -> None:
        """The agent did not run for this long."""
        self._rows.observe(None, window_us)
        self._interval.add_absence(window_us)

    # -- energy ---------------------------------------------------------------------

    def _add_to_interval(
        self,
        residents: Residents,
        compute: ComputeWindow | None,
        cycle: Cycle,
        visibility: Visibility,
        *,
        has_short_lived: bool,
    ) -> None:
        if cycle.window_us <= 0 and not self._interval.agent_was_away:
            return
        before = self._residents
        gone = {at: before[at] for at in sorted(before) if at not in residents}
        presence = {at: _presence(each, cycle) for at, each in residents.items() if at not in before}
        presence |= {at: PRESENCE_UNKNOWN for at in gone if not cycle.is_alive(at)}
        self._interval.add(
            cycle.window_us,
            {**gone, **residents},  # in this order: a pid that was reused belongs to the process that has it now
            presence,
            compute,
            has_unexplained_memory=visibility.has_unexplained_memory or has_short_lived,
            complete=visibility.lists_complete,
        )

    def _divide(
        self, metered: Metered, reading: GpuReading, memory: MemoryResult, visibility: Visibility
    ) -> tuple[Division, BaselineEstimate]:
        """Divide the energy of the interval. The baseline and the learned power take in the interval first."""
        interval, unseen = self._interval, visibility.may_have_unseen_users
        consumers = interval.consumers(memory.inferred_by_process())
        # The agent only knows that unseen users did not work while visible ones did.
        idle_us = interval.covered_us - sum(consumer.sm_us or 0 for consumer in consumers) if unseen else 0
        unidentified_us = max(interval.unidentified_us, idle_us)
        shares = _sm_shares(consumers, interval.covered_us)
        utilization = None
        if interval.covered_us:
            utilization = sum(shares.values()) + unidentified_us / interval.covered_us
        is_usable = not (metered.anomalous or metered.reset or interval.agent_was_away) and metered.duration_s > 0
        # A GPU with users that may be invisible gives no idle power, only the range of its power.
        if is_usable and (visibility.lists_complete or unseen):
            observed = 0.0 if utilization is None and not consumers else utilization
            self._baseline.observe(
                power_w=metered.delta_mj / 1000 / metered.duration_s,
                utilization=None if unseen else observed,
                resident=bool(consumers) or interval.has_unexplained_memory,
                power_limit_w=reading.power_limit_w,
                dt_s=metered.duration_s,
            )
        baseline = self._baseline.estimate()
        if is_usable and utilization is not None and not unidentified_us and not unseen:
            self._learned.observe(
                shares,
                power_w=metered.delta_mj / 1000 / metered.duration_s,
                power_limit_w=reading.power_limit_w,
                context_power_w=baseline.context_power_w,
                samples=interval.samples,
                dt_s=metered.duration_s,
                sm_clock_mhz=reading.sm_clock_mhz,
            )
        factors: dict[ProcessOnDevice, float] = {}
        if self._uses_learned and not unseen:
            by_process = self._learned.factors(shares)
            factors = {consumer.at: by_process.get(consumer.at.process, 1.0) for consumer in consumers}
        division = self._divider.divide(
            Interval(
                delta_mj=metered.delta_mj,
                duration_s=metered.duration_s,
                consumers=consumers,
                unidentified_sm_us=unidentified_us,
                is_exclusive=interval.is_exclusive,
                has_unexplained_memory=interval.has_unexplained_memory,
                context_power_w=baseline.context_power_w,
                anomalous=metered.anomalous,
                lists_complete=visibility.lists_complete,
                may_have_unseen_users=unseen,
                agent_was_away=interval.agent_was_away,
            ),
            factors,
        )
        return division, baseline

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All that is remembered, as plain data."""
        return {
            "rows": self._rows.to_state(),
            "meter": self._meter.to_state(),
            "baseline": self._baseline.to_state(),
            "learned": self._learned.to_state(),
            "divider": self._divider.to_state(),
            "holdings": self._memory.to_state(),
            "here": [resident.to_state() for _, resident in sorted(self._residents.items())],
            "span": self._interval.to_state(),
        }

    @classmethod
    def from_state(cls, options: AttributionOptions, data: Any, *, same_boot: bool) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data.

        After a reboot the counters start at 0 and no process is left; what was learnt of the GPU's power stays.
        """
        restored = cls(options)
        with restoring("GPU"):
            restored._baseline = Baseline.from_state(data["baseline"], options.assumed_idle_fraction)
            if same_boot:
                restored._rows = UtilizationRows.from_state(data["rows"])
                restored._meter = EnergyMeter.from_state(data["meter"])
                restored._learned = LearnedPower.from_state(data["learned"])
                restored._divider.restore(data["divider"])
                restored._memory = MemoryTracker.from_state(data["holdings"])
                residents = [Resident.from_state(each) for each in data["here"]]
                restored._residents = {resident.at: resident for resident in residents}
                restored._interval = IntervalBuilder.from_state(data["span"])
        return restored


def _presence(resident: Resident, cycle: Cycle) -> float:
    """The fraction of the cycle in which a process was present, if it started in this cycle."""
    window_s = cycle.window_us / 1e6
    age_s = cycle.wall_s - resident.start_time_s if resident.start_time_s is not None else window_s
    return age_s / window_s if 0 <= age_s < window_s else PRESENCE_UNKNOWN


def _sm_shares(consumers: Sequence[Consumer], covered_us: int) -> dict[ProcessKey, float]:
    """SM share of each process that worked. Where MIG is switched, a process can be on several devices."""
    shares: dict[ProcessKey, float] = {}
    for consumer in consumers:
        if consumer.sm_us:
            process = consumer.at.process
            shares[process] = shares.get(process, 0.0) + consumer.sm_us / max(1, covered_us)
    return shares


def _anomalies(reading: GpuReading, compute: ComputeWindow | None, metered: Metered | None) -> int:
    """Count figures of a cycle that cannot be true."""
    found = implausible_figures(reading)
    if compute is not None:
        found += compute.anomalies
    if metered is not None:
        found += metered.anomalous or metered.reset
    return found


def implausible_figures(reading: GpuReading) -> int:
    """Count figures that cannot be true: more memory than there is, a process listed twice, energy below 0."""
    found = sum(not _is_plausible(memory) for memory in (reading.memory, *(mig.memory for mig in reading.mig or ())))
    max_bytes = reading.memory.total_bytes if reading.memory is not None else MAX_BYTES
    for processes in (reading.processes, *(mig.processes for mig in reading.mig or ())):
        listed = processes or ()
        entries = {(each.pid, each.kind, each.gpu_instance_id, each.compute_instance_id) for each in listed}
        found += len(listed) - len(entries)
        figures = [each.memory_bytes for each in listed if each.memory_bytes is not None]
        found += sum([not 0 <= figure <= max_bytes for figure in figures])
    found += reading.energy_mj is not None and reading.energy_mj < 0
    found += reading.power_w is not None and not 0 <= reading.power_w < math.inf
    return found


def _is_plausible(memory: DeviceMemory | None) -> bool:
    if memory is None:
        return True
    used, free, reserved = memory.used_bytes, memory.free_bytes, memory.reserved_bytes or 0
    return (
        min(used, free, reserved) >= 0
        and max(used, free, reserved) <= memory.total_bytes
        and used + reserved <= memory.total_bytes
    )
