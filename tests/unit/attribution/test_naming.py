"""Names: a workload is held until they come, and a rename opens new accounts."""

from __future__ import annotations

from dataclasses import replace

import pytest

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

    def next_with(self, names: dict[str, WorkloadNames] | None = None, *, looked_up: bool = True) -> Report:
        """The report of the next cycle, in which the name sources have these names."""
        return self.next(gpu_with(listed(1)), processes=[old(1, WEB)], names=names or {}, looked_up=looked_up)


def namings_of(report: Report) -> list[tuple[int, WorkloadNames | None]]:
    return [(each.naming, each.names) for each in report.workloads]


def only_workload(report: Report) -> WorkloadReport:
    (found,) = report.workloads
    return found


# ---------------------------------------------------------------------------- holding back


def test_a_container_without_a_name_is_held_for_two_cycles_and_released_unnamed_in_the_third() -> None:
    played = OneContainer()
    reports = [played.next_with() for _ in range(5)]
    assert [only_workload(report).awaiting_names for report in reports] == [True, True, False, False, False]
    assert [namings_of(report) for report in reports] == [[(0, None)]] * 5
    assert only_workload(reports[-1]).display_name == "web"


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_name_that_comes_in_time_is_taken_with_everything_counted_so_far(late: int) -> None:
    played = OneContainer()
    for _ in range(late):
        assert only_workload(played.next_with()).awaiting_names
    named = played.next_with(FIRST)
    assert namings_of(named) == [(0, FIRST["web"])]
    assert not only_workload(named).awaiting_names
    assert energy_mj(workload(named, "web")) == late * 1_000_000
    assert energy_mj(process(named, 1, naming=0)) == late * 1_000_000


def test_a_workload_that_was_exported_is_not_held_back_again() -> None:
    """A source that was unavailable in the first cycle looks the name up only in the second."""
    played = OneContainer()
    assert not only_workload(played.next_with(looked_up=False)).awaiting_names
    assert not only_workload(played.next_with(looked_up=True)).awaiting_names
    named = played.next_with(FIRST)
    assert namings_of(named) == [(0, None), (1, FIRST["web"])]
    assert [energy_mj(workload(named, "web", naming=number)) for number in (0, 1)] == [1_000_000, 1_000_000]


def test_a_workload_that_leaves_while_it_is_held_is_released_like_the_others() -> None:
    played = OneContainer()
    played.next_with()
    drew = played.next(gpu_with(), looked_up=True)
    assert only_workload(drew).awaiting_names
    assert energy_mj(workload(drew, "web")) > 0
    released = played.next(gpu_with(), looked_up=True)
    assert not only_workload(released).awaiting_names
    assert not workload(released, "web").active
    assert energy_mj(workload(released, "web")) == energy_mj(workload(drew, "web"))


def test_a_held_workload_that_has_left_gets_a_name_that_comes_later() -> None:
    played = OneContainer()
    played.next_with()
    report = played.next(gpu_with(), names=FIRST, looked_up=True)
    assert namings_of(report) == [(0, FIRST["web"])]
    assert not only_workload(report).awaiting_names


def test_a_job_is_held_like_a_container_while_its_names_are_looked_up() -> None:
    played, job = Played(), WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    reports = [played.next(gpu_with(listed(1)), processes=[old(1, job)], looked_up=True) for _ in range(3)]
    assert [only_workload(report).awaiting_names for report in reports] == [True, True, False]


def test_names_that_come_in_pieces_while_they_are_looked_up_are_one_name() -> None:
    played = Played()

    def next_with(names: WorkloadNames, *pending: WorkloadKey) -> Report:
        taken = snapshot(gpu_with(listed(1)), processes=[old(1, WEB)], names={"web": names}, at_s=played.at_s)
        played.at_s += 5
        return played.attributor.observe(replace(taken, names_pending=frozenset(pending)))

    assert only_workload(next_with(WorkloadNames(container="main"), WEB.key)).awaiting_names
    report = next_with(WorkloadNames(container="main", pod="web-0"))
    assert namings_of(report) == [(0, WorkloadNames(container="main", pod="web-0"))]
    assert not only_workload(report).awaiting_names


def test_no_workload_is_held_where_no_name_is_looked_up() -> None:
    assert not only_workload(OneContainer().next_with(looked_up=False)).awaiting_names


# ---------------------------------------------------------------------------- renaming


def renamed(*, late: bool) -> tuple[Report, Report, OneContainer]:
    """The reports before and after a name came late, or changed."""
    played = OneContainer()
    for _ in range(4):
        before = played.next_with(None if late else FIRST)
    return before, played.next_with(SECOND), played


@pytest.mark.parametrize("late", [True, False])
def test_a_late_or_changed_name_ends_the_old_accounts_and_starts_their_successors_at_zero(late: bool) -> None:
    before, after, played = renamed(late=late)
    assert namings_of(after) == [(0, None if late else FIRST["web"]), (1, SECOND["web"])]
    for was, ended, new in (
        (workload(before, "web"), workload(after, "web", 0), workload(after, "web", 1)),
        (process(before, 1), process(after, 1, 0), process(after, 1, 1)),
    ):
        assert (was.active, ended.active, new.active) == (True, False, True)
        assert energy_mj(ended) == energy_mj(was) == 3_000_000, "the old totals persist"
        assert time_us(ended) == time_us(was)
        assert energy_mj(new) == 1_000_000, "the successor has only the energy of this window"
        assert time_us(new) == 5_000_000
        assert totals(new).since_ns >= at_wall_ns(played) - 5_000_000_000
        assert (ended.energy.total_mj or 0) == 0
    assert_adds_up(after)


