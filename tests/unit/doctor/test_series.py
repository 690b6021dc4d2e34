"""How many series a host has, as doctor reports it."""

from __future__ import annotations

from otel_gpu.doctor.findings import Verdict
from otel_gpu.doctor.series import check_series
from otel_gpu.metrics.collect import MAX_SERIES
from otel_gpu.sources.base import GpuRead
from tests.builders import MIB, gpu, listed


def read(processes: int) -> GpuRead:
    return GpuRead((gpu(0, [listed(pid, MIB) for pid in range(1, processes + 1)]),), None)


def test_a_usual_host_has_room() -> None:
    found = check_series(read(50), process_metrics=True)
    assert found.verdict is Verdict.OK
    assert found.found.endswith(f" of {MAX_SERIES:,} series")


def test_a_host_with_too_many_processes_is_degraded_unless_they_are_not_exported() -> None:
    found = check_series(read(3000), process_metrics=True)
    assert found.verdict is Verdict.DEGRADED
    assert f"above {MAX_SERIES:,} those of processes are not exported" in found.found
    assert "--process-metrics off" in (found.fix or "")
    assert check_series(read(3000), process_metrics=False).verdict is Verdict.OK
