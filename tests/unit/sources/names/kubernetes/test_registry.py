"""Pods and their containers, present and ended."""

from __future__ import annotations

from otel_gpu.sources.names.kubernetes.pods import Pod, parse_pod
from otel_gpu.sources.names.kubernetes.registry import ENDED_TTL_S, MAX_ENDED, PodRegistry
from tests.kubernetes_api import container, hex_id, pod

A, B = hex_id(1), hex_id(2)


def seen(name: str, *ids: str, label: str = "") -> Pod:
    found = parse_pod(pod(name, *map(container, ids), labels={"x": label}), ["x"])
    assert found is not None
    return found


def running(registry: PodRegistry) -> dict[str, bool]:
    return {container_id: known.running for container_id, known in registry.known.items()}


def test_containers_of_a_deleted_pod_do_not_run_and_are_kept_for_a_while() -> None:
    registry = PodRegistry()
    registry.put(seen("p", A), 0.0)
    registry.remove(seen("p", A), 10.0)
    registry.drop_expired(10.0 + ENDED_TTL_S - 1)
    assert running(registry) == {A: False}

    registry.drop_expired(10.0 + ENDED_TTL_S + 1)

    assert registry.known == {}


def test_a_container_that_its_pod_no_longer_lists_has_ended() -> None:
    registry = PodRegistry()
    registry.put(seen("p", A), 0.0)
    registry.put(seen("p", B), 1.0)

    assert running(registry) == {A: False, B: True}


def test_a_pod_that_is_missing_from_a_list_has_ended() -> None:
    registry = PodRegistry()
    registry.put(seen("old", A), 0.0)
    new = seen("new", B)

    registry.replace({new.uid: new}, 1.0)

    assert running(registry) == {A: False, B: True}


def test_a_pod_that_returns_runs() -> None:
    registry = PodRegistry()
    registry.put(seen("p", A), 0.0)
    registry.replace({}, 1.0)
    registry.put(seen("p", A), 2.0)
    registry.drop_expired(2.0 + 2 * ENDED_TTL_S)

    assert running(registry) == {A: True}


def test_the_mapping_is_the_same_object_until_something_changes() -> None:
    registry = PodRegistry()
    registry.put(seen("p", A), 0.0)
    before = registry.known

    registry.put(seen("p", A), 1.0)
    registry.put(seen("without-containers"), 1.0)
    registry.put(seen("without-containers"), 1.0)
    registry.drop_expired(2.0)
    assert registry.known is before
    registry.put(seen("p", A, label="new"), 3.0)

    assert registry.known is not before


def test_the_number_of_ended_containers_of_pods_is_bounded() -> None:
    registry = PodRegistry()
    for number in range(MAX_ENDED + 500):
        registry.put(seen("p", hex_id(number)), 0.0)
        registry.drop_expired(0.0)

    assert len(registry.known) == MAX_ENDED + 1  # and the one that runs
    assert hex_id(MAX_ENDED + 499) in registry.known
    assert hex_id(0) not in registry.known


def test_a_problem_is_counted_once_and_reported_while_its_pod_exists() -> None:
    registry = PodRegistry()
    bad = seen("bad", A, label="x" * 2000)
    registry.put(bad, 0.0)
    registry.put(bad, 1.0)
    registry.put(seen("good", B), 2.0)
    assert registry.problem is not None
    assert "label x has 2,000 characters" in registry.problem
    assert registry.problems == 1

    registry.remove(bad, 3.0)

    assert registry.problem is None
