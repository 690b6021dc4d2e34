"""Power of a GPU without work: observed, else extrapolated, else assumed; never a low quantile of a busy GPU."""

from __future__ import annotations

import random
from typing import Any

import pytest

from otel_gpu.attribution.power.baseline import Baseline, BaselineEstimate, Origin
from otel_gpu.sources.sim.signals import Bursty
from tests.unit.sources.sim.builders import gpu, process, start, use, world

P0, P1, LIMIT_W = 46.0, 63.0, 400.0


def see(baseline: Baseline, power_w: float, utilization: float | None, *, times: int = 1, **changes: Any) -> None:
    """Intervals of 5 s with contexts on the GPU, unless changed."""
    figures: dict[str, Any] = {"resident": True, "power_limit_w": LIMIT_W, "dt_s": 5.0, **changes}
    for _ in range(times):
        baseline.observe(power_w=power_w, utilization=utilization, **figures)


def estimate(baseline: Baseline) -> tuple[float, Origin]:
    now = baseline.estimate()
    return now.context_power_w, now.context_power_origin


# ---------------------------------------------------------------------------- observed


def test_quiet_intervals_are_observed_with_and_without_contexts() -> None:
    baseline, noise = Baseline(), random.Random(1)
    for _ in range(20):
        see(baseline, P0 + noise.gauss(0, 1), 0.0, resident=False, times=3)
        see(baseline, 250.0, 0.7, times=3)
        see(baseline, P1 + noise.gauss(0, 1), 0.0, times=3)
    now = baseline.estimate()
    assert (now.idle_power_origin, now.context_power_origin) == (Origin.OBSERVED, Origin.OBSERVED)
    assert (now.idle_power_w, now.context_power_w) == pytest.approx((P0, P1), abs=0.7)


def test_the_first_quiet_interval_after_work_does_not_count_because_clocks_fall_slowly() -> None:
    baseline = Baseline()
    for _ in range(10):
        see(baseline, 250.0, 0.7)
        see(baseline, P1 + 40.0, 0.0)
        see(baseline, P1, 0.0)
    assert estimate(baseline) == (P1, Origin.OBSERVED)


def test_the_first_quiet_interval_after_contexts_changed_does_not_count() -> None:
    baseline = Baseline()
    for _ in range(10):
        see(baseline, P1, 0.0)
        see(baseline, P0, 0.0, resident=False)
    now = baseline.estimate()
    assert Origin.OBSERVED not in (now.idle_power_origin, now.context_power_origin)


def test_fewer_than_three_quiet_intervals_are_not_enough() -> None:
    baseline = Baseline()
    see(baseline, P1, 0.0, times=3)
    assert estimate(baseline)[1] is Origin.ASSUMED
    see(baseline, P1, 0.0)
    assert estimate(baseline) == (P1, Origin.OBSERVED)


def test_unknown_utilisation_is_not_idle() -> None:
    baseline = Baseline()
    see(baseline, P1, None, times=20)
    see(baseline, P0, None, times=20, resident=False)
    now = baseline.estimate()
    assert now.idle_power_origin is now.context_power_origin is Origin.ASSUMED


def test_work_of_one_percent_is_not_idle() -> None:
    baseline = Baseline()
    see(baseline, P1 + 3.0, 0.01, times=50)
    assert estimate(baseline)[1] is Origin.ASSUMED


def test_observed_power_follows_the_last_sixty_intervals() -> None:
    baseline = Baseline()
    see(baseline, P1, 0.0, times=100)
    for warmer_w, times in ((P1 + 10.0, 61), (P1 - 5.0, 61)):
        see(baseline, warmer_w, 0.0, times=times)
        assert estimate(baseline) == (warmer_w, Origin.OBSERVED)


def test_one_low_reading_does_not_lower_observed_power() -> None:
    baseline = Baseline()
    see(baseline, P1, 0.0, times=20)
    see(baseline, 3.0, 0.0)
    assert estimate(baseline) == (P1, Origin.OBSERVED)


# ---------------------------------------------------------------------------- extrapolated


