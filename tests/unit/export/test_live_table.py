from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_gpu.cli.stdio import write
from otel_gpu.export.live_table import LiveTable
from otel_gpu.model import Report, SourceOutcome, SourceState
from otel_gpu.view.terminal import Paint
from tests.builders import attribute, attribution, facts, gpu, listed, memory, snapshot
from tests.tables import render, views

WIDTH, HEIGHT = 120, 50
NOTES = ("why: no driver", "page http://127.0.0.1:9464/")


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


class Screen:
    """A terminal that understands the sequences of the table; anything else fails the test."""

    def __init__(self, columns: int, lines: int, before: Sequence[str] = ()) -> None:
        self.columns, self.height = columns, lines
        self.lines = [*before, *[""] * (lines - len(before))]
        self.row = self.column = self.scrolled = 0
        self.wraps = True

    def feed(self, text: str) -> None:
        for token in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\x1b|\n|\r|[^\x1b\n\r]+", text):
            self._take(token)

    def _take(self, token: str) -> None:
        match token:
            case "\x1b[2J":
                self.lines = [""] * self.height
            case "\x1b[H":
                self.row = self.column = 0
            case "\x1b[K":
                self.lines[self.row] = self.lines[self.row][: self.column]
            case "\x1b[J":
                self.lines[self.row :] = [self.lines[self.row][: self.column], *[""] * (self.height - self.row - 1)]
            case "\x1b[?7l" | "\x1b[?7h":
                self.wraps = token.endswith("h")
            case "\r":
                self.column = 0
            case "\n":
                self.row, self.column = self.row + 1, 0
                if self.row == self.height:
                    self.lines, self.row, self.scrolled = [*self.lines[1:], ""], self.row - 1, self.scrolled + 1
            case _:
                assert "\x1b" not in token
                assert not self.wraps or len(token) <= self.columns
                kept = self.lines[self.row][: self.column] + token
                self.lines[self.row], self.column = kept[: self.columns], min(len(kept), self.columns - 1)


def view(stream: io.StringIO, columns: int = WIDTH, lines: int = HEIGHT, *, simulated: bool = False) -> LiveTable:
    plain = Paint(enabled=False)
    return LiveTable(
        stream, write, paint=plain, size=lambda: (columns, lines), view_of=views(simulated=simulated), notes=NOTES
    )


def crowd(gpus: int = 4, processes: int = 30, troubles: int = 0) -> Report:
    """An answer that no small screen holds."""
    entries = [listed(pid) for pid in range(100, 100 + processes)]
    return attribute(
        None,
        snapshot(
            gpu(0, entries, memory=memory(used_gib=60)),
            *(gpu(index) for index in range(1, gpus)),
            processes=[facts(pid, name=f"p{pid}") for pid in range(100, 100 + processes)],
            sources=[SourceOutcome(f"s{i}", SourceState.DEGRADED, "something is wrong") for i in range(troubles)],
        ),
    )


def screen_of(answer: Report, columns: int, lines: int) -> Screen:
    """A terminal after the view has drawn an answer on it, twice, as the only thing it was given."""
    stream, screen = Terminal(), Screen(columns, lines, before=["old line"] * lines)
    shown = view(stream, columns, lines, simulated=True)
    shown.show(answer)
    shown.show(answer)
    screen.feed(stream.getvalue())
    return screen


# ---------------------------------------------------------------------------- in a pipe


def test_a_pipe_gets_the_first_report_in_full_and_no_other() -> None:
    stream = io.StringIO()
    shown = view(stream, lines=5)
    for _ in range(3):
        shown.show(attribution())
    shown.close()
    assert stream.getvalue() == render(attribution(), width=WIDTH)


def test_a_pipe_waits_for_a_report_with_a_window_and_a_terminal_does_not() -> None:
    single = replace(attribution(), window_s=None)
    piped, screen = io.StringIO(), Terminal()
    for stream in (piped, screen):
        shown = view(stream)
        shown.show(single)
        assert bool(stream.getvalue()) is (stream is screen)
        shown.show(attribution())
    assert piped.getvalue() == render(attribution(), width=WIDTH)


def test_a_simulated_host_is_marked() -> None:
    stream = io.StringIO()
    view(stream, simulated=True).show(attribution())
    assert "SIMULATED HOST" in stream.getvalue()


# ---------------------------------------------------------------------------- on a terminal


