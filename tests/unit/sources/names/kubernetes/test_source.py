"""Lists and watches of pods over a real TLS connection."""

from __future__ import annotations

import json
import time

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState
from otel_gpu.sources.names.kubernetes import api as api_module
from otel_gpu.sources.names.kubernetes.api import MAX_LINE_BYTES
from otel_gpu.sources.names.kubernetes.pods import PodInfo, parse_pod
from otel_gpu.sources.names.kubernetes.source import ENDED_TTL_S, MAX_ENDED, PodRegistry
from tests.kubernetes_api import Fault, KubernetesApi, container, hex_id, pod
from tests.unit.sources.names.kubernetes.conftest import Watching, watch_again
from tests.waiting import until

A, B, C = (hex_id(number) for number in range(1, 4))

# ---------------------------------------------------------------------------- lists


def test_the_pods_of_this_node_are_known_after_the_first_list(api: KubernetesApi, watching: Watching) -> None:
    api.put(pod("train-0", container(A, "trainer"), labels={"team": "vision"}), pod("other", container(B), node="n2"))
    watcher = watching(api.server, labels=["team"])

    assert watcher.source.wait(10)
    read = watcher.read()

    assert set(read.known) == {A}
    assert (read.known[A].names.pod, read.known[A].names.extra) == ("train-0", (("k8s.pod.label.team", "vision"),))
    assert (read.state, read.reason, watcher.errors) == (SourceState.OK, None, 0)
    (listed,) = api.received("list")
    assert listed.query == {"fieldSelector": "spec.nodeName=gpu-node-1", "limit": "500", "resourceVersion": "0"}


def test_a_list_is_followed_by_a_watch_from_its_version(api: KubernetesApi, watching: Watching) -> None:
    watching(api.server).until(lambda _: bool(api.received("watch")))

    query = dict(api.received("watch")[0].query)

    assert 300 <= int(query.pop("timeoutSeconds")) < 360
    assert query == {
        "fieldSelector": "spec.nodeName=gpu-node-1",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1000",
    }


def test_pages_are_published_together(api: KubernetesApi, watching: Watching) -> None:
    api.pages_always = True
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(1200)))

    read = watching(api.server).until(lambda read: bool(read.known))

    assert len(read.known) == 1200
    assert [("continue" in asked.query, asked.query.get("resourceVersion")) for asked in api.received("list")] == [
        (False, "0"),
        (True, None),
        (True, None),
    ]


def test_a_list_over_the_limit_of_an_answer_is_read_in_small_pages(
    api: KubernetesApi, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "MAX_ANSWER_BYTES", 64 << 10)
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(120)))

    read = watching(api.server).until(lambda read: bool(read.known))

    assert len(read.known) == 120
    asked = [(each.query["limit"], each.query.get("resourceVersion")) for each in api.received("list")]
    assert asked == [("500", "0"), ("50", None), ("50", None), ("50", None)]


def test_a_page_over_the_limit_of_an_answer_is_a_reason(
    api: KubernetesApi, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "MAX_ANSWER_BYTES", 1 << 10)
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(120)))
    read = watching(api.server).until(lambda read: read.state is SourceState.UNAVAILABLE)
    assert read.reason is not None
    assert "the answer is over 1,024 bytes" in read.reason


def test_a_list_from_memory_is_one_page(api: KubernetesApi, watching: Watching) -> None:
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(1200)))

    read = watching(api.server).until(lambda read: bool(read.known))

    assert len(read.known) == 1200
    assert len(api.received("list")) == 1


def test_an_expired_page_restarts_the_list(api: KubernetesApi, watching: Watching) -> None:
    api.pages_always = True
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(600)))
    api.faults += [Fault(200, delay_s=0.3, of="list"), Fault(200, delay_s=0.3, of="list")]
    watcher = watching(api.server)
    watcher.until(lambda _: len(api.received("list")) == 2)  # the second page is requested
    api.compact()

    read = watcher.until(lambda read: bool(read.known))

    assert len(read.known) == 600
    assert [asked.query.get("resourceVersion") for asked in api.received("list")] == ["0", None, None, None]
    assert read.state is SourceState.OK


