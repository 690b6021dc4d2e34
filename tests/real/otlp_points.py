"""Points in OTLP/JSON as a Collector writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Attributes: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One point. Times are Unix time in nanoseconds; ``temporality`` is 1 for delta, 2 for cumulative, 0 for gauges."""

    name: str
    resource: Attributes
    attributes: Attributes
    start_ns: int
    time_ns: int
    value: float
    temporality: int

    @property
    def series(self) -> tuple[str, Attributes, Attributes]:
        """The identity of its series."""
        return self.name, self.resource, self.attributes

    def get(self, key: str) -> Any:
        """An attribute of the point or of its Resource."""
        return dict(self.attributes).get(key, dict(self.resource).get(key))


def points_of(resource_metrics: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """Every point in ResourceMetrics of OTLP/JSON, in order."""
    for resource in resource_metrics:
        resource_attributes = attributes(resource["resource"].get("attributes", ()))
        for scope in resource["scopeMetrics"]:
            for metric in scope["metrics"]:
                data = metric.get("sum") or metric["gauge"]
                for point in data["dataPoints"]:
                    yield Point(
                        metric["name"],
                        resource_attributes,
                        attributes(point.get("attributes", ())),
                        int(point.get("startTimeUnixNano", 0)),
                        int(point["timeUnixNano"]),
                        float(point["asInt"] if "asInt" in point else point["asDouble"]),
                        data.get("aggregationTemporality", 0),
                    )


def attributes(pairs: Sequence[Mapping[str, Any]]) -> Attributes:
    """Attributes of OTLP/JSON, in alphabetical order."""
    return tuple(sorted((pair["key"], next(iter(pair["value"].values()))) for pair in pairs))


def resource_attributes(resource_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a Resource in OTLP/JSON."""
    return dict(attributes(resource_metrics["resource"].get("attributes", ())))


def workload_energies(resource_metrics: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(workload id, joules) of each point of gpu.workload.energy, in order."""
    points = points_of(resource_metrics)
    return [(point.get("gpu.workload.id"), point.value) for point in points if point.name == "gpu.workload.energy"]


def sum_by_gpu(points: Iterable[Point], name: str, /, **where: str) -> dict[str, float]:
    """The sum by GPU over the points of a metric with these attributes, whose dots are written as underscores."""
    sums: dict[str, float] = {}
    for point in points:
        if point.name == name and all(point.get(key.replace("_", ".")) == value for key, value in where.items()):
            sums[point.get("hw.id")] = sums.get(point.get("hw.id"), 0) + point.value
    return sums


def whole_mj(joules: Mapping[str, float]) -> dict[str, int]:
    """Joules as whole millijoules, without zeros."""
    return {gpu: rounded for gpu, value in joules.items() if (rounded := round(value * 1000))}