def test_renamed_accounts_are_reported_for_the_retention_and_then_dropped_with_their_names() -> None:
    _, after, played = renamed(late=False)
    for _ in range(70):
        after = played.next_with(SECOND)
        assert_adds_up(after)
    assert namings_of(after) == [(1, SECOND["web"])]
    assert [each.naming for each in after.processes] == [1]
    assert played.attributor.to_state()["ledger"]["namings"]["former"] == []


def test_renaming_back_opens_a_third_account_and_not_the_first_again() -> None:
    _, after, played = renamed(late=False)
    after = played.next_with(FIRST)
    assert namings_of(after) == [(0, FIRST["web"]), (1, SECOND["web"]), (2, FIRST["web"])]
    assert energy_mj(workload(after, "web", 2)) == 1_000_000
    assert_adds_up(after)


def test_a_rename_over_a_restart_is_a_rename() -> None:
    played = OneContainer()
    for _ in range(3):
        played.next_with(FIRST)
    played.restart()
    assert namings_of(played.next_with(SECOND)) == [(0, FIRST["web"]), (1, SECOND["web"])]


def test_a_restart_without_name_sources_renames_no_workload() -> None:
    played = OneContainer()
    played.next_with(FIRST)
    played.restart()
    assert namings_of(played.next_with()) == [(0, FIRST["web"])]


def test_a_name_source_that_becomes_unavailable_renames_no_workload() -> None:
    played = OneContainer()
    both = {"web": WorkloadNames(container="first", pod="first-0", namespace="prod")}
    for names in (both, FIRST, None, both):
        report = played.next_with(names)
        assert namings_of(report) == [(0, both["web"])]
        assert not only_workload(report).awaiting_names


def test_a_workload_on_two_gpus_is_renamed_on_both_at_once() -> None:
    played = Played()
    two = gpu_with(listed(1)), gpu_with(listed(1), index=1)
    for names in (FIRST, FIRST, SECOND):
        report = played.next(*two, processes=[old(1, WEB)], names=names, looked_up=True)
    active = [(w.naming, part.gpu_uuid) for w in report.workloads for part in w.gpus if part.active]
    assert active == [(1, "GPU-0"), (1, "GPU-1")]
    assert_adds_up(report)


def test_a_workload_in_the_overflow_is_renamed_without_an_account_of_its_own() -> None:
    played = Played(AttributionOptions(max_workloads=0))
    for names in (FIRST, FIRST, SECOND):
        report = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], names=names, looked_up=True)
    assert [(each.ref, each.names, each.awaiting_names) for each in report.workloads] == [
        (OVERFLOW_WORKLOAD, None, False)
    ]
    assert [(each.naming, each.active) for each in report.processes] == [(0, True)]
    assert energy_mj(workload(report, OVERFLOW_WORKLOAD.id)) == 2_000_000


# ---------------------------------------------------------------------------- bounds


def test_names_are_dropped_with_their_last_account() -> None:
    namings = Namings()
    namings.observe([WEB, JOB], {WEB.key: FIRST["web"]})
    namings.observe([WEB, JOB], {WEB.key: SECOND["web"]})
    namings.keep([(WEB, 1)])
    assert namings.names(WEB, 0) is None
    assert namings.names(WEB, 1) == SECOND["web"]
    assert namings.number(JOB) == 0
    assert not namings.is_waiting(JOB)
    namings.keep([])
    assert namings.to_state() == Namings().to_state()


def test_another_spelling_of_the_image_is_not_a_rename() -> None:
    played = OneContainer()
    for image in ("vllm:1", "docker.io/library/vllm:1", "vllm:1"):
        report = played.next_with({"web": WorkloadNames(container="first", image=image)})
    assert namings_of(report) == [(0, WorkloadNames(container="first", image="vllm:1"))]


def test_declared_text_of_a_workload_never_renames_it() -> None:
    """It is no label of its series: an ended account would be a fallen counter under the same labels."""
    played = OneContainer()
    for _ in range(4):
        played.next_with()
    for title in ("first", "second", "third"):
        names = WorkloadNames(title=title, declared=(("slurm.job.name", title),))
        report = played.next_with({"web": names})
        assert namings_of(report) == [(0, names)]
    played.restart()
    assert namings_of(played.next_with()) == [(0, names)]


def test_a_name_without_an_account_is_dropped_in_the_cycle_it_ends_in() -> None:
    """As after a restart: only names with an account are kept."""
    played = OneContainer()
    for _ in range(4):
        played.next_with(looked_up=False)
    played.next(names={"web": WorkloadNames(container="a")})  # its GPU is absent: no account has that name
    played.next(names={"web": WorkloadNames(container="b")})
    namings = played.attributor.to_state()["ledger"]["namings"]
    assert [number for _, _, number, _ in namings["former"]] == [0]
