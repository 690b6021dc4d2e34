from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.discovery import EARLY_S, SEARCH_S, SEARCH_SOON_S, DiscoveredSources, SourceDiscovery
from otel_gpu.sources.names.factory import UnavailableSource
from otel_gpu.sources.names.poller import Poller
from tests.builders import CONTAINER, CONTAINER_ID, FakeNames
from tests.waiting import until

WAIT_S = 10.0
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


class Host:
    """Source discovery, its clock, and scripted results."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: list[DiscoveredSources] = []
        self.default = DiscoveredSources()
        self.kinds: list[Collection[WorkloadKind]] = []
        self.begun, self.free = threading.Event(), threading.Event()
        self.free.set()
        self.discovery = SourceDiscovery(self._find, self.clock)

    def _find(self, kinds: Collection[WorkloadKind]) -> DiscoveredSources:
        self.kinds.append(kinds)
        self.begun.set()
        self.free.wait(WAIT_S)
        return self.found.pop(0) if self.found else self.default

    def search(self, unnamed: Mapping[WorkloadRef, Collection[int]], *found: DiscoveredSources) -> None:
        """Search for these workloads, with this result."""
        self.found += found
        self.discovery.search_for(unnamed)
        self.discovery._poller.wake()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.discovery.close()
    made.free.set()


def test_a_new_source_is_listed_after_earlier_ones(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    docker, podman = FakeNames(name="docker"), FakeNames(name="podman")
    host.search({}, DiscoveredSources((docker,)))
    until(lambda: host.discovery.sources == (docker,))
    host.search({}, DiscoveredSources((podman,)))
    until(lambda: host.discovery.sources == (docker, podman))
    assert host.discovery.name == "environment"
    assert [record.getMessage() for record in caplog.records] == [
        "name source docker found",
        "name source podman found",
    ]


def test_a_new_source_is_read_at_once_and_not_in_the_next_cycle(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.search({CONTAINER: [1]}, DiscoveredSources((docker,)))
    until(lambda: host.discovery.sources == (docker,))
    assert docker.asked == [{CONTAINER}]


def test_a_workload_without_a_name_is_pending_until_one_search_has_ended(host: Host) -> None:
    host.free.clear()
    assert host.discovery.search_for({CONTAINER: [1]}).pending == {CONTAINER_ID}
    assert host.begun.wait(WAIT_S)
    assert host.discovery.search_for({CONTAINER: [1]}).pending == {CONTAINER_ID}
    host.free.set()
    until(lambda: not host.discovery.search_for({CONTAINER: [1]}).pending)
    host.free.clear()
    assert host.discovery.search_for({CONTAINER: [1], JOB: [2]}).pending == {"7"}


def test_the_search_gets_the_kinds_of_workloads_without_a_name(host: Host) -> None:
    host.discovery.search_for({JOB: [1]})
    until(lambda: host.kinds == [{WorkloadKind.SLURM_JOB}])


def test_wait_returns_when_the_search_has_ended_and_the_sources_have_answered(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.found.append(DiscoveredSources((docker,)))
    host.discovery.search_for({CONTAINER: [1]})
    host.discovery.wait(WAIT_S)
    assert host.discovery.sources == (docker,)
    host.free.clear()
    host.discovery.search_for({JOB: [1]})
    host.discovery.wait(0.0)
    assert host.discovery.search_for({JOB: [1]}).pending == {"7"}
    host.free.set()
    host.discovery.wait(WAIT_S)
    assert host.discovery.search_for({JOB: [1]}).pending == frozenset()


def test_searches_are_frequent_while_the_host_starts_or_a_workload_has_no_name(host: Host) -> None:
    assert host.discovery._pause_s() == SEARCH_SOON_S
    host.clock.advance(EARLY_S)
    assert host.discovery._pause_s() == SEARCH_S
    host.discovery.search_for({CONTAINER: [1]})
    assert host.discovery._pause_s() == SEARCH_SOON_S
    host.discovery.search_for({})
    assert host.discovery._pause_s() == SEARCH_S


def test_a_source_that_cannot_be_opened_is_reported_until_it_can(host: Host) -> None:
    host.default = DiscoveredSources(failed=("docker cannot be opened: no", "cri cannot be opened: no"))
    first = host.discovery.search_for({})
    until(lambda: host.discovery._published._state is SourceState.DEGRADED)
    read = host.discovery.search_for({})
    assert (read.state, read.reason) == (SourceState.DEGRADED, "docker cannot be opened: no; cri cannot be opened: no")
    assert first.errors + read.errors == 2
    host.default = DiscoveredSources()
    host.search({}, DiscoveredSources((FakeNames(name="docker"),)))
    until(lambda: host.discovery.search_for({}).state is SourceState.OK)


@pytest.mark.parametrize("error", [Unavailable("no"), RuntimeError("bug")])
def test_a_search_that_fails_is_reported_and_holds_no_workload_back(error: Exception) -> None:
    def fail(_kinds: Collection[WorkloadKind]) -> DiscoveredSources:
        raise error

    discovery = SourceDiscovery(fail, ManualClock())
    until(lambda: discovery.search_for({CONTAINER: [1]}).state is SourceState.UNAVAILABLE)
    assert discovery.search_for({CONTAINER: [1]}).pending == frozenset()
    discovery.close()


def test_a_source_found_after_close_is_closed_and_not_listed(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.free.clear()
    host.search({}, DiscoveredSources((docker,)))
    assert host.begun.wait(WAIT_S)
    host.discovery.close()
    host.free.set()
    until(lambda: docker.closed)
    assert host.discovery.sources == ()


def test_an_unavailable_source_has_a_reason() -> None:
    absent = UnavailableSource("kubernetes", "the node name is unknown")
    assert absent.read({}) == NameRead(state=SourceState.UNAVAILABLE, reason="the node name is unknown")
    assert absent.wait(0.0)
    absent.close()


def test_a_new_workload_is_pending_however_quickly_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source found during the call is read only in the next cycle."""
    discovery = SourceDiscovery(lambda _: DiscoveredSources(), ManualClock())
    # The search has ended before its start returns.
    monkeypatch.setattr(Poller, "start", lambda _: discovery._search())
    job = WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    assert discovery.search_for({job: (70,)}).pending == {"7"}
    assert discovery.search_for({job: (70,)}).pending == frozenset()
