"""For any input and window size the screen fits, and nothing is raised."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.top.latest import Latest, Outage
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import ORDERS, Navigation
from otel_gpu.top.screen import draw
from otel_gpu.top.terminal import Keys
from otel_gpu.view.model import View
from otel_gpu.view.terminal import Paint, cells
from tests.builders import GIB
from tests.unit.top.views import crowd, row, unpriced, view_of

VIEWS = (
    view_of(),
    unpriced(view_of()),
    crowd(*(row(f"w{at}", at * GIB or None, processes=at % 4) for at in range(30))),
    crowd(),
)
NAMED = ("\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F", "\r", "\x1b", "\x7f")
TYPED = st.lists(st.sampled_from([*NAMED, *"msweicngpr<>/ ht?jkGxü日"]), max_size=25)


@given(TYPED, st.lists(st.sampled_from(VIEWS), min_size=1, max_size=4), st.integers(1, 200), st.integers(1, 60))
def test_the_screen_fits_for_any_input(typed: list[str], shown: list[View], columns: int, rows: int) -> None:
    keys, navigation = Keys(), Navigation()
    canvas = Canvas(columns, rows, Paint(enabled=False))
    for number, each in enumerate(typed):
        now = shown[number % len(shown)]
        for key in [*keys.feed(each.encode()), *keys.flush()]:
            navigation.press(key, now)
        outage = Outage(1.7e9, "gone") if number % 5 == 4 else None
        lines = draw(navigation, Latest(now, outage), "http://node-1:9464", canvas)
        assert len(lines) <= rows
        assert max(map(cells, lines)) <= columns


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_keys_or_dropped(pieces: list[bytes]) -> None:
    keys = Keys()
    for piece in pieces:
        assert all(key.isprintable() for key in keys.feed(piece))
        assert len(keys._rest) <= 32
    keys.flush()
    assert not keys.waiting


def test_the_documentation_names_every_key_that_sorts() -> None:
    text = (Path(__file__).parents[3] / "docs" / "top.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| (.*) \| sort by name", text, re.MULTILINE)
    assert row.replace("`", "").split() == list(ORDERS)
