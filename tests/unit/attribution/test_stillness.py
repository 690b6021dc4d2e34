"""Since when nothing has happened: the same for as long as nothing does, and another once something has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from otel_gpu.attribution.kept_lines import KeptLines
from otel_gpu.attribution.stillness import GpuView
from otel_gpu.model import Attribution, GpuHealth, GpuReading, Grant, ListedProcess, WorkloadNames
from otel_gpu.model.identity import Pod
from otel_gpu.scope import narrowed
from tests.builders import GIB, failed_gpu, listed
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with
from tests.unit.attribution.played import old as old_process

LISTED = (listed(1, GIB), listed(2, 2 * GIB), listed(3, GIB))
THERE = [old_process(1, WEB), old_process(2, WEB), old_process(3, JOB)]
GRANTS = [Grant(WEB, "GPU-0", share=0.5)]
NAMES = {WEB.id: WorkloadNames(container="web")}
SETTLING_CYCLES = 6
Change = Callable[[Played], Attribution]


def readings(played: Played, entries: tuple[ListedProcess, ...] = LISTED) -> tuple[GpuReading, GpuReading]:
    """A GPU that everybody is on, and one that nobody is on."""
    full, empty = gpu_with(*entries), gpu_with(index=1)
    return replace(full, utilization=played.rows()), replace(empty, utilization=played.rows())


def nothing(played: Played) -> Attribution:
    return played.next(*readings(played), processes=THERE, grants=GRANTS)


def settled() -> Played:
    played = Played()
    for _ in range(SETTLING_CYCLES):
        nothing(played)
    return played


def test_the_first_cycles_are_not_known_to_be_still() -> None:
    played = Played()
    assert [nothing(played).still_since_ns for _ in range(2)] == [0, 0]


def test_while_nothing_happens_it_stays_the_same() -> None:
    played = settled()
    answers = [nothing(played) for _ in range(10)]
    since_ns = answers[0].still_since_ns
    assert 0 < since_ns <= answers[0].monotonic_ns
    assert {answer.still_since_ns for answer in answers} == {since_ns}
    assert answers[-1].processes != answers[0].processes  # time goes on
    assert narrowed(answers[0], Pod("uid", None, None)).still_since_ns == since_ns


CHANGES: dict[str, Change] = {
    "somebody works": lambda played: played.next(
        replace(readings(played)[0], utilization=played.rows((1, 30))),
        readings(played)[1],
        processes=THERE,
        grants=GRANTS,
    ),
    "somebody takes memory": lambda played: played.next(
        *readings(played, (listed(1, 2 * GIB), *LISTED[1:])), processes=THERE, grants=GRANTS
    ),
    "memory is taken by nobody in the lists": lambda played: played.next(
        readings(played)[0],
        replace(gpu_with(index=1, used_gib=0.1), utilization=played.rows()),
        processes=THERE,
        grants=GRANTS,
    ),
    "somebody comes": lambda played: played.next(
        *readings(played, (*LISTED, listed(4, GIB))), processes=[*THERE, old_process(4, JOB)], grants=GRANTS
    ),
    "somebody goes": lambda played: played.next(*readings(played, LISTED[1:]), processes=THERE[1:], grants=GRANTS),
    "somebody is renamed": lambda played: played.next(*readings(played), processes=THERE, grants=GRANTS, names=NAMES),
    "somebody is given more": lambda played: played.next(
        *readings(played), processes=THERE, grants=[replace(GRANTS[0], share=0.75)]
    ),
    "somebody could use a GPU": lambda played: played.next(
        *readings(played), processes=THERE, grants=[*GRANTS, Grant(JOB, "GPU-1", possible=True)]
    ),
    "a GPU falls silent": lambda played: played.next(
        readings(played)[0], failed_gpu(1), processes=THERE, grants=GRANTS
    ),
    "a GPU is gone": lambda played: played.next(readings(played)[0], processes=THERE, grants=GRANTS),
    "a GPU is not well": lambda played: played.next(
        replace(readings(played)[0], health=GpuHealth.DEGRADED), readings(played)[1], processes=THERE, grants=GRANTS
    ),
    "a GPU has another number": lambda played: played.next(
        readings(played)[0],
        replace(readings(played)[1], identity=replace(readings(played)[1].identity, index=7)),
        processes=THERE,
        grants=GRANTS,
    ),
    "no energy is told": lambda played: played.next(
        readings(played)[0], replace(readings(played)[1], energy_mj=-1), processes=THERE, grants=GRANTS
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_happens_it_is_another(change: Change) -> None:
    played = settled()
    since_ns = nothing(played).still_since_ns
    changed = change(played)
    assert changed.still_since_ns in (0, changed.monotonic_ns)
    back = nothing(played)
    assert back.still_since_ns == 0 or back.still_since_ns >= changed.monotonic_ns
    for _ in range(SETTLING_CYCLES):
        back = nothing(played)
    assert back.still_since_ns > since_ns > 0
    assert nothing(played).still_since_ns == back.still_since_ns


def test_a_restart_begins_anew() -> None:
    played = settled()
    assert nothing(played).still_since_ns > 0
    played.restart()
    assert nothing(played).still_since_ns == 0


def test_beside_a_gpu_that_nobody_is_on_what_goes_on_is_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played, begin = settled(), KeptLines._begun
    begun: list[KeptLines] = []

    def counted(kept: KeptLines, views: Sequence[GpuView]) -> object:
        begun.append(kept)
        return begin(kept, views)

    monkeypatch.setattr(KeptLines, "_begun", counted)
    answers = [nothing(played) for _ in range(10)]
    assert all(answer.later is not None for answer in answers[1:])
    assert len(begun) <= 1
