"""Every query of dashboards, rules and the cookbook, on a real Prometheus with data of the demo.

``live`` has some seconds of a running demo, scraped from the agent or pushed through a Collector. ``history`` has 45
backfilled minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from otel_gpu.model import GpuState
from tests.agent_process import simulated_agent
from tests.promql import (
    COOKBOOK,
    ROOT,
    RULES,
    Asked,
    alerts,
    dashboards,
    filled,
    names,
    of_dashboard,
    of_page,
    recorded,
    rules,
    selectors,
    several,
)
from tests.real.backfill import KWH_PRICE, TOKENS_PER_S, DemoHistory, demo_history
from tests.real.collector import CONFIGURATIONS, Addresses, collector
from tests.real.prometheus import Prometheus, Series, prometheus, promtool

pytestmark = pytest.mark.real

PRICES: Final = ("--price-gpu-hour", "2.5", "--price-kwh", str(KWH_PRICE), "--currency", "EUR")
FOR_S: Final = 2700
LIVE_VARIABLES: Final = {"__rate_interval": "10s", "__range": "30s"}
HISTORY_VARIABLES: Final = {"__rate_interval": "1m", "__range": "30m"}

IDLE_GPUS: Final = 'sum by (host_name, gpu_index) (gpu_device_process_count{gpu_state=~"busy|unknown"}) == 0'
NOT_IN_THE_DEMO: Final = {IDLE_GPUS: "every GPU of the demo is busy or unknown"}
"""Queries of the cookbook without a result in the demo."""
FAILED_GPUS: Final = "fleet: GPUs that are not ok, A"
"""A query of a dashboard without a result in the demo, whose GPUs are all ok."""

NOT_LIVE: Final = {
    "gpu_workload_idle_duration_seconds": "next to a busy neighbour, idleness takes up to a minute to detect",
    "gpu_workload_idle_memory_bytes": "the same",
    "vllm:generation_tokens_total": "a metric of another program, which does not run",
}
"""Metrics that may be absent in the first seconds, and are present in the history."""


# ---------------------------------------------------------------------------- unit tests of the rules


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", *(str(path) for path in sorted(RULES.glob("*.yaml"))))
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("SUCCESS") == 2


def test_every_alert_fires_is_silent_just_below_and_resolves() -> None:
    files = sorted((ROOT / "tests/rules").glob("*.yaml"))
    tested = promtool("test", "rules", *map(str, files))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.count("SUCCESS") == len(files) == 4


# ---------------------------------------------------------------------------- the demo in Prometheus


def quick_rules(directory: Path) -> list[Path]:
    """The rules, evaluated every second instead of every minute."""
    directory.mkdir(parents=True)
    for path in RULES.glob("*.yaml"):
        text = path.read_text(encoding="utf-8").replace("interval: 1m", "interval: 1s")
        (directory / path.name).write_text(text, encoding="utf-8")
    return sorted(directory.iterdir())


@pytest.fixture(scope="module", params=["scraped", "collector"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with some seconds of the demo, by one of the two routes."""
    directory = tmp_path_factory.mktemp("live")
    loaded = quick_rules(directory / "rules")
    with ExitStack() as running:
        if request.param == "scraped":
            agent = running.enter_context(simulated_agent(*PRICES, "--exporters", "prometheus", directory=directory))
            target, folder = agent.address, directory / "prometheus"
            server = running.enter_context(prometheus(target, directory=folder, rules=loaded))
        else:
            server = running.enter_context(prometheus(None, directory=directory / "prometheus", rules=loaded))
            addresses = Addresses.free()
            configuration = CONFIGURATIONS / "prometheus-remote-write.yaml"
            variables = {"REMOTE_WRITE_URL": server.remote_write_url}
            running.enter_context(
                collector(configuration, directory=directory / "c", addresses=addresses, environment=variables)
            )
            to = ("--export-interval", "1s", "--otlp-endpoint", f"http://{addresses.otlp_http}")
            agent = running.enter_context(simulated_agent(*PRICES, "--exporters", "otlp", *to, directory=directory))
        # The result of a rule, so that all rules were evaluated on some seconds of data.
        agent.until(lambda: any(len(one.samples) >= 8 for one in server.raw("namespace:gpu_power_watts:rate5m")))
        yield server


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoHistory]:
    with demo_history(for_s=FOR_S, directory=tmp_path_factory.mktemp("history") / "prometheus") as found:
        yield found


# ---------------------------------------------------------------------------- dashboards


def choices(server: Prometheus, dashboard: Mapping[str, Any], at_s: float | None = None) -> list[dict[str, str]]:
    """Values for the variables of a dashboard: first all, then for each variable every value alone, and two values."""
    span = {} if at_s is None else {"start": str(at_s - FOR_S), "end": str(at_s)}
    everything: dict[str, str] = {}
    single: list[tuple[str, str]] = []
    for variable in dashboard["templating"]["list"][1:]:
        inside = variable["definition"].removeprefix("label_values(").removesuffix(")")
        selector, _, label = inside.rpartition(", ")
        asked = {"match[]": filled(selector, everything)}
        values = server.get(f"/api/v1/label/{label}/values", **asked, **span)
        assert values, variable["definition"]
        everything[variable["name"]] = variable["allValue"] if variable["multi"] else values[0]
        if variable["multi"]:
            single += [(variable["name"], several(chosen)) for chosen in (*([value] for value in values), values[:2])]
    return [everything, *(everything | {name: value} for name, value in single)]


