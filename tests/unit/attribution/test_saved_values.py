"""Values from saved state are what they claim to be, or ValueError."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.attribution.saved_values import (
    amount,
    boolean,
    integer,
    number,
    optional,
    process_key_from,
    ref_from,
    ref_state,
    restoring,
    text,
    whole,
)
from otel_gpu.model import WorkloadKind, WorkloadRef

NUMBERS: tuple[Any, ...] = (0, 7, -7, 0.5, -0.5)
OTHERS: tuple[Any, ...] = (None, True, "x", [], {}, math.nan, math.inf, -math.inf, 10**400, 1 << 200, 1e300)


@pytest.mark.parametrize(
    ("read", "accepted"),
    [
        (integer, (0, 7, -7)),
        (whole, (0, 7)),
        (number, NUMBERS),
        (amount, (0, 7, 0.5)),
        (boolean, (True,)),
        (text, ("x",)),
    ],
)
def test_only_values_of_a_kind_and_in_range_are_accepted(read: Callable[[Any], Any], accepted: tuple[Any, ...]) -> None:
    for value in (*NUMBERS, *OTHERS):
        if value in accepted and type(value) in map(type, accepted):
            assert read(value) == value
            assert optional(read, value) == value
        else:
            with pytest.raises(ValueError, match=r"."):
                read(value)
    assert optional(read, None) is None


@pytest.mark.parametrize("data", [[1], [1, 2, 3], [1, 2.5], ["1", 2], "12", None, 5])
def test_a_process_is_two_whole_numbers(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        process_key_from(data)


@pytest.mark.parametrize("data", [["container", "x"], ["pod", "x", None, None, None, None], [None] * 6, {}])
def test_a_workload_has_a_known_kind_and_an_id(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        ref_from(data)


def test_a_workload_of_a_user_is_restored_with_its_user_and_one_of_an_earlier_version_has_none() -> None:
    of_user = WorkloadRef(WorkloadKind.CONTAINER, "x", "podman", outer_container_id="y", user_uid=1000)
    assert ref_from(ref_state(of_user)) == of_user
    assert ref_from(ref_state(of_user)[:6]) == replace(of_user, user_uid=None)
    for data in ([*ref_state(of_user), None], [*ref_state(of_user)[:6], "1000"], [*ref_state(of_user)[:6], -1]):
        with pytest.raises(ValueError, match=r"."):
            ref_from(data)


@pytest.mark.parametrize("error", [AttributeError, IndexError, KeyError, TypeError, ValueError])
def test_every_error_of_reading_names_the_part_of_the_state(error: type[Exception]) -> None:
    with pytest.raises(ValueError, match=r"^GPU: meter: .*absent"), restoring("GPU"), restoring("meter"):
        raise error("absent")
