"""Containers after lists and events in any order, and how long ended ones are kept."""

from __future__ import annotations

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.docker import registry as registry_module
from otel_gpu.sources.names.docker.containers import Container, Event, Listed
from otel_gpu.sources.names.docker.registry import ContainerRegistry
from tests.docker_api import container_id

A, B = container_id(1), container_id(2)
WALL_S = 2_000_000.0


def container(key: str, name: str, *, running: bool = True, since_s: float = WALL_S - 1000) -> Container:
    names = WorkloadNames(container=name)
    return Container(WorkloadInfo(WorkloadRef(WorkloadKind.CONTAINER, key), names, running=running, since_s=since_s))


def listed(key: str, name: str, max_uptime_s: float | None = 1200.0) -> Listed:
    return Listed(key, name, running=True, max_uptime_s=max_uptime_s)


def registry_of(*containers: Container) -> ContainerRegistry:
    registry = ContainerRegistry()
    for one in containers:
        assert one.info is not None
        registry.add(one.info.ref.id, one, 0.0)
    return registry


def test_a_new_container_is_inspected_once() -> None:
    registry = ContainerRegistry()
    assert registry.apply_list([listed(A, "a"), listed(B, "b")], 0.0, WALL_S) == [A, B]
    registry.add(A, container(A, "a"), 0.0)
    assert registry.apply_list([listed(A, "a"), listed(B, "b")], 0.0, WALL_S) == [B]


def test_the_mapping_is_the_same_object_until_something_changes() -> None:
    registry = registry_of(container(A, "a"))
    before = registry.known(0.0)
    registry.apply_list([listed(A, "a")], 0.0, WALL_S)
    registry.add(A, container(A, "a"), 0.0)
    registry.apply_event(Event("start", A, "a"), 0.0)
    registry.apply_event(Event("rename", A, "a"), 0.0)
    assert registry.known(1.0) is before
    registry.apply_event(Event("rename", A, "other"), 1.0)
    after = registry.known(1.0)
    assert after is not before
    assert (before[A].names.container, after[A].names.container) == ("a", "other")


def test_a_list_renames_and_ends_containers_without_an_inspection() -> None:
    registry = registry_of(container(A, "a"), container(B, "b"))
    assert registry.apply_list([listed(A, "renamed")], 0.0, WALL_S) == []
    known = registry.known(0.0)
    assert known[A].names.container == "renamed"
    assert (known[A].running, known[B].running) == (True, False)


def test_a_short_uptime_means_a_missed_restart() -> None:
    registry = registry_of(container(A, "a", since_s=WALL_S - 1000))
    assert registry.apply_list([listed(A, "a", max_uptime_s=1020.0)], 0.0, WALL_S) == []
    assert registry.apply_list([listed(A, "a", max_uptime_s=None)], 0.0, WALL_S) == []
    assert registry.apply_list([listed(A, "a", max_uptime_s=60.0)], 0.0, WALL_S) == [A]


def test_a_start_needs_an_inspection_unless_the_container_runs() -> None:
    registry = registry_of(container(A, "a"))
    assert registry.apply_event(Event("start", B, "b"), 0.0)
    assert not registry.apply_event(Event("start", A, "a"), 0.0)
    registry.apply_event(Event("die", A, "a"), 0.0)
    assert registry.apply_event(Event("start", A, "a"), 0.0)


def test_a_signal_does_not_end_a_container() -> None:
    registry = registry_of(container(A, "a"))
    registry.apply_event(Event("kill", A, "a"), 0.0)
    assert registry.known(0.0)[A].running


def test_the_number_of_containers_is_bounded_and_the_excess_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_CONTAINERS", 2)
    ids = [f"{number:064x}" for number in range(4)]
    registry = ContainerRegistry()
    assert registry.apply_list([listed(each, "x") for each in ids], 0.0, WALL_S) == ids[:2]
    for each in ids:
        registry.add(each, container(each, "x"), 0.0)
    assert registry.known(0.0).keys() == set(ids[:2])
    assert registry.notes[0] == "the engine has over 2 containers; the others have no names"


def test_a_name_is_kept_for_a_minute_after_removal() -> None:
    registry = registry_of(container(A, "a"))
    registry.apply_event(Event("die", A, "a"), 0.0)
    assert A in registry.known(10_000.0)
    registry.apply_event(Event("destroy", A, "a"), 10_000.0)
    assert registry.known(10_059.0)[A].names.container == "a"
    assert A not in registry.known(10_060.0)


def test_the_number_of_ended_containers_is_bounded() -> None:
    registry = registry_of(container(A, "stays"))
    for number in range(2, 5000):
        key = container_id(number)
        registry.add(key, container(key, f"job-{number}"), float(number))
        registry.apply_event(Event("die", key, None), float(number))
        if number % 2:
            registry.apply_event(Event("destroy", key, None), float(number))
        registry.known(float(number))
        assert len(registry) <= 1002
    last = container_id(4998)
    assert {A, last} <= registry.known(5000.0).keys()


def test_an_event_of_an_unknown_container_changes_nothing() -> None:
    registry = ContainerRegistry()
    before = registry.known(0.0)
    for action in ("die", "destroy", "rename", "exec_start: sh", ""):
        assert not registry.apply_event(Event(action, A, "a"), 0.0)
    registry.remove(A, 0.0)
    assert registry.known(0.0) is before
