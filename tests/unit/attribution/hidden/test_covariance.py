"""Covariances of amounts with a known sum."""

from __future__ import annotations

import pytest

from otel_gpu.attribution.hidden.estimate import MOST_PAIRED, Covariance


def entries(covariance: Covariance[str]) -> dict[str, float]:
    return {i + j: value for i, j, value in covariance}


def test_an_amount_that_one_of_several_got_has_the_variance_of_a_draw() -> None:
    covariance: Covariance[str] = Covariance()
    covariance.add(10.0, {"a": 0.2, "b": 0.8})
    assert entries(covariance) == pytest.approx({"aa": 16.0, "ab": -16.0, "ba": -16.0, "bb": 16.0})
    assert covariance.variance(["a"]) == pytest.approx(16.0)
    assert covariance.variance(["a", "b"]) == pytest.approx(0.0), "the sum is certain"
    assert covariance.variance(["a", "unknown"]) == pytest.approx(16.0)


def test_an_amount_with_one_possible_owner_has_no_variance() -> None:
    covariance: Covariance[str] = Covariance()
    covariance.add(10.0, {"a": 1.0})
    assert entries(covariance) == {}


def test_a_sum_that_becomes_known_corrects_by_what_each_could_explain() -> None:
    covariance: Covariance[str] = Covariance()
    covariance.add(9.0, dict.fromkeys("abc", 1 / 3))
    covariance.add(2.0, {"c": 0.5, "d": 0.5})
    covariance.drop("a")
    assert covariance.learn_sum() == pytest.approx({"b": 0.5, "c": 0.5, "d": 0.0})
    assert covariance.variance("bcd") == pytest.approx(0.0)


def test_successors_have_the_sum_of_the_key_they_replace() -> None:
    covariance: Covariance[str] = Covariance()
    covariance.add(10.0, {"a": 0.5, "b": 0.5})
    covariance.replace("a", ["x", "y"])
    assert covariance.variance(["x", "y"]) == pytest.approx(25.0)
    assert covariance.variance(["x", "y", "b"]) == pytest.approx(0.0)
    assert "a" not in "".join(entries(covariance))


def test_variances_are_limited_by_the_amounts() -> None:
    covariance: Covariance[str] = Covariance()
    covariance.add(10.0, {"a": 0.5, "b": 0.5})
    covariance.limit({"a": 1.0, "b": 3.0})
    assert covariance.variance(["a"]) == pytest.approx(3.0)
    assert covariance.variance(["a", "b"]) == pytest.approx(0.0)
    covariance.limit({"a": 0.0, "b": 3.0})
    assert covariance.variance(["a"]) == covariance.variance(["b"]) == 0.0


def test_for_many_keys_only_variances_are_kept() -> None:
    covariance: Covariance[int] = Covariance()
    count = MOST_PAIRED + 2
    covariance.add(1000.0, dict.fromkeys(range(count), 1 / count))
    assert len(list(covariance)) == count
    covariance.drop(0)
    gains = covariance.learn_sum()
    assert sum(gains.values()) == pytest.approx(1.0)
    assert len(list(covariance)) == count - 1
