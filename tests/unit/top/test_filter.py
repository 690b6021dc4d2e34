from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.top.filter import Filter, parse_filter
from tests.builders import CONTAINER_ID, attribute, gpu, listed, mig, snapshot
from tests.unit.top.cycles import cycle, workload


@pytest.mark.parametrize(
    ("text", "gpus", "words"),
    [
        ("gpu 3", {3}, ()),
        ("GPU3", {3}, ()),
        ("team  gpu 1 busy gpu10", {1, 10}, ("team", "busy")),
        ("gpu", set(), ("gpu",)),
        ("gpu 3g.40gb", set(), ("gpu", "3g.40gb")),
        ("mygpu 3", set(), ("mygpu", "3")),
        ("gpu 9999999999", set(), ("gpu", "9999999999")),
        ("  ", set(), ()),
    ],
)
def test_a_gpu_is_named_by_its_index_and_the_rest_are_words(text: str, gpus: set[int], words: tuple[str, ...]) -> None:
    assert parse_filter(text) == Filter(frozenset(gpus), words)


def test_a_gpu_is_that_one_and_no_other_whatever_digits_are_in_names_and_ids() -> None:
    everybody = [
        replace(workload(f"job-{index}3", index), gpus=frozenset({index}), id="3" * 64) for index in (0, 1, 3, 10)
    ]

    def found(text: str) -> list[int | None]:
        return [each.measured_bytes for each in everybody if parse_filter(text).matches(each)]

    assert [found(f"gpu {index}") for index in (0, 1, 2, 3, 10)] == [[0], [1], [], [3], [10]]
    assert found("gpu1") == [1]
    assert found("gpu 1 gpu 3") == []
    assert found("gpu") == [0, 1, 3, 10]  # on the way to one of them


def test_who_is_in_an_instance_is_on_its_gpu() -> None:
    reading = gpu(2, mig=[mig("MIG-1", (1, 0), [listed(1)])])
    (shown,) = cycle(attribute(None, snapshot(reading))).workloads
    assert shown.places.startswith("2 ")
    assert parse_filter("gpu 2").matches(shown)
    assert parse_filter("gpu 2 1g.").matches(shown)
    assert not parse_filter("gpu 1").matches(shown)


def test_an_id_is_found_by_its_beginning_only() -> None:
    (shown,) = (each for each in cycle().workloads if each.id == CONTAINER_ID)
    assert parse_filter(CONTAINER_ID[:12].upper()).matches(shown)
    assert parse_filter(CONTAINER_ID).matches(shown)
    nameless = next(each for each in cycle().workloads if each.id.startswith(each.title) and len(each.id) == 64)
    other = replace(nameless, id="a1b2c3" + "d" * 58)
    assert parse_filter("a1b2").matches(other)
    assert not parse_filter("b2").matches(other)
    assert not parse_filter("dd").matches(other)