def of_dashboards(server: Prometheus, times: dict[str, str], at_s: float | None = None) -> list[Asked]:
    """Every query with all values selected. With fewer values, a query must be valid but may have no result."""
    found: list[Asked] = []
    for name, dashboard in dashboards().items():
        everything, *less = [
            [Asked(one.where, filled(one.expr, chosen | times)) for one in of_dashboard(name, dashboard)]
            for chosen in choices(server, dashboard, at_s)
        ]
        assert not [one for one in everything if "$" in one.expr]
        for one in [one for asked in less for one in asked]:
            server.query(one.expr, at_s)
        for one in everything:
            if one.where == FAILED_GPUS:
                assert server.query(one.expr, at_s) == []
        found += [one for one in everything if one.where != FAILED_GPUS]
    return found


def nothing_found(server: Prometheus, every: list[Asked], at_s: float | None = None) -> list[Asked]:
    """Queries without a result, or with a selector without one, which ``or vector(0)`` and comparisons would hide."""
    missing = [one for one in every if not server.query(one.expr, at_s)]
    return missing + [
        Asked(f"{one.where} ({selector})", one.expr)
        for one in every
        for selector in selectors(one.expr)
        if not server.query(f"last_over_time({selector}[1h])", at_s)
    ]


def test_every_query_of_a_dashboard_has_a_live_result(live: Prometheus) -> None:
    missing = nothing_found(live, of_dashboards(live, LIVE_VARIABLES))
    assert not [one for one in missing if not names(one.expr) & set(NOT_LIVE)]


def test_every_query_of_a_dashboard_has_a_result_in_the_history(history: DemoHistory) -> None:
    queries = of_dashboards(history.server, HISTORY_VARIABLES, history.last_s)
    assert nothing_found(history.server, queries, history.last_s) == []


def test_selected_namespaces_filter_a_panel(history: DemoHistory) -> None:
    by_namespace = "sum by (k8s_namespace_name) (gpu_workload_memory_usage_bytes)"
    whole = {one.labels.get("k8s_namespace_name", ""): one.value for one in history.query(by_namespace)}
    [asked] = [
        one for one in of_dashboard("workload", dashboards()["workload"]) if one.where.endswith("by method, A")
        and "memory" in one.expr
    ]  # fmt: skip
    for chosen in (["inference"], ["inference", "research"]):
        expr = filled(asked.expr, {"host": ".*", "namespace": several(chosen), "workload": ".*"})
        held = sum(one.value for one in history.query(expr))
        assert held == sum(whole[name] for name in chosen) > 0


def test_ended_workloads_are_not_in_the_table_of_a_node(history: DemoHistory) -> None:
    places = [(workload, gpu) for workload in history.report.workloads for gpu in workload.gpus]
    here = sorted(str(workload.display_name) for workload, gpu in places if gpu.active)
    assert len(here) < len(places), "some have ended within the retention"
    chosen = {"host": "demo", "gpu": ".*", **HISTORY_VARIABLES}
    [asked] = [one for one in of_dashboard("node", dashboards()["node"]) if one.where == "node: Workloads, A"]
    shown = history.query(filled(asked.expr, chosen))
    assert sorted(one.labels["gpu_workload_name"] for one in shown) == here


# ---------------------------------------------------------------------------- rules


def test_prometheus_evaluates_every_rule_and_no_alert_fires_in_the_demo(live: Prometheus) -> None:
    evaluated = [rule for group in live.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in evaluated} == alerts().keys() | recorded().keys()
    assert {(rule["health"], rule.get("lastError", "")) for rule in evaluated} == {("ok", "")}
    # In the demo a pod does not use its GPU, which fires an alert after an hour.
    pending = live.get("/api/v1/alerts")["alerts"]
    assert {(one["labels"]["alertname"], one["state"]) for one in pending} <= {("GpuAllocatedUnused", "pending")}
    for name in recorded():
        assert live.query(name), name


def test_the_metrics_of_every_alert_exist_in_the_demo(live: Prometheus) -> None:
    # A simulated host has other sources; tests/unit/test_dashboards.py checks the names of real ones.
    every = [
        Asked(rule.get("alert") or rule["record"], re.sub(r'otel_gpu_source=~?"[^"]*", ', "", rule["expr"]))
        for rule in rules()
    ]
    missing = [one for one in nothing_found(live, every) if one.where not in alerts()]
    assert not [one for one in missing if not names(one.expr) & set(NOT_LIVE)]


