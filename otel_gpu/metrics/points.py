"""The points of every metric in the catalogue. What is not known has no point: never 0, never -1, never NaN."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpu.metrics.catalogue import BY_NAME, Level
from otel_gpu.metrics.points_agent import agent_points
from otel_gpu.metrics.points_device import device_points
from otel_gpu.metrics.points_process import process_points
from otel_gpu.metrics.points_reading import Point, Reading
from otel_gpu.metrics.points_workload import workload_points

__all__ = ["Point", "Reading", "points"]


def points(metric_name: str, reading: Reading, before: int = 0) -> Iterable[Point]:
    """The points of a metric in this cycle; KeyError if there is no such metric. None of GPUs where a pod is told of.

    ``before`` is how many points the metrics before it gave: the last of the catalogue tells how many there are.
    """
    metric = BY_NAME[metric_name]
    if reading.attribution.pod is not None and not metric.of_pod:
        return ()
    match metric.level:
        case Level.DEVICE:
            return device_points(metric_name, reading)
        case Level.WORKLOAD:
            return workload_points(metric_name, reading)
        case Level.PROCESS:
            return process_points(metric_name, reading)
        case Level.AGENT:
            return agent_points(metric_name, reading, before)