def test_a_list_that_keeps_expiring_is_unavailable(api: KubernetesApi, watching: Watching) -> None:
    api.faults += [Fault(410, of="list") for _ in range(3)]

    read = watching(api.server).until(lambda read: read.state is SourceState.UNAVAILABLE)

    assert read.reason is not None
    assert "expired before its end" in read.reason
    assert len(api.received("list")) == 3


def test_the_node_name_is_url_encoded(api: KubernetesApi, watching: Watching) -> None:
    watcher = watching(api.server, node_name="node&watch=1 ü")
    watcher.until(lambda _: bool(api.requests))

    assert api.requests[0].query["fieldSelector"] == "spec.nodeName=node&watch=1 ü"


@pytest.mark.long
def test_large_managed_fields_are_not_kept(api: KubernetesApi, watching: Watching) -> None:
    value = pod("p", container(A))
    value["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{number}": {} for number in range(100_000)}}]
    api.put(value)
    watcher = watching(api.server)
    watcher.until_known(A)

    changed = json.loads(json.dumps(value))
    changed["status"]["containerStatuses"] = [container(B)]
    api.put(changed)

    assert watcher.until_known(B).state is SourceState.OK


# ---------------------------------------------------------------------------- watches


def test_a_watch_applies_added_changed_and_deleted_pods(api: KubernetesApi, watching: Watching) -> None:
    watcher = watching(api.server)
    watcher.until(lambda _: bool(api.received("watch")))

    first = pod("p", container(A))
    api.put(first)
    watcher.until_known(A)
    second = pod("p", container(B, lastState={"terminated": {"containerID": f"containerd://{A}"}}))
    api.put(second, pod("elsewhere", container(C), node="n2"))
    read = watcher.until_known(B)
    assert (read.known[A].running, read.known[B].running) == (False, True)
    api.delete(second)
    read = watcher.until(lambda read: not read.known[B].running)

    assert set(read.known) == {A, B}
    assert read.known[B].names.pod == "p"
    assert [request.kind for request in api.requests] == ["list", "watch"]


