from __future__ import annotations

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.points import Reading, points
from tests.unit.metrics.builders import EPOCH_NS, STATS, answer, device, part, process, split, workload


def test_a_collection_has_every_metric_that_has_points_in_the_order_of_the_catalogue() -> None:
    reading = Reading.of(answer(device(memory=split()), workloads=[workload(part())], processes=[process()]), STATS)
    *others, series = METRICS
    told = {metric: tuple(points(metric.name, reading)) for metric in others}
    found = collect(reading)
    assert [(family.metric, family.points) for family in found.blocks[:-1]] == [
        (metric, of_metric) for metric, of_metric in told.items() if of_metric
    ]
    assert found.blocks[-1].metric is series
    assert found.point_count == sum(map(len, told.values())) + 1


def test_the_number_of_series_is_that_of_the_points_in_the_collection_itself_included() -> None:
    reading = Reading.of(answer(device(memory=split()), workloads=[workload(part())], processes=[process()]), STATS)
    found = collect(reading)
    [told] = [family.points for family in found.blocks if family.metric.name == "otel_gpu.series"]
    assert [point.value for point in told] == [found.point_count]


def test_it_is_as_of_when_the_world_was_read() -> None:
    assert collect(Reading.of(answer(at_ns=5), STATS)).time_ns == EPOCH_NS + 5
