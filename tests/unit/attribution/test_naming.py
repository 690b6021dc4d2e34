"""Names: waited for, taken once, and never changed under what was told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.attribution.naming import Namings
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import (
    OVERFLOW_WORKLOAD,
    Report,
    WorkloadKey,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
    WorkloadReport,
)
from tests.builders import listed, snapshot
from tests.unit.attribution.played import (
    JOB,
    WEB,
    Played,
    assert_adds_up,
    at_wall_ns,
    energy_mj,
    gpu_with,
    old,
    process,
    time_us,
    totals,
    workload,
)

UNIT = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "web")
FIRST = {"web": WorkloadNames(container="first")}
SECOND = {"web": WorkloadNames(container="second")}


class OneContainer(Played):
    """A container alone on a GPU, whose names are looked up."""

    def told(self, names: dict[str, WorkloadNames] | None = None, *, looked_up: bool = True) -> Report:
        """The next cycle, in which the name sources tell this."""
        return self.next(gpu_with(listed(1)), processes=[old(1, WEB)], names=names or {}, looked_up=looked_up)


def all_of(answer: Report) -> list[tuple[int, WorkloadNames | None]]:
    return [(each.naming, each.names) for each in answer.workloads]


def the(answer: Report) -> WorkloadReport:
    (found,) = answer.workloads
    return found


# ---------------------------------------------------------------------------- waiting


def test_a_container_without_a_name_is_held_for_two_cycles_and_released_unnamed_in_the_third() -> None:
    played = OneContainer()
    answers = [played.told() for _ in range(5)]
    assert [the(answer).held for answer in answers] == [True, True, False, False, False]
    assert [all_of(answer) for answer in answers] == [[(0, None)]] * 5
    assert the(answers[-1]).display_name == "web"


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_name_that_comes_in_time_is_taken_with_everything_counted_so_far(late: int) -> None:
    played = OneContainer()
    for _ in range(late):
        assert the(played.told()).held
    named = played.told(FIRST)
    assert all_of(named) == [(0, FIRST["web"])]
    assert not the(named).held
    assert energy_mj(workload(named, "web")) == late * 1_000_000
    assert energy_mj(process(named, 1, naming=0)) == late * 1_000_000


def test_who_leaves_while_it_is_held_is_released_like_everybody() -> None:
    played = OneContainer()
    played.told()
    drew = played.next(gpu_with(), looked_up=True)
    assert the(drew).held
    assert energy_mj(workload(drew, "web")) > 0
    released = played.next(gpu_with(), looked_up=True)
    assert not the(released).held
    assert not workload(released, "web").active
    assert energy_mj(workload(released, "web")) == energy_mj(workload(drew, "web"))


def test_a_name_that_comes_for_who_has_left_while_it_was_held_is_its_name() -> None:
    played = OneContainer()
    played.told()
    answer = played.next(gpu_with(), names=FIRST, looked_up=True)
    assert all_of(answer) == [(0, FIRST["web"])]
    assert not the(answer).held


def test_a_job_is_held_as_a_container_is_while_somebody_looks_up_its_names() -> None:
    played, job = Played(), WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    answers = [played.next(gpu_with(listed(1)), processes=[old(1, job)], looked_up=True) for _ in range(3)]
    assert [the(answer).held for answer in answers] == [True, True, False]


def test_names_that_come_in_pieces_while_they_are_looked_up_are_one_name() -> None:
    played = Played()

    def next_with(names: WorkloadNames, *pending: WorkloadKey) -> Report:
        world = snapshot(gpu_with(listed(1)), processes=[old(1, WEB)], names={"web": names}, at_s=played.at_s)
        played.at_s += 5
        return played.attributor.observe(replace(world, names_pending=frozenset(pending)))

    assert the(next_with(WorkloadNames(container="main"), WEB.key)).held
    answer = next_with(WorkloadNames(container="main", pod="web-0"))
    assert all_of(answer) == [(0, WorkloadNames(container="main", pod="web-0"))]
    assert not the(answer).held


def test_nobody_is_held_where_nobody_is_asked_for_names() -> None:
    assert not the(OneContainer().told(looked_up=False)).held


# ---------------------------------------------------------------------------- renaming


def renamed(*, late: bool) -> tuple[Report, Report, OneContainer]:
    """The cycle before a name came late, or changed, and the one after."""
    played = OneContainer()
    for _ in range(4):
        before = played.told(None if late else FIRST)
    return before, played.told(SECOND), played


@pytest.mark.parametrize("late", [True, False])
def test_a_late_name_or_a_new_one_ends_the_old_entries_and_starts_their_successors_at_zero(late: bool) -> None:
    before, after, played = renamed(late=late)
    assert all_of(after) == [(0, None if late else FIRST["web"]), (1, SECOND["web"])]
    for was, ended, new in (
        (workload(before, "web"), workload(after, "web", 0), workload(after, "web", 1)),
        (process(before, 1), process(after, 1, 0), process(after, 1, 1)),
    ):
        assert (was.active, ended.active, new.active) == (True, False, True)
        assert energy_mj(ended) == energy_mj(was) == 3_000_000, "what was told stands"
        assert time_us(ended) == time_us(was)
        assert energy_mj(new) == 1_000_000, "the successor has this window's and nothing before"
        assert time_us(new) == 5_000_000
        assert totals(new).since_ns >= at_wall_ns(played) - 5_000_000_000
        assert (ended.energy.total_mj or 0) == 0
    assert_adds_up(after)


def test_the_old_entries_are_told_for_the_retention_and_then_forgotten_with_their_names() -> None:
    _, after, played = renamed(late=False)
    for _ in range(70):
        after = played.told(SECOND)
        assert_adds_up(after)
    assert all_of(after) == [(1, SECOND["web"])]
    assert [each.naming for each in after.processes] == [1]
    assert played.attributor.to_state()["ledger"]["namings"]["former"] == []


def test_renamed_and_renamed_back_is_a_third_entry_and_not_the_first_again() -> None:
    _, after, played = renamed(late=False)
    after = played.told(FIRST)
    assert all_of(after) == [(0, FIRST["web"]), (1, SECOND["web"]), (2, FIRST["web"])]
    assert energy_mj(workload(after, "web", 2)) == 1_000_000
    assert_adds_up(after)


def test_a_rename_over_a_restart_is_a_rename() -> None:
    played = OneContainer()
    for _ in range(3):
        played.told(FIRST)
    played.restart()
    assert all_of(played.told(SECOND)) == [(0, FIRST["web"]), (1, SECOND["web"])]


def test_a_restart_without_its_name_sources_renames_nobody() -> None:
    played = OneContainer()
    played.told(FIRST)
    played.restart()
    assert all_of(played.told()) == [(0, FIRST["web"])]


def test_a_name_source_that_goes_away_renames_nobody() -> None:
    played = OneContainer()
    both = {"web": WorkloadNames(container="first", pod="first-0", namespace="prod")}
    for names in (both, FIRST, None, both):
        answer = played.told(names)
        assert all_of(answer) == [(0, both["web"])]
        assert not the(answer).held


def test_who_is_on_two_gpus_is_renamed_on_both_at_once() -> None:
    played = Played()
    two = gpu_with(listed(1)), gpu_with(listed(1), index=1)
    for names in (FIRST, FIRST, SECOND):
        answer = played.next(*two, processes=[old(1, WEB)], names=names, looked_up=True)
    active = [(w.naming, part.gpu_uuid) for w in answer.workloads for part in w.gpus if part.active]
    assert active == [(1, "GPU-0"), (1, "GPU-1")]
    assert_adds_up(answer)


def test_who_shares_the_overflow_is_renamed_without_a_line_of_its_own() -> None:
    played = Played(AttributionOptions(max_workloads=0))
    for names in (FIRST, FIRST, SECOND):
        answer = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], names=names, looked_up=True)
    assert [(each.ref, each.names, each.held) for each in answer.workloads] == [(OVERFLOW_WORKLOAD, None, False)]
    assert [(each.naming, each.active) for each in answer.processes] == [(0, True)]
    assert energy_mj(workload(answer, OVERFLOW_WORKLOAD.id)) == 2_000_000


# ---------------------------------------------------------------------------- bounds


def test_names_are_forgotten_with_the_last_line_under_them() -> None:
    namings = Namings()
    namings.observe([WEB, JOB], {WEB.key: FIRST["web"]})
    namings.observe([WEB, JOB], {WEB.key: SECOND["web"]})
    namings.keep([(WEB, 1)])
    assert namings.names(WEB, 0) is None
    assert namings.names(WEB, 1) == SECOND["web"]
    assert namings.number(JOB) == 0
    assert not namings.waiting(JOB)
    namings.keep([])
    assert namings.to_state() == Namings().to_state()


def test_an_image_that_is_spelled_otherwise_later_is_the_same_image() -> None:
    played = OneContainer()
    for image in ("vllm:1", "docker.io/library/vllm:1", "vllm:1"):
        answer = played.told({"web": WorkloadNames(container="first", image=image)})
    assert all_of(answer) == [(0, WorkloadNames(container="first", image="vllm:1"))]


# ---------------------------------------------------------------------------- done once


_REFS = (WEB, JOB, UNIT)
_TOLD: tuple[dict[WorkloadKey, WorkloadNames], ...] = (
    {},
    {WEB.key: WorkloadNames(container="first")},
    {WEB.key: WorkloadNames(container="second"), JOB.key: WorkloadNames(title="train")},
)
_CYCLES = st.lists(
    st.tuples(st.sampled_from(_TOLD), st.sets(st.sampled_from(_REFS)), st.booleans(), st.booleans()), max_size=20
)


@given(_CYCLES)
def test_a_mapping_that_is_the_same_object_leads_to_what_an_equal_one_leads_to(
    cycles: list[tuple[dict[WorkloadKey, WorkloadNames], set[WorkloadRef], bool, bool]],
) -> None:
    once, anew = Namings(), Namings()
    for told, here, is_pending, keeps in cycles:
        refs = [ref for ref in _REFS if ref in here]
        pending = {ref.key for ref in refs} if is_pending else set()
        once.observe(refs, told, pending=pending)
        anew.observe(refs, dict(told), pending=pending)
        if keeps:
            for namings in (once, anew):
                namings.keep((ref, namings.number(ref)) for ref in refs[:1])
        assert once.to_state() == anew.to_state()
        assert once.anybody_waits == any(once.waiting(ref) for ref in _REFS)


def test_once_they_are_settled_the_same_cycle_looks_at_no_name() -> None:
    class Counting(dict[WorkloadKey, WorkloadNames]):
        asked = 0

        def get(self, *key: object) -> WorkloadNames | None:  # type: ignore[override]
            self.asked += 1
            return super().get(*key)  # type: ignore[call-overload,no-any-return]

    told, namings = Counting(_TOLD[2]), Namings()
    while not namings.are_settled:
        namings.observe([WEB, JOB], told)
    asked = told.asked
    namings.observe([WEB, JOB], told)
    assert told.asked == asked
    namings.observe([WEB, JOB, UNIT], told)
    assert told.asked == asked + 3


def test_a_name_that_nobody_was_told_under_is_forgotten_in_the_cycle_it_ends_in() -> None:
    """As after a restart: which of its names somebody had is all that is kept of them."""
    played = OneContainer()
    for _ in range(4):
        played.told(looked_up=False)
    played.next(names={"web": WorkloadNames(container="a")})  # its GPU is away: no line has that name
    played.next(names={"web": WorkloadNames(container="b")})
    books = played.attributor.to_state()["ledger"]["namings"]
    assert [number for _, _, number, _ in books["former"]] == [0]
