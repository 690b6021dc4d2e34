"""One simulated GPU, stepped at the driver's sample period.

Shares and power are constant within a step, so that the history is a function of the step number. A read in the middle
of a step adds the elapsed part of it to the result and leaves the totals unchanged.

A gap with too many steps (the clock jumped by hours) is crossed in strides, each with the state of one step picked at
random from it. Power, energy and time still add up exactly; detail within the gap is lost.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_gpu.model import ProcessKey
from otel_gpu.sources.sim.ring import IDLE_ENGINES, Engines, Sample, SampleRing
from otel_gpu.sources.sim.signals import Steady, hash64, seed_for, uniform
from otel_gpu.sources.sim.truth import PJ_PER_MJ, GpuTruth, Member, ProcessTruth, StepState, TrueLedger
from otel_gpu.sources.sim.world import Alive, GpuSpec, GpuUse, ProcessSpec, Roster, Visibility, WorldSpec

MAX_STEPS: Final = 10_000
"""The greatest number of steps of one advance, 23 minutes; a longer gap is crossed in strides."""

MAX_STRIDES: Final = 500
"""The greatest number of strides over a gap. Each looks up the processes again, which costs more than a step."""

JOB_RETENTION_US: Final = 600_000_000
"""How long the truth contains a job of a stream after its end. Streams never end, so their jobs must be dropped."""

_THERMAL_LAG_US: Final = 25e6
_POWER_AVERAGE_US: Final = 1_000_000  # NVML reports a 1 s average on Ampere and later
_WINNER, _ENCODER_WINNER, _DECODER_WINNER, _NOISE, _PROBE = range(1, 6)  # streams of hash64


class HeldMemory(NamedTuple):
    """Memory that a process with a context holds now."""

    process: ProcessSpec
    use: GpuUse
    memory_bytes: int


class Partition(NamedTuple):
    """The unit whose SMs and memory members share: the whole GPU, or one MIG instance."""

    fraction: float
    capacity_bytes: int


class SimulatedDevice:
    """A GPU of a world, at the time of its last advance."""

    def __init__(self, world: WorldSpec, spec: GpuSpec) -> None:
        self.spec = spec
        self.ring = SampleRing(spec.ring_size)
        self.steps = 0
        self.now_us = 0
        self._world = world
        self._seed = seed_for(world.seed, f"gpu {spec.identity.index}")
        self._permanent_keys = frozenset(map(world.key_of, world.processes))
        self._roster = Roster(world)
        self._alive: Alive | None = None
        self._members: tuple[Member, ...] = ()
        self._has_codecs = False
        self._steady_held: list[int] | None = None
        self._partitions = _partitions(spec)
        self._static_uw = round(spec.static_w * 1e6)
        self._context_uw = round(spec.context_w * 1e6)
        self._limit_uw = round(spec.power_limit_w * 1e6)
        self._partition_of = {mig.gpu_instance_id: index for index, mig in enumerate(spec.mig or ())}
        self._ledger = TrueLedger()
        self._counter_pj = 0
        self._tick = 0
        self._state = self._evaluate(0)
        self._powers_uw: deque[int] = deque(maxlen=max(1, _POWER_AVERAGE_US // spec.sample_period_us))
        self._temperature_c = self._settled_c(self._state)

    # ------------------------------------------------------------------------ readings

    @property
    def counter_mj(self) -> int:
        """The hardware energy counter since world time 0 in whole mJ, updated every 100 ms."""
        boundary_us = self.now_us - self.now_us % self.spec.counter_step_us
        return self._energy_pj(boundary_us) // PJ_PER_MJ

    @property
    def power_w(self) -> float:
        """Power averaged over the last second, to the milliwatt."""
        powers = self._powers_uw or (self._state.power_uw,)
        return round(sum(powers) / len(powers) / 1e3) / 1e3

    @property
    def temperature_c(self) -> float:
        """Temperature in whole degrees; it follows power with a lag."""
        return float(round(self._temperature_c))

    @property
    def sm_clock_mhz(self) -> int:
        """SM clock: low when idle, high at work, reduced by the power limit."""
        if self._state.utilization == 0:
            return self.spec.idle_sm_clock_mhz
        return max(self.spec.idle_sm_clock_mhz, round(self.spec.max_sm_clock_mhz * self._state.throttle))

    def holdings(self) -> tuple[HeldMemory, ...]:
        """Every process with a context on this GPU now, hidden or not, with its memory."""
        members = self._members_at(self.now_us)
        held = self._allocate(members, [(self.now_us - member.start_us) / 1e6 for member in members])
        return tuple(HeldMemory(m.process, m.use, size) for m, size in zip(members, held, strict=True))

    def truth(self) -> GpuTruth:
        """The truth until now."""
        holdings = {self._world.key_of(holding.process): holding for holding in self.holdings()}
        ledger = self._ledger.copy()
        start_us = self._tick * self.spec.sample_period_us
        ledger.post(self._state, start_us, self.now_us - start_us)
        for key, holding in holdings.items():
            ledger.open(key, holding.process, holding.use)
        self._drop_ended(ledger, self.now_us)
        hidden = (h.memory_bytes for h in holdings.values() if h.use.visibility is Visibility.HIDDEN)
        return GpuTruth(
            uuid=self.spec.identity.uuid,
            static_w=self.spec.static_w,
            context_w=self.spec.context_w,
            static_pj=ledger.static_pj,
            context_pj=ledger.context_pj,
            dynamic_pj=ledger.dynamic_pj,
            retired_pj=ledger.retired_pj,
            busy_s=ledger.busy_us / 1e6,
            occupied_s=ledger.occupied_us / 1e6,
            used_bytes=sum(holding.memory_bytes for holding in holdings.values()),
            hidden_bytes=sum(hidden),
            processes=tuple(self._process_truth(ledger, key, holdings.get(key)) for key in sorted(ledger.accounts)),
        )

    def _process_truth(self, ledger: TrueLedger, key: ProcessKey, holding: HeldMemory | None) -> ProcessTruth:
        account = ledger.accounts[key]
        instances = {mig.gpu_instance_id: mig.uuid for mig in self.spec.mig or ()}
        instance = account.use.gpu_instance_id
        idle_since_us = account.idle_since_us if holding is not None else None
        return ProcessTruth(
            key=key,
            workload=account.process.workload.ref,
            gpu_uuid=self.spec.identity.uuid,
            mig_uuid=None if instance is None else instances[instance],
            hidden=account.use.visibility is Visibility.HIDDEN,
            ended=holding is None,
            resident_bytes=0 if holding is None else holding.memory_bytes,
            dynamic_pj=account.dynamic_pj,
            busy_s=account.busy_us / 1e6,
            resident_s=account.resident_us / 1e6,
            equal_share_s=account.equal_us / 1e6,
            memory_share_s=account.memory_us / 1e6,
            work_share_s=account.work_us / 1e6,
            idle_since_s=None if idle_since_us is None else idle_since_us / 1e6,
        )

    # ------------------------------------------------------------------------ time

    def advance(self, now_us: int) -> None:
        """Advance to this world time; an earlier one has no effect."""
        self.now_us = max(self.now_us, now_us)
        target = self.now_us // self.spec.sample_period_us
        if target - self._tick > MAX_STEPS:
            self._stride(target - self.spec.ring_size)
        while self._tick < target:
            self._step(1)
            self.ring.add(self._sample())
            self._tick += 1
            self._state = self._evaluate(self._tick)

    def _stride(self, target: int) -> None:
        """Cross a long gap up to step ``target`` in a bounded number of evaluations."""
        stride = math.ceil((target - self._tick) / MAX_STRIDES)
        while self._tick < target:
            ticks = min(stride, target - self._tick)
            self._state = self._evaluate(self._tick + hash64(self._seed, _PROBE, self._tick) % ticks)
            self._step(ticks)
            self._tick += ticks
        self._state = self._evaluate(self._tick)

    def _step(self, ticks: int) -> None:
        start_us, length_us = self._tick * self.spec.sample_period_us, ticks * self.spec.sample_period_us
        end_us = start_us + length_us
        self._counter_pj = self._energy_pj(end_us - end_us % self.spec.counter_step_us)
        self._ledger.post(self._state, start_us, length_us)
        self._powers_uw.append(self._state.power_uw)
        settled_c = self._settled_c(self._state)
        self._temperature_c += (settled_c - self._temperature_c) * -math.expm1(-length_us / _THERMAL_LAG_US)
        self.steps += 1

    def _energy_pj(self, time_us: int) -> int:
        """Energy at an update of the counter: one in the current step, or the last one before it."""
        start_us = self._tick * self.spec.sample_period_us
        if time_us <= start_us:
            return self._counter_pj
        return self._ledger.total_pj + self._state.power_uw * (time_us - start_us)

    def _settled_c(self, state: StepState) -> float:
        return self.spec.ambient_c + self.spec.celsius_per_w * state.power_uw / 1e6

    # ------------------------------------------------------------------------ one step

    def _evaluate(self, tick: int) -> StepState:
        time_us = tick * self.spec.sample_period_us
        members = self._members_at(time_us)
        ages_s = [(time_us - member.start_us) / 1e6 for member in members]
        shares = self._shares(members, ages_s)
        utilization = sum(shares)
        context_uw = self._context_uw if members else 0
        room_uw = max(0, self._limit_uw - self._static_uw - context_uw)
        powers_uw, throttle = self._powers(tick, members, ages_s, shares), 1.0
        dynamic_uw = sum(powers_uw)
        if dynamic_uw > room_uw:
            throttle = room_uw / dynamic_uw
            powers_uw = [power_uw * room_uw // dynamic_uw for power_uw in powers_uw]
            dynamic_uw = sum(powers_uw)
        return StepState(
            members=members,
            shares=shares,
            powers_uw=powers_uw,
            held_bytes=self._allocate(members, ages_s),
            utilization=utilization,
            static_uw=self._static_uw,
            context_uw=context_uw,
            power_uw=self._static_uw + context_uw + dynamic_uw,
            throttle=throttle,
        )

    def _shares(self, members: tuple[Member, ...], ages_s: list[float]) -> list[float]:
        """SM shares of the GPU: as wanted, or scaled down where a partition is overcommitted."""
        shares = [min(1.0, max(0.0, member.use.work.at(age_s))) for member, age_s in zip(members, ages_s, strict=True)]
        if self.spec.mig is None:
            wanted = sum(shares)
            return shares if wanted <= 1.0 else [share / wanted for share in shares]
        sums = [0.0] * len(self._partitions)
        for member, share in zip(members, shares, strict=True):
            sums[member.partition] += share
        grants = [
            partition.fraction / max(1.0, wanted) for partition, wanted in zip(self._partitions, sums, strict=True)
        ]
        return [share * grants[member.partition] for member, share in zip(members, shares, strict=True)]

    def _powers(self, tick: int, members: tuple[Member, ...], ages_s: list[float], shares: list[float]) -> list[int]:
        """Power of each member's work before the limit, in µW."""
        utilization = sum(shares)
        if utilization <= 0:
            return [0] * len(shares)
        scale = 1e6 * utilization ** (self.spec.power_exponent - 1.0) * self._noise(tick)
        return [
            int(scale * share * max(0.0, member.use.watts.at(age_s))) if share else 0
            for member, age_s, share in zip(members, ages_s, shares, strict=True)
        ]

    def _allocate(self, members: tuple[Member, ...], ages_s: list[float]) -> list[int]:
        """Memory of each member: what it wants, up to what older members leave free."""
        if self._steady_held is not None and members is self._members:
            return self._steady_held
        free = [partition.capacity_bytes for partition in self._partitions]
        held: list[int] = []
        for member, age_s in zip(members, ages_s, strict=True):
            granted = min(max(0, int(member.use.memory.at(age_s))), free[member.partition])
            free[member.partition] -= granted
            held.append(granted)
        return held

    def _noise(self, tick: int) -> float:
        """A factor around 1, uniform, with the standard deviation of the spec."""
        if not self.spec.noise_ratio:
            return 1.0
        spread = math.sqrt(12.0) * self.spec.noise_ratio
        return max(0.0, 1.0 + spread * (uniform(self._seed, _NOISE, tick) - 0.5))

    def _sample(self) -> Sample:
        """The driver's sample of the current step: one member, picked in proportion to its share, is credited with all.

        Encoder and decoder are separate engines, each with its own winner.
        """
        state = self._state
        taken_us = (self._tick + 1) * self.spec.sample_period_us
        if state.utilization <= 0:
            return Sample(taken_us, IDLE_ENGINES, ())
        used = list(zip(state.members, state.shares, strict=True))
        whole = Engines(_percent(state.utilization), _percent(sum(s * m.use.bandwidth_ratio for m, s in used)), 0, 0)
        winner = self._draw(_WINNER, state.shares)
        credits_: list[tuple[Member | None, Engines]] = [(winner, whole)]
        if self._has_codecs:
            encoder = [s * m.use.encoder_ratio for m, s in used]
            decoder = [s * m.use.decoder_ratio for m, s in used]
            whole = whole._replace(encoder_percent=_percent(sum(encoder)), decoder_percent=_percent(sum(decoder)))
            credits_.append((self._draw(_ENCODER_WINNER, encoder), Engines(0, 0, whole.encoder_percent, 0)))
            credits_.append((self._draw(_DECODER_WINNER, decoder), Engines(0, 0, 0, whole.decoder_percent)))
        seen = tuple((m.process.pid, engines) for m, engines in credits_ if m is not None and m.use.sampled)
        return Sample(taken_us, whole, seen)

    def _draw(self, stream: int, weights: Sequence[float]) -> Member | None:
        """One member, picked by weight; ``None`` if all weights are 0."""
        pick = uniform(self._seed, stream, self._tick) * sum(weights)
        winner: Member | None = None
        for member, weight in zip(self._state.members, weights, strict=True):
            if weight > 0 and pick >= 0:
                winner = member
            pick -= weight
        return winner

    # ------------------------------------------------------------------------ processes

    def _members_at(self, time_us: int) -> tuple[Member, ...]:
        alive = self._roster.at(time_us)
        if alive is not self._alive:
            self._alive = alive
            self._members = self._members_of(alive.processes)
            self._steady_held = None
            if all(isinstance(member.use.memory, Steady) for member in self._members):
                self._steady_held = self._allocate(self._members, [0.0] * len(self._members))
            self._has_codecs = any(m.use.encoder_ratio or m.use.decoder_ratio for m in self._members)
            self._drop_ended(self._ledger, time_us)
        return self._members

    def _members_of(self, processes: tuple[ProcessSpec, ...]) -> tuple[Member, ...]:
        uses = [
            (process, use)
            for process in processes
            for use in process.uses
            if use.gpu == self.spec.identity.index and use.context
        ]
        siblings = Counter(process.workload.ref for process, _ in uses)
        return tuple(
            Member(
                key=self._world.key_of(process),
                process=process,
                use=use,
                start_us=process.start_us,
                partition=0 if use.gpu_instance_id is None else self._partition_of[use.gpu_instance_id],
                equal_share=1.0 / (len(siblings) * siblings[process.workload.ref]),
            )
            for process, use in uses
        )

    def _drop_ended(self, ledger: TrueLedger, time_us: int) -> None:
        for key, account in list(ledger.accounts.items()):
            end_us = account.process.end_us
            if key not in self._permanent_keys and end_us is not None and end_us + JOB_RETENTION_US < time_us:
                ledger.retire(key)


def _percent(ratio: float) -> int:
    return min(100, round(100 * ratio))


def _partitions(spec: GpuSpec) -> tuple[Partition, ...]:
    if spec.mig is None:
        return (Partition(1.0, spec.memory_total_bytes - spec.memory_reserved_bytes - spec.stray_bytes),)
    return tuple(
        Partition(mig.sm_count / spec.sm_count, mig.memory_total_bytes - mig.memory_reserved_bytes) for mig in spec.mig
    )
