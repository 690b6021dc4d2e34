"""The poller's thread and the answer that it publishes."""

from __future__ import annotations

import threading

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources import backoff
from otel_gpu.sources.base import HOST, Claim, PodContainer, WorkloadInfo
from otel_gpu.sources.names.poller import NO_ANSWER_YET, Poller, PublishedNames
from tests.waiting import until

KNOWN = {"a": WorkloadInfo(WorkloadRef(WorkloadKind.CONTAINER, "a"), WorkloadNames(container="web"))}
PODS = {PodContainer("prod", "web-0", "main"): (Claim("0"),)}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.001)


# ---------------------------------------------------------------------------- published names


def test_published_names_are_read_as_the_same_object() -> None:
    published = PublishedNames(HOST)
    assert not published.has_answered
    published.publish(KNOWN)
    published.publish_pods(PODS)
    published.set_ok()
    first, second = published.read(), published.read(frozenset({"b"}))
    assert first.known is second.known is KNOWN
    assert first.pods is second.pods is PODS
    assert (first.state, first.reason, first.pending) == (SourceState.OK, None, frozenset())
    assert second.pending == {"b"}


def test_without_an_answer_the_state_is_degraded_without_an_error() -> None:
    published = PublishedNames(HOST)
    published.publish(KNOWN)
    read = published.read()
    assert (read.state, read.reason, read.errors) == (SourceState.DEGRADED, "has not answered yet", 0)
    published.set_ok()
    assert published.read().state is SourceState.OK


def test_an_error_is_read_once_and_the_state_until_it_changes() -> None:
    published = PublishedNames(HOST)
    published.set_degraded("half of it", errors=2)
    published.set_degraded("half of it", errors=1)
    assert (published.read().errors, published.read().errors) == (3, 0)
    assert (published.read().state, published.read().reason) == (SourceState.DEGRADED, "half of it")
    published.set_ok()
    assert (published.read().state, published.read().reason) == (SourceState.OK, None)


def test_published_names_persist_while_the_source_is_unavailable() -> None:
    published = PublishedNames(HOST)
    published.publish(KNOWN)
    published.set_unavailable("away")
    read = published.read()
    assert (read.known, read.state, read.reason, read.errors) == (KNOWN, SourceState.UNAVAILABLE, "away", 1)


def test_wait_ends_with_the_first_state() -> None:
    for leave in (PublishedNames.set_ok, lambda published: published.set_unavailable("away")):
        published = PublishedNames(HOST)
        assert not published.wait(0.0)
        threading.Timer(0.01, leave, [published]).start()
        assert published.wait(10.0)


# ---------------------------------------------------------------------------- the thread


def test_poll_runs_again_after_any_failure_with_a_reason() -> None:
    published, calls = PublishedNames(HOST), []
    reasons: list[str | None] = []

    def poll(_: Poller) -> None:
        reasons.append(published.read().reason)
        calls.append(1)
        if len(calls) == 1:
            raise Unavailable("connection refused")
        if len(calls) == 2:
            raise KeyError("a bug")

    thread = Poller("test", published, poll)
    thread.start()
    until(lambda: len(calls) >= 4)
    thread.stop()
    assert reasons[:3] == [NO_ANSWER_YET, "connection refused", "internal error: KeyError: 'a bug'"]


def test_the_thread_starts_once_and_not_after_stop() -> None:
    started: list[int] = []

    def poll(self: Poller) -> None:
        started.append(threading.get_ident())
        while not self.stopping:
            self.sleep(10)

    thread = Poller("test", PublishedNames(HOST), poll)
    for _ in range(3):
        thread.start()
    until(lambda: bool(started))
    thread.stop()
    thread.start()
    assert len(started) == 1
    assert not [each for each in threading.enumerate() if each.name == "otel-gpu-test"]


def test_wake_ends_a_sleep_that_begins_later() -> None:
    woken: list[bool] = []
    asleep = threading.Event()

    def poll(self: Poller) -> None:
        asleep.wait(10)
        woken.append(self.sleep(10))
        woken.append(self.sleep(0.001))

    thread = Poller("test", PublishedNames(HOST), poll)
    thread.start()
    thread.wake()
    asleep.set()
    until(lambda: len(woken) >= 2)
    thread.stop()
    assert woken[:2] == [True, False]


def test_pauses_grow_until_the_connection_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    failed = backoff.Backoff.failed

    def noted(self: backoff.Backoff) -> float:
        pauses.append(failed(self))
        return 0.0

    def poll(self: Poller) -> None:
        if len(pauses) == 4:
            self.reset_backoff()
        raise Unavailable("connection refused")

    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(backoff.Backoff, "failed", noted)
    thread = Poller("test", PublishedNames(HOST), poll, max_retry_s=3.0)
    thread.start()
    until(lambda: len(pauses) >= 6)
    thread.stop()
    assert pauses[:6] == [1.0, 2.0, 3.0, 3.0, 1.0, 2.0]


def test_a_thread_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    published = PublishedNames(HOST)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    Poller("test", published, lambda _: None).start()
    assert published.read().reason == "cannot start a thread: can't start new thread"
