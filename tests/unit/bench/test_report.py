"""Targets, table and command line: what fails is printed, and fails."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from bench.accuracy import __main__ as command
from bench.accuracy import ours, peers, run
from bench.accuracy.results import Results, collect
from bench.accuracy.score import IdleRecord, Summary
from bench.accuracy.table import as_markdown, as_text, sections
from bench.accuracy.targets import CONSERVATION, TARGETS, Measure, Target, Verdict, judge
from bench.accuracy.trials import BUSY, ENERGY, MEMORY, OURS, Outcome
from bench.accuracy.worlds import HOLDOUT, Family


def energy_outcome(family: str, learned: float, sm: float, best: float, seed: int = 1) -> Outcome:
    others = {(ENERGY, name): [best + 5.0] for name in peers.ENERGY_FORMULAS}
    others[ENERGY, peers.MAXIMUM + peers.STANDING] = [best]
    busy = {(BUSY, name): [1.0] for name in (OURS, *peers.BUSY_FORMULAS)}
    return Outcome(family, seed, {(ENERGY, ours.LEARNED): [learned], (ENERGY, ours.SM): [sm], **others, **busy})


def reached(results: Results, row: str, measure: Measure) -> Verdict:
    (verdict,) = (one for one in judge(results) if (one.target.row, one.target.measure) == (row, measure))
    return verdict


def test_outcomes_are_summarised_by_family_in_any_order() -> None:
    outcomes = [energy_outcome("bursty", 2.0, 8.0, 20.0, 1), energy_outcome("bursty", 4.0, 8.0, 20.0, 2)]
    results = collect(outcomes)
    assert results == collect(reversed(outcomes))
    assert results.errors[ENERGY, "bursty"][ours.LEARNED] == Summary(2, 3.0, 3.9)
    assert results.worlds == 2


def test_the_best_other_formula_is_the_best_of_all_its_variants() -> None:
    results = collect([energy_outcome("bursty", 4.0, 10.0, 20.0)])
    best = results.best_other("bursty")
    assert best is not None
    assert best[0] == peers.MAXIMUM + peers.STANDING
    assert reached(results, "bursty", Measure.TO_BEST).value == 0.2
    assert reached(results, "bursty", Measure.TO_SM).value == 0.4


@pytest.mark.parametrize(
    ("learned", "said"),
    [
        (5.0, "0.50 ≤ 0.5"),
        (4.999, "0.50 ≤ 0.5"),
        (5.013, "0.501 > 0.5"),
        (5.0004, "0.50004 > 0.5"),
        (5.2, "0.52 > 0.5"),
        (5.0 + 1e-12, "0.50 ≤ 0.5"),
    ],
)
def test_a_figure_is_judged_unrounded_and_printed_with_enough_decimals(learned: float, said: str) -> None:
    verdict = reached(collect([energy_outcome("bursty", learned, 10.0, 20.0)]), "bursty", Measure.TO_SM)
    assert verdict.passed is ("≤" in said)
    assert str(verdict) == f"learned/sm {said}"


def test_a_single_lost_byte_misses_the_conservation_target() -> None:
    assert not Verdict(Target(CONSERVATION, "all", Measure.LOST_BYTES, 0.0), 1.0).passed


def test_a_target_is_not_reached_by_nan() -> None:
    assert not Verdict(Target(ENERGY, "bursty", Measure.MEAN, 3.0), math.nan).passed


def test_every_target_is_of_a_row_that_is_played() -> None:
    rows = set(run.FAMILIES) | {
        f"{family.group}, {duty} %" for family in run.FAMILIES.values() for duty in (0, 1, 2, 5, 10, 50) if family.group
    }
    assert {target.row for target in TARGETS if target.section != "conservation"} <= rows
    assert len(set(TARGETS)) == len(TARGETS)


def test_only_played_families_are_judged_and_conservation_always() -> None:
    verdicts = judge(collect([energy_outcome("steady", 4.0, 4.0, 20.0)]))
    assert {verdict.target.row for verdict in verdicts} == {"steady", "every cycle of every world"}
    leaked = collect([Outcome("steady", 1, conservation_mj=3)])
    assert [verdict.passed for verdict in judge(leaked)] == [True, False]


def test_idle_and_memory_are_judged_by_their_own_measures() -> None:
    memory = Outcome("late start, mapped", 1, {(MEMORY, name): [50.0] for name in (OURS, *peers.MEMORY_FORMULAS)})
    group = "steady, beside busy, 5 %"
    idle = Outcome("x", 1, idle={(group, rule): [IdleRecord(3600.0, 2, 5.0, 9.0)] for rule in _rules()})
    results = collect([memory, idle])
    assert reached(results, "late start, mapped", Measure.TO_EQUAL).value == 1.0
    assert reached(results, group, Measure.ALARMS).value == 2.0
    assert [verdict.passed for verdict in judge(results)] == [False, False, True, True]


def _rules() -> tuple[str, ...]:
    return (OURS, *peers.IDLE_FORMULAS)


def test_the_table_shows_every_formula_and_names_what_fails() -> None:
    results = collect([energy_outcome("steady", 30.0, 10.0, 20.0)])
    parts = sections(results, judge(results), ["steady"])
    text = "\n".join(as_text(parts))
    assert "FAIL: /best other 1.50 > 0.9; learned/sm 3.00 > 1.05" in text
    assert "20.0 / 20 +" in text, "the better of a formula's two variants"
    for formula in (*ours.MODELS, *peers.BUSY_FORMULAS):
        assert formula in text


def test_the_table_in_markdown_has_as_many_cells_in_every_row() -> None:
    group = "bursty, alone, 1 %"
    idle = Outcome("x", 1, idle={(group, rule): [IdleRecord(3600.0, 0, 0.0, None)] for rule in _rules()})
    results = collect([energy_outcome("steady", 30.0, 10.0, 20.0), idle])
    lines = list(as_markdown(sections(results, judge(results), ["steady"])))
    blocks = "\n".join(lines).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) == 4
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1
    assert "(1 never)" in "\n".join(lines)


# ---------------------------------------------------------------------------- command line


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Worlds asked for, with made-up outcomes: steady fails, bursty does not."""
    jobs: list[tuple[str, int]] = []

    def play(family: Family, seed: int) -> Outcome:
        jobs.append((family.name, seed))
        return energy_outcome(family.name, 30.0 if family.name == "steady" else 1.0, 10.0, 20.0, seed)

    monkeypatch.setattr(run, "play", play)
    return jobs


