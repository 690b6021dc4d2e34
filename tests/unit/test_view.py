from __future__ import annotations

import io
from dataclasses import replace

import pytest

from otel_gpu.export.table import render
from otel_gpu.export.text import Paint
from otel_gpu.view import View, write
from tests.builders import attribution

WIDTH = 120


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


def view(stream: io.StringIO, *, simulated: bool = False) -> View:
    return View(stream, paint=Paint(enabled=False), width=lambda: WIDTH, simulated=simulated)


def test_in_a_pipe_the_first_answer_is_shown_and_no_other() -> None:
    stream = io.StringIO()
    shown = view(stream)
    for _ in range(3):
        shown.show(attribution())
    assert stream.getvalue() == render(attribution(), width=WIDTH)


def test_on_a_terminal_every_answer_is_drawn_over_the_last() -> None:
    stream = Terminal()
    shown = view(stream)
    later = replace(attribution(), wall_ns=1_800_000_000 * 10**9)
    shown.show(attribution())
    first = stream.getvalue()
    shown.show(later)
    second = stream.getvalue()[len(first) :]
    assert first.startswith("\x1b[2J\x1b[H")  # clears what was there before
    assert second.startswith("\x1b[H")  # and then only goes home, lest it flicker
    assert "\x1b[2J" not in second
    for drawn, answer in ((first, attribution()), (second, later)):
        assert drawn.endswith("\x1b[J")
        plain = drawn.replace("\x1b[2J", "").replace("\x1b[H", "").replace("\x1b[K", "").replace("\x1b[J", "")
        assert plain == render(answer, width=WIDTH)


def test_on_a_terminal_what_stood_right_of_a_shorter_line_is_erased() -> None:
    stream = Terminal()
    view(stream).show(attribution())
    assert stream.getvalue().count("\x1b[K\n") == len(render(attribution(), width=WIDTH).splitlines())


def test_the_width_is_asked_for_anew_each_time() -> None:
    widths = iter([80, 200])
    stream = Terminal()
    shown = View(stream, paint=Paint(enabled=False), width=lambda: next(widths), simulated=False)
    shown.show(attribution())
    narrow = stream.getvalue()
    shown.show(attribution())
    wide = stream.getvalue()[len(narrow) :]
    assert max(map(len, wide.splitlines())) > max(map(len, narrow.splitlines()))


def test_a_simulated_host_is_called_so() -> None:
    stream = io.StringIO()
    view(stream, simulated=True).show(attribution())
    assert "SIMULATED HOST" in stream.getvalue()


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "█ é ?".encode()), ("latin-1", b"? \xe9 ?"), ("ascii", b"? ? ?")]
)
def test_what_the_stream_cannot_show_is_replaced_and_not_fatal(encoding: str, expected: bytes) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    write(stream, "█ é \ud800")
    assert raw.getvalue() == expected  # and it is there at once: nothing is left in a buffer
