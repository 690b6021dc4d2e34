"""Frozen data as JSON and back: complete, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy
from otel_gpu.model import MigAccess, Snapshot, WorkloadNames
from otel_gpu.state.codec import from_json, from_plain, to_json
from tests.builders import CONTAINER, CONTAINER_ID, facts, gpu, listed, memory, mig, snapshot

WORLD = snapshot(
    gpu(0, [listed(1), listed(2, None)], memory=memory(), energy_mj=5, power_w=1.5),
    gpu(1, None, mig=[mig("MIG-1", (1, None), None)]),
    processes=[facts(1, CONTAINER, access={MigAccess(0, 1, None)}, opens={0, 1})],
    names={CONTAINER_ID: WorkloadNames(container="web", extra=(("team", "a"),))},
)


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert from_json(Snapshot, to_json(WORLD)) == WORLD


def test_options_are_read_as_they_were_written() -> None:
    options = AttributionOptions(EnergyPolicy.NONE, retention_s=7, prices=Prices("EUR", {"A100": 2.5, "": 1}, 0.3))
    assert from_json(AttributionOptions, to_json(options)) == options


def test_a_field_that_an_older_file_lacks_has_its_default() -> None:
    for data in (AttributionOptions(prices=Prices("EUR", {"": 1}, 0.3)), WorkloadNames(container="web", title="x")):
        written = json.loads(to_json(data))
        assert from_plain(type(data), written[:1]) == type(data)(*written[:1])


@pytest.mark.parametrize("values", [[0, 1], [0, 1, 2, 3]])
def test_too_few_values_for_the_fields_without_a_default_or_too_many_are_refused(values: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"expected 3 values, found {len(values)}"):
        from_plain(MigAccess, values)


def test_names_with_undecodable_bytes_are_one_line_of_ascii() -> None:
    odd = facts(1)._replace(name='\udcff\n\0"é')
    written = to_json(snapshot(processes=[odd]))
    assert written.isascii()
    assert "\n" not in written
    assert from_json(Snapshot, written).processes[1] == odd


def test_a_power_of_nan_is_read_as_nan() -> None:
    (reading,) = from_json(Snapshot, to_json(snapshot(gpu(power_w=math.nan)))).gpus
    assert reading.power_w is not None
    assert math.isnan(reading.power_w)


def places(data: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield path
    for place, each in enumerate(data if isinstance(data, list) else ()):
        yield from places(each, (*path, place))


def with_junk(path: tuple[int, ...], junk: Any) -> Any:
    data = json.loads(to_json(WORLD))
    if not path:
        return junk
    inner = data
    for place in path[:-1]:
        inner = inner[place]
    inner[path[-1]] = junk
    return data


@pytest.mark.parametrize("junk", [{}, [[[]]], 10**400, {"a": 1}], ids=["object", "lists", "huge", "key"])
def test_a_value_that_no_field_can_have_is_refused_in_every_field(junk: Any) -> None:
    for path in places(json.loads(to_json(WORLD))):
        with pytest.raises(ValueError, match=r"."):
            from_plain(Snapshot, with_junk(path, junk))


@pytest.mark.parametrize("junk", [None, True, -1, 1.5, "x", []], ids=repr)
def test_any_other_value_is_refused_or_valid(junk: Any) -> None:
    for path in places(json.loads(to_json(WORLD))):
        try:
            read = from_plain(Snapshot, with_junk(path, junk))
        except ValueError:
            continue
        assert from_json(Snapshot, to_json(read)) == read


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "nul", "\udcff"])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(Snapshot, text)
