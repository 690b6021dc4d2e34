"""Cycles as text: the same as of each by itself, and nothing is kept of what has gone."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

from otel_gpu.model import DriverFacts, Grant, ListedProcess, MigAccess, WorkloadKey, WorkloadNames
from otel_gpu.state import cycle_text
from otel_gpu.state.codec import to_json
from otel_gpu.state.cycle_text import CycleText
from tests.builders import CONTAINER, CONTAINER_ID, facts, failed_gpu, gpu, listed, memory, mig, snapshot

LISTED = listed(1)
FACTS = facts(1, CONTAINER, access={MigAccess(0, 1, None)}, opens={0, 1})
WORLD = replace(
    snapshot(
        gpu(0, [LISTED, listed(2, None)], memory=memory(), energy_mj=5, power_w=1.5),
        gpu(1, None, mig=[mig("MIG-1", (1, None), None)]),
        failed_gpu(2, "lost \udcff\n"),
        processes=[FACTS],
        names={CONTAINER_ID: WorkloadNames(container="web", extra=(("team", "a"),))},
    ),
    driver=DriverFacts("570.86", None),
    names_pending=frozenset({CONTAINER.key}),
    grants=(Grant(CONTAINER, "GPU-0", since_s=1.5),),
)
CYCLES = [
    WORLD,
    WORLD,
    replace(WORLD, wall_ns=WORLD.wall_ns + 1, pids_complete=False, infers=False),
    replace(WORLD, gpus=(gpu(0, [LISTED, LISTED, listed(3)]), gpu(1, [])), names_pending=frozenset(), grants=()),
    replace(WORLD, processes={1: FACTS, 2: facts(2), 3: FACTS}, driver=None),
    snapshot(),
]


def test_a_cycle_is_written_as_it_is_by_itself_whatever_came_before() -> None:
    text = CycleText()
    assert [text.of(cycle) for cycle in CYCLES] == [to_json(replace(cycle, sources=())) for cycle in CYCLES]


def test_what_is_as_it_was_is_not_written_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def noting(data: object) -> str:
        written.append(data)
        return to_json(data)

    monkeypatch.setattr(cycle_text, "to_json", noting)
    text = CycleText()
    text.of(WORLD)
    assert FACTS in written
    written.clear()
    text.of(replace(WORLD, monotonic_ns=WORLD.monotonic_ns + 1))
    assert not any(isinstance(each, type(FACTS) | type(LISTED) | list) for each in written)


def test_a_figure_that_is_the_same_is_written_as_it_is_told() -> None:
    text = CycleText()
    for power_w in (1, 1.0, True, 1.0):
        cycle = replace(WORLD, gpus=(gpu(0, [LISTED], power_w=power_w),))
        assert text.of(cycle) == to_json(replace(cycle, sources=()))


def test_what_has_gone_is_forgotten_with_the_next_cycle() -> None:
    class Names(dict[WorkloadKey, WorkloadNames]):
        """Some that can be seen to go."""

    text = CycleText()
    names = Names()
    seen = weakref.ref(names)
    text.of(replace(WORLD, names=names))
    del names
    assert seen() is not None
    text.of(WORLD)
    assert seen() is None


def test_what_could_not_be_written_is_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text, second = CycleText(), snapshot(gpu(0, [LISTED, listed(2)]))
    text.of(snapshot(gpu(0, [LISTED])))

    def refuse(value: object) -> object:
        if isinstance(value, ListedProcess):
            raise TypeError("not now")
        return to_json(value)

    with monkeypatch.context() as once:
        once.setattr(cycle_text, "to_json", refuse)
        with pytest.raises(TypeError, match="not now"):
            text.of(second)
    assert text.of(second) == CycleText().of(second)
