"""Figures and marks as people read them on a terminal."""

from __future__ import annotations

import pytest

from otel_gpu.export.table import render
from otel_gpu.export.table_figures import fit_for, in_ascii, joules, money, size, span, utc
from tests.builders import GIB, MIB, attribution

TABLE = render(attribution(), width=120)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ANSI_X3.4-1968"])
def test_where_only_ascii_can_be_shown_every_mark_has_one_and_none_has_two(encoding: str) -> None:
    text = fit_for(encoding, TABLE)
    assert text.isascii()
    assert [len(line) for line in text.splitlines()] == [len(line) for line in TABLE.splitlines()]
    assert "# measured  % inferred  ? unattributed  : the driver's own  . free" in text
    assert "* estimated  ~ inferred" in text
    assert in_ascii("日本") == "????"


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "utf8", "utf_8", None])
def test_elsewhere_it_is_as_it_is(encoding: str | None) -> None:
    assert fit_for(encoding, TABLE) is TABLE


def test_figures_are_as_the_page_has_them() -> None:
    assert [joules(mj) for mj in (None, 0, 999_400, 1_500_000, 150_000_000, 2.5e12)] == [
        "-", "0 J", "999 J", "1.5 kJ", "150 kJ", "2.5 GJ",
    ]  # fmt: skip
    assert [money(amount, "EUR") for amount in (None, 0, 0.0123, 12.345)] == [
        "-",
        "0.00 EUR",
        "0.0123 EUR",
        "12.35 EUR",
    ]
    assert [span(s) for s in (None, 0, 119, 120, 7200, 200_000)] == ["-", "0 s", "119 s", "2 m", "2 h", "2 d"]
    assert utc(1e300, "%H") == "-"


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(None, "-"), (0, "0 MiB"), (MIB, "1 MiB"), (GIB - MIB, "1023 MiB"), (GIB, "1.0 GiB"), (80 * GIB, "80.0 GiB")],
)
def test_sizes_are_in_binary_units_and_a_dash_is_not_zero(bytes_: int | None, text: str) -> None:
    assert size(bytes_) == text
