"""Watts per unit of SM share are learned where the data shows them, and left alone where it does not."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from otel_gpu.attribution.power.learned import MAX_FACTOR, MIN_FACTOR, LearnedPower, SmClock
from otel_gpu.attribution.power.regression import MAX_MODELLED, MAX_TRACKED, factorize, solve_leading
from otel_gpu.model import ProcessKey
from otel_gpu.sources.sim.signals import Bursty, OnOff, Signal
from otel_gpu.sources.sim.world import WorldSpec
from tests.unit.sources.sim.builders import PERIOD_S, gpu, process, start, use, world

A, B, C = (ProcessKey(pid, 1000 + pid) for pid in (11, 12, 13))
CONTEXT_W, LIMIT_W = 60.0, 700.0

Shares = dict[ProcessKey, float]


def teach(model: LearnedPower, shares: Mapping[ProcessKey, float], power_w: float, **changes: Any) -> None:
    """An interval of 5 s with 36 samples and a known context power, unless changed."""
    figures: dict[str, Any] = {
        "power_limit_w": LIMIT_W,
        "context_power_w": CONTEXT_W,
        "samples": 36,
        "dt_s": 5.0,
        **changes,
    }
    model.observe(shares, power_w=power_w, **figures)


def drawn_w(shares: Shares, watts: Mapping[ProcessKey, float], exponent: float = 1.0) -> float:
    """The power of such work: linear, or less than linear with an exponent below 1."""
    utilization = sum(shares.values())
    scale = utilization ** (exponent - 1.0) if utilization else 0.0
    return CONTEXT_W + scale * sum(watts[key] * share for key, share in shares.items())


def bursts(seed: int, keys: Iterable[ProcessKey] = (A, B)) -> Callable[[], Shares]:
    """Shares that come and go independently of one another."""
    dice = random.Random(seed)
    ordered = tuple(keys)

    def next_shares() -> Shares:
        shares = {key: dice.choice((0.0, 0.1, 0.45)) * 2 / len(ordered) for key in ordered}
        return {key: share for key, share in shares.items() if share}

    return next_shares


def sampled(shares: Shares, samples: int, dice: random.Random) -> Shares:
    """The shares as a driver sees them: each sample credits all the work to one process."""
    winners = Counter(dice.choices(list(shares), list(shares.values()), k=samples)) if shares else Counter()
    return {key: sum(shares.values()) * wins / samples for key, wins in winners.items()}


def taught(
    watts: Mapping[ProcessKey, float],
    *,
    intervals: int = 100,
    seed: int = 1,
    exponent: float = 1.0,
    samples: int = 36,
    **changes: Any,
) -> LearnedPower:
    """A model that has seen bursty work drawing these watts, through the driver's samples."""
    model, shares_of, dice = LearnedPower(), bursts(seed, watts), random.Random(seed + 1000)
    for _ in range(intervals):
        shares = shares_of()
        power_w = drawn_w(shares, watts, exponent) + dice.gauss(0, 2)
        teach(model, sampled(shares, samples, dice), power_w, samples=samples, **changes)
    return model


def keys(model: LearnedPower) -> set[ProcessKey]:
    """The processes that the model has data of."""
    state = model.to_state()
    return {ProcessKey(pid, start_ticks) for pid, start_ticks, *_ in (*state["keys"], *state["pending_work_s"])}


def ratio(model: LearnedPower) -> float:
    """Learned watts of B over those of A."""
    factors = model.factors((A, B))
    return factors[B] / factors[A]


# ---------------------------------------------------------------------------- finding it


@pytest.mark.parametrize(("watts_a", "watts_b"), [(150.0, 300.0), (300.0, 150.0), (200.0, 280.0)])
def test_watts_of_two_bursty_processes_are_found_within_eight_percent(watts_a: float, watts_b: float) -> None:
    assert ratio(taught({A: watts_a, B: watts_b})) == pytest.approx(watts_b / watts_a, rel=0.08)


