"""Tables: bars in the colours of workloads, and the last hour of each GPU."""

from __future__ import annotations

import re

import pytest

from otel_gpu.top.latest import Latest
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import Navigation
from otel_gpu.top.screen import draw
from otel_gpu.top.tables import colour_style, sparkline
from otel_gpu.view.builder import COLOURS
from otel_gpu.view.history import SLOTS
from otel_gpu.view.model import Cell, Column, History, View
from otel_gpu.view.terminal import Paint, Style, Tone, in_ascii
from tests.unit.top.views import crowd, drawn, row, view_of


def test_every_colour_has_a_style_and_none_is_that_of_unattributed_memory() -> None:
    styles = {colour_style(colour) for colour in range(COLOURS)}
    assert len(styles) == COLOURS
    assert Style.RED not in styles


def bar_line(view: View, *, enabled: bool) -> str:
    lines = draw(Navigation(), Latest(view), None, Canvas(140, 30, Paint(enabled=enabled)))
    return next(line for line in lines if "A100" in line)


def test_a_bar_has_the_colours_of_the_workloads_that_hold_the_memory() -> None:
    view = view_of()
    colours = {row.name: colour_style(row.colour).value for row in view.workloads if row.colour is not None}
    segments = re.findall(r"\x1b\[(\d+)m([█▒]+)\x1b\[0m", bar_line(view, enabled=True))
    assert [(colour, marks[0]) for colour, marks in segments if len(marks) > 1] == [
        (colours["vllm-chat"], "█"),
        (colours["host"], "▒"),
    ]
    lines = draw(Navigation(), Latest(view), None, Canvas(140, 30, Paint(enabled=True)))
    assert any(f"\x1b[{colours['dddddddddddd']}mdddddddddddd" in line for line in lines)


def test_without_colours_the_bar_has_the_same_marks() -> None:
    view = view_of()
    assert re.sub(r"\x1b\[\d+m", "", bar_line(view, enabled=True)) == bar_line(view, enabled=False)


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


def test_an_ascii_terminal_has_a_mark_for_each_height() -> None:
    line = in_ascii(sparkline(tuple(number / SLOTS for number in range(SLOTS)), 8))
    assert line.isascii()
    assert len(set(line)) == 8
    assert "?" not in line  # which replaces characters that cannot be shown


def test_the_last_hour_is_shown_if_there_is_room_and_a_history() -> None:
    view = view_of()
    slots = (((0.2, 0.0, 1.0), None, None), ((1.0, 1.0, 1.0), None, None))
    with_hour = view._replace(history=History((0.0, 15.0), {view.gpus[0].uuid: slots}))
    lines = drawn(with_hour, 140)
    heading = next(line for line in lines if line.startswith("GPU"))
    first = lines[lines.index(heading) + 1]
    at = heading.index("UTIL, LAST HOUR")
    assert first[at : at + 24] == " " * 23 + "▅"  # both slots are in the last of 24 cells
    assert "LAST HOUR" not in "".join(drawn(with_hour, 119))
    assert "LAST HOUR" not in "".join(drawn(view, 140))


def test_a_column_of_the_view_is_shown_without_a_change_here() -> None:
    view = view_of()
    rows = tuple(row._replace(cells=(*row.cells, row.cells[2])) for row in view.workloads)
    newer = view._replace(
        columns=(*view.columns, Column("peak", "Peak", "Most memory", is_number=True)), workloads=rows
    )
    (heading,) = (line for line in drawn(newer, 180) if "WORKLOAD" in line)
    assert heading.split()[-1] == "PEAK"


def test_a_gpu_column_of_the_view_is_shown_without_a_change_here() -> None:
    view = view_of()
    gpus = tuple(
        gpu._replace(bars=tuple(bar._replace(cells=(*bar.cells, Cell("1980 MHz", 1980.0))) for bar in gpu.bars))
        for gpu in view.gpus
    )
    newer = view._replace(
        gpu_columns=(*view.gpu_columns, Column("clock", "SM clock", "…", is_number=True, brief="Clock")), gpus=gpus
    )
    lines = drawn(newer, 180)
    at = next(number for number, line in enumerate(lines) if "NAME" in line)
    assert lines[at].split()[-1] == "CLOCK"
    assert lines[at + 1].endswith(" 1980 MHz")


@pytest.mark.parametrize(
    ("tone", "style"),
    [
        (Tone.GOOD, Style.GREEN),
        (Tone.WARN, Style.YELLOW),
        (Tone.BAD, Style.RED),
        (Tone.SOFT, Style.DIM),
        (Tone.NONE, None),
    ],
)
def test_a_state_is_drawn_in_its_tone(tone: Tone, style: Style | None) -> None:
    view = crowd(row("selected", 2.0), row("alpha", 1.0, state="some state", tone=tone))
    lines = draw(Navigation(), Latest(view), None, Canvas(140, 30, Paint(enabled=True)))
    (line,) = (line for line in lines if "alpha" in line and "some state" in line)
    before = line[: line.rindex("some state")]
    assert before.endswith(f"\x1b[{style.value}m" if style is not None else " ")


def test_a_workload_without_a_colour_has_a_plain_name() -> None:
    ended = row("beta", 1.0)._replace(colour=None)
    lines = draw(Navigation(), Latest(crowd(row("alpha", 2.0), ended)), None, Canvas(140, 30, Paint(enabled=True)))
    assert any(line.startswith("  beta ") for line in lines)
