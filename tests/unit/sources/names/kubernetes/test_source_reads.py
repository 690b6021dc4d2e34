"""Reads of the source are immediate, whatever the server does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.names.kubernetes.source import SETTLE_S
from tests.kubernetes_api import Fault, KubernetesApi, container, hex_id, pod
from tests.unit.sources.names.kubernetes.conftest import Watching, ref, watch_again
from tests.waiting import until

A, B, C = (hex_id(number) for number in range(1, 4))

# ---------------------------------------------------------------------------- tokens and problem


def test_a_refused_token_is_read_again(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    api.put(pod("p", container(A)))
    watcher = watching(api.server, clock)
    watcher.until_known(A)
    until(lambda: bool(api.received("watch")))

    api.tokens = {"second"}
    api.token_file.write_text("second", encoding="ascii")
    clock.advance(30)  # the old one is not read again yet, and gets 401
    api.end_watches()
    until(lambda: len(api.received("watch")) == 3)
    api.put(pod("q", container(B)))
    read = watcher.until_known(A, B)

    assert [request.token for request in api.received("watch")] == ["first", "first", "second"]
    assert (read.state, watcher.errors, len(api.received("list"))) == (SourceState.OK, 0, 1)


def test_a_token_is_read_again_after_a_minute(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    watcher = watching(api.server, clock)
    watcher.until(lambda _: bool(api.received("watch")))

    api.tokens = {"first", "second"}
    api.token_file.write_text("second", encoding="ascii")
    clock.advance(61)
    api.end_watches()
    watcher.until(lambda _: len(api.received("watch")) == 2)

    assert [request.token for request in api.received("watch")] == ["first", "second"]


def test_names_persist_while_the_server_refuses(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    api.put(pod("p", container(A)))
    watcher = watching(api.server, clock)
    known = watcher.until_known(A).known
    until(lambda: bool(api.received("watch")))

    api.tokens = set()
    clock.advance(300)
    api.end_watches()
    read = watcher.until(lambda read: read.state is SourceState.UNAVAILABLE)

    assert read.known is known
    assert read.reason is not None
    assert "401 Unauthorized; the token in" in read.reason
    assert "was read again and is still refused" in read.reason


@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_is_honoured(api: KubernetesApi, watching: Watching, status: int) -> None:
    api.put(pod("p", container(A)))
    api.faults.append(Fault(status, headers={"Retry-After": "1"}, body=b'{"message": "too many"}', of="list"))
    watcher = watching(api.server)

    read = watcher.until(lambda read: read.state is SourceState.UNAVAILABLE)
    assert read.reason is not None
    assert f"{status} too many" in read.reason
    assert len(api.received("list")) == 1
    watcher.until_known(A)

    assert len(api.received("list")) == 2


def test_a_passing_error_is_retried(api: KubernetesApi, watching: Watching) -> None:
    api.put(pod("p", container(A)))
    api.faults.append(Fault(500, body=b"<html>oops</html>"))
    watcher = watching(api.server)

    assert watcher.until(lambda read: read.state is SourceState.UNAVAILABLE).known == {}
    # Known from the list; ok a moment later, when the watch has been agreed to.
    assert A in watcher.until(lambda read: read.state is SourceState.OK).known


def test_a_cut_text_degrades_the_source_while_its_pod_exists(api: KubernetesApi, watching: Watching) -> None:
    bad = pod("p", container(A), labels={"note": "x" * 10_240})
    api.put(bad)
    watcher = watching(api.server, labels=["note"])
    watcher.until_known(A)
    api.put(pod("q", container(B)))
    read = watcher.until_known(B)
    assert read.state is SourceState.DEGRADED
    assert read.reason == "pod ml/p: its label note has 10,240 bytes; only the first 125 are exported"

    api.delete(bad)

    watcher.until(lambda read: read.state is SourceState.OK)
    assert watcher.errors == 1


# ---------------------------------------------------------------------------- reading


def test_a_read_sends_no_request_and_does_not_wait(api: KubernetesApi, watching: Watching) -> None:
    api.put(*(pod(f"p{number}", container(hex_id(number))) for number in range(500)))
    watcher = watching(api.server)
    watcher.until(lambda read: bool(read.known) and bool(api.received("watch")))
    refs = [ref(hex_id(number)) for number in range(500)]

    reads = [watcher.read(*refs) for _ in range(100)]

    assert all(read.known is reads[0].known and not read.pending for read in reads)
    assert [request.kind for request in api.requests] == ["list", "watch"]


def test_events_without_a_change_publish_the_same_object(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    api.put(pod("p", container(A)))
    watcher = watching(api.server, clock)
    before = watcher.until_known(A).known
    until(lambda: bool(api.received("watch")))

    again = pod("p", container(A, restartCount=0), annotations={"touched": "yes"})
    again["status"]["conditions"] = [{"type": "Ready"}]
    api.put(again)
    api.put(pod("q"))
    watch_again(api, clock)

    assert watcher.read().known is before


def test_names_are_pending_during_a_slow_list(api: KubernetesApi, watching: Watching) -> None:
    api.put(pod("p", container(A)))
    api.faults.append(Fault(200, delay_s=0.5))
    watcher = watching(api.server)
    here, elsewhere = ref(A), WorkloadRef(WorkloadKind.CONTAINER, B, runtime="docker")
    host = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "x.service")

    read = watcher.read(here, elsewhere, host, ref(C, "podman", None))
    assert (read.known, read.pending, read.reason) == ({}, frozenset({A}), "has not answered yet")

    read = watcher.until(lambda read: A in read.known, here)
    assert not read.pending


def test_a_container_is_pending_unless_its_runtime_rules_out_a_pod(api: KubernetesApi, watching: Watching) -> None:
    api.faults.append(Fault(200, delay_s=0.5))

    read = watching(api.server).read(ref(A, None, None), ref(B, "containerd", None), ref(C, "docker", None))

    assert read.pending == {A, B}


def test_an_unknown_container_is_pending_for_a_few_seconds(api: KubernetesApi, watching: Watching) -> None:
    clock = ManualClock()
    watcher = watching(api.server, clock)
    watcher.until(lambda _: bool(api.received("watch")))

    assert watcher.read(ref(A)).pending == {A}
    clock.advance(SETTLE_S - 1)
    assert watcher.read(ref(A), ref(B)).pending == {A, B}
    clock.advance(2)
    assert watcher.read(ref(A), ref(B)).pending == {B}
    clock.advance(SETTLE_S)
    assert not watcher.read(ref(A), ref(B)).pending


def test_nothing_is_pending_while_the_server_is_away(api: KubernetesApi, watching: Watching) -> None:
    api.faults += [Fault(500) for _ in range(50)]
    watcher = watching(api.server)

    read = watcher.until(lambda read: read.state is SourceState.UNAVAILABLE, ref(A))

    assert not read.pending


@pytest.mark.parametrize("kind", ["list", "watch"])
def test_close_ends_a_request_in_progress(api: KubernetesApi, watching: Watching, kind: str) -> None:
    before = set(threading.enumerate())
    if kind == "list":
        api.faults.append(Fault(200, delay_s=60))
    watcher = watching(api.server)
    watcher.until(lambda _: bool(api.received(kind)))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "otel-gpu-kubernetes"]

    watcher.source.close()

    assert thread not in before
    assert not thread.is_alive()
    watcher.source.close()
    assert watcher.read().known == {}


def test_a_source_can_be_closed_without_a_read(tmp_path: Path, api: KubernetesApi, watching: Watching) -> None:
    watching(api.server).source.close()

    assert api.requests == []
