"""The points of every metric in the catalogue. What is not known has no point: never 0, never -1, never NaN."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpu.metrics.catalogue import BY_NAME, Level, Metric
from otel_gpu.metrics.collection import MetricBlock
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.points_agent import EXPLAINED_VALUES, SOURCE_VALUES, agent_points
from otel_gpu.metrics.points_device import DEVICE_VALUES
from otel_gpu.metrics.points_process import PROCESS_VALUES
from otel_gpu.metrics.points_reading import Reading
from otel_gpu.metrics.points_workload import WORKLOAD_VALUES, cost_points
from otel_gpu.metrics.series import Point

__all__ = ["Point", "Reading", "blocks", "family", "points"]


def family(metric: Metric, reading: Reading, columns: Columns, before: int = 0) -> MetricBlock | None:
    """A metric in this cycle; ``None`` where it has no point, as those of GPUs where a pod is told of.

    ``columns`` is what earlier cycles have left. ``before`` is how many points the metrics before it gave: the last of
    the catalogue tells how many there are.
    """
    if reading.attribution.pod is not None and not metric.of_pod:
        return None
    name = metric.name
    told: MetricBlock | None
    if (of_process := PROCESS_VALUES.get(name)) is not None:
        told = columns.of_rows(metric, of_process, reading.processes)
    elif (of_workload := WORKLOAD_VALUES.get(name)) is not None:
        told = columns.of_rows(metric, of_workload, reading.workloads)
    elif (of_device := DEVICE_VALUES.get(name) or EXPLAINED_VALUES.get(name)) is not None:
        told = columns.of_devices(metric, of_device, reading)
    elif (of_source := SOURCE_VALUES.get(name)) is not None:
        return columns.of_sources(metric, of_source, reading)
    elif metric.level is Level.WORKLOAD:
        told = columns.of_points(metric, cost_points(reading))
    else:
        return columns.of_points(metric, agent_points(name, reading, before))
    return told


def blocks(metrics: Iterable[Metric], reading: Reading, columns: Columns) -> list[MetricBlock]:
    """These metrics in this cycle, without those that have no point."""
    found: list[MetricBlock] = []
    count = 0
    for metric in metrics:
        told = family(metric, reading, columns, count)
        if told is not None:
            found.append(told)
            count += len(told.values)
    return found


def points(metric_name: str, reading: Reading, before: int = 0) -> tuple[Point, ...]:
    """The points of a metric in this cycle; KeyError if there is no such metric."""
    found = family(BY_NAME[metric_name], reading, Columns(), before)
    return () if found is None else found.points
