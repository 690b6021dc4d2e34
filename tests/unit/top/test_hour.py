"""The last hour in the terminal: put together of what an agent tells, and drawn in so many cells."""

from __future__ import annotations

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.export.table_figures import in_ascii
from otel_gpu.top.cycle import combine
from otel_gpu.top.hour import Hour, sparkline
from otel_gpu.top.plain import Plain
from otel_gpu.web.history import SLOT_S, SLOTS
from tests.builders import attribution
from tests.unit.top.cycles import cycle, drawn, told


def history(*slots: tuple[float, float | None]) -> Plain:
    """What an agent tells of a GPU: when, and how busy it was."""
    figures = [None if ratio is None else [[ratio, 0.0, 1.0], None, None] for _, ratio in slots]
    return Plain({"at": [at for at, _ in slots], "gpus": {"GPU-0": figures}})


def test_the_first_telling_has_all_slots_and_later_ones_the_newest() -> None:
    hour = Hour()
    hour.add(history((0.0, 0.1), (15.0, None), (30.0, 0.3)))
    hour.add(history((30.0, 0.4)))  # the slot under way is told again
    hour.add(history((45.0, 0.5)))
    assert hour.of("GPU-0") == (0.1, None, 0.4, 0.5)
    assert hour.of("GPU-1") == (None,) * 4


def test_no_more_than_an_hour_is_kept() -> None:
    hour = Hour()
    for number in range(SLOTS + 10):
        hour.add(history((number * SLOT_S, number / 1000)))
    assert hour.of("GPU-0") == tuple(number / 1000 for number in range(10, SLOTS + 10))


@pytest.mark.parametrize(
    ("ratios", "line"),
    [
        ((), ""),
        ((None, None), ""),
        ((0.0,) * SLOTS, "▁▁▁▁"),
        ((1.0,) * SLOTS, "████"),
        ((0.5,), "   ▅"),
        ((0.0,) * (SLOTS // 4) + (None,) * (SLOTS // 4) + (0.3, 0.7) * (SLOTS // 8) + (1.2,) * (SLOTS // 4), "▁ ▅█"),
    ],
)
def test_a_cell_is_as_high_as_the_mean_of_its_slots(ratios: tuple[float | None, ...], line: str) -> None:
    assert sparkline(ratios, 4) == line


def test_where_terminals_know_no_blocks_heights_are_signs_all_the_same() -> None:
    line = in_ascii(sparkline(tuple(number / SLOTS for number in range(SLOTS)), 8))
    assert line.isascii()
    assert len(set(line)) == 8
    assert "?" not in line  # which is what cannot be shown


@pytest.mark.parametrize(
    "told_history",
    [
        {"at": 3, "gpus": {}},
        {"at": [1.0], "gpus": {"GPU-0": []}},
        {"at": [1.0], "gpus": {"GPU-0": [7]}},
        {"at": [1.0], "gpus": {"GPU-0": [[]]}},
        {"at": [1.0], "gpus": {"GPU-0": [[[]]]}},
        {"at": [1.0], "gpus": {"GPU-0": [[["x"]]]}},
        {"at": [1.0]},
        [],
    ],
)
def test_what_is_no_history_is_not_understood(told_history: object) -> None:
    document, beside = told(attribution())
    assert isinstance(beside, dict)
    with pytest.raises(Unavailable, match="what it tells is not understood"):
        combine(document, {**beside, "history": told_history})


def test_the_hour_stands_beside_the_bar_where_there_is_room_and_something_to_show() -> None:
    document, beside = told(attribution())
    assert isinstance(document, dict)
    assert isinstance(beside, dict)
    uuid = document["gpus"][0]["uuid"]
    beside["history"] = {"at": [0.0, 15.0], "gpus": {uuid: [[[0.2, 0, 1], None, None], [[1.0, 1, 1], None, None]]}}
    with_hour = combine(document, beside)
    lines = drawn(with_hour, 140)
    heading = next(line for line in lines if line.startswith("GPU"))
    first = lines[lines.index(heading) + 1]
    at = heading.index("UTIL, LAST HOUR")
    assert first[at : at + 24] == " " * 23 + "▅"  # both slots are in the last of 24 cells
    assert "LAST HOUR" not in "".join(drawn(with_hour, 119))
    assert "LAST HOUR" not in "".join(drawn(cycle(), 140))
