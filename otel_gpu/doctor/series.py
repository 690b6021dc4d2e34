"""The check of how many series an agent exports of this host."""

from __future__ import annotations

from typing import Final

from otel_gpu.doctor.findings import Finding, degraded, ok
from otel_gpu.metrics.catalogue import METRICS, Level
from otel_gpu.metrics.collect import MAX_SERIES
from otel_gpu.sources.base import GpuRead

_FIX: Final = "none needed: GPUs and workloads are exported in full; --process-metrics off leaves processes out always"


def check_series(read: GpuRead, *, process_metrics: bool, max_series: int = MAX_SERIES) -> Finding:
    """Whether metrics of processes may be left out. Every process may be a workload of its own."""
    lists = [processes for gpu in read.gpus for processes in (gpu.processes, *(mig.processes for mig in gpu.mig or ()))]
    uses = sum(len(processes or ()) for processes in lists)
    levels = (Level.WORKLOAD, Level.PROCESS) if process_metrics else (Level.WORKLOAD,)
    most = len(lists) * _most_points(Level.DEVICE) + uses * sum(map(_most_points, levels))
    if most <= max_series or not process_metrics:
        return ok("series", f"at most {most:,} of {max_series:,} series")
    return degraded("series", f"up to {most:,} series: above {max_series:,} those of processes are not exported", _FIX)


def _most_points(level: Level) -> int:
    return sum(metric.most_points for metric in METRICS if metric.level is level)