def test_the_command_fails_if_a_target_is_missed_unless_gating_is_off(
    played: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workers", "1", "--seeds", "2", "--family", "steady"]
    assert command.main(arguments) == 1
    assert "FAIL energy, steady: /best other 1.50 > 0.9" in capsys.readouterr().out
    assert command.main([*arguments, "--no-gate"]) == 0
    assert command.main(["--workers", "1", "--seeds", "1", "--family", "bursty"]) == 0
    assert played[:2] == [("steady", HOLDOUT[0]), ("steady", HOLDOUT[1])]


def test_a_quick_run_prints_missed_targets_and_fails_only_for_conservation(
    played: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workers", "1", "--quick", "--family", "steady"]
    assert command.main(arguments) == 0
    assert "FAIL energy, steady: /best other 1.50 > 0.9" in capsys.readouterr().out
    assert len(played) == 2
    monkeypatch.setattr(run, "play", lambda family, seed: Outcome(family.name, seed, conservation_mj=1))
    assert command.main(arguments) == 1
    assert "FAIL conservation" in capsys.readouterr().out


def test_all_figures_are_available_as_json(
    played: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "accuracy.json"
    arguments = ["--workers", "1", "--seeds", "1", "--family", "bursty", "--json", str(file), "--markdown"]
    assert command.main(arguments) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["worlds"] == len(played) == 1
    assert {"of": ENERGY, "family": "bursty", "formula": "sm", "count": 1, "mean": 10.0, "p95": 10.0} in document[
        "errors_percent"
    ]
    assert all(target["passed"] for target in document["targets"])
    assert "| bursty | 1 |" in capsys.readouterr().out


def test_an_agent_that_cannot_be_scored_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(family: Family, seed: int) -> Outcome:
        raise ours.BenchError("the agent's answer has no totals")

    monkeypatch.setattr(run, "play", play)
    assert command.main(["--workers", "1", "--seeds", "1", "--family", "steady"]) == 1
    assert capsys.readouterr().err == "accuracy: the agent's answer has no totals\n"


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seeds", "x"], ["--family", "nonsense"], ["--set", "all"]])
def test_bad_usage_is_exit_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2
    assert "error: argument" in capsys.readouterr().err


def test_a_quick_run_takes_some_seeds_of_every_family() -> None:
    families = list(run.FAMILIES.values())
    quick, whole = run.plan(families, HOLDOUT, divide=5), run.plan(families, HOLDOUT)
    assert {name for name, _ in quick} == {name for name, _ in whole} == set(run.FAMILIES)
    assert len(families) * 2 <= len(quick) < len(whole) / 3
    assert {seed for _, seed in whole} <= set(HOLDOUT)


def test_worlds_played_on_several_cores_have_the_same_results_as_on_one() -> None:
    jobs = [("staggered", 1), ("simultaneous", 2)]
    progress = io.StringIO()
    one = collect(run.play_all(jobs, 1, progress))
    two = collect(run.play_all(jobs, 2, progress))
    assert one == two
    assert progress.getvalue().count("2/2 worlds") == 2