def test_a_deleted_pod_is_dropped_after_a_while(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    value = pod("p", container(A))
    api.put(value)
    watcher = watching(api.server, clock)
    watcher.until_known(A)
    api.delete(value)
    watcher.until(lambda read: not read.known[A].running)

    clock.advance(ENDED_TTL_S + 1)
    api.bookmark()

    watcher.until(lambda read: not read.known)


def test_the_next_watch_starts_at_the_last_version(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    watcher = watching(api.server, clock)
    watcher.until(lambda _: bool(api.received("watch")))
    api.put(pod("p", container(A)))
    watcher.until_known(A)

    watch_again(api, clock)
    api.put(pod("q", container(B)))
    read = watcher.until_known(A, B)

    assert api.received("watch")[1].query["resourceVersion"] == "1001"
    assert len(api.received("list")) == 1
    assert (read.state, watcher.errors) == (SourceState.OK, 0)


def test_a_bookmark_updates_the_version(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    watcher = watching(api.server, clock)
    watcher.until(lambda _: bool(api.received("watch")))
    api.put(pod("p", container(A)))
    watcher.until_known(A)
    api.put(*(pod(f"far-{number}", node="n2") for number in range(50)))
    api.bookmark()

    watch_again(api, clock)

    assert api.received("watch")[1].query["resourceVersion"] == str(1000 + 1 + 50 + 1)


@pytest.mark.parametrize("as_event", [False, True])
def test_an_old_version_causes_a_new_list(api: KubernetesApi, watching: Watching, as_event: bool) -> None:
    clock = ManualClock()
    api.gone_as_event = as_event
    gone, stays = pod("gone", container(A)), pod("stays", container(B))
    api.put(gone, stays)
    watcher = watching(api.server, clock)
    watcher.until_known(A, B)
    until(lambda: bool(api.received("watch")))

    api.faults.append(Fault(200, delay_s=0.5, of="watch"))
    watch_again(api, clock)
    api.delete(gone)
    api.put(pod("new", container(C)))
    api.compact()
    read = watcher.until_known(C)

    assert {container_id: known.running for container_id, known in read.known.items()} == {A: False, B: True, C: True}
    assert len(api.received("list")) == 2
    assert (read.state, watcher.errors) == (SourceState.OK, 0)


@pytest.mark.parametrize("cut_after_bytes", [0, 1, 200])
def test_a_connection_cut_within_an_event_loses_nothing(
    api: KubernetesApi, watching: Watching, cut_after_bytes: int
) -> None:
    api.put(pod("p", container(A)))
    watcher = watching(api.server)
    watcher.until_known(A)
    until(lambda: bool(api.received("watch")))

    api.cut_after_bytes = cut_after_bytes
    api.put(pod("q", container(B)))
    read = watcher.until_known(A, B)

    assert len(api.received("list")) == 1
    assert watcher.errors == 1
    assert watcher.until(lambda read: read.state is SourceState.OK).known == read.known
    assert watcher.states == {SourceState.OK, SourceState.DEGRADED}  # a connection that is cut is no outage


def test_invalid_lines_of_a_watch_are_counted_and_cause_a_new_list(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    watcher = watching(api.server, clock)
    watcher.until(lambda _: bool(api.received("watch")))

    api.say(b'{"type": "ADDED", "object"')
    api.put(pod("p", container(A)))
    read = watcher.until_known(A)
    assert read.state is SourceState.DEGRADED
    assert read.reason == "an event is not valid; pods are listed again within minutes"
    assert watcher.errors == 1
    watch_again(api, clock)

    watcher.until(lambda read: read.state is SourceState.OK)
    assert len(api.received("list")) == 2
    assert watcher.errors == 1


def test_a_long_event_is_skipped_and_counted(api: KubernetesApi, watching: Watching) -> None:
    watcher = watching(api.server)
    watcher.until(lambda _: bool(api.received("watch")))

    api.say(b"x" * (MAX_LINE_BYTES + 1))
    api.put(pod("p", container(A)))
    read = watcher.until_known(A)

    assert (read.state, watcher.errors) == (SourceState.DEGRADED, 1)
    assert read.reason == "an event is too long; pods are listed again within minutes"


def test_a_server_error_ends_the_watch_and_causes_a_new_list(api: KubernetesApi, watching: Watching) -> None:
    watcher = watching(api.server)
    watcher.until(lambda _: bool(api.received("watch")))

    api.say(b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}}')
    read = watcher.until(lambda read: read.state is SourceState.UNAVAILABLE)
    assert read.reason == "the server ended the watch: etcd is away"

    watcher.until(lambda read: read.state is SourceState.OK)
    assert len(api.received("list")) == 2


def test_a_watch_that_ends_at_once_is_followed_by_a_pause(api: KubernetesApi, watching: Watching) -> None:
    watcher = watching(api.server, ManualClock())
    watcher.until(lambda _: bool(api.received("watch")))

    began_s = time.monotonic()
    for _ in range(20):
        api.end_watches()
        time.sleep(0.02)
    watches = len(api.received("watch"))

    assert watches <= 1 + (time.monotonic() - began_s)  # there is a second between them at least


# ---------------------------------------------------------------------------- the registry of pods


A, B = hex_id(1), hex_id(2)


def seen(name: str, *ids: str, label: str = "") -> PodInfo:
    found = parse_pod(pod(name, *map(container, ids), labels={"x": label}), ["x"])
    assert found is not None
    return found


def running(registry: PodRegistry) -> dict[str, bool]:
    return {container_id: known.running for container_id, known in registry.known.items()}


def test_a_container_that_its_pod_no_longer_lists_has_ended() -> None:
    registry = PodRegistry()
    registry.put(seen("p", A), 0.0)
    registry.put(seen("p", B), 1.0)

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
    bad = seen("bad", A, hex_id(3), label="x" * 2000)
    registry.put(bad, 1.0)
    registry.put(seen("good", B), 2.0)
    assert registry.problem is not None
    assert "label x has 2,000 bytes" in registry.problem
    assert registry.problems == 1

    registry.remove(bad, 3.0)

    assert registry.problem is None
