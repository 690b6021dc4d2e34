"""The table of exporters, and its rendering."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import Aggregation, Family, FamilyType, RenderContext
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.config.groups import Listener
from otel_gpu.export.prometheus import Exposition
from otel_gpu.metrics.rows import report_rows
from otel_gpu.model import WorkloadNames
from tests.unit.compat.series import lines, text
from tests.unit.export.exposition import parsed, series, simulated_report
from tests.unit.metrics.builders import answer, device, part, workload

NO_GPUS = RenderContext(report_rows(answer()))
PAGE = Path(__file__).parents[3] / "docs" / "compat.md"


def test_names_and_labels_are_valid_and_unique() -> None:
    for exporter, families in FAMILIES.items():
        names = [f"{EXPORTERS[exporter].prefix}{family.name}" for family in families]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in names)
        for family in families:
            labels = [label for label, _ in family.labels]
            assert len(set(labels)) == len(labels)
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) for label in labels)


def test_every_option_sets_a_field_or_a_label_or_has_a_note() -> None:
    for each in EXPORTERS.values():
        for option in (*each.variables, *each.flags):
            assert not option.sets or option.sets in Listener.__slots__
            assert not (option.sets and option.label)
            assert bool(option.note) == bool(option.agent or option.only is not None)
            assert option.sets or option.label or option.note, "a flag that is silently ignored"


@pytest.mark.parametrize("name", EXPORTERS)
def test_the_series_of_a_host_parse_and_are_unique(name: str) -> None:
    exposition = text(name, simulated_report(), host_name="node-1")
    # This parser treats a counter with and without _total as one; Prometheus has two, and so does one exporter.
    exposition = exposition.replace(
        "my_gpu_process_energy_joules_total", "my_gpu_process_energy_by_method_joules_total"
    )
    families = parsed(exposition.encode(), Exposition.TEXT)
    assert len(families) == len(FAMILIES[name])
    assert len(series(families)) > 30


@pytest.mark.parametrize("name", EXPORTERS)
def test_without_gpus_there_are_no_series(name: str) -> None:
    assert [line for line in text(name, answer()).splitlines() if not line.startswith("#")] == []


def test_a_hostile_name_is_escaped() -> None:
    names = WorkloadNames(container='a"} 1\nfake_metric{x="\\\udc80')
    report = answer(device(), workloads=[workload(part(measured=1), names=names)])
    (line,) = lines("gpu-inference", "container_gpu_detected", report)
    mark = "\N{REPLACEMENT CHARACTER}"
    escaped = f'a\\"}} 1{mark}fake_metric{{x=\\"\\\\{mark}'
    assert line.startswith(f'container_gpu_detected{{container_name="{escaped}",')
    assert "\nfake_metric" not in text("gpu-inference", report)


def test_values_with_equal_labels_are_summed_or_the_maximum_counts() -> None:
    summed = Family("a", FamilyType.GAUGE, "", lambda _: (1, 2), (), lambda subject: subject)
    largest = Family("b", FamilyType.GAUGE, "", lambda _: (1, 2), (), lambda subject: subject, Aggregation.MAX)
    assert render([summed, largest], NO_GPUS, prefix="x_").decode().splitlines() == [
        "# HELP x_a ",
        "# TYPE x_a gauge",
        "x_a 3",
        "# HELP x_b ",
        "# TYPE x_b gauge",
        "x_b 2",
    ]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_value_that_is_not_finite_has_no_series(value: float | None) -> None:
    family = Family("a", FamilyType.COUNTER, "x\ny\\z", lambda _: (1,), (), lambda _: value)
    assert render([family], NO_GPUS, prefix="").decode() == "# HELP a x\\ny\\\\z\n# TYPE a counter\n"


def test_the_page_documents_every_exporter_series_variable_and_flag() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for each in EXPORTERS.values():
        assert f"## {each.name}" in page
        for family in FAMILIES[each.name]:
            assert f"`{each.prefix}{family.name}`" in page or f"`_{family.name}`" in page, family.name
        for option in each.variables:
            assert f"`{option.name}`" in page
        for option in each.flags:
            assert f"`--{option.name}`" in page
