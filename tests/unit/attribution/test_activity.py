"""Busy or idle: the rules poll by poll, and their error rate by random draws and on a simulated host."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from otel_gpu.attribution.activity import LONGEST_US, ActivityStep, ActivityTracker, StateTime
from otel_gpu.attribution.utilization import UtilizationRows
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuIdentity, GpuState, WorkloadKind, WorkloadRef
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Bursty, Points, Signal, Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, ProcessSpec, WorkloadSpec, WorldSpec

S = 1_000_000
GIB = 1 << 30
BUSY, IDLE, UNKNOWN = GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN


def poll(
    state: ActivityTracker,
    worked: bool | None,
    *,
    beside: bool = False,
    window_s: float = 5,
    held_bytes: int | None = GIB,
    energy_mj: int = 0,
) -> ActivityStep:
    return state.observe(
        window_us=round(window_s * S),
        worked=worked,
        others_worked=beside,
        held_bytes=held_bytes,
        energy_mj=energy_mj,
    )


def times(*steps: ActivityStep) -> dict[GpuState, int]:
    """Seconds decided by state."""
    sums: dict[GpuState, int] = {}
    for step in steps:
        for time in step.decided:
            sums[time.state] = sums.get(time.state, 0) + time.time_us // S
    return sums


def seen(polls: int) -> ActivityTracker:
    """A process that showed work in each of so many polls next to a busy neighbour."""
    state = ActivityTracker()
    for _ in range(polls):
        poll(state, True, beside=True)
    return state


def zeros_until_idle(state: ActivityTracker, *, beside: bool, window_s: float = 5) -> int:
    zeros = 1
    while poll(state, False, beside=beside, window_s=window_s).state is not IDLE:
        zeros += 1
        assert zeros < 1000
    return zeros


# ---------------------------------------------------------------------------- without a neighbour


def test_two_polls_without_work_are_idle_since_the_first() -> None:
    state = ActivityTracker()
    steps = [poll(state, True), poll(state, False), poll(state, False), poll(state, False)]
    assert [step.state for step in steps] == [BUSY, UNKNOWN, IDLE, IDLE]
    assert [step.idle_s for step in steps] == [0.0, None, 5.0, 10.0]


def test_undecided_time_is_held_back_until_it_is_decided() -> None:
    state = ActivityTracker()
    steps = [poll(state, True), poll(state, False), poll(state, False), poll(state, False)]
    assert [times(step) for step in steps] == [{BUSY: 5}, {}, {IDLE: 10}, {IDLE: 5}]


def test_a_single_poll_without_work_is_not_idle() -> None:
    state = ActivityTracker()
    steps = [poll(state, True), poll(state, False), poll(state, True)]
    assert [step.state for step in steps] == [BUSY, UNKNOWN, BUSY]
    assert times(*steps) == {BUSY: 15}


def test_the_first_work_ends_the_idle_state() -> None:
    state = ActivityTracker()
    for _ in range(10):
        poll(state, False)
    step = poll(state, True)
    assert (step.state, step.idle_s, times(step)) == (BUSY, 0.0, {BUSY: 5})
    assert [poll(state, False).state for _ in range(2)] == [UNKNOWN, IDLE]


def test_a_process_that_never_worked_is_idle_after_two_polls_without_busy_neighbours() -> None:
    assert zeros_until_idle(ActivityTracker(), beside=False) == 2


def test_memory_and_energy_are_booked_with_their_time() -> None:
    state = ActivityTracker()
    poll(state, False, held_bytes=GIB, energy_mj=7)
    step = poll(state, False, held_bytes=3 * GIB, energy_mj=5)
    assert step.decided == (StateTime(IDLE, 10 * S, 4 * GIB * 5 * S, 12),)


# ---------------------------------------------------------------------------- nothing known, nothing held


def test_without_data_a_process_is_not_idle() -> None:
    state = ActivityTracker()
    steps = [poll(state, None) for _ in range(100)]
    assert {step.state for step in steps} == {UNKNOWN}
    assert {step.idle_s for step in steps} == {None}
    assert times(*steps) == {UNKNOWN: 500}


def test_a_poll_without_data_ends_the_idle_state_and_restarts_the_count() -> None:
    state = ActivityTracker()
    steps = [poll(state, worked) for worked in (False, False, None, False, False)]
    assert [step.state for step in steps] == [UNKNOWN, IDLE, UNKNOWN, UNKNOWN, IDLE]
    assert steps[-1].idle_s == 5.0


def test_undecided_time_is_unknown_when_data_ends() -> None:
    state = ActivityTracker()
    steps = [poll(state, True), poll(state, False), poll(state, None)]
    assert times(*steps) == {BUSY: 5, UNKNOWN: 10}


def test_a_process_that_holds_no_memory_is_not_idle() -> None:
    state = ActivityTracker()
    steps = [poll(state, False, held_bytes=0) for _ in range(5)]
    assert {step.state for step in steps} == {UNKNOWN}
    assert poll(state, True, held_bytes=0).state is BUSY


@pytest.mark.parametrize("held_bytes", [None, -1])
def test_a_process_listed_without_a_figure_holds_memory_of_unknown_size(held_bytes: int | None) -> None:
    state = ActivityTracker()
    poll(state, False, held_bytes=held_bytes)
    step = poll(state, False, held_bytes=held_bytes)
    assert step.decided == (StateTime(IDLE, 10 * S, 0, 0),)


def test_undecided_time_is_unknown_when_the_process_ends() -> None:
    state = ActivityTracker()
    poll(state, True)
    poll(state, False, energy_mj=3)
    assert state.close() == (StateTime(UNKNOWN, 5 * S, 5 * S * GIB, 3),)
    assert state.close() == ()


def test_decided_time_is_not_booked_again_when_the_process_ends() -> None:
    state = ActivityTracker()
    poll(state, False)
    poll(state, False)
    assert state.close() == ()


@pytest.mark.parametrize("window_s", [0, -3])
def test_a_poll_without_elapsed_time_keeps_its_energy(window_s: float) -> None:
    state = ActivityTracker()
    assert poll(state, True).state is BUSY
    assert poll(state, False, window_s=window_s, energy_mj=2).decided == (StateTime(BUSY, 0, 0, 2),)
    poll(state, False)
    assert poll(state, None, window_s=window_s, energy_mj=4) == ActivityStep(UNKNOWN, None, ())
    step = poll(state, False, energy_mj=-9)
    assert step.decided == (StateTime(IDLE, 10 * S, 10 * S * GIB, 4),)


# ---------------------------------------------------------------------------- beside a busy neighbour


@pytest.mark.parametrize(("window_s", "zeros"), [(5, 12), (1, 60), (7, 9), (90, 2)])
def test_next_to_a_busy_neighbour_a_process_never_seen_working_is_idle_after_a_minute(
    window_s: float, zeros: int
) -> None:
    assert zeros_until_idle(ActivityTracker(), beside=True, window_s=window_s) == zeros


def test_next_to_a_busy_neighbour_a_process_always_seen_is_idle_after_two_polls() -> None:
    assert zeros_until_idle(seen(300), beside=True) == 2


def test_a_few_polls_do_not_prove_that_a_process_is_always_seen() -> None:
    assert zeros_until_idle(seen(1), beside=True) == 12
    assert zeros_until_idle(seen(10), beside=True) == 4
    assert zeros_until_idle(seen(40), beside=True) == 3


def test_a_process_seen_in_every_other_poll_needs_ten_polls_without_work() -> None:
    state = ActivityTracker()
    for number in range(720):
        poll(state, number % 2 == 1, beside=True)
    assert zeros_until_idle(state, beside=True) in (10, 11)


def test_work_seen_alone_does_not_count_as_seen_next_to_others() -> None:
    state = ActivityTracker()
    for _ in range(300):
        poll(state, True)
    assert zeros_until_idle(state, beside=True) == 12


def test_rests_alone_do_not_count_as_work_missed_next_to_others() -> None:
    state = seen(300)
    for number in range(60):
        poll(state, number % 2 == 1)
    assert zeros_until_idle(state, beside=True) == 2


def test_the_state_is_unknown_until_decided_and_then_all_time_is_booked() -> None:
    state = ActivityTracker()
    steps = [poll(state, False, beside=True) for _ in range(12)]
    assert {step.state for step in steps[:-1]} == {UNKNOWN}
    assert times(*steps[:-1]) == {}
    assert (steps[-1].state, steps[-1].idle_s, times(steps[-1])) == (IDLE, 55.0, {IDLE: 60})


def test_work_within_the_minute_makes_the_undecided_time_busy() -> None:
    state = ActivityTracker()
    steps = [poll(state, False, beside=True) for _ in range(11)] + [poll(state, True, beside=True)]
    assert times(*steps) == {BUSY: 60}


def test_two_polls_with_a_resting_neighbour_decide() -> None:
    state = ActivityTracker()
    states = [poll(state, False, beside=beside).state for beside in (True, False, True, False, False)]
    assert states == [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, IDLE]


def test_a_long_rest_does_not_delay_the_next_decision() -> None:
    """Polls without work do not count until work shows again: hours of rest are not missed work."""
    state = seen(300)
    for _ in range(720):
        poll(state, False, beside=True)
    poll(state, True, beside=True)
    assert zeros_until_idle(state, beside=True) == 2


def test_a_process_that_gets_lighter_is_learned_again_within_minutes() -> None:
    state, dice = seen(300), random.Random(1)
    for _ in range(360):
        poll(state, dice.random() < 0.5, beside=True)
    assert zeros_until_idle(state, beside=True) >= 8


# ---------------------------------------------------------------------------- state


def test_a_saved_process_is_never_allocated() -> None:
    with pytest.raises(ValueError, match="never allocated"):
        ActivityTracker.from_state(ActivityTracker().to_state() | {"state": "allocated"})


# ---------------------------------------------------------------------------- how often it errs, by dice


@dataclass
class Tally:
    """States reported for a process that never rests."""

    polls: int = 0
    idle_polls: int = 0
    alarms: int = 0
    _before: GpuState = UNKNOWN

    def take(self, state: GpuState) -> None:
        self.polls += 1
        self.idle_polls += state is IDLE
        self.alarms += state is IDLE and self._before is not IDLE
        self._before = state


def toss(duty: float, *, window_s: float, hours: int, seed: int) -> tuple[Tally, float]:
    """Polls of a process that a sample shows with probability ``duty``; then it stops: the delay until it is idle."""
    dice, state, tally = random.Random(seed), ActivityTracker(), Tally()
    seen_in_poll = 1 - (1 - duty) ** round(window_s / 0.139)
    for _ in range(round(hours * 3600 / window_s)):
        tally.take(poll(state, dice.random() < seen_in_poll, beside=True, window_s=window_s).state)
    poll(state, True, beside=True, window_s=window_s)
    return tally, zeros_until_idle(state, beside=True, window_s=window_s) * window_s


@pytest.mark.long
@pytest.mark.parametrize(
    ("duty", "window_s", "alarms_per_hour", "idle_ratio", "delay_s"),
    [
        (0.30, 5, 0.05, 0.0005, 10),
        (0.10, 5, 0.5, 0.001, 15),
        (0.05, 5, 0.5, 0.001, 25),
        (0.02, 5, 0.6, 0.002, 55),
        (0.01, 5, 4.0, 0.018, 60),
        (0.30, 1, 0.5, 0.0005, 5),
        (0.10, 1, 0.6, 0.001, 15),
        (0.05, 1, 0.6, 0.001, 27),
        (0.02, 1, 0.5, 0.002, 60),
    ],
)
def test_false_alarms_and_delay_of_a_light_process(
    duty: float, window_s: float, alarms_per_hour: float, idle_ratio: float, delay_s: float
) -> None:
    runs = [toss(duty, window_s=window_s, hours=8, seed=seed) for seed in range(5)]
    assert sum(tally.alarms for tally, _ in runs) / 40 <= alarms_per_hour
    assert sum(t.idle_polls for t, _ in runs) / sum(t.polls for t, _ in runs) <= idle_ratio
    assert max(delay for _, delay in runs) <= delay_s


# ---------------------------------------------------------------------------- on a simulated host


@dataclass
class Watched:
    """One process as the agent sees it: its states, and its true work in seconds at each poll."""

    idleness: ActivityTracker = field(default_factory=ActivityTracker)
    steps: list[ActivityStep] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)


def watch(works: dict[int, Signal], *, seconds: int, cadence_s: float = 5.0, seed: int = 1) -> dict[int, Watched]:
    """Poll a simulated GPU through utilisation and activity; by pid."""
    gpu = GpuSpec(GpuIdentity(0, "GPU-0", "Test GPU", minor=0), 80 * GIB, GIB, 50, 30, 400)
    workload = WorkloadSpec(WorkloadRef(WorkloadKind.CONTAINER, "c" * 64))
    processes = tuple(
        ProcessSpec(pid, "p", workload, (GpuUse(0, memory=Steady(GIB), work=work),)) for pid, work in works.items()
    )
    clock = ManualClock()
    host = SimulatedHost(WorldSpec(seed, (gpu,), processes), clock)
    source, rows, watched = host.gpu_source(), UtilizationRows(), {pid: Watched() for pid in works}
    window_us = 0
    for _ in range(round(seconds / cadence_s)):
        window = rows.observe(source.read().gpus[0].utilization, window_us)
        assert window is not None
        busy_s = {process.key.pid: process.busy_s for process in host.devices[0].truth().processes}
        for pid, one in watched.items():
            worked, beside = window.worked({pid}), window.others_worked({pid})
            one.steps.append(
                one.idleness.observe(window_us=window_us, worked=worked, others_worked=beside, held_bytes=GIB)
            )
            one.busy_s.append(busy_s[pid])
        window_us = round(cadence_s * S)
        clock.advance(cadence_s)
    return watched


@pytest.mark.long
def test_light_processes_next_to_a_busy_one_are_rarely_called_idle_and_idle_ones_are_found() -> None:
    """Two hours at 5 s. A holder that never works, and one that stops after an hour, are the only idle ones."""
    hour_then_rest = Points(((0.0, 0.1), (3600.0, 0.1), (3600.0, 0.0)))
    works: dict[int, Signal] = {
        1: Steady(0.63),
        10: Steady(0.1),
        5: Steady(0.05),
        2: Steady(0.02),
        99: hour_then_rest,
        100: Steady(0.0),
    }
    found = watch(works, seconds=7200)
    tallies = {pid: Tally() for pid in (1, 10, 5, 2)}
    for pid, tally in tallies.items():
        for step in found[pid].steps:
            tally.take(step.state)
    assert tallies[1].alarms == 0
    assert tallies[10].alarms <= 2
    assert tallies[5].alarms <= 2
    assert tallies[2].idle_polls / tallies[2].polls <= 0.005
    assert {step.state for step in found[100].steps[14:]} == {IDLE}
    stopped = [step.state for step in found[99].steps[720:]]
    assert IDLE in stopped[:4], "found within 20 s"
    assert BUSY not in stopped[2:]


@pytest.mark.parametrize("cadence_s", [5.0, 1.0])
def test_alone_on_a_gpu_a_process_is_never_called_idle_while_it_works(cadence_s: float) -> None:
    """This holds even for one that works so little that its rows are zeros."""
    for work in (Steady(0.01), Bursty(0.3, 0.01, 20.0, seed=4), Bursty(1.0, 0.2, 37.0, seed=5)):
        one = watch({1: work}, seconds=1800, cadence_s=cadence_s)[1]
        for number, step in enumerate(one.steps):
            if step.idle_s is not None and step.state is IDLE:
                first = number - round(step.idle_s / cadence_s)
                # Work that began after the newest sample is not visible yet.
                assert one.busy_s[number] - one.busy_s[first] <= 0.139
        assert (BUSY in {step.state for step in one.steps}) is True


def test_no_decision_takes_longer_than_a_minute() -> None:
    """At any cadence a run of polls without work is decided after a minute."""
    for window_s in (1, 3, 5, 10, 20, 59):
        zeros = zeros_until_idle(ActivityTracker(), beside=True, window_s=window_s)
        assert (zeros - 1) * window_s * S < LONGEST_US <= zeros * window_s * S
