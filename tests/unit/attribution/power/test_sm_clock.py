"""At the power limit the SM clock shows which process draws more, as far as the clock is credible."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from otel_gpu.attribution.power.learned import LearnedPower, SmClock
from otel_gpu.model import ProcessKey
from tests.unit.attribution.power.test_learned import (
    CONTEXT_W,
    LIMIT_W,
    A,
    B,
    C,
    bursts,
    drawn_w,
    ratio,
    sampled,
    teach,
)

MHZ = 1410
D = ProcessKey(14, 1014)

Misread = Callable[[int, random.Random], int]
"""The clock that the driver reads, given the true clock."""


# ---------------------------------------------------------------------------- the clock


def seen(*clocks_mhz: int | None, capped: bool = True, dt_s: float = 5.0) -> SmClock:
    clock = SmClock()
    for clock_mhz in clocks_mhz:
        clock.observe(clock_mhz, capped=capped, dt_s=dt_s)
    return clock


def test_the_clock_of_an_interval_is_the_mean_of_those_at_its_ends() -> None:
    clock = seen(1400)
    assert clock.observe(1200, capped=True, dt_s=5.0) == (1300, 1200)
    assert clock.observe(1000, capped=True, dt_s=5.0) == (1100, 1000)
    assert clock.reference_mhz == 1400
    assert clock.follows_limit


def test_a_clock_without_work_does_not_count() -> None:
    clock = seen(1400, 210)
    assert clock.observe(1000, capped=True, dt_s=5.0) == (1000, 1000)
    assert clock.observe(210, capped=True, dt_s=5.0) is None


def test_a_clock_that_does_not_vary_at_the_limit_does_not_follow_it() -> None:
    assert not seen().follows_limit
    assert not seen(1400, 1395, 1390, 1400).follows_limit
    assert not seen(1400, 900, 600, capped=False).follows_limit


@pytest.mark.parametrize("clock_mhz", [None, 0, -1, 1 << 31])
def test_an_implausible_clock_is_unknown_and_leaves_the_reference(clock_mhz: int | None) -> None:
    clock = seen(1400, 1000)
    assert clock.observe(clock_mhz, capped=True, dt_s=5.0) is None
    assert clock.reference_mhz == 1400
    assert clock.observe(1200, capped=True, dt_s=5.0) == (1200, 1200), "nothing is known of the end before"


def test_a_reference_not_seen_for_long_is_forgotten() -> None:
    clock = seen(1980, *[1200] * 170)
    assert clock.reference_mhz == 1980
    for _ in range(200):
        clock.observe(1200, capped=True, dt_s=5.0)
    assert clock.reference_mhz == 1200
    assert not clock.follows_limit


# ---------------------------------------------------------------------------- what is learned with it


def held_back(
    watts: Mapping[ProcessKey, float],
    limit_w: float,
    *,
    exponent: float = 1.0,
    seed: int = 1,
    misread: Misread = lambda clock_mhz, _: clock_mhz,
) -> tuple[LearnedPower, float, float]:
    """A GPU that is always fully used, in varying shares, whose power falls with this power of the clock.

    The model after 20 minutes, and the mean error of the energy of each by shares and by learned watts.
    """
    model, dice, noise = LearnedPower(), random.Random(seed), random.Random(seed + 1)
    true_j, plain_j, learned_j = (dict.fromkeys(watts, 0.0) for _ in range(3))
    wants: dict[ProcessKey, float] = {}
    for interval in range(240):
        if interval % 6 == 0:
            wants = {key: dice.uniform(0.1, 1.0) for key in watts}
        shares = {key: want / sum(wants.values()) for key, want in wants.items()}
        wanted_w = sum(watts[key] * share for key, share in shares.items()) * dice.gauss(1.0, 0.02)
        drawn = min(1.0, (limit_w - CONTEXT_W) / wanted_w)
        clock_mhz = misread(round(MHZ * drawn ** (1 / exponent)), noise)
        rows = sampled(shares, 36, dice)
        teach(model, rows, CONTEXT_W + drawn * wanted_w, power_limit_w=limit_w, sm_clock_mhz=clock_mhz)
        factors = model.factors(watts)
        for key in watts:
            true_j[key] += drawn * watts[key] * shares[key]
        for energy_j, weights in ((plain_j, rows), (learned_j, {key: rows[key] * factors[key] for key in rows})):
            for key, weight in weights.items():
                energy_j[key] += drawn * wanted_w * weight / sum(weights.values())
    plain, learned = (
        sum(abs(energy_j[key] - true_j[key]) / true_j[key] for key in watts) / len(watts)
        for energy_j in (plain_j, learned_j)
    )
    return model, plain, learned


def mean_errors(watts: Mapping[ProcessKey, float], limit_w: float, **world: Any) -> tuple[float, float]:
    """By shares, and by learned watts."""
    played = [held_back(watts, limit_w, seed=seed, **world)[1:] for seed in range(6)]
    plain, learned = zip(*played, strict=True)
    return sum(plain) / len(played), sum(learned) / len(played)


UNEQUAL = {A: 150.0, B: 450.0, C: 300.0, D: 220.0}
ALIKE = dict.fromkeys(UNEQUAL, 300.0)
ALWAYS_W, MOSTLY_W = 200.0, 340.0
"""A limit that slows ``UNEQUAL`` down all the time, and one that does so about half of the time."""


def test_on_a_gpu_always_at_its_limit_the_clock_shows_which_process_draws_more() -> None:
    model, _, _ = held_back({A: 150.0, B: 300.0}, 180.0)
    assert ratio(model) == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_where_power_falls_faster_than_the_clock_differences_are_too_small_and_never_too_large(exponent: float) -> None:
    for seed in range(4):
        model, _, _ = held_back({A: 150.0, B: 300.0}, 180.0, exponent=exponent, seed=seed)
        assert 1.1 < ratio(model) < 2.0


@pytest.mark.parametrize("limit_w", [ALWAYS_W, MOSTLY_W])
@pytest.mark.parametrize(("exponent", "better"), [(1.0, 0.4), (2.0, 0.75), (3.0, 0.9)])
def test_the_clock_improves_the_split_whether_power_follows_it_or_its_cube(
    limit_w: float, exponent: float, better: float
) -> None:
    plain, learned = mean_errors(UNEQUAL, limit_w, exponent=exponent)
    assert plain > 0.15, "watts differ, so shares alone are wrong"
    assert learned < better * plain


def _late(polls: int) -> Misread:
    past: list[int] = []

    def read(clock_mhz: int, _: random.Random) -> int:
        past.append(clock_mhz)
        return past[max(0, len(past) - 1 - polls)]

    return read


MISREADINGS: dict[str, Callable[[], Misread]] = {
    "a tenth off": lambda: lambda clock_mhz, dice: round(clock_mhz * dice.gauss(1.0, 0.1)),
    "a third off": lambda: lambda clock_mhz, dice: max(300, round(clock_mhz * dice.gauss(1.0, 0.3))),
    "in coarse steps": lambda: lambda clock_mhz, _: clock_mhz - clock_mhz % 150,
    "idle now and then": lambda: lambda clock_mhz, dice: 210 if dice.random() < 0.2 else clock_mhz,
    "the poll before": lambda: _late(1),
    "half a minute old": lambda: _late(6),
    "stuck": lambda: lambda _, __: 1200,
}


@pytest.mark.long
@pytest.mark.parametrize("limit_w", [ALWAYS_W, MOSTLY_W])
@pytest.mark.parametrize("name", MISREADINGS)
def test_a_misread_clock_never_makes_the_split_worse_than_by_shares(name: str, limit_w: float) -> None:
    for watts in (UNEQUAL, ALIKE):
        errors = [held_back(watts, limit_w, seed=seed, misread=MISREADINGS[name]())[1:] for seed in range(4)]
        plain, learned = (sum(each) / len(errors) for each in zip(*errors, strict=True))
        assert learned <= 1.05 * plain + 0.005


def test_a_clock_of_noise_costs_two_points_at_most() -> None:
    """Such noise predicts by chance now and then, which opens the gate."""
    for watts in (UNEQUAL, ALIKE):
        plain, learned = mean_errors(watts, ALWAYS_W, misread=lambda _, dice: dice.randint(300, MHZ))
        assert learned <= plain + 0.02


def test_a_clock_that_never_moves_changes_nothing() -> None:
    for limit_w in (ALWAYS_W, MOSTLY_W):
        stuck, _, _ = held_back(UNEQUAL, limit_w, misread=lambda _, __: 1200)
        unknown, _, _ = held_back(UNEQUAL, limit_w, misread=lambda _, __: 0)
        assert stuck.to_state() == {**unknown.to_state(), "clock": stuck.to_state()["clock"]}


def test_below_the_limit_the_clock_changes_nothing() -> None:
    dice, shares_of = random.Random(3), bursts(3)
    with_clock, without = LearnedPower(), LearnedPower()
    for _ in range(100):
        shares = shares_of()
        power_w = drawn_w(shares, {A: 150.0, B: 300.0})
        teach(with_clock, shares, power_w, sm_clock_mhz=dice.randint(210, MHZ))
        teach(without, shares, power_w)
    assert with_clock.factors((A, B)) == without.factors((A, B)) != {A: 1.0, B: 1.0}


def test_short_intervals_are_merged_with_their_clocks() -> None:
    model = LearnedPower()
    dice = random.Random(4)
    for _ in range(400):
        part = dice.uniform(0.1, 0.9)
        wanted_w = 600.0 * part + 1200.0 * (1 - part)
        clock_mhz = round(MHZ * (LIMIT_W - CONTEXT_W) / wanted_w) if wanted_w > LIMIT_W - CONTEXT_W else MHZ
        for _ in range(3):
            power_w = CONTEXT_W + min(wanted_w, LIMIT_W - CONTEXT_W)
            teach(model, {A: part, B: 1 - part}, power_w, samples=7, dt_s=1.0, sm_clock_mhz=clock_mhz)
    assert ratio(model) == pytest.approx(2.0, rel=0.1)


def test_a_late_reference_does_not_spoil_what_was_learned() -> None:
    model, _, _ = held_back({A: 150.0, B: 300.0}, 180.0)
    before = ratio(model)
    teach(model, {A: 0.1}, CONTEXT_W + 15.0, power_limit_w=180.0, sm_clock_mhz=2 * MHZ)
    assert ratio(model) == pytest.approx(before, rel=0.1)


def test_a_restored_model_with_pending_intervals_continues_like_the_original() -> None:
    model, _, _ = held_back(UNEQUAL, MOSTLY_W)
    teach(model, {A: 0.4, B: 0.5}, MOSTLY_W, samples=5, dt_s=1.0, power_limit_w=MOSTLY_W, sm_clock_mhz=1300)
    copy = LearnedPower.from_state(json.loads(json.dumps(model.to_state(), allow_nan=False)))
    for one in (model, copy):
        teach(one, {A: 0.4, B: 0.5}, MOSTLY_W, power_limit_w=MOSTLY_W, sm_clock_mhz=1100)
    assert copy.to_state() == model.to_state()
    assert copy.factors(UNEQUAL) == model.factors(UNEQUAL) != dict.fromkeys(UNEQUAL, 1.0)
