"""Laws of answers that say since when nothing has happened: between them only idle time and energy are new."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import (
    Attribution,
    GpuAttribution,
    Grant,
    Pod,
    ProcessAttribution,
    Snapshot,
    Totals,
    UtilizationRead,
    WorkloadGpu,
)
from otel_gpu.model.result import NO_ENERGY
from otel_gpu.scope import narrowed
from tests.builders import GIB, listed
from tests.depth import DEPTH
from tests.property.histories import WALL_NS, WORKLOADS, S, histories, options, thorough
from tests.property.steady import steady_histories
from tests.unit.attribution.played import gpu_with
from tests.unit.attribution.played import old as old_process

more_thorough = settings(thorough, max_examples=100 * DEPTH)
could_use = Grant(WORKLOADS[0], "GPU-1", possible=True)
everybody = frozenset(ref.key for ref in WORKLOADS)
CONDITIONS = ("somebody could use a GPU", "names are waited for", "pids are invisible", "nothing is inferred")


def of_totals(totals: Totals | None) -> object:
    """What stays of totals."""
    if totals is None:
        return None
    return totals._replace(energy=NO_ENERGY, idle_us=0, idle_byte_us=0, idle_mj=0, billed_idle_us=0)


def of_part(part: WorkloadGpu | ProcessAttribution) -> object:
    """What stays of a line. Who has ended draws nothing."""
    ended_mj = None if part.active else part.energy.total_mj
    if isinstance(part, WorkloadGpu):
        costs = [(cost.state, cost.basis) for cost in part.costs]
        bare: object = replace(part, energy=NO_ENERGY, idle_s=None, totals=None, costs=())
    else:
        costs, bare = [], replace(part, energy=NO_ENERGY, idle_s=None, totals=None)
    return bare, part.idle_s is None, of_totals(part.totals), costs, ended_mj


def of_gpu(gpu: GpuAttribution) -> object:
    """What stays of a GPU."""
    basis = None if gpu.basis is None else replace(gpu.basis, idle_w=0.0, held_w=0.0)
    return gpu.identity, gpu.reading.health, gpu.memory, gpu.mig, basis, gpu.counted


def what_stays(answer: Attribution) -> object:
    return (
        [(replace(workload, gpus=()), list(map(of_part, workload.gpus))) for workload in answer.workloads],
        list(map(of_part, answer.processes)),
        list(map(of_gpu, answer.gpus)),
    )


def parts(answer: Attribution) -> list[WorkloadGpu | ProcessAttribution]:
    return [*(part for workload in answer.workloads for part in workload.gpus), *answer.processes]


def moved_methods(before: Attribution, after: Attribution) -> dict[tuple[str, int], set[int]]:
    """By which methods the energy of each line moved."""
    moved: dict[tuple[str, int], set[int]] = {}
    for number, (was, now) in enumerate(zip(parts(before), parts(after), strict=True)):
        if was.totals is not None and now.totals is not None:
            pairs = zip(was.totals.energy, now.totals.energy, strict=True)
            moved[now.gpu_uuid, number] = {method for method, (old, new) in enumerate(pairs) if old != new}
    return moved


def assert_still(answers: Sequence[Attribution]) -> None:
    """These follow one another, and say that nothing has happened in between."""
    for before, after in pairwise(answers):
        assert what_stays(after) == what_stays(before)
        assert repr(what_stays(after)) == repr(what_stays(before))
    if answers:
        by_line = moved_methods(answers[0], answers[-1]).values()
        assert all(len(methods) <= 1 for methods in by_line)


def check(answers: Sequence[Attribution]) -> None:
    run: list[Attribution] = []
    for answer in answers:
        if not run or answer.still_since_ns != run[-1].still_since_ns:
            assert_still(run)
            run = []
        if answer.still_since_ns:
            assert answer.still_since_ns <= answer.monotonic_ns
            run.append(answer)
    assert_still(run)


def observed(history: Sequence[Snapshot], chosen: AttributionOptions) -> list[Attribution]:
    """What is told, which is what somebody tells who has kept nothing: restarted before every cycle."""
    attributor, restarted = Attributor(chosen), Attributor(chosen)
    answers, before_ns = [], 0
    for snapshot in history:
        restarted = Attributor.from_state(chosen, saved(restarted), now_ns=before_ns, same_boot=True)
        answers.append(attributor.observe(snapshot))
        assert restarted.observe(snapshot) == answers[-1]
        before_ns = snapshot.monotonic_ns
    return answers


def saved(attributor: Attributor) -> Any:
    return json.loads(json.dumps(attributor.to_state()))


@more_thorough
@given(steady_histories(), options)
def test_answers_that_are_still_differ_in_idle_time_and_energy_only(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    answers = observed(history, chosen)
    check(answers)
    check([narrowed(answer, Pod(None, "a", "b")) for answer in answers])


@more_thorough
@given(histories(), options)
def test_so_they_do_whatever_the_driver_tells(history: list[Snapshot], chosen: AttributionOptions) -> None:
    check(observed(history, chosen))


@more_thorough
@given(steady_histories(), st.dictionaries(st.integers(0, 40), st.sampled_from(CONDITIONS)), options)
def test_so_they_do_whatever_else_is_known_or_not(
    history: list[Snapshot], changed: dict[int, str], chosen: AttributionOptions
) -> None:
    told, holds = [], dict.fromkeys(CONDITIONS, False)
    for number, snapshot in enumerate(history):
        if number in changed:
            holds[changed[number]] = not holds[changed[number]]
        told.append(
            replace(
                snapshot,
                grants=(*snapshot.grants, could_use) if holds["somebody could use a GPU"] else snapshot.grants,
                names_pending=everybody if holds["names are waited for"] else frozenset(),
                pids_complete=not holds["pids are invisible"],
                infers=not holds["nothing is inferred"],
            )
        )
    check(observed(told, chosen))


@more_thorough
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), max_size=20), options)
def test_so_they_do_of_one_who_may_be_alone_on_a_gpu(
    cycles: list[tuple[bool, bool, int]], chosen: AttributionOptions
) -> None:
    """How energy was found depends on who may be there; memory, on what else is in use."""
    there, history = old_process(1), []
    for number, (complete, infers, used_mib) in enumerate([(True, True, 0)] * 4 + cycles):
        until_us = WALL_NS // 1000 + number * 5_000_000
        reading = replace(
            gpu_with(listed(1, GIB), used_gib=1 + used_mib / 1024),
            taken_at_ns=number * 5 * S,
            utilization=UtilizationRead(until_us - 5_000_000, until_us, ()),
            energy_mj=number * 1_000_000,
            power_limit_w=400.0,
        )
        world = Snapshot(WALL_NS + number * 5 * S, number * 5 * S, (reading,), {1: there}, {}, ())
        history.append(replace(world, pids_complete=complete, infers=infers))
    check(observed(history, chosen))


@more_thorough
@given(steady_histories(), st.sets(st.integers(0, 40), max_size=4), options)
def test_a_restart_begins_anew(history: list[Snapshot], restarts: set[int], chosen: AttributionOptions) -> None:
    attributor, before_ns = Attributor(chosen), 0
    answers: list[Attribution] = []
    for number, snapshot in enumerate(history):
        if number in restarts:
            check(answers)
            answers = []
            attributor = Attributor.from_state(chosen, saved(attributor), now_ns=before_ns, same_boot=True)
        answers.append(attributor.observe(snapshot))
        before_ns = snapshot.monotonic_ns
    check(answers)
