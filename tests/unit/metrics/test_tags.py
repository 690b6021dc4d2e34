"""The same attributes are the same object, for as long as they are told of."""

from __future__ import annotations

from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.layout import Layout
from otel_gpu.metrics.points import Reading
from otel_gpu.metrics.tags import Kept, Tags
from tests.unit.metrics.builders import STATS, answer, device, part, process, split, workload


def test_what_is_added_to_attributes_is_put_together_once() -> None:
    tags = Tags({"hw.id": "GPU-0"})
    busy = tags.adding({"gpu.state": "busy"})
    assert busy == {"hw.id": "GPU-0", "gpu.state": "busy"}
    assert tags.adding({"gpu.state": "busy"}) is busy
    assert tags.adding({"gpu.state": "idle"}) is not busy
    assert tags == {"hw.id": "GPU-0"}


def test_what_was_not_needed_in_a_round_is_made_anew_in_the_next() -> None:
    kept: Kept[str, object] = Kept()
    kept.begin()
    first = kept.get("a", object)
    kept.end()
    kept.begin()
    assert kept.get("a", object) is first
    kept.end()
    kept.begin()
    kept.end()
    assert len(kept) == 0
    kept.begin()
    assert kept.get("a", object) is not first


def test_cycles_that_tell_of_the_same_have_the_same_attributes_and_identities() -> None:
    layout = Layout()
    told = [
        collect(
            Reading.of(
                answer(device(memory=split()), workloads=[workload(part())], processes=[process()]),
                STATS,
                layout=layout,
            )
        )
        for _ in range(2)
    ]
    first, second = ([point for family in each.blocks for point in family.points] for each in told)
    assert len(first) == len(second) > 20
    for one, other in zip(first, second, strict=True):
        assert one.workload is other.workload
        assert one.attributes is other.attributes or one.attributes == {}


def test_a_layout_forgets_who_is_not_there() -> None:
    layout = Layout()
    for pid in range(100):
        Reading.of(answer(device(), workloads=[workload(part())], processes=[process(pid=pid)]), STATS, layout=layout)
        sizes = len(layout._tags), len(layout._named), len(layout._identities)
    assert max(sizes) <= 6
