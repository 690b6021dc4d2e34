"""Cycles as text: what the file does not have is written as of each by itself, and nothing is kept of what has gone."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

from otel_gpu.model import DriverFacts, Grant, ListedProcess, MigAccess, Snapshot, WorkloadKey, WorkloadNames
from otel_gpu.state import cycle_text
from otel_gpu.state.codec import loaded, to_json
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


def in_full(cycle: Snapshot) -> str:
    return to_json(replace(cycle, sources=()))


def test_a_cycle_is_written_as_it_is_by_itself_while_no_line_is_in_the_file() -> None:
    text = CycleText()
    assert [text.of(cycle) for cycle in CYCLES] == list(map(in_full, CYCLES))


def test_what_stands_in_the_file_is_referred_to_by_the_number_of_its_line() -> None:
    text = CycleText()
    assert text.of(WORLD) == in_full(WORLD)
    text.written(7)
    again = loaded(text.of(WORLD))
    text.written(8)
    assert again[3:5] == [7, 7], "processes and names"
    assert again[8:10] == [7, 7], "who is waited for, and grants"
    assert again[6] == ["570.86", None], "what is short is written again"
    assert [reading[0] for reading in again[2]] == [7, 7, 7]
    assert [reading[5] for reading in again[2]] == [7, None, None], "lists of processes"
    assert [reading[22] for reading in again[2]] == [None, 7, None], "MIG"
    assert loaded(text.of(WORLD)) == again, "a line that refers is not referred to"


def test_what_changes_is_in_full_once_and_the_rest_stays_where_it_stands() -> None:
    text = CycleText()
    text.of(WORLD)
    text.written(1)
    come = replace(WORLD, processes={1: FACTS, 2: facts(2)})
    lines = []
    for number, cycle in enumerate((WORLD, come, come, WORLD, WORLD), 2):
        lines.append(loaded(text.of(cycle)))
        text.written(number)
    first = loaded(in_full(WORLD))[3]
    assert [each[3] for each in lines] == [1, loaded(in_full(come))[3], 3, first, 5]
    assert [each[4] for each in lines] == [1] * 5


def test_what_was_not_written_is_not_referred_to() -> None:
    """The disk was full, or the line is torn: who comes in the next one is told of in full again."""
    text = CycleText()
    text.of(WORLD)
    text.written(1)
    come = replace(WORLD, processes={1: FACTS, 2: facts(2)})
    lost = text.of(come)
    assert text.of(come) == lost
    text.written(3)
    assert loaded(text.of(come))[3:5] == [3, 1]
    text.of(WORLD)
    assert loaded(text.of(come))[3:5] == [loaded(lost)[3], 1]


def test_nor_is_the_place_where_it_would_have_stood() -> None:
    text, nobody = CycleText(), replace(WORLD, gpus=(gpu(0, None),))
    text.of(WORLD)  # lost
    for number in (2, 3):
        line = loaded(text.of(nobody))
        text.written(number)
    assert line[2][0][5] is None


def test_another_file_begins_in_full() -> None:
    text = CycleText()
    text.of(WORLD)
    text.written(1)
    text.begin_file()
    assert text.of(WORLD) == in_full(WORLD)
    text.begin_file()
    text.written(2)
    assert text.of(WORLD) == in_full(WORLD), "what was made for the file before is in none"


def test_instances_that_are_made_anew_and_say_the_same_stand_as_well() -> None:
    text = CycleText()
    for number in (1, 2):
        line = text.of(replace(WORLD, gpus=(gpu(0, None, mig=[mig("MIG-1", (1, None), [listed(1)])]),)))
        text.written(number)
    assert loaded(line)[2][0][22] == 1


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
        assert text.of(cycle) == in_full(cycle)


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
