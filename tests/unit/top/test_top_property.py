"""Whatever is typed, and however large the window is: the screen fits, and nothing is raised."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.export.text import Paint, cells
from otel_gpu.top.board import Lost, Seen
from otel_gpu.top.cycle import Cycle
from otel_gpu.top.keys import Keys
from otel_gpu.top.layout import Canvas
from otel_gpu.top.looking import ORDERS, Looking
from otel_gpu.top.screen import About, draw
from tests.builders import GIB
from tests.unit.top.cycles import crowd, cycle, workload

CYCLES = (
    cycle(),
    replace(cycle(), currency=None),
    crowd(*(workload(f"w{at}", at * GIB or None, processes=at % 4) for at in range(30))),
    crowd(),
)
NAMED = ("\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F", "\r", "\x1b", "\x7f")
TYPED = st.lists(st.sampled_from([*NAMED, *"msweicngpr<>/ ht?jkGxü日"]), max_size=25)


@given(TYPED, st.lists(st.sampled_from(CYCLES), min_size=1, max_size=4), st.integers(1, 200), st.integers(1, 60))
def test_the_screen_fits_whatever_is_typed(typed: list[str], shown: list[Cycle], columns: int, rows: int) -> None:
    keys, looking = Keys(), Looking()
    canvas = Canvas(columns, rows, Paint(enabled=False))
    for number, each in enumerate(typed):
        now = shown[number % len(shown)]
        for key in [*keys.feed(each.encode()), *keys.flush()]:
            looking.press(key, now)
        lost = Lost(1.7e9, "gone") if number % 5 == 4 else None
        lines = draw(looking, Seen(now, lost), About("http://node-1:9464"), canvas)
        assert len(lines) <= rows
        assert max(map(cells, lines)) <= columns


@given(st.lists(st.binary(max_size=40)))
def test_bytes_of_any_kind_are_keys_or_nothing_and_nothing_is_kept(pieces: list[bytes]) -> None:
    keys = Keys()
    for piece in pieces:
        assert all(key.isprintable() for key in keys.feed(piece))
        assert len(keys._rest) <= 32
    keys.flush()
    assert not keys.waiting


def test_the_documentation_names_every_key_that_sorts() -> None:
    text = (Path(__file__).parents[3] / "docs" / "top.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| (.*) \| sort by memory", text, re.MULTILINE)
    assert set(row.replace("`", "").split()) == set(ORDERS)
