"""Worlds to score energy and busy time on: patterns of work, and the watts that the work draws.

Watts per unit of SM share differ by up to three times among the sharers, except in the families of equal watts. Only
in ``power-capped`` do they reach the GPU's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bench.accuracy.dice import Dice
from bench.accuracy.worlds import GIB, Family, Kind, make_gpu, make_process
from otel_gpu.sources.sim.signals import Alternating, Bursty, OnOff, Product, Signal, Steady, Wander
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, WorldSpec

_SEEDS: Final = 12
_SPREAD: Final = 3.0
"""Ratio of the most demanding work's watts to the least demanding work's."""

_Works = Callable[[Dice, int], Sequence[Signal]]


def _full_w(gpu: GpuSpec) -> float:
    """Watts of the most demanding work on the whole GPU, just below the limit."""
    return 0.95 * (gpu.power_limit_w - gpu.static_w - gpu.context_w)


def _unequal_w(dice: Dice, gpu: GpuSpec, count: int) -> list[Signal]:
    return [Steady(_full_w(gpu) / dice.log_between(1.0, _SPREAD)) for _ in range(count)]


def _equal_w(dice: Dice, gpu: GpuSpec, count: int) -> list[Signal]:
    return [Steady(_full_w(gpu) / dice.log_between(1.0, _SPREAD))] * count


def _world(
    dice: Dice, gpu: GpuSpec, works: Sequence[Signal], watts: Sequence[Signal], starts_s: Sequence[float] = ()
) -> WorldSpec:
    starts_s = starts_s or [0.0] * len(works)
    processes = tuple(
        make_process(
            dice,
            number,
            GpuUse(gpu=0, memory=Steady(dice.log_between(0.5, 8.0) * GIB), work=work, watts=draw),
            start_s=start_s,
        )
        for number, (work, draw, start_s) in enumerate(zip(works, watts, starts_s, strict=True))
    )
    return WorldSpec(seed=dice.seed, gpus=(gpu,), processes=processes)


def _family(name: str, works: _Works, *, equal_watts: bool = False) -> Family:
    """Worlds that differ only in the pattern of work."""

    def make(seed: int) -> WorldSpec:
        dice = Dice(name, seed)
        gpu = make_gpu(dice)
        count = dice.integer(2, 8)
        watts = (_equal_w if equal_watts else _unequal_w)(dice, gpu, count)
        return _world(dice, gpu, works(dice, count), watts)

    return Family(name, Kind.ENERGY, make, _SEEDS)


# ---------------------------------------------------------------------------- patterns of work


def _levels(dice: Dice, count: int, sum_: float) -> list[Signal]:
    weights = [dice.between(0.2, 1.0) for _ in range(count)]
    return [Steady(sum_ * weight / sum(weights)) for weight in weights]


def _steady(dice: Dice, count: int) -> Sequence[Signal]:
    return _levels(dice, count, 1.0)


def _steady_below_one(dice: Dice, count: int) -> Sequence[Signal]:
    return _levels(dice, count, dice.between(0.3, 0.8))


def _bursty(dice: Dice, count: int) -> Sequence[Signal]:
    return [
        Bursty(dice.between(0.3, 0.9), dice.between(0.15, 0.5), dice.between(8.0, 40.0), dice.seed + number)
        for number in range(count)
    ]


def _on_off(dice: Dice, count: int) -> Sequence[Signal]:
    return [
        OnOff(dice.between(0.2, 0.8), dice.between(0.3, 0.7), dice.between(6.0, 25.0), dice.seed + number)
        for number in range(count)
    ]


def _alternating(dice: Dice, count: int) -> Sequence[Signal]:
    turn_s = dice.between(15.0, 60.0)
    return [Alternating(dice.between(0.5, 1.0), turn_s, turn, count) for turn in range(count)]


def _phases(dice: Dice, count: int) -> Sequence[Signal]:
    """Phases between a fifth of a peak and the peak; the sum usually exceeds the GPU."""
    peaks = _levels(dice, count, dice.between(1.8, 3.0))
    return [
        Product(peak, Wander(0.2, 1.0, dice.between(20.0, 60.0), dice.seed + number))
        for number, peak in enumerate(peaks)
    ]


def _collinear(dice: Dice, count: int) -> Sequence[Signal]:
    """All at the same times, so that no data distinguishes them."""
    duty, period_s = dice.between(0.3, 0.6), dice.between(10.0, 40.0)
    return [Bursty(dice.between(0.2, 0.8), duty, period_s, dice.seed) for _ in range(count)]


def _light_beside_busy(dice: Dice, count: int) -> Sequence[Signal]:
    light = dice.integer(1, max(1, count // 2))
    return [*_levels(dice, count - light, dice.between(0.7, 0.84)), *([Steady(0.02)] * light)]


# ---------------------------------------------------------------------------- other differences


def _on_off_sublinear(seed: int) -> WorldSpec:
    dice = Dice("on/off, sub-linear", seed)
    gpu = make_gpu(dice, power_exponent=dice.between(0.6, 0.85))
    count = dice.integer(2, 8)
    return _world(dice, gpu, _on_off(dice, count), _unequal_w(dice, gpu, count))


def _drifting(seed: int) -> WorldSpec:
    dice = Dice("watts drift", seed)
    gpu = make_gpu(dice)
    count = dice.integer(2, 8)
    drifts = [Wander(0.6, 1.0, dice.between(150.0, 400.0), dice.seed - number, smooth=True) for number in range(count)]
    watts = [Product(level, drift) for level, drift in zip(_unequal_w(dice, gpu, count), drifts, strict=True)]
    return _world(dice, gpu, _phases(dice, count), watts)


def _late_joiner(seed: int) -> WorldSpec:
    dice = Dice("late joiner", seed)
    gpu = make_gpu(dice)
    count = dice.integer(2, 8)
    starts_s = [*([0.0] * (count - 1)), dice.between(240.0, 420.0)]
    return _world(dice, gpu, _phases(dice, count), _unequal_w(dice, gpu, count), starts_s)


def _power_capped(seed: int) -> WorldSpec:
    dice = Dice("power-capped", seed)
    gpu = make_gpu(dice)
    count = dice.integer(2, 8)
    full_w = dice.between(1.3, 2.5) * _full_w(gpu)
    watts = [Steady(full_w / dice.log_between(1.0, _SPREAD)) for _ in range(count)]
    return _world(dice, gpu, _phases(dice, count), watts)


ENERGY: Final = (
    _family("steady", _steady),
    _family("steady, U<1", _steady_below_one),
    _family("bursty", _bursty),
    Family("on/off, sub-linear", Kind.ENERGY, _on_off_sublinear, _SEEDS),
    _family("alternating", _alternating),
    _family("phases, contended", _phases),
    Family("watts drift", Kind.ENERGY, _drifting, _SEEDS),
    Family("late joiner", Kind.ENERGY, _late_joiner, _SEEDS),
    Family("power-capped", Kind.ENERGY, _power_capped, _SEEDS),
    _family("collinear", _collinear),
    _family("2 % beside busy", _light_beside_busy),
    _family("equal watts, steady", _steady, equal_watts=True),
    _family("equal watts, bursty", _bursty, equal_watts=True),
)
