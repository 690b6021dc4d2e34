"""A real Prometheus that scrapes the agent on a simulated host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.agent_process import simulated_agent
from tests.real.prometheus import Series, prometheus, promtool

pytestmark = pytest.mark.real

EXPORTERS = ("--exporters", "prometheus")

CONTRACT = 'gpu_device_process_count non-histogram and non-summary metrics should not have "_count" suffix'
"""promtool's only complaint: the name gpu.device.process.count is a contract, and OpenTelemetry's own conventions have
such names (system.process.count)."""


def test_promtool_complains_about_one_name_only(tmp_path: Path) -> None:
    with simulated_agent(*EXPORTERS, directory=tmp_path) as agent:
        agent.until(lambda: agent.get("/metrics").status == 200)
        text = agent.get("/metrics").body
    checked = promtool("check", "metrics", stdin=text)
    complaints = (checked.stdout + checked.stderr).splitlines()
    assert complaints == [CONTRACT]


def test_prometheus_reads_created_timestamps_if_enabled(tmp_path: Path) -> None:
    with (
        simulated_agent(*EXPORTERS, "--openmetrics-created", directory=tmp_path) as agent,
        prometheus(agent.address, directory=tmp_path / "prometheus") as server,
    ):
        agent.until(lambda: bool(server.raw("hw_energy_joules_created")))
        created, energy = server.raw("hw_energy_joules_created"), server.raw("hw_energy_joules_total")
    assert len(created) == len(energy) == 4
    assert all(value <= time_s for one in created for time_s, value in one.samples)


def test_sums_hold_in_prometheus(tmp_path: Path) -> None:
    with (
        simulated_agent(*EXPORTERS, "--price-kwh", "0.3", directory=tmp_path) as agent,
        prometheus(agent.address, directory=tmp_path / "prometheus") as server,
    ):
        agent.until(lambda: any(len(one.samples) >= 8 for one in server.raw("hw_energy_joules_total")))
        times = [time_s for time_s, _ in server.raw("hw_energy_joules_total")[0].samples]
        first_s, last_s = times[0], times[-2]

        def by_gpu(expression: str) -> dict[str, float]:
            found = server.query(f"sum by (hw_id) ({expression} @ {last_s})")
            return {one.labels["hw_id"]: one.value for one in found}

        limits = by_gpu("hw_gpu_memory_limit_bytes")
        assert len(limits) == 4
        assert by_gpu("gpu_device_memory_usage_bytes") == limits
        overcount = by_gpu("gpu_device_memory_overcount_bytes")
        for method in ("measured", "inferred"):
            held = by_gpu(f'gpu_workload_memory_usage_bytes{{gpu_attribution_method="{method}"}}')
            listed = by_gpu(f'gpu_device_memory_usage_bytes{{gpu_memory_state="{method}"}}')
            correction = overcount if method == "measured" else {}
            assert {gpu: held.get(gpu, 0) - correction.get(gpu, 0) for gpu in limits} == {
                gpu: listed.get(gpu, 0) for gpu in limits
            }

        device = added_mj(server.raw("hw_energy_joules_total"), first_s, last_s)
        assert min(device.values()) > 0
        assert added_mj(server.raw("gpu_device_energy_joules_total"), first_s, last_s) == device
        attributed = added_mj(
            server.raw('gpu_device_energy_joules_total{gpu_energy_state="attributed"}'), first_s, last_s
        )
        assert max(attributed.values()) > 0
        assert added_mj(server.raw("gpu_workload_energy_joules_total"), first_s, last_s) == attributed
        assert added_mj(server.raw("gpu_process_energy_joules_total"), first_s, last_s) == attributed
        assert set(by_gpu("otel_gpu_conservation_energy_error_joules").values()) == {0}
        assert set(by_gpu("otel_gpu_conservation_memory_error_bytes").values()) == {0}


def added_mj(found: Sequence[Series], first_s: float, last_s: float) -> dict[str, int]:
    """Millijoules added between two scrapes, by GPU, from raw samples; new series start at zero."""
    added: dict[str, int] = {}
    for one in found:
        values = {time_s: round(joules * 1000) for time_s, joules in one.samples}
        assert last_s in values, "a series ended within the retention"
        gpu = one.labels["hw_id"]
        added[gpu] = added.get(gpu, 0) + values[last_s] - values.get(first_s, 0)
    return added