def test_watts_of_eight_bursty_processes_are_found_within_fifteen_percent() -> None:
    watts = {ProcessKey(pid, 1): 100.0 + 25.0 * pid for pid in range(1, 9)}
    factors = taught(watts, intervals=300).factors(watts)
    scale = sum(watts.values()) / sum(factors.values())
    for key, true_w in watts.items():
        assert factors[key] * scale == pytest.approx(true_w, rel=0.15)


def test_a_wrong_baseline_does_not_hide_the_difference() -> None:
    for context_w in (0.5 * CONTEXT_W, 1.3 * CONTEXT_W):
        assert ratio(taught({A: 150.0, B: 300.0}, context_power_w=context_w)) == pytest.approx(2.0, rel=0.25)


def test_power_below_linear_does_not_hide_the_difference() -> None:
    assert ratio(taught({A: 150.0, B: 300.0}, exponent=0.7)) == pytest.approx(2.0, rel=0.15)


def test_noise_of_the_samples_does_not_make_watts_look_alike() -> None:
    """Each of 36 samples credits one process with everything; without a correction the ratio comes out near 1.6."""
    model, dice = LearnedPower(), random.Random(5)
    for _ in range(400):
        part = dice.uniform(0.2, 0.8)
        power_w = CONTEXT_W + 0.9 * (part * 150.0 + (1 - part) * 300.0)
        teach(model, sampled({A: 0.9 * part, B: 0.9 * (1 - part)}, 36, dice), power_w)
    assert ratio(model) == pytest.approx(2.0, rel=0.12)


def test_watts_that_change_are_followed() -> None:
    model, shares_of = LearnedPower(), bursts(6)
    for watts, expected in (({A: 150.0, B: 300.0}, 2.0), ({A: 300.0, B: 150.0}, 0.5)):
        for _ in range(720):  # an hour, four half-lives
            shares = shares_of()
            teach(model, shares, drawn_w(shares, watts))
        assert ratio(model) == pytest.approx(expected, rel=0.2)


def test_short_intervals_are_merged_until_they_have_enough_samples() -> None:
    model = taught({A: 150.0, B: 300.0}, intervals=400, samples=7, dt_s=1.0)
    assert ratio(model) == pytest.approx(2.0, rel=0.1)


def test_a_factor_stays_between_a_third_and_three() -> None:
    factors = taught({A: 5.0, B: 600.0}, intervals=300).factors((A, B))
    assert MIN_FACTOR <= factors[A] < 0.4
    assert 1.5 < factors[B] <= MAX_FACTOR


# ---------------------------------------------------------------------------- leaving it


def test_nothing_is_trusted_before_twelve_intervals_were_predicted() -> None:
    model, shares_of = LearnedPower(), bursts(7)
    for _ in range(12):
        shares = shares_of() or {A: 0.3}
        teach(model, shares, drawn_w(shares, {A: 100.0, B: 300.0}))
        assert model.factors((A, B)) == {A: 1.0, B: 1.0}
        assert model.gate == 0.0
    for _ in range(30):
        shares = shares_of()
        teach(model, shares, drawn_w(shares, {A: 100.0, B: 300.0}))
    assert model.gate > 0.5


def test_shares_that_move_together_are_divided_by_share() -> None:
    model, dice = LearnedPower(), random.Random(8)
    for _ in range(200):
        level = dice.uniform(0.1, 0.6)
        shares = {A: level, B: level / 2}
        teach(model, shares, drawn_w(shares, {A: 120.0, B: 320.0}) + dice.gauss(0, 2))
    for factor in model.factors((A, B)).values():
        assert factor == pytest.approx(1.0, abs=0.02)


def test_steady_shares_are_divided_by_share() -> None:
    model, dice = LearnedPower(), random.Random(9)
    for _ in range(200):
        # The only changes are sampling noise.
        teach(model, sampled({A: 0.5, B: 0.3}, 36, dice), CONTEXT_W + 150.0 + dice.gauss(0, 2))
    for factor in model.factors((A, B)).values():
        assert factor == pytest.approx(1.0, abs=0.02)


def test_equal_watts_leave_the_plain_split() -> None:
    for factor in taught({A: 200.0, B: 200.0, C: 200.0}, intervals=300).factors((A, B, C)).values():
        assert factor == pytest.approx(1.0, abs=0.02)


