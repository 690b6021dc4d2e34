"""Lines back to cycles: a number stands for what was written, and none is believed that stands for anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import GpuReading, Snapshot
from otel_gpu.state.codec import loaded, to_json
from otel_gpu.state.cycle_reader import CycleReader
from otel_gpu.state.cycle_text import CycleText
from tests.builders import facts, gpu, listed, snapshot
from tests.unit.state.test_cycle_text import CYCLES, WORLD

PROCESSES, NAMES, GPUS = 3, 4, 2
IDENTITY, LISTED, MIG = 0, 5, 22


def read(*lines: object) -> list[Snapshot]:
    """A file of these lines, the first of which is number 1."""
    reader = CycleReader()
    return [reader.of(number, to_json(each).encode()) for number, each in enumerate(lines, 1)]


def with_value(cycle: Snapshot, value: object, *path: int) -> object:
    """A line in full but for one value."""
    line = loaded(to_json(replace(cycle, sources=())))
    inner = line
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return line


FULL = with_value(WORLD, [], 5)


def test_cycles_come_back_from_the_lines_of_a_file() -> None:
    text, reader = CycleText(), CycleReader()
    for number, cycle in enumerate((*CYCLES, *reversed(CYCLES), *CYCLES), 17):
        line = text.of(cycle)
        text.written(number)
        assert reader.of(number, line.encode()) == replace(cycle, sources=())


def test_what_is_told_once_is_one_object_in_all_cycles_that_refer_to_it() -> None:
    first, second = read(FULL, with_value(WORLD, 1, PROCESSES))
    assert second.processes is first.processes
    assert second.names == first.names
    assert second.names is not first.names


@pytest.mark.parametrize("path", [(PROCESSES,), (NAMES,), (GPUS, 0, IDENTITY), (GPUS, 0, LISTED), (GPUS, 1, MIG)])
@pytest.mark.parametrize("named", [0, 2, 3, 4, 5, -1, 1.0, True, "1", [1], {"1": 1}, 10**30])
def test_a_number_that_does_not_stand_for_the_last_line_in_full_is_not_believed(
    path: tuple[int, ...], named: object
) -> None:
    """The second and third of these lines refer to the first, and the fourth is read."""
    whole = with_value(WORLD, 1, *path)
    assert read(FULL, whole, whole, whole)
    with pytest.raises(ValueError, match=r"."):
        read(FULL, whole, whole, with_value(WORLD, named, *path))


def test_a_line_that_was_followed_by_another_in_full_is_not_referred_to() -> None:
    with pytest.raises(ValueError, match="cycle 3 refers to one that does not have it in full"):
        read(FULL, FULL, with_value(WORLD, 1, PROCESSES))


def test_nor_is_one_in_which_nothing_stands() -> None:
    without = with_value(WORLD, None, GPUS, 0, LISTED)
    assert read(FULL, without)
    with pytest.raises(ValueError, match="cycle 2 refers to"):
        read(without, with_value(WORLD, 1, GPUS, 0, LISTED))
    with pytest.raises(ValueError, match="cycle 3 refers to"):
        read(FULL, without, with_value(WORLD, 1, GPUS, 0, LISTED))


def test_nor_is_a_gpu_that_was_not_in_the_line_before() -> None:
    referring = with_value(WORLD, 1, GPUS, 2, IDENTITY)
    assert read(FULL, referring)
    fewer = with_value(replace(WORLD, gpus=WORLD.gpus[:2]), [], 5)
    with pytest.raises(ValueError, match="cycle 3 refers to"):
        read(FULL, fewer, referring)


@pytest.mark.parametrize("place", [0, 1, 2, 5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("value", [None, 1, True, "x", {}, [[]], [1]])
def test_a_value_of_another_kind_is_refused_anywhere(place: int, value: object) -> None:
    allowed = {0: (int,), 1: (int,), 6: (type(None),), 7: (bool,), 10: (bool,)}
    if isinstance(value, allowed.get(place, ())) and not (place < 2 and value is True):
        return
    with pytest.raises(ValueError, match=r"."):
        read(with_value(WORLD, value, place))


@pytest.mark.parametrize("text", [b"", b"{}", b"1", b"[", b"[1]", b"[" * 100_000])
def test_what_is_no_cycle_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        CycleReader().of(1, text)


def test_gpus_that_change_their_places_are_told_as_they_are() -> None:
    one, two = gpu(0, [listed(1)]), gpu(1, [listed(2), listed(3)])
    cycles: list[tuple[GpuReading, ...]] = [(one, two), (two, one), (two,), (one, two), (one, two), (), (two, one)]
    text, reader = CycleText(), CycleReader()
    for number, gpus in enumerate(cycles, 1):
        cycle = replace(snapshot(*gpus, processes=[facts(1)]), sources=())
        line = text.of(cycle)
        text.written(number)
        assert reader.of(number, line.encode()) == cycle
