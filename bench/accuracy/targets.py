"""Targets of the agent as data, and their verdicts. Figures are judged before rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.accuracy import ours, peers
from bench.accuracy.energy_worlds import ENERGY as ENERGY_FAMILIES
from bench.accuracy.idle_worlds import ALONE, BESIDE, BURSTY, STEADY, label
from bench.accuracy.memory_worlds import MAPPED
from bench.accuracy.results import Results
from bench.accuracy.trials import ENERGY, MEMORY, OURS

IDLE: Final = "idle"
CONSERVATION: Final = "conservation"
DEFAULT_MODEL: Final = ours.LEARNED
"""The energy model that is compared with the other formulas."""

_WHOLE_BYTES: Final = 1e-9
"""Relative tolerance between two divisions of the same bytes, which round differently."""
_MOST_DECIMALS: Final = 9


class Measure(StrEnum):
    """What is compared with a limit."""

    MEAN = "mean %"
    TO_BEST = "/best other"
    TO_SM = "learned/sm"
    TO_EQUAL = "/equal split"
    ALARMS = "false alarms/h"
    FALSE_TIME = "false idle %"
    LOST_BYTES = "lost bytes"
    LOST_MJ = "lost mJ"


@dataclass(frozen=True, slots=True)
class Target:
    """A limit of a measure in one row of a section of the table."""

    section: str
    row: str
    measure: Measure
    limit: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the figure reached."""

    target: Target
    value: float

    @property
    def passed(self) -> bool:
        """Whether the target was reached; NaN has not reached it."""
        return self.value <= self.target.limit * (1.0 + _WHOLE_BYTES)

    def __str__(self) -> str:
        sign = "≤" if self.passed else ">"
        return f"{self.target.measure} {self._figure()} {sign} {self.target.limit:g}"

    def _figure(self) -> str:
        """Two decimals, or as many as are needed to show the side of the limit."""
        for decimals in range(2, _MOST_DECIMALS):
            figure = f"{self.value:.{decimals}f}"
            if (float(figure) <= self.target.limit) is self.passed:
                return figure
        return f"{self.value:.{_MOST_DECIMALS}f}"


def _energy_targets() -> Iterator[Target]:
    to_sm = {"bursty": 0.5, "on/off, sub-linear": 0.6, "phases, contended": 0.85, "watts drift": 0.85}
    for family in ENERGY_FAMILIES:
        if family.name.startswith("equal watts"):
            yield Target(ENERGY, family.name, Measure.MEAN, 3.0)
            yield Target(ENERGY, family.name, Measure.TO_BEST, 0.5)
        else:
            yield Target(ENERGY, family.name, Measure.TO_BEST, 0.9)
        yield Target(ENERGY, family.name, Measure.TO_SM, to_sm.get(family.name, 1.05))


def _memory_targets() -> Iterator[Target]:
    for ending in ("", MAPPED):
        yield Target(MEMORY, f"staggered{ending}", Measure.MEAN, 2.0)
        yield Target(MEMORY, f"ramps{ending}", Measure.MEAN, 15.0)
        yield Target(MEMORY, f"overlapping ramps{ending}", Measure.TO_EQUAL, 0.8)
    for family in ("simultaneous", "late start"):
        yield Target(MEMORY, family, Measure.TO_EQUAL, 1.0)
        yield Target(MEMORY, family + MAPPED, Measure.TO_EQUAL, 0.5)


def _idle_targets() -> Iterator[Target]:
    for pattern in (STEADY, BURSTY):
        for duty in (1, 2, 5, 10, 50):
            yield Target(IDLE, f"{pattern}, {ALONE}, {label(duty)}", Measure.ALARMS, 0.0)
        for duty in (5, 10, 50):
            yield Target(IDLE, f"{pattern}, {BESIDE}, {label(duty)}", Measure.ALARMS, 1.0)
    yield Target(IDLE, f"{STEADY}, {BESIDE}, {label(2)}", Measure.FALSE_TIME, 0.5)


TARGETS: Final = (
    *_energy_targets(),
    *_memory_targets(),
    *_idle_targets(),
    Target(CONSERVATION, "every cycle of every world", Measure.LOST_BYTES, 0.0),
    Target(CONSERVATION, "every cycle of every world", Measure.LOST_MJ, 0.0),
)


def judge(results: Results) -> tuple[Verdict, ...]:
    """Verdicts of the targets whose worlds were played."""
    verdicts = ((target, _value(target, results)) for target in TARGETS)
    return tuple(Verdict(target, value) for target, value in verdicts if value is not None)


def _value(target: Target, results: Results) -> float | None:
    match target.section:
        case "conservation":
            return results.conservation_bytes if target.measure is Measure.LOST_BYTES else results.conservation_mj
        case "idle":
            rules = results.idle.get(target.row)
            if rules is None:
                return None
            summary = rules[OURS]
            return summary.alarms_per_hour if target.measure is Measure.ALARMS else summary.false_percent
        case _:
            return _error(target, results)


def _error(target: Target, results: Results) -> float | None:
    formulas = results.errors.get((target.section, target.row))
    if formulas is None:
        return None
    mean = formulas[DEFAULT_MODEL if target.section == ENERGY else OURS].mean
    match target.measure:
        case Measure.TO_BEST:
            best = results.best_other(target.row)
            return None if best is None else mean / best[1].mean
        case Measure.TO_SM:
            return mean / formulas[ours.SM].mean
        case Measure.TO_EQUAL:
            return mean / formulas[peers.EQUAL].mean
        case _:
            return mean
