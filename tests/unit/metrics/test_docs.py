from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_gpu.cli.metrics import metrics
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.metrics.reference import COMMAND, attributes_text, markdown

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_generated_from_the_catalogue() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), f"stale; renew it with: {COMMAND} > docs/metrics.md"


def test_the_page_has_every_metric_attribute_and_name_in_prometheus() -> None:
    page = markdown()
    for metric in METRICS:
        assert f"\n| `{metric.name}` | `{prometheus_name(metric)}` | {metric.kind} |" in page
    for key in {key for metric in METRICS for key in metric.keys} | set(IDENTITY_KEYS):
        assert f"\n| `{key}` | `{label_name(key)}` |" in page


def test_rows_of_a_table_have_as_many_cells_as_its_heading() -> None:
    cells = 0
    for line in markdown().splitlines():
        if line.startswith("|---"):
            cells = line.count("|")
        elif line.startswith("|") and cells:
            assert line.count("|") == cells
        elif not line:
            cells = 0


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert metrics(as_markdown=True) == 0
    assert capsys.readouterr().out == markdown()


@pytest.mark.parametrize(("columns", "headings"), [(120, 4), (80, 3)])
def test_the_command_prints_all_of_each_metric_and_no_line_is_too_long(
    columns: int, headings: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert metrics(as_markdown=False) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", heading) == ["METRIC", "KIND", "UNIT", "IN PROMETHEUS"][:headings]
    assert max(map(len, lines)) <= columns
    assert [line.split()[:3] for line in lines if line[0] != " "] == [[m.name, m.kind, m.unit] for m in METRICS]
    words = " ".join(" ".join(lines).split())
    for metric in METRICS:
        expected = (prometheus_name(metric), metric.description, attributes_text(metric.attributes))
        assert f"{metric.name} {metric.kind} {metric.unit} {' '.join(filter(None, expected))}" in words


def test_without_a_terminal_it_is_as_wide_as_a_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert metrics(as_markdown=False) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
