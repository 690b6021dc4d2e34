"""Compares the points that agents sent with those that the backend received."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint


@dataclass(frozen=True, slots=True)
class Sent:
    """The exports of one agent: points by their time (Unix time in ns), accepted or not.

    ``untaken_points`` are those that the node's Collector did not confirm. ``counters`` are the sums over
    all series of each counter in the last export.
    """

    host: str
    points: Mapping[int, int]
    untaken_points: int
    counters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Received:
    """The points of one host at the backend, by time, each series once; ``counters`` are those of the last export."""

    points: Mapping[int, int]
    counters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Balance:
    """The totals. A point is one series at one time; a duplicate counts as received once."""

    sent_points: int
    received_points: int
    lost_points: int
    unknown_points: int
    untaken_points: int
    hosts_with_other_counters: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the backend has exactly what was sent."""
        return not (self.lost_points or self.unknown_points or self.hosts_with_other_counters)


def balance(sent: Sequence[Sent], received: Mapping[str, Received]) -> Balance:
    """Compare what agents sent with what the backend has, export by export."""
    nothing = Received({}, {})
    lost = unknown = 0
    differing: list[str] = []
    for one in sent:
        there = received.get(one.host, nothing)
        for time_ns in one.points.keys() | there.points.keys():
            missing = one.points.get(time_ns, 0) - there.points.get(time_ns, 0)
            lost += max(0, missing)
            unknown += max(0, -missing)
        if one.counters != there.counters:
            differing.append(one.host)
    strangers = received.keys() - {one.host for one in sent}
    return Balance(
        sent_points=sum(sum(one.points.values()) for one in sent),
        received_points=sum(sum(one.points.values()) for one in received.values()),
        lost_points=lost,
        unknown_points=unknown + sum(sum(received[host].points.values()) for host in strangers),
        untaken_points=sum(one.untaken_points for one in sent),
        hosts_with_other_counters=tuple(sorted(differing)),
    )


def metrics_of(body: bytes) -> list[tuple[Metric, Sequence[NumberDataPoint]]]:
    """Every metric in a request and its points; the agent has no others than sums and gauges."""
    return [
        (metric, (metric.sum if metric.HasField("sum") else metric.gauge).data_points)
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def counters_of(bodies: Sequence[bytes]) -> dict[str, float]:
    """The sum over all series of each counter in the requests of one export, independent of their order."""
    values: dict[str, list[float]] = {}
    for body in bodies:
        for metric, points in metrics_of(body):
            if metric.HasField("sum") and metric.sum.is_monotonic:
                values.setdefault(metric.name, []).extend(
                    point.as_double if point.HasField("as_double") else point.as_int for point in points
                )
    return {name: math.fsum(of) for name, of in values.items()}