def test_power_below_linear_is_not_blamed_on_a_process_that_works_alone() -> None:
    model, dice = LearnedPower(), random.Random(10)
    for _ in range(200):
        shares = dice.choice(({A: 0.2}, {B: 0.3, C: 0.4}, {B: 0.5, C: 0.3}, {B: 0.4, C: 0.5}))
        teach(model, shares, drawn_w(shares, dict.fromkeys((A, B, C), 200.0), exponent=0.7) + dice.gauss(0, 2))
    factors = model.factors((A, B, C))
    assert max(factors.values()) / min(factors.values()) < 1.1


def test_an_unknown_process_gets_the_plain_split() -> None:
    assert taught({A: 150.0, B: 300.0}).factors((C,)) == {C: 1.0}


def test_work_that_draws_nothing_above_the_context_power_is_not_learned() -> None:
    model = taught({A: 150.0, B: 300.0}, context_power_w=2000.0)
    assert model.factors((A, B)) == {A: 1.0, B: 1.0}


# ---------------------------------------------------------------------------- what does not count


@pytest.mark.parametrize(
    ("power_w", "changes"),
    [
        (CONTEXT_W + 90.0, {"power_limit_w": CONTEXT_W + 92.0}),
        (CONTEXT_W + 90.0, {"dt_s": 7200.0}),
        (CONTEXT_W + 90.0, {"dt_s": 0.0}),
    ],
    ids=["no more than the limit", "hours", "no time"],
)
def test_an_interval_without_information_is_skipped(power_w: float, changes: dict[str, Any]) -> None:
    model = taught({A: 150.0, B: 300.0})
    before = model.to_state()
    for _ in range(100):
        teach(model, {A: 0.7, B: 0.1}, power_w, **changes)
    assert model.to_state() == before


def test_an_interval_without_work_is_skipped() -> None:
    model = taught({A: 150.0, B: 300.0})
    before = model.to_state()
    for _ in range(100):
        teach(model, {A: 0.01}, CONTEXT_W)
    assert model.to_state() == before


def test_without_a_limit_no_interval_is_capped() -> None:
    assert ratio(taught({A: 150.0, B: 300.0}, power_limit_w=None)) == pytest.approx(2.0, rel=0.05)


# ---------------------------------------------------------------------------- at the power limit


def capped(watts: Mapping[ProcessKey, float], limit_w: float, *, intervals: int = 200, seed: int = 1) -> LearnedPower:
    """A model of bursty work that would draw these watts, on a GPU that draws no more than its limit."""
    model, shares_of, dice = LearnedPower(), bursts(seed, watts), random.Random(seed + 1000)
    for _ in range(intervals):
        shares = shares_of()
        power_w = min(limit_w, drawn_w(shares, watts) + dice.gauss(0, 2))
        teach(model, sampled(shares, 36, dice), power_w, power_limit_w=limit_w)
    return model


@pytest.mark.parametrize("limit_w", [180.0, 160.0], ids=["B's bursts beside A's", "all of B's bursts"])
def test_the_limit_does_not_hide_which_process_draws_more(limit_w: float) -> None:
    assert ratio(capped({A: 150.0, B: 300.0}, limit_w)) == pytest.approx(2.0, rel=0.1)


def test_work_that_reaches_the_limit_draws_at_least_that_much() -> None:
    """Below the limit B drew no more than A; what was learned of B is too low."""
    model = taught({A: 150.0, B: 150.0, C: 300.0})
    assert ratio(model) == pytest.approx(1.0, abs=0.1)
    for _ in range(20):
        teach(model, {A: 0.1, B: 0.7}, 298.0, power_limit_w=300.0)
    assert ratio(model) > 1.5


def test_equal_watts_at_the_limit_leave_the_plain_split() -> None:
    for seed in range(5):
        assert ratio(capped({A: 250.0, B: 250.0}, 180.0, seed=seed)) == pytest.approx(1.0, abs=0.1)


