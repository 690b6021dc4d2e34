"""Worlds to score idleness on: processes of known duty that stop forever at some time, alone or with a busy one.

The duty is the share of the GPU wanted: always that much (steady), or in bursts about every two seconds that are
that much on average (bursty). The process that never stops is named ``NEIGHBOUR`` and is not scored.
"""

from __future__ import annotations

from typing import Final

from bench.accuracy.dice import Dice
from bench.accuracy.worlds import GIB, Family, Kind, make_gpu, make_process
from otel_gpu.sources.sim.signals import Bursty, Points, Product, Signal, Steady
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec, WorldSpec

NEIGHBOUR: Final = "neighbour"
LIGHT_PERCENT: Final = (0, 1, 2, 5, 10)
HEAVY_PERCENT: Final = (0, 50)
_SEEDS_BESIDE: Final = 20  # some hours of work for each duty: false alarms are counted per hour
_SEEDS_ALONE: Final = 6
STEADY: Final = "steady"
BURSTY: Final = "bursty"
ALONE: Final = "alone"
BESIDE: Final = "beside busy"


def label(duty_percent: int) -> str:
    """The name of a process of this duty."""
    return f"{duty_percent} %"


def _work(dice: Dice, pattern: str, duty_percent: int, number: int) -> Signal:
    duty = duty_percent / 100
    working: Signal = Steady(duty)
    if pattern == BURSTY and duty:
        # High enough that one sample of a burst is over 1 % of a poll's samples: the driver rounds down.
        level = dice.between(0.7, 0.95)
        working = Bursty(level, duty / level, dice.between(1.5, 3.0), dice.seed + number)
    stop_s = dice.between(330.0, 450.0)
    return Product(working, Points(((0.0, 1.0), (stop_s, 1.0), (stop_s, 0.0))))


def _process(dice: Dice, number: int, work: Signal, name: str) -> ProcessSpec:
    use = GpuUse(gpu=0, memory=Steady(dice.between(1.0, 6.0) * GIB), work=work, watts=Steady(120.0))
    return make_process(dice, number, use, name=name)


def _family(pattern: str, duties_percent: tuple[int, ...], *, beside: bool) -> Family:
    group = f"{pattern}, {BESIDE if beside else ALONE}"
    name = f"{group}, {'/'.join(map(str, duties_percent))} %"

    def make(seed: int) -> WorldSpec:
        dice = Dice(name, seed)
        gpu = make_gpu(dice)
        scored = [
            _process(dice, number, _work(dice, pattern, duty, number), label(duty))
            for number, duty in enumerate(duties_percent)
        ]
        if beside:
            busy = Steady(dice.between(0.8, 1.0) * (1.0 - sum(duties_percent) / 100))
            scored.append(_process(dice, len(scored), busy, NEIGHBOUR))
        return WorldSpec(seed=dice.seed, gpus=(gpu,), processes=tuple(scored))

    return Family(name, Kind.IDLE, make, _SEEDS_BESIDE if beside else _SEEDS_ALONE, group)


IDLE: Final = (
    _family(STEADY, (0,), beside=False),
    *(_family(pattern, (duty,), beside=False) for pattern in (STEADY, BURSTY) for duty in (1, 2, 5, 10, 50)),
    *(_family(pattern, LIGHT_PERCENT, beside=True) for pattern in (STEADY, BURSTY)),
    *(_family(pattern, HEAVY_PERCENT, beside=True) for pattern in (STEADY, BURSTY)),
)
