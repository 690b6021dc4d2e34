"""The points of every metric in the catalogue. What is not known has no point: never 0, never -1, never NaN."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpu.metrics.catalogue import BY_NAME, Level, Metric
from otel_gpu.metrics.collection import Family
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.points_agent import EXPLAINED_VALUES, SOURCE_VALUES, agent_points
from otel_gpu.metrics.points_device import DEVICE_VALUES
from otel_gpu.metrics.points_process import PROCESS_VALUES
from otel_gpu.metrics.points_reading import Reading
from otel_gpu.metrics.points_workload import WORKLOAD_VALUES, cost_points
from otel_gpu.metrics.series import Point

__all__ = ["Point", "Reading", "families", "family", "points"]


def family(metric: Metric, reading: Reading, columns: Columns, before: int = 0) -> Family | None:
    """A metric in this cycle; ``None`` where it has no point, as those of GPUs where a pod is told of.

    ``columns`` is what earlier cycles have left. ``before`` is how many points the metrics before it gave: the last of
    the catalogue tells how many there are.
    """
    standing = columns.standing(reading)
    return standing[metric.name] if metric.name in standing else _family(metric, reading, columns, before, standing)


def _family(
    metric: Metric, reading: Reading, columns: Columns, before: int, standing: dict[str, Family | None]
) -> Family | None:
    """The same, looked for; ``standing`` is where what need not be looked for again is kept."""
    if reading.attribution.pod is not None and not metric.of_pod:
        return None
    name = metric.name
    told: Family | None
    if (of_process := PROCESS_VALUES.get(name)) is not None:
        told, stands = columns.of_rows(metric, of_process, reading.processes), of_process.stands
    elif (of_workload := WORKLOAD_VALUES.get(name)) is not None:
        told, stands = columns.of_rows(metric, of_workload, reading.workloads), of_workload.stands
    elif (of_device := DEVICE_VALUES.get(name) or EXPLAINED_VALUES.get(name)) is not None:
        told, stands = columns.of_devices(metric, of_device, reading), of_device.stands
    elif (of_source := SOURCE_VALUES.get(name)) is not None:
        return columns.of_sources(metric, of_source, reading)
    elif metric.level is Level.WORKLOAD:
        told = columns.of_points(metric, cost_points(reading))
        stands = told is None  # nothing has a price
    else:
        return columns.of_points(metric, agent_points(name, reading, before))
    if stands:
        standing[name] = told
    return told


def families(metrics: Iterable[Metric], reading: Reading, columns: Columns) -> list[Family]:
    """These metrics in this cycle, without those that have no point."""
    found: list[Family] = []
    count, standing = 0, columns.standing(reading)
    for metric in metrics:
        name = metric.name
        told = standing[name] if name in standing else _family(metric, reading, columns, count, standing)
        if told is not None:
            found.append(told)
            count += len(told.values)
    return found


def points(metric_name: str, reading: Reading, before: int = 0) -> tuple[Point, ...]:
    """The points of a metric in this cycle; KeyError if there is no such metric."""
    found = family(BY_NAME[metric_name], reading, Columns(), before)
    return () if found is None else found.points