def test_without_a_clock_nothing_is_learned_on_a_gpu_always_at_its_limit() -> None:
    model = LearnedPower()
    for share in (0.2, 0.4, 0.6) * 30:
        teach(model, {A: share, B: 0.9 - share}, LIMIT_W)
    assert model.to_state() == LearnedPower().to_state() | {"held_w": CONTEXT_W}


def test_intervals_at_the_limit_alone_do_not_open_the_gate() -> None:
    """They refute only predictions that are too low."""
    model = taught({A: 150.0, B: 300.0}, intervals=10)
    for _ in range(100):
        teach(model, {B: 0.8}, LIMIT_W)
    assert model.gate == 0.0


def test_a_merged_interval_is_capped_if_any_of_its_intervals_is() -> None:
    model = taught({A: 150.0, B: 300.0})
    before = model.to_state()
    for power_w in (120.0, 149.0, 120.0):
        teach(model, {B: 0.45}, power_w, power_limit_w=150.0, samples=7, dt_s=1.0)
    assert model.to_state() == before


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("shares", "changes"),
    [
        ({A: NAN, B: 0.1}, {}),
        ({A: -0.2, B: 0.4}, {}),
        ({A: 0.8, B: 0.8}, {}),
        ({A: 1e300}, {}),
        ({A: 0.3}, {"power_w": NAN}),
        ({A: 0.3}, {"power_w": INF}),
        ({A: 0.3}, {"power_w": -3.0}),
        ({A: 0.3}, {"power_w": 1e30}),
        ({A: 0.3}, {"context_power_w": NAN}),
        ({A: 0.3}, {"context_power_w": -1.0}),
        ({A: 0.3}, {"samples": NAN}),
        ({A: 0.3}, {"samples": -1.0}),
        ({A: 0.3}, {"dt_s": INF}),
        ({A: 0.3}, {"dt_s": -5.0}),
    ],
    ids=str,
)
def test_implausible_figures_change_nothing(shares: Shares, changes: dict[str, float]) -> None:
    model = taught({A: 150.0, B: 300.0})
    before = model.to_state()
    figures: dict[str, Any] = {"power_w": 200.0, **changes}
    teach(model, shares, **figures)
    assert model.to_state() == before


# ---------------------------------------------------------------------------- processes end


def test_a_forgotten_process_leaves_the_others_unchanged() -> None:
    model = taught({A: 150.0, B: 300.0, C: 400.0}, intervals=200)
    before = ratio(model)
    model.forget([C, ProcessKey(999, 1)])
    assert keys(model) == {A, B}
    assert "13" not in json.dumps(model.to_state()["keys"])
    assert ratio(model) == pytest.approx(before, rel=0.05)


def test_forgetting_ended_processes_leaves_the_power_of_the_others_unchanged() -> None:
    model, dice = LearnedPower(), random.Random(11)
    hungry, frugal = C, ProcessKey(14, 1)
    watts = {A: 200.0, B: 200.0, hungry: 350.0, frugal: 60.0}
    for _ in range(300):
        beside_a, beside_b = dice.choice((0.0, 0.3)), dice.choice((0.0, 0.3))
        shares = {hungry: beside_a, frugal: beside_b}
        shares |= {A: beside_a * dice.uniform(0, 0.8), B: beside_b * dice.uniform(0, 0.8)}
        teach(model, shares, drawn_w(shares, watts) + dice.gauss(0, 2), samples=1e6)
    assert ratio(model) == pytest.approx(1.0, abs=0.1)
    model.forget([hungry, frugal])
    assert ratio(model) == pytest.approx(1.0, abs=0.1)


def test_a_process_that_ends_within_a_pending_interval_leaves_nothing() -> None:
    model = LearnedPower()
    teach(model, {A: 0.4}, 150.0, samples=7, dt_s=1.0)
    assert keys(model) == {A}
    model.forget({A})
    assert keys(model) == set()
    assert model.to_state() == {**LearnedPower().to_state(), "held_w": CONTEXT_W}


def test_state_is_bounded_for_any_number_of_processes() -> None:
    model = LearnedPower()
    for number in range(3 * MAX_TRACKED):
        teach(model, {ProcessKey(number, 1): 0.3, A: 0.2}, 200.0)
    assert len(keys(model)) <= MAX_TRACKED
    assert A in keys(model), "the one with the most work stays"


