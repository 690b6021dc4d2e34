"""Worlds to score inferred memory on: 2 to 8 processes hold memory that the driver's lists do not show.

One more process is listed correctly. Each family exists with evidence from mappings (``/dev/nvidia-uvm`` of 1 to 1.4
times the resident size, which is not verified on hardware) and without. No process works: that is scored elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bench.accuracy.dice import Dice
from bench.accuracy.worlds import DURATION_S, GIB, Family, Kind, make_gpu, make_process
from otel_gpu.sources.sim.signals import Points, Signal, Steady
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec, Visibility, WorldSpec

MAPPED: Final = ", mapped"
"""Suffix of a family's name if its worlds show the sizes of mappings."""

_SEEDS: Final = 10

Life = tuple[float, float | None, Signal]
"""Start and end in world seconds, and bytes held."""

_Lives = Callable[[Dice, int], Sequence[Life]]


def _sizes(dice: Dice, count: int, largest_gib: float = 9.0) -> list[float]:
    return [dice.log_between(0.5, largest_gib) * GIB for _ in range(count)]


def _slots(dice: Dice, count: int, *, until_s: float, first_s: float = 7.0) -> list[float]:
    """Separate start times: one at a random place in the first third of each of ``count`` slots."""
    width_s = (until_s - first_s) / count
    return [first_s + width_s * (number + dice.between(0.0, 0.33)) for number in range(count)]


def _step(dice: Dice, size: float) -> Signal:
    """All at once, at most 4 s after the start: a context precedes its allocations."""
    begin_s = dice.between(0.0, 4.0)
    return Points(((begin_s, 0.0), (begin_s, size)))


# ---------------------------------------------------------------------------- memory over time


def _staggered(dice: Dice, count: int) -> Sequence[Life]:
    starts_s = _slots(dice, count, until_s=400.0)
    return [(start_s, None, _step(dice, size)) for start_s, size in zip(starts_s, _sizes(dice, count), strict=True)]


def _ramps(dice: Dice, count: int) -> Sequence[Life]:
    """One ramp after the other; later each process frees up to a quarter of its memory."""
    return _ramps_and_frees(dice, count, kept=(0.75, 1.0), regained=(0.0, 0.0))


def _large_frees(dice: Dice, count: int) -> Sequence[Life]:
    """The same, but each frees up to two thirds and later allocates some of it again, without evidence of the owner."""
    return _ramps_and_frees(dice, count, kept=(0.33, 0.75), regained=(0.2, 1.0))


def _ramps_and_frees(
    dice: Dice, count: int, kept: tuple[float, float], regained: tuple[float, float]
) -> Sequence[Life]:
    width_s = 400.0 / count
    lives: list[Life] = []
    for start_s, size in zip(_slots(dice, count, until_s=407.0), _sizes(dice, count), strict=True):
        full_s = dice.between(0.2, 0.6) * width_s
        free_s = full_s + dice.between(30.0, 150.0)
        left = size * dice.between(*kept)
        again_s = free_s + dice.between(20.0, 100.0)
        back = left + (size - left) * dice.between(*regained)
        shape = ((0.0, 0.0), (full_s, size), (free_s, size), (free_s, left), (again_s, left), (again_s, back))
        lives.append((start_s, None, Points(shape)))
    return lives


def _overlapping(dice: Dice, count: int) -> Sequence[Life]:
    """All start within two and a half minutes, and grow for up to four minutes."""
    return [
        (start_s, None, Points(((0.0, 0.0), (dice.between(60.0, 240.0), size))))
        for start_s, size in zip(_slots(dice, count, until_s=157.0), _sizes(dice, count), strict=True)
    ]


def _slow_growth(dice: Dice, count: int) -> Sequence[Life]:
    """Known steps first; from the fifth minute on about half of them grow, at most to twice their size."""
    lives: list[Life] = []
    for start_s, size in zip(_slots(dice, count, until_s=207.0), _sizes(dice, count, 4.5), strict=True):
        grown = size * (1.0 + max(0.0, dice.between(-1.0, 1.0)))
        begin_s, end_s = 300.0 - start_s, DURATION_S - start_s
        lives.append((start_s, None, Points(((0.0, size), (begin_s, size), (end_s, grown)))))
    return lives


def _simultaneous(dice: Dice, count: int) -> Sequence[Life]:
    """All between the same two polls."""
    return [(dice.between(30.5, 34.5), None, Steady(size)) for size in _sizes(dice, count)]


def _held_already(dice: Dice, count: int) -> Sequence[Life]:
    """All start long before the first poll; some end between polls."""
    lives: list[Life] = []
    for number, size in enumerate(_sizes(dice, count)):
        ends = number > 0 and dice.between(0.0, 1.0) < 0.4
        lives.append((dice.between(0.0, 250.0), _AGE_S + dice.between(60.0, 540.0) if ends else None, Steady(size)))
    return lives


_AGE_S: Final = 300.0


# ---------------------------------------------------------------------------- worlds


def _world(dice: Dice, lives: Sequence[Life], openers_s: Sequence[float], *, age_s: float, mapped: bool) -> WorldSpec:
    def factor() -> float | None:
        drawn = dice.between(1.0, 1.4)
        return drawn if mapped else None

    processes: list[ProcessSpec] = [make_process(dice, 0, GpuUse(gpu=0, memory=Steady(4.0 * GIB)), name="listed")]
    for number, (start_s, end_s, memory) in enumerate(lives, start=1):
        use = GpuUse(gpu=0, memory=memory, visibility=Visibility.HIDDEN, uvm_factor=factor())
        processes.append(make_process(dice, number, use, start_s=start_s, end_s=end_s))
    for number, start_s in enumerate(openers_s, start=len(processes)):
        use = GpuUse(gpu=0, context=False, uvm_factor=factor())
        processes.append(make_process(dice, number, use, start_s=start_s))
    return WorldSpec(seed=dice.seed, gpus=(make_gpu(dice),), processes=tuple(processes), age_s=age_s)


def _families(name: str, lives: _Lives, *, age_s: float = 0.0, openers: bool = False) -> tuple[Family, Family]:
    """The family without and with evidence from mappings; the worlds are otherwise equal."""

    def make(seed: int, *, mapped: bool) -> WorldSpec:
        dice = Dice(name, seed)
        count = dice.integer(2, 8)
        held = lives(dice, count)
        openers_s: list[float] = []
        if openers:
            # In the second half of the slots, where no other process starts.
            width_s = 400.0 / count
            slots = dice.shuffled(range(count))[: dice.integer(1, max(1, count // 2))]
            openers_s = [7.0 + width_s * (slot + dice.between(0.6, 0.8)) for slot in sorted(slots)]
        return _world(dice, held, openers_s, age_s=age_s, mapped=mapped)

    return (
        Family(name, Kind.MEMORY, lambda seed: make(seed, mapped=False), _SEEDS),
        Family(name + MAPPED, Kind.MEMORY, lambda seed: make(seed, mapped=True), _SEEDS),
    )


MEMORY: Final = (
    *_families("staggered", _staggered),
    *_families("ramps", _ramps),
    *_families("large frees", _large_frees),
    *_families("overlapping ramps", _overlapping),
    *_families("slow growth", _slow_growth),
    *_families("simultaneous", _simultaneous),
    *_families("late start", _held_already, age_s=_AGE_S),
    *_families("open, no memory", _staggered, openers=True),
)
