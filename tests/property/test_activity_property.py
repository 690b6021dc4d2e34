"""Laws of activity: all time, memory and energy is booked once, and a process is idle only after polls without work."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.attribution.activity import LONGEST_US, ActivityStep, ActivityTracker, StateTime
from otel_gpu.model import GpuState, workload_state

S = 1_000_000


@dataclass(frozen=True)
class Poll:
    """The arguments of one poll."""

    window_us: int
    worked: bool | None
    others_worked: bool
    held_bytes: int | None
    energy_mj: int


POLLS = st.lists(
    st.builds(
        Poll,
        window_us=st.one_of(st.integers(0, 10 * S), st.integers(-S, 2**62)),
        worked=st.sampled_from([False, False, False, True, None]),
        others_worked=st.booleans(),
        held_bytes=st.sampled_from([None, 0, 1 << 30, 1 << 30, 80 << 30, -1]),
        energy_mj=st.integers(-10, 10**9),
    ),
    max_size=60,
)


def take(state: ActivityTracker, poll: Poll) -> ActivityStep:
    return state.observe(
        window_us=poll.window_us,
        worked=poll.worked,
        others_worked=poll.others_worked,
        held_bytes=poll.held_bytes,
        energy_mj=poll.energy_mj,
    )


@given(POLLS)
def test_every_microsecond_byte_and_millijoule_is_booked_exactly_once(polls: list[Poll]) -> None:
    state = ActivityTracker()
    booked: list[StateTime] = [each for poll in polls for each in take(state, poll).decided]
    booked += state.close()
    windows = [max(0, poll.window_us) for poll in polls]
    assert sum(each.time_us for each in booked) == sum(windows)
    assert sum(each.byte_us for each in booked) == sum(
        window_us * max(0, poll.held_bytes or 0) for window_us, poll in zip(windows, polls, strict=True)
    )
    assert sum(each.energy_mj for each in booked) == sum(max(0, poll.energy_mj) for poll in polls)
    assert all(min(each.time_us, each.byte_us, each.energy_mj) >= 0 for each in booked)
    assert state.close() == ()


@given(POLLS)
def test_idle_time_goes_only_to_runs_of_polls_without_work(polls: list[Poll]) -> None:
    """Σ idle is at most the time of polls that saw no work and followed or preceded another such."""
    state, run_us, run_polls, idle_us, allowed_us = ActivityTracker(), 0, 0, 0, 0
    for poll in [*polls, Poll(1, None, False, None, 0)]:
        step = take(state, poll)
        idle_us += sum(each.time_us for each in step.decided if each.state is GpuState.IDLE)
        if poll.window_us <= 0:
            continue
        if poll.worked is False and poll.held_bytes != 0:
            run_us, run_polls = run_us + poll.window_us, run_polls + 1
        else:
            allowed_us += run_us if run_polls >= 2 else 0
            run_us = run_polls = 0
    assert idle_us <= allowed_us


@given(POLLS)
def test_the_state_follows_from_the_last_poll(polls: list[Poll]) -> None:
    state = ActivityTracker()
    for poll in polls:
        step = take(state, poll)
        assert (step.idle_s is None) == (step.state is GpuState.UNKNOWN)
        assert (step.idle_s == 0) is (step.state is GpuState.BUSY) or step.state is GpuState.IDLE
        if poll.window_us <= 0:
            continue
        if poll.worked:
            assert step.state is GpuState.BUSY
        else:
            assert step.state is not GpuState.BUSY
        if poll.worked is None or (poll.held_bytes == 0 and not poll.worked):
            assert step.state is GpuState.UNKNOWN


@given(POLLS)
def test_at_most_a_minute_and_a_poll_is_held_back(polls: list[Poll]) -> None:
    state, zeros, run_us = ActivityTracker(), 0, 0
    for poll in polls:
        take(state, poll)
        zero = poll.worked is False and poll.held_bytes != 0
        if poll.window_us > 0:
            zeros, run_us = (zeros + 1, run_us + poll.window_us) if zero else (0, 0)
        held_us = state.to_state()["time_us"]
        assert held_us < LONGEST_US or zeros < 2
        assert held_us in (0, run_us)


@given(POLLS, st.integers(0, 60))
def test_a_state_saved_at_any_time_makes_no_difference(polls: list[Poll], cut: int) -> None:
    straight, state = ActivityTracker(), ActivityTracker()
    for number, poll in enumerate(polls):
        if number == cut:
            state = ActivityTracker.from_state(json.loads(json.dumps(straight.to_state())))
            assert state.to_state() == straight.to_state()
        assert take(state, poll) == take(straight, poll)
    assert state.close() == straight.close()


@given(st.integers(S, 30 * S), st.lists(st.booleans(), max_size=200))
def test_no_work_is_idle_after_a_minute_and_never_after_one_poll(window_us: int, history: list[bool]) -> None:
    """This holds whatever was learned before."""
    state = ActivityTracker()
    for worked in history:
        take(state, Poll(window_us, worked, True, 1, 0))
    take(state, Poll(window_us, True, True, 1, 0))
    zero = Poll(window_us, False, True, 1, 0)
    states = [take(state, zero).state for _ in range(-(-LONGEST_US // window_us) + 1)]
    assert states[0] is GpuState.UNKNOWN
    assert states[-1] is GpuState.IDLE


@given(st.lists(st.sampled_from([GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN])))
def test_a_workload_is_idle_only_if_each_of_its_processes_is(states: list[GpuState]) -> None:
    whole = workload_state(states)
    assert (whole is None) == (not states)
    assert (whole is GpuState.BUSY) == (GpuState.BUSY in states)
    assert (whole is GpuState.IDLE) == (bool(states) and all(each is GpuState.IDLE for each in states))
