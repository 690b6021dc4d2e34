"""The formulas of other exporters follow their documentation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.accuracy.peers import (
    EQUAL,
    LAST,
    LAST_OF_EACH,
    MAXIMUM,
    MEAN_ROWS,
    NAMES,
    STANDING,
    PeerMeters,
    Poll,
    Watcher,
    ZeroPolls,
    hidden_memory,
    looks_like_ai,
)
from otel_gpu.sources.sim.signals import Points
from otel_gpu.sources.sim.world import Visibility
from tests.unit.sources.sim.builders import GIB, process, start, use, world

POLL = Poll(
    window_s=5.0,
    energy_mj=2_000_000,
    delta_mj=1_000_000,
    power_w=220.0,
    utilization=0.8,
    samples=(("a", 90), ("b", 40), ("a", 60)),
    rows={"a": 50, "b": 13},
    held_bytes={"a": GIB, "b": GIB},
    used_bytes=2 * GIB,
    candidates={},
    working=frozenset({"a", "b"}),
)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (LAST, {"a": 1.0}),
        (LAST_OF_EACH, {"a": 0.6, "b": 0.4}),
        (MAXIMUM, {"a": 9 / 13, "b": 4 / 13}),
        (MEAN_ROWS, {"a": 50 / 63, "b": 13 / 63}),
        (EQUAL, {"a": 0.5, "b": 0.5}),
    ],
)
def test_a_formula_divides_power_times_time_by_its_own_figure_of_work(formula: str, expected: dict[str, float]) -> None:
    meters = PeerMeters()
    meters.add(POLL, standing_w=100.0)
    assert meters.energy_mj[formula] == pytest.approx(
        {workload: share * 1_100_000 for workload, share in expected.items()}
    )
    if formula != MEAN_ROWS:
        # The counter says 1,000 J, of which 500 J are standing energy and are divided equally.
        shared = {workload: 250_000 + expected.get(workload, 0.0) * 500_000 for workload in ("a", "b")}
        assert meters.energy_mj[formula + STANDING] == pytest.approx(shared)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (LAST, {"a": 3.0}),
        (LAST_OF_EACH, {"a": 3.0, "b": 2.0}),
        (MAXIMUM, {"a": 4.5, "b": 2.0}),
        (MEAN_ROWS, {"a": 2.5, "b": 0.65}),
        (EQUAL, {"a": 2.0, "b": 2.0}),
    ],
)
def test_busy_time_is_the_figure_of_work_times_the_window(formula: str, expected: dict[str, float]) -> None:
    meters = PeerMeters()
    meters.add(POLL, standing_w=100.0)
    assert meters.busy_s[formula] == pytest.approx(expected)


def test_without_work_only_equal_shares_attribute_energy_and_with_our_standing_power_all_do() -> None:
    meters = PeerMeters()
    meters.add(replace(POLL, samples=(), rows={}, utilization=0.0, working=frozenset()), standing_w=100.0)
    assert {name for name, sums in meters.energy_mj.items() if sums and STANDING not in name} == {EQUAL}
    for name in (LAST, LAST_OF_EACH, MAXIMUM, EQUAL):
        assert meters.energy_mj[name + STANDING] == {"a": 500_000, "b": 500_000}


def test_with_our_standing_power_a_formula_divides_exactly_the_counter() -> None:
    meters = PeerMeters()
    for standing_w in (0.0, 100.0, 1_000.0):
        meters.add(POLL, standing_w)
    for name, sums in meters.energy_mj.items():
        if STANDING in name:
            assert sum(sums.values()) == pytest.approx(3_000_000)


def test_unlisted_memory_is_divided_equally_or_by_names() -> None:
    poll = replace(POLL, used_bytes=6 * GIB, candidates={"x": "web", "y": "mail-relay"})
    assert hidden_memory(poll) == {EQUAL: {"x": 2 * GIB, "y": 2 * GIB}, NAMES: {"x": GIB, "y": 3 * GIB}}


def test_without_a_candidate_or_hidden_memory_nothing_is_attributed() -> None:
    assert hidden_memory(replace(POLL, used_bytes=6 * GIB)) == {EQUAL: {}, NAMES: {}}
    assert hidden_memory(replace(POLL, candidates={"x": "web"}))[EQUAL] == {"x": 0}


@pytest.mark.parametrize(("name", "ai"), [("mail", True), ("index.html", True), ("LLM-1", True), ("web", False)])
def test_names_are_matched_by_parts_of_words(name: str, ai: bool) -> None:
    assert looks_like_ai(name) is ai


def test_a_process_is_idle_after_enough_zero_polls_until_a_poll_with_work() -> None:
    one, two = ZeroPolls(1), ZeroPolls(2)
    working = [{"a", "b"}, {"a"}, {"a"}, {"a", "b"}]
    polls = [replace(POLL, working=frozenset(workloads)) for workloads in working]
    assert [one.idle(poll) for poll in polls] == [set(), {"b"}, {"b"}, set()]
    assert [two.idle(poll) for poll in polls] == [set(), set(), {"b"}, set()]


def test_a_watcher_sees_each_sample_once_and_the_memory_of_each_workload() -> None:
    stops = Points(((0.0, 0.5), (4.0, 0.5), (4.0, 0.0)))
    spec = world(
        process(1, use(stops)),
        process(2, use(0.0, memory=2 * GIB, visibility=Visibility.HIDDEN)),
        process(3, use(0.0, context=False, opens_uvm=False)),
    )
    host, clock = start(spec)
    watcher = Watcher(host)
    ids = {one.pid: one.workload.ref.id for one in spec.processes}
    first = watcher.poll()
    assert (first.window_s, first.delta_mj, first.samples) == (0.0, 0, ())
    clock.advance(3.0)
    second = watcher.poll()
    assert second.window_s == 3.0
    assert second.rows == {ids[1]: 50}
    assert set(second.samples) == {(ids[1], 50)}
    assert second.working == {ids[1]}
    assert second.held_bytes == {ids[1]: GIB}
    assert second.candidates == {ids[2]: "p2"}
    assert second.used_bytes == 3 * GIB
    clock.advance(3.0)
    third = watcher.poll()
    assert len(second.samples) + len(third.samples) == 29, "samples of 4 s at 139 ms"
    clock.advance(3.0)
    fourth = watcher.poll()
    assert fourth.samples == ()
    assert len(fourth.rows) == len(fourth.working) == 0
    assert fourth.delta_mj == pytest.approx(60.0 * 3e3, rel=0.05)