def test_the_intercept_of_power_over_utilisation_is_found() -> None:
    baseline, work = Baseline(), random.Random(2)
    for _ in range(120):
        utilization = work.choice((0.2, 0.5, 0.9))
        see(baseline, P1 + 250.0 * utilization + work.gauss(0, 4), utilization)
    context_w, origin = estimate(baseline)
    assert origin is Origin.EXTRAPOLATED
    assert context_w == pytest.approx(P1, rel=0.08)


def test_with_few_intervals_the_estimate_stays_near_the_assumed_power() -> None:
    baseline = Baseline()
    for utilization in (0.3, 0.6, 0.3):
        see(baseline, P1 + 250.0 * utilization, utilization)
    context_w, origin = estimate(baseline)
    assert origin is Origin.EXTRAPOLATED
    assert P1 < context_w < 0.2 * LIMIT_W
    assert context_w == pytest.approx(0.2 * LIMIT_W, abs=8)


def test_on_a_gpu_that_is_never_idle_extrapolation_is_far_better_than_a_low_quantile() -> None:
    errors, quantile_errors = [], []
    for seed in range(4):
        uses = [use(Bursty(0.3, 0.5, 20.0 + 7 * n, 10 * seed + n, rest=0.04), watts=110.0 + 70.0 * n) for n in range(3)]
        host, clock = start(
            world(*(process(n + 1, one) for n, one in enumerate(uses)), seed=seed, gpus=(gpu(noise_ratio=0.03),))
        )
        source, baseline, powers = host.gpu_source(), Baseline(), []
        before_mj = source.read().gpus[0].energy_mj or 0
        for _ in range(120):
            clock.advance(5.0)
            reading = source.read().gpus[0]
            assert reading.energy_mj is not None
            assert reading.utilization is not None
            powers.append((reading.energy_mj - before_mj) / 5000)
            before_mj = reading.energy_mj
            see(baseline, powers[-1], sum(row.sm_percent for row in reading.utilization.rows) / 100)
        truth = host.truth().gpus[0]
        true_w = truth.static_w + truth.context_w
        context_w, origin = estimate(baseline)
        assert origin is Origin.EXTRAPOLATED
        errors.append(abs(context_w - true_w) / true_w)
        quantile_errors.append(abs(sorted(powers)[len(powers) // 20] - true_w) / true_w)
    assert sum(errors) / len(errors) < 0.12
    assert sum(errors) < 0.5 * sum(quantile_errors)


def test_an_old_contrast_no_longer_supports_a_line() -> None:
    baseline = Baseline()
    see(baseline, P1 + 25.0, 0.1, times=10)
    see(baseline, P1 + 225.0, 0.9, times=10)
    assert estimate(baseline)[1] is Origin.EXTRAPOLATED
    see(baseline, P1 + 225.0, 0.9, times=16 * 12)
    assert estimate(baseline)[1] is Origin.ASSUMED


def test_capped_power_does_not_tilt_the_line() -> None:
    def line(*, capped: bool) -> float:
        baseline, work = Baseline(), random.Random(3)
        for _ in range(60):
            utilization = work.uniform(0.1, 0.5)
            see(baseline, P1 + 600.0 * utilization, utilization)
            if capped:
                see(baseline, LIMIT_W - 1.0, work.uniform(0.6, 1.0))
        return estimate(baseline)[0]

    assert line(capped=True) == pytest.approx(line(capped=False), abs=1.5)
    assert line(capped=True) == pytest.approx(P1, abs=8)


def test_quiet_intervals_replace_the_extrapolation() -> None:
    baseline = Baseline()
    for utilization in (0.2, 0.8) * 20:
        see(baseline, 90.0 + 200.0 * utilization, utilization)
    assert estimate(baseline)[1] is Origin.EXTRAPOLATED
    see(baseline, P1, 0.0, times=4)
    assert estimate(baseline) == (P1, Origin.OBSERVED)


# ---------------------------------------------------------------------------- assumed


def test_with_steady_work_a_fraction_of_the_limit_is_assumed() -> None:
    for fraction in (0.2, 0.1):
        baseline = Baseline(assumed_fraction=fraction)
        see(baseline, 300.0, 0.8, times=100)
        assert baseline.estimate() == BaselineEstimate(
            fraction * LIMIT_W, Origin.ASSUMED, fraction * LIMIT_W, Origin.ASSUMED
        )


def test_assumed_power_is_never_above_the_lowest_power() -> None:
    baseline = Baseline()
    see(baseline, 300.0, 0.8, times=10)
    see(baseline, 55.0, 0.7)
    assert estimate(baseline) == (55.0, Origin.ASSUMED)


def test_without_a_limit_the_highest_power_replaces_it() -> None:
    baseline = Baseline()
    see(baseline, 300.0, 0.8, times=10, power_limit_w=None)
    assert estimate(baseline) == (60.0, Origin.ASSUMED)


def test_an_implausible_limit_is_ignored() -> None:
    for limit_w in (0.0, -1.0, float("nan"), float("inf")):
        baseline = Baseline()
        see(baseline, 300.0, 0.8, times=10, power_limit_w=limit_w)
        assert estimate(baseline) == (60.0, Origin.ASSUMED)


def test_before_the_first_interval_the_estimate_is_zero() -> None:
    assert Baseline().estimate() == BaselineEstimate(0.0, Origin.ASSUMED, 0.0, Origin.ASSUMED)


# ---------------------------------------------------------------------------- the two together


def test_power_with_contexts_is_never_below_power_without() -> None:
    hot = Baseline()  # still warm without contexts: more than is assumed with contexts
    see(hot, 90.0, 0.0, resident=False, times=5)
    see(hot, 300.0, 0.8, times=5)
    assert hot.estimate() == BaselineEstimate(90.0, Origin.OBSERVED, 90.0, Origin.ASSUMED)
    see(hot, 85.0, 0.1)  # less than that with contexts and work, so also with contexts alone
    assert hot.estimate() == BaselineEstimate(85.0, Origin.OBSERVED, 85.0, Origin.EXTRAPOLATED)
    quiet = Baseline()  # less with contexts than is assumed without
    see(quiet, P1, 0.0, times=5)
    assert quiet.estimate() == BaselineEstimate(P1, Origin.ASSUMED, P1, Origin.OBSERVED)


def test_power_without_contexts_does_not_bound_power_with_them() -> None:
    baseline = Baseline()
    see(baseline, P0, 0.0, resident=False, times=5)
    see(baseline, 300.0, 0.8, times=20)
    assert baseline.estimate() == BaselineEstimate(P0, Origin.OBSERVED, 80.0, Origin.ASSUMED)


# ---------------------------------------------------------------------------- odd intervals


def test_an_interval_of_hours_is_not_quiet_but_bounds_the_estimate() -> None:
    baseline = Baseline()
    see(baseline, 70.0, 0.0, times=10, dt_s=7200.0)
    assert estimate(baseline) == (70.0, Origin.ASSUMED)


def test_an_interval_of_no_length_changes_nothing() -> None:
    baseline = Baseline()
    see(baseline, P1, 0.0, times=3)
    before = baseline.to_state()
    see(baseline, 1.0, 0.9, dt_s=0.0)
    assert baseline.to_state() == before
    see(baseline, P1, 0.0)
    assert estimate(baseline) == (P1, Origin.OBSERVED)


def test_an_interval_too_short_for_the_counter_is_ignored() -> None:
    baseline = Baseline()
    see(baseline, 300.0, 0.8, times=5)
    see(baseline, 5.0, 0.0, dt_s=0.1, times=20)
    assert estimate(baseline) == (80.0, Origin.ASSUMED)


@pytest.mark.parametrize(
    "changes",
    [
        {"power_w": float("nan")},
        {"power_w": float("inf")},
        {"power_w": -5.0},
        {"power_w": 0.0},
        {"power_w": 1e9},
        {"utilization": float("nan")},
        {"utilization": -0.1},
        {"utilization": 7.0},
        {"dt_s": float("nan")},
        {"dt_s": float("inf")},
        {"dt_s": -5.0},
    ],
    ids=str,
)
def test_implausible_figures_change_nothing(changes: dict[str, float]) -> None:
    baseline = Baseline()
    see(baseline, P1, 0.0, times=5)
    before = baseline.estimate()
    good: dict[str, Any] = {"power_w": 300.0, "utilization": 0.8}
    see(baseline, **{**good, **changes}, times=3)
    assert baseline.estimate() == before


# ---------------------------------------------------------------------------- kept
