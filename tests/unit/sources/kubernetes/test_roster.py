"""Who is on the node, and who was."""

from __future__ import annotations

from otel_gpu.sources.kubernetes.pods import Pod, parse_pod
from otel_gpu.sources.kubernetes.roster import MOST_REMEMBERED, REMEMBERED_S, Roster
from tests.kubernetes_api import container, hex_id, pod

A, B = hex_id(1), hex_id(2)


def seen(name: str, *ids: str, label: str = "") -> Pod:
    found = parse_pod(pod(name, *map(container, ids), labels={"x": label}), ["x"])
    assert found is not None
    return found


def running(roster: Roster) -> dict[str, bool]:
    return {container_id: known.running for container_id, known in roster.known.items()}


def test_a_deleted_pods_containers_do_not_run_and_are_known_for_a_while() -> None:
    roster = Roster()
    roster.put(seen("p", A), 0.0)
    roster.remove(seen("p", A), 10.0)
    roster.forget(10.0 + REMEMBERED_S - 1)
    assert running(roster) == {A: False}

    roster.forget(10.0 + REMEMBERED_S + 1)

    assert roster.known == {}


def test_a_container_that_its_pod_no_longer_mentions_has_ended() -> None:
    roster = Roster()
    roster.put(seen("p", A), 0.0)
    roster.put(seen("p", B), 1.0)

    assert running(roster) == {A: False, B: True}


def test_who_is_missing_from_a_list_has_ended() -> None:
    roster = Roster()
    roster.put(seen("old", A), 0.0)
    new = seen("new", B)

    roster.replace({new.uid: new}, 1.0)

    assert running(roster) == {A: False, B: True}


def test_who_returns_runs() -> None:
    roster = Roster()
    roster.put(seen("p", A), 0.0)
    roster.replace({}, 1.0)
    roster.put(seen("p", A), 2.0)
    roster.forget(2.0 + 2 * REMEMBERED_S)

    assert running(roster) == {A: True}


def test_the_mapping_is_the_same_object_until_something_changes() -> None:
    roster = Roster()
    roster.put(seen("p", A), 0.0)
    before = roster.known

    roster.put(seen("p", A), 1.0)
    roster.put(seen("without-containers"), 1.0)
    roster.put(seen("without-containers"), 1.0)
    roster.forget(2.0)
    assert roster.known is before
    roster.put(seen("p", A, label="new"), 3.0)

    assert roster.known is not before


def test_however_many_come_and_go_only_so_many_are_remembered() -> None:
    roster = Roster()
    for number in range(MOST_REMEMBERED + 500):
        roster.put(seen("p", hex_id(number)), 0.0)
        roster.forget(0.0)

    assert len(roster.known) == MOST_REMEMBERED + 1  # and the one that runs
    assert hex_id(MOST_REMEMBERED + 499) in roster.known
    assert hex_id(0) not in roster.known


def test_trouble_is_counted_once_and_told_while_its_pod_is_there() -> None:
    roster = Roster()
    bad = seen("bad", A, label="x" * 2000)
    roster.put(bad, 0.0)
    roster.put(bad, 1.0)
    roster.put(seen("good", B), 2.0)
    assert roster.trouble is not None
    assert "label x has 2,000 characters" in roster.trouble
    assert roster.troubles == 1

    roster.remove(bad, 3.0)

    assert roster.trouble is None
