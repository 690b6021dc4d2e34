"""Laws of apportionment: the division of whole numbers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.attribution.apportion import SCALE, apportion, whole_weights

weights = st.dictionaries(st.integers(0, 9), st.integers(-5, 1 << 40), min_size=1, max_size=8)
totals = st.integers(0, 1 << 63)


@given(totals, weights)
def test_the_parts_sum_to_the_whole_and_none_is_negative(total: int, parts_by: dict[int, int]) -> None:
    parts, _ = apportion(total, parts_by)
    assert sum(parts.values()) == total
    assert min(parts.values()) >= 0
    assert parts.keys() == parts_by.keys()


@given(totals)
def test_without_keys_nothing_is_divided(total: int) -> None:
    assert apportion(total, {}) == ({}, {})


@given(totals, weights.flatmap(lambda w: st.tuples(st.just(w), st.permutations(list(w.items())))))
def test_the_order_of_the_weights_does_not_matter(
    total: int, orders: tuple[dict[int, int], list[tuple[int, int]]]
) -> None:
    assert apportion(total, dict(orders[1])) == apportion(total, orders[0])


@given(totals, weights)
def test_no_part_is_off_by_a_whole_unit(total: int, parts_by: dict[int, int]) -> None:
    positive = {key: max(0, weight) for key, weight in parts_by.items()}
    whole = sum(positive.values())
    if whole == 0:
        positive, whole = dict.fromkeys(parts_by, 1), len(parts_by)
    parts, _ = apportion(total, parts_by)
    for key, part in parts.items():
        assert abs(part - Fraction(total * positive[key], whole)) < 1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), weights)
def test_many_small_divisions_stay_within_one_unit_of_one_large_one(
    slices: list[int], parts_by: dict[int, int]
) -> None:
    residues: dict[int, int] = {}
    sums = dict.fromkeys(parts_by, 0)
    for piece in slices:
        parts, residues = apportion(piece, parts_by, residues)
        assert sum(parts.values()) == piece
        for key, part in parts.items():
            sums[key] += part
    at_once, _ = apportion(sum(slices), parts_by)
    for key, part in at_once.items():
        assert abs(sums[key] - part) <= 1


@given(st.lists(st.tuples(st.integers(0, 50), weights), min_size=1, max_size=40))
def test_residues_stay_below_one_unit_and_no_part_goes_negative_whatever_the_weights_do(
    rounds: list[tuple[int, dict[int, int]]],
) -> None:
    residues: dict[int, int] = {}
    for total, parts_by in rounds:
        parts, residues = apportion(total, parts_by, residues)
        assert sum(parts.values()) == total
        assert min(parts.values()) >= 0
        assert all(abs(owed) < len(parts_by) * SCALE for owed in residues.values())


@given(st.dictionaries(st.integers(0, 9), st.floats(allow_nan=False), max_size=8))
def test_any_amounts_become_weights_that_are_whole_and_not_negative(amounts: dict[int, float]) -> None:
    made = whole_weights(amounts)
    assert made.keys() == amounts.keys()
    assert all(weight >= 0 for weight in made.values())