def test_alerts_fire_for_idle_and_unused_workloads_only(history: DemoHistory) -> None:
    idle = {
        workload.ref.id
        for workload in history.report.workloads
        for gpu in workload.gpus
        if gpu.state is GpuState.IDLE and (gpu.idle_s or 0) >= 1800 and (gpu.idle_bytes or 0) >= 1 << 28
    }
    assert idle, "the demo's notebook is idle"
    unused = {
        workload.ref.id
        for workload in history.report.workloads
        for gpu in workload.gpus
        if gpu.state is GpuState.ALLOCATED
    }
    assert len(unused) == 1
    for name, alert in alerts().items():
        # The manual clock does not advance while sources are read: all durations are 0.
        if name == "GpuAgentNotSampling":
            continue
        found = history.query(alert["expr"])
        wanted = {"GpuIdleHolder": idle, "GpuAllocatedUnused": unused}.get(name, set())
        assert {one.labels.get("gpu_workload_id") for one in found} == wanted, name


# ---------------------------------------------------------------------------- the cookbook


def cookbook() -> list[Asked]:
    return [one for one in of_page() if one.expr.strip() not in NOT_IN_THE_DEMO]


def test_every_query_of_the_cookbook_has_a_live_result(live: Prometheus) -> None:
    missing = nothing_found(live, cookbook())
    assert not [one for one in missing if not names(one.expr) & set(NOT_LIVE)]


def test_every_query_of_the_cookbook_has_a_result_in_the_history(history: DemoHistory) -> None:
    # The history has no results of recording rules.
    every = [one for one in cookbook() if not names(one.expr) & recorded().keys()]
    assert len(every) > 20
    assert nothing_found(history.server, every, history.last_s) == []


def test_queries_without_a_result_in_the_demo_are_in_the_cookbook(history: DemoHistory) -> None:
    page = {one.expr.strip() for one in of_page()}
    for expr in NOT_IN_THE_DEMO:
        assert expr in page
        assert history.query(expr) == []


def answer(history: DemoHistory, before: str) -> dict[tuple[str, ...], float]:
    """The result of the query that follows a line of the page, by label values."""
    _, _, after = COOKBOOK.read_text(encoding="utf-8").partition(f"\n{before}")
    assert after, before
    expr = after.partition("```promql\n")[2].partition("```")[0]
    found: list[Series] = list(history.query(expr))
    return {tuple(one.labels.values()): one.value for one in found}


def test_results_of_the_cookbook_add_up(history: DemoHistory) -> None:
    counted = history.query('sum(increase(gpu_device_energy_joules_total{gpu_energy_state="attributed"}[24h]))')
    kwh = counted[0].value / 3.6e6
    energy = answer(history, "kWh per namespace and day")
    # The first sample of a workload has its energy since its start, which no increase contains.
    assert sum(energy.values()) == pytest.approx(kwh, rel=0.02)
    # Every GPU of the demo always has a process, so no energy is idle.
    assert sum(answer(history, "kWh per GPU model").values()) == pytest.approx(kwh)
    priced = answer(history, "Cost of energy at 0.30 per kWh")
    assert priced == pytest.approx({name: value * KWH_PRICE for name, value in energy.items()})
    paid = answer(history, "Cost by basis")
    assert sum(value for name, value in paid.items() if "energy" in name) == pytest.approx(
        sum(priced.values()), rel=0.02
    )
    assert sum(answer(history, "Cost per namespace").values()) == pytest.approx(sum(paid.values()))
    by_pod, by_method = answer(history, "Watts per pod"), answer(history, "Watts by method")
    assert sum(answer(history, "Watts of every workload").values()) == pytest.approx(sum(by_method.values()))
    assert 0 < sum(by_pod.values()) < sum(by_method.values())
    held, used = answer(history, "Held: presence on a GPU"), answer(history, "Used: SM share")
    assert used.keys() < held.keys(), "a namespace with MIG instances only has no utilisation"
    assert all(0 < used[name] < held[name] for name in used)
    assert all(0 <= share <= 1 for share in answer(history, "Work per time held").values())
    on_mig = {
        one.labels.get("k8s_namespace_name", ""): one.value / 3600
        for one in history.query(
            'sum by (k8s_namespace_name) (increase(gpu_workload_energy_joules_total{gpu_mig_uuid!=""}[24h])) / 1000'
        )
    }
    efficiency = answer(history, "GPU-seconds of work per kJ")
    assert efficiency.keys() == used.keys()
    for name, per_kj in efficiency.items():
        kj = energy[name] * 3600 - 3600 * on_mig.get("".join(name), 0.0)
        assert per_kj == pytest.approx(used[name] * 3600 / kj), name
    wasted = answer(history, "Workload-hours per namespace with memory held")
    assert max(wasted.values()) == pytest.approx(2 * FOR_S / 3600, rel=0.05), "notebook and sweep"
    [(pod, tokens_per_joule)] = answer(history, "A program's own count of its work").items()
    [watts] = [value for name, value in by_pod.items() if pod[0] in name]
    assert tokens_per_joule == pytest.approx(TOKENS_PER_S / watts, rel=0.02)
