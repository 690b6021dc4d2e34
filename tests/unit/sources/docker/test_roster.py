"""Who is there, after lists and events in any order, and for how long who ended is remembered."""

from __future__ import annotations

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.docker.containers import Container, Event, Listed
from otel_gpu.sources.docker.roster import Roster
from tests.docker_api import container_id

A, B = container_id(1), container_id(2)
WALL_S = 2_000_000.0


def container(
    key: str, name: str, *, running: bool = True, since_s: float = WALL_S - 1000, pod: str | None = None
) -> Container:
    names = WorkloadNames(container=name, pod=pod)
    return Container(WorkloadInfo(WorkloadRef(WorkloadKind.CONTAINER, key), names, running=running, since_s=since_s))


def listed(key: str, name: str, up_at_most_s: float | None = 1200.0) -> Listed:
    return Listed(key, name, running=True, up_at_most_s=up_at_most_s)


def roster_of(*containers: Container) -> Roster:
    roster = Roster()
    for one in containers:
        assert one.known is not None
        roster.described(one.known.ref.id, one, 0.0)
    return roster


def test_who_is_listed_for_the_first_time_must_be_inspected_once() -> None:
    roster = Roster()
    assert roster.list_anew([listed(A, "a"), listed(B, "b")], 0.0, WALL_S) == [A, B]
    roster.described(A, container(A, "a"), 0.0)
    assert roster.list_anew([listed(A, "a"), listed(B, "b")], 0.0, WALL_S) == [B]


def test_the_mapping_is_the_same_object_until_something_changes() -> None:
    roster = roster_of(container(A, "a"))
    before = roster.known(0.0)
    roster.list_anew([listed(A, "a")], 0.0, WALL_S)
    roster.described(A, container(A, "a"), 0.0)
    roster.happened(Event("start", A, "a"), 0.0)
    roster.happened(Event("rename", A, "a"), 0.0)
    assert roster.known(1.0) is before
    roster.happened(Event("rename", A, "other"), 1.0)
    after = roster.known(1.0)
    assert after is not before
    assert (before[A].names.container, after[A].names.container) == ("a", "other")


def test_a_new_list_renames_and_ends_without_an_inspection() -> None:
    roster = roster_of(container(A, "a"), container(B, "b"))
    assert roster.list_anew([listed(A, "renamed")], 0.0, WALL_S) == []
    known = roster.known(0.0)
    assert known[A].names.container == "renamed"
    assert (known[A].running, known[B].running) == (True, False)


def test_who_has_been_up_for_less_than_since_its_start_was_started_again_unnoticed() -> None:
    roster = roster_of(container(A, "a", since_s=WALL_S - 1000))
    assert roster.list_anew([listed(A, "a", up_at_most_s=1020.0)], 0.0, WALL_S) == []
    assert roster.list_anew([listed(A, "a", up_at_most_s=None)], 0.0, WALL_S) == []
    assert roster.list_anew([listed(A, "a", up_at_most_s=60.0)], 0.0, WALL_S) == [A]


def test_a_start_needs_an_inspection_unless_the_container_is_known_to_run() -> None:
    roster = roster_of(container(A, "a"))
    assert roster.happened(Event("start", B, "b"), 0.0)
    assert not roster.happened(Event("start", A, "a"), 0.0)
    roster.happened(Event("die", A, "a"), 0.0)
    assert roster.happened(Event("start", A, "a"), 0.0)


def test_a_signal_is_no_end() -> None:
    roster = roster_of(container(A, "a"))
    roster.happened(Event("kill", A, "a"), 0.0)
    assert roster.known(0.0)[A].running


def test_the_name_of_a_container_in_a_pod_is_the_kubelets() -> None:
    roster = roster_of(container(A, "main", pod="trainer-0"))
    roster.happened(Event("rename", A, "k8s_main_trainer-0_1"), 0.0)
    assert roster.known(0.0)[A].names.container == "main"


def test_who_ended_keeps_its_name_until_a_minute_after_its_removal() -> None:
    roster = roster_of(container(A, "a"))
    roster.happened(Event("die", A, "a"), 0.0)
    assert A in roster.known(10_000.0)
    roster.happened(Event("destroy", A, "a"), 10_000.0)
    assert roster.known(10_059.0)[A].names.container == "a"
    assert A not in roster.known(10_060.0)


def test_thousands_that_come_and_go_are_not_kept() -> None:
    roster = roster_of(container(A, "stays"))
    for number in range(2, 5000):
        key = container_id(number)
        roster.described(key, container(key, f"job-{number}"), float(number))
        roster.happened(Event("die", key, None), float(number))
        if number % 2:
            roster.happened(Event("destroy", key, None), float(number))
        roster.known(float(number))
        assert len(roster) <= 1002
    last = container_id(4998)
    assert {A, last} <= roster.known(5000.0).keys()


def test_an_event_of_somebody_unknown_changes_nothing() -> None:
    roster = Roster()
    before = roster.known(0.0)
    for action in ("die", "destroy", "rename", "exec_start: sh", ""):
        assert not roster.happened(Event(action, A, "a"), 0.0)
    roster.gone(A, 0.0)
    assert roster.known(0.0) is before