def test_of_many_processes_those_with_the_most_work_have_watts_of_their_own() -> None:
    dice = random.Random(12)
    heavy = [ProcessKey(pid, 1) for pid in range(100, 102)]
    light = [ProcessKey(pid, 1) for pid in range(2 * MAX_MODELLED)]
    watts = {**dict.fromkeys(light, 200.0), heavy[0]: 120.0, heavy[1]: 320.0}
    model = LearnedPower()
    for _ in range(150):
        shares = dict.fromkeys(light, 0.004) | {key: dice.choice((0.0, 0.3)) for key in heavy}
        teach(model, sampled(shares, 36, dice), drawn_w(shares, watts) + dice.gauss(0, 2))
    factors = model.factors(watts)
    assert factors[heavy[1]] / factors[heavy[0]] == pytest.approx(320 / 120, rel=0.15)
    assert sum(factor != 1.0 for factor in factors.values()) <= MAX_MODELLED


# ---------------------------------------------------------------------------- kept


def test_the_order_of_processes_does_not_matter() -> None:
    forward, backward, shares_of = LearnedPower(), LearnedPower(), bursts(13, (A, B, C))
    for _ in range(60):
        shares = shares_of()
        power_w = drawn_w(shares, {A: 150.0, B: 300.0, C: 200.0})
        teach(forward, shares, power_w)
        teach(backward, dict(reversed(shares.items())), power_w)
    assert forward.to_state() == backward.to_state()
    assert forward.factors((A, B, C)) == backward.factors((C, B, A))


def test_a_restored_model_continues_like_the_original() -> None:
    model, shares_of = taught({A: 150.0, B: 300.0}), bursts(14, (A, B, C))
    teach(model, {A: 0.2}, 150.0, samples=5, dt_s=1.0, power_limit_w=150.0)
    copy = LearnedPower.from_state(json.loads(json.dumps(model.to_state())))
    assert copy.factors((A, B)) == model.factors((A, B)) != {A: 1.0, B: 1.0}
    for _ in range(5):
        shares = shares_of()
        for one in (model, copy):
            teach(one, shares, 180.0)
    assert copy.to_state() == model.to_state()
    assert copy.factors((A, B, C)) == model.factors((A, B, C))


@pytest.mark.parametrize(
    "change",
    [
        {"keys": [[11, 1011]]},
        {"keys": [[11, 1011], [11, 1011]]},
        {"keys": [[11, 1011], [12.5, 1]]},
        {"keys": [[11], [12]]},
        {"products": [[1.0]]},
        {"products": "abc"},
        {"power": [1.0, 2.0]},
        {"power": [NAN] * 5},
        {"noise": [0.1]},
        {"noise": [-0.1, 0.1]},
        {"gain": [1.0]},
        {"variance": "much"},
        {"predicted": None},
        {"predicted": -1},
        {"held_w": INF},
        {"pending": []},
        {"pending_capped": 2},
        {"pending_capped": []},
        {"clock": SmClock().to_state() | {"lowest_mhz": []}},
        {"clock": SmClock().to_state() | {"highest_mhz": [1.0]}},
        {"pending_work_s": [[1, 2]]},
        {"pending_work_s": [[1, 2, None]]},
    ],
    ids=str,
)
def test_a_malformed_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        LearnedPower.from_state({**taught({A: 150.0, B: 300.0}, intervals=20).to_state(), **change})


# ---------------------------------------------------------------------------- the solver


def test_a_symmetric_system_is_solved() -> None:
    factored = factorize([[4.0], [2.0, 5.0], [-2.0, 1.0, 6.0]], [0.0, 15.0, 18.0])
    assert factored is not None
    solution = solve_leading(*factored, 3)
    full = [[4.0, 2.0, -2.0], [2.0, 5.0, 1.0], [-2.0, 1.0, 6.0]]
    products = [sum(a * x for a, x in zip(row, solution, strict=True)) for row in full]
    assert products == pytest.approx([0.0, 15.0, 18.0])


