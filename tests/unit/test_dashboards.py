"""Dashboards, rules and the cookbook, as far as they can be checked without Grafana and Prometheus."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.sources.names.candidates import Kind
from otel_gpu.state.persistent import SOURCE_NAME
from tests.promql import (
    ROOT,
    Asked,
    alerts,
    dashboards,
    filled,
    labels,
    names,
    of_dashboard,
    of_page,
    recorded,
    rules,
    selectors,
    several,
)
from tools.dashboards.__main__ import CHART, COMPOSE, DASHBOARDS, RULES, main, stale
from tools.dashboards.grafana import rendered
from tools.dashboards.model import COLUMNS, Dashboard, Query, Section, Unit
from tools.dashboards.panels import stat
from tools.dashboards.promql import KEYS, promql

SHIPPED: Final = dashboards()
FOREIGN: Final = {"vllm:generation_tokens_total"}
"""Metrics of others, in examples of what can be put beside ours."""
UNITS: Final = {"none", "short", "bytes", "percentunit", "watt", "kwatth", "joule", "celsius", "s"}
"""Ids of units in Grafana (packages/grafana-data/src/valueFormats/categories.ts); others are spelt ``suffix:…``."""
BUILT_IN: Final = {"__rate_interval", "__range", "__value", "__url_time_range"}
"""Variables that Grafana has of its own."""


def everything() -> Iterator[Asked]:
    for name, dashboard in SHIPPED.items():
        yield from of_dashboard(name, dashboard)
    yield from (Asked(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules())
    yield from of_page()


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, dashboard in SHIPPED.items():
        for panel in dashboard["panels"]:
            yield f"{name}: {panel['title']}", panel


# ---------------------------------------------------------------------------- what is made


def test_shipped_files_are_up_to_date() -> None:
    assert stale(ROOT) == [], "run: make dashboards"
    assert len(SHIPPED) == len(DASHBOARDS) == 4


def test_a_file_that_was_changed_removed_or_added_is_stale(tmp_path: Path) -> None:
    for folder in (RULES, CHART, COMPOSE):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert main(["--check"], tmp_path) == 0
    changed, gone, added = COMPOSE / "fleet.json", CHART / "dashboards/node.json", CHART / "rules/old.yaml"
    (tmp_path / changed).write_text("{}", encoding="utf-8")
    (tmp_path / gone).unlink()
    (tmp_path / added).write_text("groups: []\n", encoding="utf-8")
    assert stale(tmp_path) == sorted([changed, gone, added])
    assert main(["--check"], tmp_path) == 1
    assert main([], tmp_path) == 0
    assert stale(tmp_path) == [added]


def test_a_metric_that_was_renamed_is_an_error() -> None:
    query = Query("sum(<hw.power.renamed>)")
    section = Section("A", (stat("B", "C", Unit.WATTS, query),))
    with pytest.raises(LookupError, match=r"hw\.power\.renamed"):
        rendered(Dashboard("a", "A", "", "", (), (section,)))


def test_every_query_of_a_dashboard_is_limited_to_the_selected_values() -> None:
    asked = promql('<hw.status>{<hw.state>="ok"} / rate(<hw.energy>[5m])', '<host.name>="$host"')
    assert asked == 'hw_status{host_name="$host", hw_state="ok"} / rate(hw_energy_joules_total{host_name="$host"}[5m])'
    assert promql("sum by (<host.name>) (<hw.power>)") == "sum by (host_name) (hw_power_watts)"
    assert promql("<hw.power> > 1 < 2") == "hw_power_watts > 1 < 2"


def test_no_name_is_both_a_metric_and_an_attribute() -> None:
    assert not KEYS & {metric.name for metric in METRICS}


# ---------------------------------------------------------------------------- names


def test_every_query_names_existing_metrics_and_labels() -> None:
    known = {prometheus_name(metric) for metric in METRICS} | set(recorded()) | FOREIGN
    every = list(everything())
    assert len(every) > 100
    for asked in every:
        assert names(asked.expr), asked
        assert names(asked.expr) <= known, asked
        assert labels(asked.expr) <= {label_name(key) for key in KEYS}, asked


def test_every_name_of_a_query_is_found() -> None:
    expr = 'sum by (a, b) (rate(m_total{c=~"x{}|y", d!="by (e)"}[5m])) / on (f) group_left (g) n:o:p > bool 1e3 and q'
    assert selectors(expr) == ['m_total{c=~"x{}|y", d!="by (e)"}', "n:o:p", "q"]
    assert labels(expr) == {"a", "b", "c", "d", "f", "g"}
    assert names('label_replace(m, "x", "$1", "y", "(.+)") / 3.6e6') == {"m"}


def test_names_and_addresses_of_dashboards_do_not_change() -> None:
    assert {name: (one["uid"], one["title"]) for name, one in SHIPPED.items()} == {
        "fleet": ("otel-gpu-fleet", "GPU / Fleet"),
        "node": ("otel-gpu-node", "GPU / Node"),
        "quality": ("otel-gpu-quality", "GPU / Quality"),
        "workload": ("otel-gpu-workload", "GPU / Workload"),
    }


# ---------------------------------------------------------------------------- what Grafana wants


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dashboard_can_be_imported_anywhere(name: str) -> None:
    one = SHIPPED[name]
    assert one["schemaVersion"] >= 39
    assert one["id"] is None, "Grafana gives it"
    assert "__inputs" not in one
    assert one["tags"] == ["otel-gpu"]
    source, *_ = one["templating"]["list"]
    assert (source["type"], source["name"], source["query"]) == ("datasource", "datasource", "prometheus")
    sources = re.findall(r'"datasource": \{"type": "(\w+)", "uid": "([^"]*)"\}', json.dumps(one))
    assert len(sources) >= 20
    assert set(sources) == {("prometheus", "${datasource}")}


@pytest.mark.parametrize("name", SHIPPED)
def test_panels_have_unique_ids_and_do_not_overlap(name: str) -> None:
    every = SHIPPED[name]["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= COLUMNS
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert len(cells) == at["w"] * at["h"] > 0
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_has_a_description_and_a_unit() -> None:
    for where, panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"stat", "timeseries", "bargauge", "table"}
        assert panel["description"].endswith("."), where
        units = [panel["fieldConfig"]["defaults"].get("unit")]
        if panel["type"] == "table":
            overrides = panel["fieldConfig"]["overrides"]
            units = [each["value"] for one in overrides for each in one["properties"] if each["id"] == "unit"]
        assert units
        assert all(unit in UNITS or unit.startswith("suffix:") for unit in units), where


def test_every_query_has_a_letter_an_expression_and_a_source() -> None:
    for where, panel in panels():
        targets = panel.get("targets", [])
        assert bool(targets) == (panel["type"] != "row")
        assert len({target["refId"] for target in targets}) == len(targets), where
        for target in targets:
            assert target["expr"].strip()
            assert target["datasource"] == panel["datasource"]
            assert target["instant"] != target["range"]
            assert (target["format"] == "table") == (panel["type"] == "table")


def test_every_column_of_a_table_is_a_label_or_a_value_of_its_queries() -> None:
    for where, panel in panels():
        if panel["type"] != "table":
            continue
        queries = panel["targets"]
        values = {f"Value #{query['refId']}" for query in queries} if len(queries) > 1 else {"Value"}
        grouped = [labels(re.sub(r"\{[^}]*\}", "", query["expr"])) for query in queries]
        assert all(each == grouped[0] for each in grouped), f"{where}: rows would not come together"
        merge, organize = panel["transformations"]
        assert merge["id"] == "merge"
        renamed = organize["options"]["renameByName"]
        assert set(renamed) == values | grouped[0], where
        assert {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]} == set(renamed.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_exactly_the_used_variables_are_declared(name: str) -> None:
    one = SHIPPED[name]
    declared = [variable["name"] for variable in one["templating"]["list"]]
    text = json.dumps(one)
    used = {found for pair in re.findall(r"\$(\w+)|\$\{(\w+)", text) for found in pair if found} - {"__all"}
    assert used - BUILT_IN == set(declared)
    for number, variable in enumerate(one["templating"]["list"]):
        needed = set(re.findall(r"\$(\w+)", str(variable.get("definition", ""))))
        assert needed <= set(declared[:number]), "a variable can be chosen by those before it"
    repeated = {panel["repeat"] for panel in one["panels"] if "repeat" in panel}
    assert repeated <= set(declared)


def test_a_link_leads_to_an_existing_dashboard_and_sets_one_of_its_variables() -> None:
    links = re.findall(r"/d/([\w-]+)\?var-(\w+)=", "".join(json.dumps(one) for one in SHIPPED.values()))
    assert links
    declared = {one["uid"]: {each["name"] for each in one["templating"]["list"]} for one in SHIPPED.values()}
    assert all(variable in declared[uid] for uid, variable in links)


def test_grafana_of_compose_takes_every_dashboard_into_one_folder() -> None:
    file = ROOT / "deploy/compose/grafana/provisioning/dashboards/folder.yaml"
    [provider] = yaml.safe_load(file.read_text(encoding="utf-8"))["providers"]
    # By the structure of files, those at the top would be in no folder, whatever is said here.
    assert (provider["folder"], "foldersFromFilesStructure" in provider["options"]) == ("GPU", False)
    assert len({one["uid"] for one in SHIPPED.values()} | {one["title"] for one in SHIPPED.values()}) == 2 * len(
        SHIPPED
    )


def test_values_are_put_in_as_grafana_does() -> None:
    chosen = {"host": "a", "host_id": "b", "__range": "5m"}
    assert filled('m{x="$host", y=~"${host_id}"}[$__range] $hosts', chosen) == 'm{x="a", y=~"b"}[5m] $hosts'
    assert several(["a.b"]) == r"a\\.b"
    assert several(["a", "b|c"]) == r"(a|b\\|c)"


# ---------------------------------------------------------------------------- alerts


def test_every_alert_has_a_severity_a_delay_annotations_and_a_page() -> None:
    page = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE))
    assert sections.keys() == alerts().keys()
    for name, alert in alerts().items():
        assert re.fullmatch(r"\d+[mh]", alert["for"])
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert sections[name].startswith(f"`{alert['labels']['severity']}`")
        annotations = alert["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url"}
        assert annotations["runbook_url"] == f"docs/alerts.md#{name.lower()}"
        named = set(re.findall(r"\$labels\.(\w+)", annotations["summary"] + annotations["description"]))
        assert named <= labels(alert["expr"]), "else the annotation would be empty"


def sources_of(alert: str) -> list[str]:
    """The expressions by which an alert selects sources."""
    return re.findall(r'otel_gpu_source=~?"([^"]*)"', alerts()[alert]["expr"])


def test_the_names_alert_is_about_all_name_sources_and_no_others() -> None:
    [pattern] = sources_of("GpuNamesUnavailable")
    for source in (*Kind, "podman-1000", "podman-user", "environment"):
        assert re.fullmatch(pattern, source), source
    for source in ("nvml", "procfs", "sim", "state", "attribution"):
        assert not re.fullmatch(pattern, source), source
    assert sources_of("GpuStateNotSaved") == [SOURCE_NAME]


def test_the_dashboard_counts_the_blind_agents_of_the_alert() -> None:
    [panel] = [panel for where, panel in panels() if where == "fleet: Agents blind or gone"]
    shown = panel["targets"][0]["expr"].replace('host_name=~"$host", ', "").replace('{host_name=~"$host"}', "")
    of_alert = alerts()["GpuAgentBlind"]["expr"].replace("(host_name, otel_gpu_source)", "(host_name)")
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", f"count({of_alert}) or vector(0)")


def test_the_dashboard_counts_the_gone_agents_of_the_alert() -> None:
    [panel] = [panel for where, panel in panels() if where == "fleet: Agents blind or gone"]
    shown = panel["targets"][1]["expr"].replace('{host_name=~"$host"}', "").replace("count by", "group by")
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", f"count({alerts()['GpuAgentGone']['expr']}) or vector(0)")


@pytest.mark.parametrize(("where", "of_now"), [("node: Workloads", "ABCD"), ("workload: Workloads", "ABCH")])
def test_a_present_figure_is_of_present_workloads(where: str, of_now: str) -> None:
    [panel] = [panel for at, panel in panels() if at == where and panel["type"] == "table"]
    for target in panel["targets"]:
        narrowed = re.search(r" and group by \(([^)]*)\) \(gpu_workload_access\{[^}]*\} == 1\)$", target["expr"])
        assert (narrowed is not None) == (target["refId"] in of_now), target["expr"]
        assert narrowed is None or f" by ({narrowed[1]}) (" in target["expr"][: narrowed.start()]


def test_no_two_workloads_are_shown_as_one_because_their_names_are_the_same() -> None:
    every = [one for name, dashboard in SHIPPED.items() for one in of_dashboard(name, dashboard)]
    named = [one for one in every if re.search(r" by \([^)]*gpu_workload_name", one.expr)]
    assert len(named) > 20
    for one in named:
        apart = {"k8s_namespace_name", "k8s_pod_name"} | (set() if one.where.startswith("node: ") else {"host_name"})
        for keys in re.findall(r" by \(([^)]*gpu_workload_name[^)]*)\)", one.expr):
            assert apart <= {key.strip() for key in keys.split(",")}, one


def test_time_and_energy_are_compared_with_work_only_where_drivers_report_work() -> None:
    divided = [
        one.expr
        for one in everything()
        if "compute_time" in one.expr and "/" in one.expr.replace("/ 3600", "").replace("/ 3.6e6", "")
    ]
    assert len(divided) == 3, "efficiency and work per kJ on the page, efficiency in a dashboard"
    for expr in divided:
        [below] = [one for one in selectors(expr) if "compute_time" not in one]
        assert 'gpu_mig_uuid=""' in below


@pytest.mark.parametrize("where", ["fleet: GPUs that are not ok", "node: State of each GPU"])
def test_a_gpu_that_failed_is_named_with_its_state(where: str) -> None:
    [panel] = [panel for at, panel in panels() if at == where]
    [query] = panel["targets"]
    assert names(query["expr"]) == {"hw_status"}
    assert {"gpu_index", "hw_id", "hw_state"} <= labels(query["expr"])
    assert query["expr"].endswith("== 1"), "a state that it is not in is a 0"


def test_time_of_workloads_is_not_in_units_of_gpus() -> None:
    seen = set()
    for where, panel in panels():
        units = {
            one["matcher"]["options"]: each["value"]
            for one in panel.get("fieldConfig", {}).get("overrides", ())
            for each in one["properties"]
            if each["id"] == "unit"
        }
        renamed = [
            each["options"]["renameByName"] for each in panel.get("transformations", ()) if each["id"] == "organize"
        ]
        for target in panel.get("targets", ()):
            if not re.match(r"sum( by \([^)]*\))? ?\((rate|increase)\(gpu_workload_time_seconds_total", target["expr"]):
                continue
            title = renamed[0][f"Value #{target['refId']}"] if renamed else None
            unit = panel["fieldConfig"]["defaults"]["unit"] if title is None else units[title]
            assert unit in ("suffix: workloads", "suffix: workload·h"), where
            seen.add(where)
    assert len(seen) >= 6


def test_every_alert_is_tested_when_it_fires_just_below_and_when_it_is_over() -> None:
    fires: dict[str, list[bool]] = {}
    for path in sorted((ROOT / "tests/rules").glob("*.yaml")):
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for each in test.get("alert_rule_test", ()):
                fires.setdefault(each["alertname"], []).append(bool(each["exp_alerts"]))
    assert fires.keys() == alerts().keys()
    for name, fired in fires.items():
        assert fired[:3] == [False, True, False], name
    recording = (ROOT / "tests/rules/recording.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"- expr: (\S+)", recording)) == set(recorded())


def test_the_line_in_the_dashboard_is_where_the_alert_begins() -> None:
    [panel] = [panel for where, panel in panels() if where == "node: Temperature"]
    *_, last = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert alerts()["GpuHot"]["expr"].endswith(f">= {last['value']}")
