"""What came out of a Collector, as series: for asserting the rules of attribution on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Attributes: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Told:
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
        """Which series it is of."""
        return self.name, self.resource, self.attributes

    def get(self, key: str) -> Any:
        """An attribute of the point or of its Resource."""
        return dict(self.attributes).get(key, dict(self.resource).get(key))


def told(resource_metrics: Iterable[Mapping[str, Any]]) -> Iterator[Told]:
    """Every point in ResourceMetrics of OTLP/JSON."""
    for resource in resource_metrics:
        of = _attributes(resource["resource"].get("attributes", ()))
        for scope in resource["scopeMetrics"]:
            for metric in scope["metrics"]:
                data = metric.get("sum") or metric["gauge"]
                for point in data["dataPoints"]:
                    yield Told(
                        metric["name"],
                        of,
                        _attributes(point.get("attributes", ())),
                        int(point.get("startTimeUnixNano", 0)),
                        int(point["timeUnixNano"]),
                        float(point["asInt"] if "asInt" in point else point["asDouble"]),
                        data.get("aggregationTemporality", 0),
                    )


def _attributes(pairs: Sequence[Mapping[str, Any]]) -> Attributes:
    return tuple(sorted((pair["key"], next(iter(pair["value"].values()))) for pair in pairs))


def total(points: Iterable[Told], name: str, /, **where: str) -> dict[str, float]:
    """Sums by GPU of the points of a metric with these attributes, dots written as underscores."""
    sums: dict[str, float] = {}
    for point in points:
        if point.name == name and all(point.get(key.replace("_", ".")) == value for key, value in where.items()):
            sums[point.get("hw.id")] = sums.get(point.get("hw.id"), 0) + point.value
    return sums


def mj(joules: Mapping[str, float]) -> dict[str, int]:
    """Joules as whole millijoules, those that are 0 left out."""
    return {gpu: rounded for gpu, value in joules.items() if (rounded := round(value * 1000))}