@pytest.mark.parametrize("lower", [[[0.0]], [[-1.0]], [[NAN]], [[1.0], [1.0, 1.0]], [[1.0], [2.0, 1.0]]], ids=str)
def test_a_system_that_is_not_positive_definite_has_no_solution(lower: list[list[float]]) -> None:
    assert factorize(lower, [1.0] * len(lower)) is None


# ---------------------------------------------------------------------------- against the truth


def errors(spec: WorldSpec) -> tuple[float, float]:
    """Mean relative error of dynamic energy per process after ten minutes: split by share, and by learned watts."""
    host, clock = start(spec)
    source, model = host.gpu_source(), LearnedPower()
    key_of = {one.pid: spec.key_of(one) for one in spec.processes}
    context_w = spec.gpus[0].static_w + spec.gpus[0].context_w
    plain, learned = (dict.fromkeys(key_of.values(), 0.0) for _ in range(2))
    before_mj = source.read().gpus[0].energy_mj or 0
    for _ in range(120):
        clock.advance(5.0)
        reading = source.read().gpus[0]
        assert reading.energy_mj is not None
        assert reading.utilization is not None
        window_s = (reading.utilization.read_at_us - reading.utilization.since_us) / 1e6
        shares = {key_of[row.pid]: row.sm_percent / 100 for row in reading.utilization.rows if row.sm_percent}
        energy_j, before_mj = (reading.energy_mj - before_mj) / 1e3, reading.energy_mj
        model.observe(
            shares,
            power_w=energy_j / 5.0,
            power_limit_w=reading.power_limit_w,
            context_power_w=context_w,
            samples=window_s / PERIOD_S,
            dt_s=5.0,
        )
        for sums, factors in ((plain, dict.fromkeys(shares, 1.0)), (learned, model.factors(shares))):
            weights = {key: share * window_s * factors[key] for key, share in shares.items()}
            for key, weight in weights.items():
                sums[key] += (energy_j - context_w * 5.0) * weight / sum(weights.values())
    true_j = {one.key: one.dynamic_mj / 1e3 for one in host.truth().gpus[0].processes}
    by_share, by_watts = (
        sum(abs(sums[key] - energy_j) / energy_j for key, energy_j in true_j.items()) / len(true_j)
        for sums in (plain, learned)
    )
    return by_share, by_watts


def mean_errors(works: Callable[[int, int], Signal], watts: Iterable[float], exponent: float) -> tuple[float, float]:
    results = []
    for seed in range(4):
        uses = [use(works(n, 100 * seed + n), watts=one) for n, one in enumerate(watts)]
        processes = (process(n + 1, one) for n, one in enumerate(uses))
        results.append(errors(world(*processes, gpus=(gpu(power_exponent=exponent, noise_ratio=0.02),), seed=seed)))
    by_share, by_watts = zip(*results, strict=True)
    return sum(by_share) / len(results), sum(by_watts) / len(results)


def bursty(n: int, seed: int) -> Signal:
    return Bursty(0.5, 0.4, 12.0 + 9.0 * n, seed)


def on_off(n: int, seed: int) -> Signal:
    return OnOff(0.5, 0.3 + 0.2 * n, 7.0 + 4.0 * n, seed)


@pytest.mark.parametrize(
    ("works", "exponent"), [(bursty, 1.0), (on_off, 0.75)], ids=["bursty", "on/off, power below linear"]
)
def test_on_a_simulated_host_learned_watts_halve_the_error_of_the_plain_split(
    works: Callable[[int, int], Signal], exponent: float
) -> None:
    by_share, by_watts = mean_errors(works, (120.0, 210.0, 330.0), exponent)
    assert by_share > 0.1, "watts differ, so shares alone are wrong"
    assert by_watts < 0.5 * by_share


@pytest.mark.parametrize(
    ("works", "exponent"), [(bursty, 1.0), (on_off, 0.75)], ids=["bursty", "on/off, power below linear"]
)
def test_on_a_simulated_host_with_equal_watts_learning_costs_nothing(
    works: Callable[[int, int], Signal], exponent: float
) -> None:
    by_share, by_watts = mean_errors(works, (200.0, 200.0, 200.0), exponent)
    assert by_watts <= 1.02 * by_share
