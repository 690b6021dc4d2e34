"""The order of workloads: the same cases as for the page, which sorts in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.view.model import Cell, Column, Sort, chosen, ordered
from otel_gpu.view.text import filled
from tests.unit.top.views import row

TABLE = json.loads((Path(__file__).parents[2] / "sort_cases.json").read_text(encoding="utf-8"))
COLUMNS = [Column(**column) for column in TABLE["columns"]]
ROWS = [
    row(each["name"])._replace(key=each["key"], cells=tuple(Cell(str(value), value) for value in each["values"]))
    for each in TABLE["rows"]
]


@pytest.mark.parametrize("case", TABLE["orders"], ids=lambda case: str(case["sort"]))
def test_workloads_are_sorted_as_on_the_page(case: dict[str, Any]) -> None:
    assert [each.key for each in ordered(COLUMNS, ROWS, Sort(**case["sort"]))] == case["keys"]


@pytest.mark.parametrize("case", TABLE["choices"], ids=lambda case: f"{case['sort']} {case['column']}")
def test_a_chosen_column_sorts_as_on_the_page(case: dict[str, Any]) -> None:
    (column,) = (each for each in COLUMNS if each.key == case["column"])
    assert chosen(Sort(**case["sort"]), column) == Sort(**case["then"])


def test_a_text_is_filled_once_and_keeps_names_without_a_value() -> None:
    assert filled("{found} of {all} {", found="{all}") == "{all} of {all} {"
