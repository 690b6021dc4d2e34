"""One world played to its end, polled by the agent and by the peers' formulas, and scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bench.accuracy import ours, peers, score
from bench.accuracy.idle_worlds import NEIGHBOUR
from bench.accuracy.worlds import CADENCE_S, DURATION_S, Family, Kind
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuState
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.truth import GpuTruth

OURS: Final = "ours"
_SAMPLED_S: Final = 0.2
"""Work in the last fifth of a second before a poll may not be in the driver's samples yet, so it is not expected."""

ENERGY, BUSY, MEMORY = "energy", "busy time", "memory"
"""The quantities that have errors."""


@dataclass(slots=True)
class Outcome:
    """The result of one world: errors in percent by (what, formula), and idle records by (group, formula)."""

    family: str
    seed: int
    errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    idle: dict[tuple[str, str], list[score.IdleRecord]] = field(default_factory=dict)
    conservation_bytes: int = 0
    conservation_mj: int = 0

    def conserved(self, *checks: ours.Conservation) -> None:
        """Keep the largest errors."""
        self.conservation_bytes = max(self.conservation_bytes, *(check.memory_bytes for check in checks))
        self.conservation_mj = max(self.conservation_mj, *(check.energy_mj for check in checks))


def play(family: Family, seed: int, start: ours.Start = ours.start) -> Outcome:
    """Play one world of a family."""
    clock = ManualClock()
    stage = Stage(SimulatedHost(family.make(seed), clock), clock, start)
    outcome = Outcome(family.name, seed)
    match family.kind:
        case Kind.ENERGY:
            _energy(stage, outcome)
        case Kind.MEMORY:
            _memory(stage, outcome)
        case Kind.IDLE:
            _idle(stage, outcome, family.group)
    return outcome


@dataclass(frozen=True, slots=True)
class Stage:
    """A host, its clock, and how to start samplers on it."""

    host: SimulatedHost
    clock: ManualClock
    start: ours.Start

    @property
    def polls(self) -> range:
        """Numbers of the polls of a world, the first at its beginning."""
        return range(round(DURATION_S / CADENCE_S) + 1)

    def truth(self) -> GpuTruth:
        """The truth of the world's GPU now."""
        return self.host.truth().gpus[0]


def _energy(stage: Stage, outcome: Outcome) -> None:
    samplers = {model: stage.start(stage.host, stage.clock, model) for model in ours.MODELS}
    checks = {model: ours.Conservation() for model in ours.MODELS}
    watcher, meters = peers.Watcher(stage.host), peers.PeerMeters()
    answers = {}
    for poll in stage.polls:
        if poll:
            stage.clock.advance(CADENCE_S)
        answers = {model: sampler.sample() for model, sampler in samplers.items()}
        for model, answer in answers.items():
            checks[model].check(answer)
        polled = watcher.poll()
        if poll:
            meters.add(polled, ours.standing_w(answers[ours.SM]))
    truth = stage.truth()
    due_mj, worked_s = score.resident_energy_mj(truth), score.busy_s(truth)
    for model, answer in answers.items():
        outcome.errors[ENERGY, model] = score.relative_errors(due_mj, ours.energy_mj(answer))
    for formula, energy_mj in meters.energy_mj.items():
        outcome.errors[ENERGY, formula] = score.relative_errors(due_mj, energy_mj)
    outcome.errors[BUSY, OURS] = score.relative_errors(worked_s, ours.busy_s(answers[ours.LEARNED]))
    for formula, busy_s in meters.busy_s.items():
        outcome.errors[BUSY, formula] = score.relative_errors(worked_s, busy_s)
    outcome.conserved(*checks.values())


def _memory(stage: Stage, outcome: Outcome) -> None:
    sampler, check = stage.start(stage.host, stage.clock, ours.LEARNED), ours.Conservation()
    watcher = peers.Watcher(stage.host)
    scores = {formula: score.ByteTime() for formula in (OURS, *peers.MEMORY_FORMULAS)}
    for poll in stage.polls:
        if poll:
            stage.clock.advance(CADENCE_S)
        answer = sampler.sample()
        check.check(answer)
        truth = score.hidden_bytes(stage.truth())
        scores[OURS].add(truth, ours.inferred_bytes(answer))
        for formula, claims in peers.hidden_memory(watcher.poll()).items():
            scores[formula].add(truth, claims)
    for formula, errors in scores.items():
        outcome.errors[MEMORY, formula] = errors.errors()
    outcome.conserved(check)


def _idle(stage: Stage, outcome: Outcome, group: str) -> None:
    sampler, check = stage.start(stage.host, stage.clock, ours.LEARNED), ours.Conservation()
    watcher = peers.Watcher(stage.host)
    rules = {formula: peers.ZeroPolls(needed) for formula, needed in peers.IDLE_FORMULAS.items()}
    called = {process.workload.ref.id: process.name for process in stage.host.spec.processes}
    scored = [workload for workload, name in called.items() if name != NEIGHBOUR]
    polls: dict[tuple[str, str], list[score.IdlePoll]] = {}
    busy_s = score.busy_s(stage.truth())
    for poll in stage.polls:
        worked: set[str] = set()
        if poll:
            stage.clock.advance(CADENCE_S - _SAMPLED_S)
            seen_s = score.busy_s(stage.truth())
            worked = {workload for workload, seconds in seen_s.items() if seconds > busy_s.get(workload, 0.0)}
            stage.clock.advance(_SAMPLED_S)
        answer = sampler.sample()
        check.check(answer)
        busy_s = score.busy_s(stage.truth())
        polled = watcher.poll()
        idle = {formula: rule.idle(polled) for formula, rule in rules.items()}
        idle[OURS] = frozenset(workload for workload, state in ours.states(answer).items() if state is GpuState.IDLE)
        for workload in scored:
            for formula, idle_workloads in idle.items():
                record = score.IdlePoll(poll * CADENCE_S, workload in worked, workload in idle_workloads)
                polls.setdefault((workload, formula), []).append(record)
    stopped_s = {process.workload.id: process.idle_since_s for process in stage.truth().processes}
    for (workload, formula), seen in polls.items():
        since_s = stopped_s[workload]
        if since_s is None:
            raise ours.BenchError(f"{called[workload]} of {outcome.family} never stops: its delay cannot be scored")
        records = outcome.idle.setdefault((f"{group}, {called[workload]}", formula), [])
        records.append(score.idle_record(seen, since_s))
    outcome.conserved(check)
