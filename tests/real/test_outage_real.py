"""Outage of a Collector: totals after its restart, and the last export of an agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent_process import AgentProcess, simulated_agent
from tests.real.collector import CONFIGURATIONS, Addresses, collector, read_file, to_file
from tests.real.otlp_points import points_of

pytestmark = pytest.mark.real

AWAY_S = 60.0
DELTA, CUMULATIVE = 1, 2
ENERGY = {"hw.energy": "hw_energy_joules_total", "gpu.workload.energy": "gpu_workload_energy_joules_total"}

Totals = Mapping[tuple[str, ...], int]
"""Millijoules by metric, GPU, MIG instance, workload and method."""


@contextmanager
def agents(addresses: Addresses, directory: Path) -> Iterator[dict[str, AgentProcess]]:
    """One agent for each temporality, with its name in the Resource attribute ``run``."""
    with ExitStack() as running:
        found = {}
        for temporality in ("cumulative", "delta"):
            home = directory / temporality
            home.mkdir()
            flags = ["--export-interval", "1s", "--prometheus", "--otlp-endpoint", f"http://{addresses.otlp_http}"]
            flags += ["--otlp-temporality", temporality, "--resource-attributes", f"run={temporality}"]
            found[temporality] = running.enter_context(simulated_agent(*flags, directory=home))
        yield found


def scraped(agent: AgentProcess) -> Totals:
    """The totals in the agent's /metrics."""
    found = {}
    answer = agent.get("/metrics")
    for family in text_string_to_metric_families(answer.body if answer.status == 200 else ""):
        for sample in family.samples:
            for name, own in ENERGY.items():
                if sample.name == own:
                    labels = ("hw_id", "gpu_mig_uuid", "gpu_workload_id", "gpu_attribution_method")
                    found[name, *(sample.labels.get(label, "") for label in labels)] = round(sample.value * 1000)
    return found


def received(files: list[Path], run: str) -> list[Totals]:
    """The totals at the Collector after each export, with deltas added up."""
    sums: dict[tuple[str, ...], int] = {}
    history: list[Totals] = []
    newest_ns = None
    for point in (point for file in files for point in points_of(read_file(file))):
        if point.name not in ENERGY or point.get("run") != run:
            continue
        if newest_ns is not None and point.time_ns != newest_ns:
            history.append(dict(sums))
        newest_ns = point.time_ns
        keys = ("hw.id", "gpu.mig.uuid", "gpu.workload.id", "gpu.attribution.method")
        key = (point.name, *(point.get(each) or "" for each in keys))
        value_mj = round(point.value * 1000)
        assert value_mj >= 0
        assert point.temporality == (DELTA if run == "delta" else CUMULATIVE)
        sums[key] = sums.get(key, 0) + value_mj if run == "delta" else value_mj
    return [*history, sums]


def until_agreed(agent: AgentProcess, files: list[Path], run: str) -> None:
    """Wait until the totals after some export equal the agent's own for every series."""

    def agreed() -> bool:
        own = scraped(agent)
        return len(own) > 20 and any(own == totals for totals in received(files, run))

    agent.until(agreed)


def test_totals_are_correct_after_a_minute_without_a_collector(tmp_path: Path) -> None:
    addresses = Addresses.free()
    debug = CONFIGURATIONS / "debug.yaml"
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    with agents(addresses, tmp_path) as running:
        with collector(debug, to_file(before), directory=tmp_path / "first", addresses=addresses) as first:
            for run, agent in running.items():
                until_agreed(agent, [before], run)
            first.process.process.kill()
            first.process.process.wait()
        processes = {run: psutil.Process(agent.process.pid) for run, agent in running.items()}
        threads = {run: process.num_threads() for run, process in processes.items()}
        killed_s = time.monotonic()
        last = {run: scraped(agent) for run, agent in running.items()}
        while time.monotonic() - killed_s < AWAY_S:
            time.sleep(5)
            for run, agent in running.items():
                assert agent.get("/healthz").status == 200
                now = scraped(agent)
                assert sum(now.values()) > sum(last[run].values()), "sampling or scraping stopped"
                assert processes[run].num_threads() <= threads[run] + 1
                last[run] = now
        with collector(debug, to_file(after), directory=tmp_path / "second", addresses=addresses) as second:
            for run, agent in running.items():
                until_agreed(agent, [before, after], run)
                lines = [line for line in agent.stderr.splitlines() if "export to" in line]
                assert len([line for line in lines if " fails: " in line]) == 1, lines
                assert len([line for line in lines if "ok again" in line]) == 1, lines
            second.process.process.kill()
            second.process.process.wait()
        for agent in running.values():
            code, took_s = agent.end()
            assert (code, took_s < 5) == (0, True), agent.stderr
            assert "Traceback" not in agent.stderr


def test_the_agent_exports_once_more_when_it_stops(tmp_path: Path) -> None:
    addresses, out = Addresses.free(), tmp_path / "out.json"
    debug = CONFIGURATIONS / "debug.yaml"
    flags = ("--export-interval", "1h", "--retention", "3h", "--otlp-endpoint", f"http://{addresses.otlp_http}")
    with (
        collector(debug, to_file(out), directory=tmp_path / "collector", addresses=addresses),
        simulated_agent(*flags, directory=tmp_path) as agent,
    ):
        agent.until(lambda: bool(read_file(out)))
        first_ns = max(point.time_ns for point in points_of(read_file(out)))
        time.sleep(3)
        code, took_s = agent.end()
        assert (code, took_s < 5) == (0, True), agent.stderr
        deadline_s = time.monotonic() + 10
        while max(point.time_ns for point in points_of(read_file(out))) == first_ns:
            assert time.monotonic() < deadline_s, "no export after the first"
            time.sleep(0.1)
