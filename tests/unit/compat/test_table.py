"""The table itself, and how it is written out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.form import Exporter, Family, Join, Kind, Scene
from otel_gpu.compat.listener import Listener
from otel_gpu.compat.render import render
from otel_gpu.export.prometheus import Exposition
from otel_gpu.metrics.rows import report_rows
from otel_gpu.model import WorkloadNames
from tests.unit.compat.told import lines, text
from tests.unit.export.exposition import parsed, series, simulated_report
from tests.unit.metrics.builders import answer, device, part, workload

NOWHERE = Scene(report_rows(answer()))
PAGE = Path(__file__).parents[3] / "docs" / "compat.md"


def exporter(*families: Family[int]) -> Exporter:
    return Exporter("test", 1, 1.0, families)


def test_names_and_labels_are_what_prometheus_allows_and_nothing_stands_twice() -> None:
    for each in EXPORTERS.values():
        names = [f"{each.prefix}{family.name}" for family in each.families]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in names)
        for family in each.families:
            labels = [label for label, _ in family.labels]
            assert len(set(labels)) == len(labels)
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) for label in labels)


def test_every_option_sets_what_a_listener_has_or_has_another_say() -> None:
    for each in EXPORTERS.values():
        for option in (*each.variables, *each.flags):
            assert not option.sets or option.sets in Listener.__slots__
            assert not (option.sets and option.label)
            assert bool(option.note) == bool(option.agent or option.only is not None)
            assert option.sets or option.label or option.note, "a flag that is ignored without a word"


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_whole_host_is_told_in_text_that_parses_with_no_series_twice(name: str) -> None:
    told = text(name, simulated_report(), host_name="node-1")
    # To this parser a counter is one with and without _total; one exporter has both, and to Prometheus they are two.
    told = told.replace("my_gpu_process_energy_joules_total", "my_gpu_process_energy_by_method_joules_total")
    families = parsed(told.encode(), Exposition.TEXT)
    assert len(families) == len(EXPORTERS[name].families)
    assert len(series(families)) > 30


@pytest.mark.parametrize("name", EXPORTERS)
def test_before_there_is_a_gpu_nothing_is_told(name: str) -> None:
    assert [line for line in text(name, answer()).splitlines() if not line.startswith("#")] == []


def test_a_hostile_name_stays_within_its_quotes() -> None:
    names = WorkloadNames(container='a"} 1\nfake_metric{x="\\\udc80')
    told = answer(device(), workloads=[workload(part(measured=1), names=names)])
    (line,) = lines("gpu-inference", "container_gpu_detected", told)
    assert line.startswith('container_gpu_detected{container_name="a\\"} 1\\nfake_metric{x=\\"\\\\\\\\udc80",')
    assert "\nfake_metric" not in text("gpu-inference", told)


def test_several_values_of_one_series_are_added_or_the_largest_counts() -> None:
    added = Family("a", Kind.GAUGE, "", lambda _: (1, 2), (), lambda subject: subject)
    largest = Family("b", Kind.GAUGE, "", lambda _: (1, 2), (), lambda subject: subject, Join.LARGEST)
    assert render(exporter(added, largest), NOWHERE, prefix="x_").decode().splitlines() == [
        "# HELP x_a ",
        "# TYPE x_a gauge",
        "x_a 3",
        "# HELP x_b ",
        "# TYPE x_b gauge",
        "x_b 2",
    ]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_no_number_has_no_series(value: float | None) -> None:
    family = Family("a", Kind.COUNTER, "x\ny\\z", lambda _: (1,), (), lambda _: value)
    assert render(exporter(family), NOWHERE, prefix="").decode() == "# HELP a x\\ny\\\\z\n# TYPE a counter\n"


def test_the_page_names_every_exporter_every_series_every_variable_and_every_flag() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for each in EXPORTERS.values():
        assert f"## {each.name}" in page
        for family in each.families:
            assert f"`{each.prefix}{family.name}`" in page or f"`_{family.name}`" in page, family.name
        for option in each.variables:
            assert f"`{option.name}`" in page
        for option in each.flags:
            assert f"`--{option.name}`" in page