def test_on_a_terminal_every_report_is_drawn_over_the_last() -> None:
    stream, screen = Terminal(), Screen(WIDTH, HEIGHT, before=["old line"] * HEIGHT)
    shown = view(stream)
    later = replace(crowd(processes=1), wall_ns=1_800_000_000 * 10**9)
    for answer in (attribution(), later):
        shown.show(answer)
        screen.feed(stream.getvalue())
        stream.seek(0)
        stream.truncate()
        expected = render(answer, width=WIDTH, notes=NOTES).splitlines()
        assert [line.rstrip() for line in screen.lines] == expected + [""] * (HEIGHT - len(expected))
        assert screen.wraps


def test_the_screen_is_cleared_once() -> None:
    stream = Terminal()
    shown = view(stream)
    for _ in range(3):
        shown.show(attribution())
    assert stream.getvalue().count("\x1b[2J") == 1


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (100, 30), (200, 60), (40, 12), (20, 6), (1, 1)], ids=str)
@pytest.mark.parametrize("answer", [attribution(), crowd(), crowd(gpus=40), crowd(troubles=5)], ids=range(4))
def test_a_frame_never_scrolls_a_small_screen(answer: Report, size: tuple[int, int]) -> None:
    screen = screen_of(answer, *size)
    assert screen.scrolled == 0 or size[1] == 1  # where there is one line, there is none for the cursor
    if size[1] > 1:
        assert screen.lines[0].startswith("otel-gpu"[: size[0] - 1])
        assert screen.lines[-1] == ""


def test_a_small_screen_shows_the_title_the_notes_and_a_part_of_each_table() -> None:
    lines = screen_of(crowd(), 80, 24).lines
    assert re.match(r"otel-gpu \S+  2023-11-14T", lines[0])
    assert lines[1] == "SIMULATED HOST: no figure here is from a real GPU"
    assert lines[2:4] == list(NOTES)
    assert [line.split()[0] for line in lines[5:10]] == ["GPU", "0", "1", "2", "3"]
    assert lines[11].startswith("WORKLOAD")
    assert lines[12].startswith("host ")
    assert lines[14].split()[:2] == ["PID", "PROCESS"]
    assert lines[22] == "… 23 more"
    assert len(lines[15:22]) + 23 == 30


def test_processes_are_cut_first_and_problems_never() -> None:
    lines = screen_of(crowd(gpus=40, troubles=2), 80, 30).lines
    gpus = [line for line in lines if re.match(r" +\d+  A100", line)]
    assert lines[5 + 1 + len(gpus)] == f"… {40 - len(gpus)} more"
    assert len(gpus) > 10
    assert sum(line.startswith("1") for line in lines) == 1  # one process, and how many more there are
    assert "… 29 more" in lines
    assert lines[27:29] == ["s0: degraded: something is wrong", "s1: degraded: something is wrong"]


def test_a_line_as_wide_as_the_terminal_keeps_its_end() -> None:
    widest = max(render(attribution(), width=WIDTH).splitlines(), key=len)
    assert widest in screen_of(attribution(), len(widest), HEIGHT).lines


def test_each_report_uses_the_present_size() -> None:
    sizes = iter([(80, 24), (200, 60)])
    stream = Terminal()
    shown = LiveTable(stream, write, paint=Paint(enabled=False), size=lambda: next(sizes), view_of=views())
    shown.show(crowd())
    small = stream.getvalue()
    shown.show(crowd())
    large = stream.getvalue()[len(small) :]
    assert max(map(len, large.splitlines())) > max(map(len, small.splitlines()))
    assert len(small.splitlines()) < len(large.splitlines())


def test_close_leaves_an_empty_line_under_the_table() -> None:
    stream, screen = Terminal(), Screen(80, 24)
    shown = view(stream, 80, 24)
    shown.show(crowd())
    stream.write("^C")  # as the terminal echoes it
    shown.close()
    screen.feed(stream.getvalue())
    assert (screen.row, screen.column, screen.lines[screen.row]) == (23, 0, "")
    assert screen.lines[22].startswith("… ")


def test_a_table_without_a_report_writes_nothing() -> None:
    stream = Terminal()
    view(stream).close()
    assert stream.getvalue() == ""


def test_an_ascii_stream_gets_ascii_bars() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    LiveTable(stream, write, paint=Paint(enabled=False), size=lambda: (WIDTH, HEIGHT), view_of=views()).show(
        attribution()
    )
    stream.flush()
    assert b"##############%....." in written.getvalue()


def test_the_host_is_named_in_the_title() -> None:
    stream = io.StringIO()
    plain = Paint(enabled=False)
    view_of = views(host_name="node-1")
    shown = LiveTable(stream, write, paint=plain, size=lambda: (WIDTH, HEIGHT), view_of=view_of)
    shown.show(attribution())
    assert "  node-1  " in stream.getvalue().splitlines()[0]
