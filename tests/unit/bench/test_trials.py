"""Scores of a world are reproducible, and the errors of a broken agent are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.accuracy import ours, peers
from bench.accuracy.run import FAMILIES
from bench.accuracy.trials import BUSY, ENERGY, MEMORY, OURS, play
from bench.accuracy.worlds import TUNE
from otel_gpu.model import Report
from tests.unit.bench.standin import StandIn

SEED = TUNE[0]


class Leaky(StandIn):
    """Loses a millijoule of its totals in every cycle."""

    def sample(self) -> Report:
        self.energy_mj = {pid: max(0, energy - 1) for pid, energy in self.energy_mj.items()}
        answer = super().sample()
        totals = answer.gpus[0].totals
        assert totals is not None
        kept = totals._replace(idle_mj=totals.idle_mj - 1)
        return replace(answer, gpus=(answer.gpus[0]._replace(totals=kept),))


class Mute(StandIn):
    """Reports no totals."""

    def sample(self) -> Report:
        answer = super().sample()
        return replace(answer, gpus=(answer.gpus[0]._replace(totals=None),))


def test_an_energy_world_scores_every_formula_for_every_workload() -> None:
    family = FAMILIES["equal watts, bursty"]
    outcome = play(family, SEED, StandIn)
    sharers = len(family.make(SEED).processes)
    assert {formula for what, formula in outcome.errors if what == ENERGY} == {*ours.MODELS, *peers.ENERGY_FORMULAS}
    assert {formula for what, formula in outcome.errors if what == BUSY} == {OURS, *peers.BUSY_FORMULAS}
    assert {len(errors) for errors in outcome.errors.values()} == {sharers}
    mean = sum(outcome.errors[ENERGY, ours.SM]) / sharers
    assert mean < 5.0, "equal watts divided by SM share come out right"
    assert mean < sum(outcome.errors[ENERGY, peers.EQUAL]) / sharers
    assert (outcome.conservation_bytes, outcome.conservation_mj) == (0, 0)


def test_a_memory_world_scores_an_equal_split_like_the_equal_split() -> None:
    outcome = play(FAMILIES["staggered"], SEED, StandIn)
    assert outcome.errors[MEMORY, OURS] == pytest.approx(outcome.errors[MEMORY, peers.EQUAL], abs=1e-6)
    assert max(outcome.errors[MEMORY, OURS]) > 10.0
    assert (outcome.conservation_bytes, outcome.conservation_mj) == (0, 0)


def test_two_zero_polls_alone_on_a_gpu_are_right_and_beside_a_busy_one_are_not() -> None:
    alone = play(FAMILIES["steady, alone, 2 %"], SEED, StandIn).idle["steady, alone, 2 %", OURS]
    assert [record.false_alarms for record in alone] == [0]
    assert alone[0].delay_s is not None
    assert 5.0 <= alone[0].delay_s <= 15.0
    beside = play(FAMILIES["steady, beside busy, 0/1/2/5/10 %"], SEED, StandIn).idle
    assert {group for group, _ in beside} == {f"steady, beside busy, {duty} %" for duty in (0, 1, 2, 5, 10)}
    assert beside["steady, beside busy, 1 %", OURS][0].false_alarms > 3
    assert beside["steady, beside busy, 0 %", OURS][0].working_s == 0.0


def test_the_same_world_has_the_same_outcome() -> None:
    family = FAMILIES["simultaneous, mapped"]
    assert play(family, SEED, StandIn) == play(family, SEED, StandIn)


def test_lost_energy_of_an_agent_is_found() -> None:
    assert play(FAMILIES["steady"], SEED, Leaky).conservation_mj >= 1


def test_an_agent_without_totals_is_not_scored() -> None:
    for name in ("steady", "staggered", "steady, alone, 2 %"):
        with pytest.raises(ours.BenchError, match="no totals of a GPU"):
            play(FAMILIES[name], SEED, Mute)
