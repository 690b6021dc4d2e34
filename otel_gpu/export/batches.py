"""Batches: the points of a collection in portions that fit into one OTLP request each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_gpu.metrics.catalogue import Metric
from otel_gpu.metrics.labels import Resources, WorkloadIdentity
from otel_gpu.metrics.series import Collection, Point

LARGEST_REQUEST_BYTES: Final = 2 << 20
"""Half of the 4 MiB that gRPC accepts by default. Over HTTP a Collector accepts 20 MiB."""

_POINT_BYTES: Final = 64
_ATTRIBUTE_BYTES: Final = 24
_HEADING_BYTES: Final = 64
"""Upper bounds of what protobuf adds to the texts: tags, lengths of up to five bytes, times, values."""


class Block(NamedTuple):
    """A metric with some of its points."""

    metric: Metric
    points: Sequence[Point]


class Batch(NamedTuple):
    """Points for one request. ``time_ns`` is the time of the collection (Unix time)."""

    time_ns: int
    blocks: Sequence[Block]


class _Row(NamedTuple):
    metric: Metric
    point: Point


def split_by_size(
    collection: Collection | Batch, resources: Resources, largest_bytes: float = LARGEST_REQUEST_BYTES
) -> Iterable[Batch]:
    """Split a collection into batches whose requests have at most ``largest_bytes``, the host's points first.

    Sizes are estimated from above before anything is encoded. A point that is larger on its own gets its own batch.
    """
    whole = Batch(collection.time_ns, tuple([Block(block.metric, block.points) for block in collection.blocks]))
    if not whole.blocks:
        return ()
    points = [point for block in whole.blocks for point in block.points]
    metric_bytes = {
        block.metric.name: _HEADING_BYTES
        + _utf8_bytes(block.metric.name + block.metric.description + block.metric.unit)
        for block in whole.blocks
    }
    resource_bytes = {
        workload: 2 * _HEADING_BYTES + _attributes_bytes(resources.of(workload))
        for workload in {point.workload for point in points}
    }
    # The heading of a metric is counted for every Resource, whether it has the metric or not.
    whole_bytes = sum(resource_bytes.values()) + len(resource_bytes) * sum(metric_bytes.values())
    whole_bytes += _POINT_BYTES * len(points) + _ATTRIBUTE_BYTES * sum([len(point.attributes) for point in points])
    whole_bytes += _utf8_bytes(repr([point.attributes for point in points]))
    if whole_bytes <= largest_bytes:  # the usual case, in half the time
        return (whole,)
    return _batches(whole, metric_bytes, resource_bytes, largest_bytes)


def _batches(
    whole: Batch,
    metric_bytes: Mapping[str, int],
    resource_bytes: Mapping[WorkloadIdentity | None, int],
    largest_bytes: float,
) -> Iterator[Batch]:
    """The batches of a collection that does not fit into one."""
    rows: list[_Row] = []
    size_bytes = 0
    for workload, own_rows in _by_workload(whole).items():
        before: str | None = None  # the metric of the previous row, if it is in the same batch and Resource
        for row in own_rows:
            name = row.metric.name
            point_bytes = _POINT_BYTES + _attributes_bytes(row.point.attributes)
            added_bytes = point_bytes + (0 if name == before else metric_bytes[name])
            added_bytes += resource_bytes[workload] if before is None else 0
            if rows and size_bytes + added_bytes > largest_bytes:
                yield _batch(whole.time_ns, rows)
                rows, size_bytes = [], 0
                added_bytes = point_bytes + metric_bytes[name] + resource_bytes[workload]
            rows.append(row)
            size_bytes += added_bytes
            before = name
    if rows:
        yield _batch(whole.time_ns, rows)


def _by_workload(batch: Batch) -> dict[WorkloadIdentity | None, list[_Row]]:
    """Rows of each workload, so that a Resource is repeated in as few requests as possible."""
    rows: dict[WorkloadIdentity | None, list[_Row]] = {None: []}
    for block in batch.blocks:
        for point in block.points:
            rows.setdefault(point.workload, []).append(_Row(block.metric, point))
    return rows


def _batch(time_ns: int, rows: Sequence[_Row]) -> Batch:
    points: dict[str, list[Point]] = {}
    metrics: dict[str, Metric] = {}
    for metric, point in rows:
        metrics[metric.name] = metric
        points.setdefault(metric.name, []).append(point)
    return Batch(time_ns, tuple(Block(metrics[name], tuple(found)) for name, found in points.items()))


def _attributes_bytes(attributes: Mapping[str, object]) -> int:
    """An upper bound for the size of attributes. Their printed form is at least as long, and quick to make."""
    return _ATTRIBUTE_BYTES * len(attributes) + _utf8_bytes(repr(attributes))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
