"""Views as plain data, and back: what an agent of another version may send is refused or can be shown."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import decode_view, encode
from otel_gpu.view.terminal import cells
from tests.builders import attribution
from tests.unit.top.views import drawn


def builder_and_view() -> Any:
    builder = ViewBuilder(Subject("1.2.3", "node-1", 5.0, None, "EUR"))
    builder.observe(attribution())
    return builder.build(attribution())


VIEW = builder_and_view()
PLAIN: Any = json.loads(json.dumps(encode(VIEW), allow_nan=False))


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in it."""
    below: list[tuple[Any, ...]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        below += [(*path, key), *places(inner, (*path, key))]
    return below


def test_a_view_survives_json() -> None:
    assert decode_view(PLAIN) == VIEW


@given(
    st.sampled_from(places(PLAIN)),
    st.sampled_from([None, "text", 1.5, -1, 10**400, True, [], {}, [1], {"a": 1}, "gone", float("inf"), float("nan")]),
)
def test_other_data_is_refused_or_can_be_shown(where: tuple[Any, ...], other: object) -> None:
    plain = copy.deepcopy(PLAIN)
    inner = plain
    for key in where[:-1]:
        inner = inner[key]
    if other == "gone":
        del inner[where[-1]]
    else:
        inner[where[-1]] = other
    with contextlib.suppress(ValueError):
        view = decode_view(plain)
        assert all(cells(line) <= 140 for line in drawn(view, 140))


@pytest.mark.parametrize("plain", [None, {}, [], "", 1, {"version": "9.9"}])
def test_other_objects_are_refused(plain: object) -> None:
    with pytest.raises(ValueError, match="Error: "):
        decode_view(plain)


@pytest.mark.parametrize(
    "history",
    [
        {"at": 3, "gpus": {}},
        {"at": [1.0], "gpus": {"GPU-0": []}},
        {"at": [1.0], "gpus": {"GPU-0": [7]}},
        {"at": [1.0], "gpus": {"GPU-0": [[]]}},
        {"at": [1.0], "gpus": {"GPU-0": [[[], None, None]]}},
        {"at": [1.0], "gpus": {"GPU-0": [[["x", 1, 1], None, None]]}},
        {"at": [1.0]},
        [],
    ],
)
def test_another_history_is_refused(history: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message differs
        decode_view({**PLAIN, "history": history})


def test_values_of_one_column_must_be_comparable() -> None:
    plain = copy.deepcopy(PLAIN)
    at = [column["key"] for column in plain["columns"]].index("memory")
    plain["workloads"][0]["cells"][at]["value"] = "much"
    with pytest.raises(ValueError, match="memory"):
        decode_view(plain)


def test_a_part_must_have_a_text_for_each_column() -> None:
    plain = copy.deepcopy(PLAIN)
    plain["workloads"][0]["parts"][0].pop()
    with pytest.raises(ValueError, match="a part of a GPU has more or fewer texts"):
        decode_view(plain)


def test_a_tone_must_be_known() -> None:
    plain = copy.deepcopy(PLAIN)
    plain["workloads"][0]["tone"] = "loud"
    with pytest.raises(ValueError, match="loud"):
        decode_view(plain)


def test_decoded_text_is_printable() -> None:
    view = decode_view({**PLAIN, "host": "node\x1b[2J"})
    assert view.host == "node\N{REPLACEMENT CHARACTER}[2J"
