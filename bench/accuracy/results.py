"""Outcomes of many worlds, summarised by the rows and columns of the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.accuracy import peers
from bench.accuracy.score import IdleRecord, IdleSummary, Summary, summarise, summarise_idle
from bench.accuracy.trials import ENERGY, Outcome


@dataclass(frozen=True, slots=True)
class Results:
    """Errors by (what, family) and formula, idleness by group and formula, and the largest conservation errors."""

    errors: dict[tuple[str, str], dict[str, Summary]] = field(default_factory=dict)
    idle: dict[str, dict[str, IdleSummary]] = field(default_factory=dict)
    conservation_bytes: int = 0
    conservation_mj: int = 0
    worlds: int = 0

    def best_other(self, family: str) -> tuple[str, Summary] | None:
        """The other energy formula with the smallest error in a family, and its error."""
        formulas = self.errors.get((ENERGY, family), {})
        others = [(name, formulas[name]) for name in peers.ENERGY_FORMULAS if name in formulas]
        return min(others, key=lambda other: other[1].mean, default=None)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "worlds": self.worlds,
            "conservation": {"bytes": self.conservation_bytes, "mj": self.conservation_mj},
            "errors_percent": [
                {"of": what, "family": family, "formula": formula, **asdict(summary)}
                for (what, family), formulas in self.errors.items()
                for formula, summary in formulas.items()
            ],
            "idle": [
                {"group": group, "formula": formula, **asdict(summary)}
                for group, formulas in self.idle.items()
                for formula, summary in formulas.items()
            ],
        }


def collect(outcomes: Iterable[Outcome]) -> Results:
    """Sum up; the order of the outcomes does not matter."""
    known = sorted(outcomes, key=lambda outcome: (outcome.family, outcome.seed))
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    idle: dict[str, dict[str, list[IdleRecord]]] = {}
    for outcome in known:
        for (what, formula), each in outcome.errors.items():
            errors.setdefault((what, outcome.family), {}).setdefault(formula, []).extend(each)
        for (group, formula), records in outcome.idle.items():
            idle.setdefault(group, {}).setdefault(formula, []).extend(records)
    return Results(
        errors={row: {name: summarise(all_) for name, all_ in formulas.items()} for row, formulas in errors.items()},
        idle={row: {name: summarise_idle(all_) for name, all_ in formulas.items()} for row, formulas in idle.items()},
        conservation_bytes=max((outcome.conservation_bytes for outcome in known), default=0),
        conservation_mj=max((outcome.conservation_mj for outcome in known), default=0),
        worlds=len(known),
    )
