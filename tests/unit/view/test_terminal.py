from __future__ import annotations

import pytest

from otel_gpu.view.terminal import Paint, Style, TextColumn, cells, pad, shorten, table

PLAIN = Paint(enabled=False)


def test_paint_adds_styles_and_ends_them() -> None:
    assert Paint(enabled=True)("hot", Style.BOLD, Style.RED) == "\x1b[1;31mhot\x1b[0m"


def test_disabled_paint_adds_nothing() -> None:
    assert PLAIN("hot", Style.BOLD, Style.RED) == "hot"
    assert Paint(enabled=True)("plain") == "plain"


@pytest.mark.parametrize(("width", "expected"), [(6, "abcdef"), (7, "abcdef"), (5, "abcd…"), (2, "a…"), (1, "…")])
def test_a_text_that_is_cut_says_so(width: int, expected: str) -> None:
    assert shorten("abcdef", width) == expected


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", 0),
        ("vllm", 4),
        ("naïve", 5),
        ("nai\u0308ve", 5),
        ("模型", 4),
        ("🚀a", 3),
        ("ﾊﾟ", 2),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}", 2),
        ("█·…°", 4),
    ],
)
def test_a_terminal_gives_wide_characters_two_cells_and_marks_none(text: str, taken: int) -> None:
    assert cells(text) == taken


@pytest.mark.parametrize(
    ("width", "expected"), [(6, "模型库"), (5, "模型…"), (4, "模…"), (3, "模…"), (2, "…"), (1, "…"), (0, "…")]
)
def test_half_of_a_wide_character_is_not_shown(width: int, expected: str) -> None:
    assert shorten("模型库", width) == expected


@pytest.mark.parametrize("text", ["", "abc", "模型", "模型模型", "a" * 20, "nai\u0308ve"])
@pytest.mark.parametrize("width", [1, 4, 5, 9])
def test_a_padded_text_takes_exactly_its_width(text: str, width: int) -> None:
    assert cells(pad(text, width)) == cells(pad(text, width, right=True)) == width


# ---------------------------------------------------------------------------- tables


def test_wide_characters_do_not_shift_the_columns_after_them() -> None:
    lines = table(
        [TextColumn("NAME"), TextColumn("N", right=True)], [["模型", "1"], ["vllm", "22"], ["🚀", "3"]], 80, PLAIN
    )
    assert lines == ["NAME   N", "模型   1", "vllm  22", "🚀     3"]


def test_columns_are_as_wide_as_their_widest_cell_and_aligned() -> None:
    columns = [TextColumn("N", right=True), TextColumn("NAME"), TextColumn("SIZE", right=True)]
    assert table(columns, [["1", "a", "10 B"], ["222", "bbbbbb", "5 B"]], 80, PLAIN) == [
        "  N  NAME    SIZE",
        "  1  a       10 B",
        "222  bbbbbb   5 B",
    ]


def test_a_table_without_rows_is_its_heading() -> None:
    assert table([TextColumn("A"), TextColumn("B")], [], 80, PLAIN) == ["A  B"]


def test_the_widest_of_the_shrinking_columns_gives_way_first() -> None:
    columns = [TextColumn("A", shrinks=True), TextColumn("B", shrinks=True), TextColumn("C")]
    rows = [["a" * 30, "b" * 12, "c" * 10]]
    assert table(columns, rows, 44, PLAIN)[1] == f"{'a' * 17}…  {'b' * 12}  {'c' * 10}"
    assert table(columns, rows, 30, PLAIN)[1] == f"{'a' * 7}…  {'b' * 7}…  {'c' * 10}"


def test_columns_do_not_shrink_beyond_recognition() -> None:
    line = table([TextColumn("A", shrinks=True), TextColumn("B")], [["a" * 30, "b" * 20]], 10, PLAIN)[1]
    assert line == f"{'a' * 7}…  {'b' * 20}"


def test_a_column_is_dropped_before_names_become_unreadable() -> None:
    columns = [TextColumn("NAME", shrinks=True), TextColumn("BAR", drops=True), TextColumn("N")]
    rows = [["n" * 20, "#" * 10, "1"]]
    assert table(columns, rows, 31, PLAIN) == [f"NAME{' ' * 14}BAR{' ' * 9}N", f"{'n' * 15}…  {'#' * 10}  1"]
    assert table(columns, rows, 30, PLAIN) == [f"NAME{' ' * 18}N", f"{'n' * 20}  1"]


def test_only_as_many_columns_are_dropped_as_are_needed() -> None:
    columns = [TextColumn("NAME", shrinks=True), TextColumn("KIND", drops=True), TextColumn("POD", drops=True)]
    rows = [["n" * 16, "k" * 10, "p" * 10]]
    assert [len(table(columns, rows, width, PLAIN)[1]) for width in (40, 39, 28, 27)] == [40, 28, 28, 16]
    assert table(columns, rows, 39, PLAIN)[1] == f"{'n' * 16}  {'p' * 10}"


def test_only_the_heading_is_painted_and_no_line_ends_in_space() -> None:
    lines = table([TextColumn("A"), TextColumn("B")], [["aaaa", ""], ["", "b"]], 80, Paint(enabled=True))
    assert lines == ["\x1b[2mA     B\x1b[0m", "aaaa", "      b"]
