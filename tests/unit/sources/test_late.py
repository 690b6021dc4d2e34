from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.absent import AbsentSource
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.beside import Beside
from otel_gpu.sources.late import EARLY_S, LOOK_S, SOON_S, Found, Lookout
from tests.builders import CONTAINER, CONTAINER_ID, FakeNames

WAIT_S = 10.0
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


def until(happens: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.001)


class Host:
    """A lookout, its clock, and what it finds, one after the other."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: list[Found] = []
        self.otherwise = Found()
        self.kinds: list[Collection[WorkloadKind]] = []
        self.begun, self.free = threading.Event(), threading.Event()
        self.free.set()
        self.lookout = Lookout(self._find, self.clock)

    def _find(self, kinds: Collection[WorkloadKind]) -> Found:
        self.kinds.append(kinds)
        self.begun.set()
        self.free.wait(WAIT_S)
        return self.found.pop(0) if self.found else self.otherwise

    def look(self, nameless: Mapping[WorkloadRef, Collection[int]], *found: Found) -> None:
        """Look for these, and find this."""
        self.found += found
        self.lookout.look_for(nameless)
        self.lookout._beside.wake()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.lookout.close()
    made.free.set()


def test_who_comes_is_listed_by_its_own_name_after_those_who_came_before(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    docker, podman = FakeNames(name="docker"), FakeNames(name="podman")
    host.look({}, Found((docker,)))
    until(lambda: host.lookout.sources == (docker,))
    host.look({}, Found((podman,)))
    until(lambda: host.lookout.sources == (docker, podman))
    assert host.lookout.name == "environment"
    assert [record.getMessage() for record in caplog.records] == [
        "docker has come, and is asked for names",
        "podman has come, and is asked for names",
    ]


def test_who_comes_is_asked_at_once_and_not_in_the_next_cycle(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.look({CONTAINER: [1]}, Found((docker,)))
    until(lambda: host.lookout.sources == (docker,))
    assert docker.asked == [{CONTAINER}]


def test_a_workload_without_a_name_is_pending_until_somebody_was_looked_for_once(host: Host) -> None:
    host.free.clear()
    assert host.lookout.look_for({CONTAINER: [1]}).pending == {CONTAINER_ID}
    assert host.begun.wait(WAIT_S)
    assert host.lookout.look_for({CONTAINER: [1]}).pending == {CONTAINER_ID}
    host.free.set()
    until(lambda: not host.lookout.look_for({CONTAINER: [1]}).pending)
    host.free.clear()
    assert host.lookout.look_for({CONTAINER: [1], JOB: [2]}).pending == {"7"}


def test_it_is_told_whose_names_are_missing(host: Host) -> None:
    host.lookout.look_for({JOB: [1]})
    until(lambda: host.kinds == [{WorkloadKind.SLURM_JOB}])


def test_one_can_wait_for_the_look_and_for_whoever_came(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.found.append(Found((docker,)))
    host.lookout.look_for({CONTAINER: [1]})
    host.lookout.wait(WAIT_S)
    assert host.lookout.sources == (docker,)
    host.free.clear()
    host.lookout.look_for({JOB: [1]})
    host.lookout.wait(0.0)
    assert host.lookout.look_for({JOB: [1]}).pending == {"7"}
    host.free.set()
    host.lookout.wait(WAIT_S)
    assert host.lookout.look_for({JOB: [1]}).pending == frozenset()


def test_it_looks_often_while_the_host_starts_or_somebody_has_no_name_and_else_seldom(host: Host) -> None:
    assert host.lookout._pause_s() == SOON_S
    host.clock.advance(EARLY_S)
    assert host.lookout._pause_s() == LOOK_S
    host.lookout.look_for({CONTAINER: [1]})
    assert host.lookout._pause_s() == SOON_S
    host.lookout.look_for({})
    assert host.lookout._pause_s() == LOOK_S


def test_who_could_not_be_opened_is_told_until_he_could(host: Host) -> None:
    host.otherwise = Found(failed=("docker cannot be asked: no", "cri cannot be asked: no"))
    first = host.lookout.look_for({})
    until(lambda: host.lookout._board._state is SourceState.DEGRADED)
    read = host.lookout.look_for({})
    assert (read.state, read.reason) == (SourceState.DEGRADED, "docker cannot be asked: no; cri cannot be asked: no")
    assert first.errors + read.errors == 2
    host.otherwise = Found()
    host.look({}, Found((FakeNames(name="docker"),)))
    until(lambda: host.lookout.look_for({}).state is SourceState.OK)


@pytest.mark.parametrize("error", [Unavailable("no"), RuntimeError("bug")])
def test_a_look_that_fails_is_told_and_nobody_is_waited_for(error: Exception) -> None:
    def fail(_kinds: Collection[WorkloadKind]) -> Found:
        raise error

    lookout = Lookout(fail, ManualClock())
    until(lambda: lookout.look_for({CONTAINER: [1]}).state is SourceState.UNAVAILABLE)
    assert lookout.look_for({CONTAINER: [1]}).pending == frozenset()
    lookout.close()


def test_who_is_found_when_all_is_over_is_closed_and_not_listed(host: Host) -> None:
    docker = FakeNames(name="docker")
    host.free.clear()
    host.look({}, Found((docker,)))
    assert host.begun.wait(WAIT_S)
    host.lookout.close()
    host.free.set()
    until(lambda: docker.closed)
    assert host.lookout.sources == ()


def test_a_source_that_cannot_be_says_why() -> None:
    absent = AbsentSource("kubernetes", "which node this is is not known")
    assert absent.read({}) == NameRead(state=SourceState.UNAVAILABLE, reason="which node this is is not known")
    assert absent.wait(0.0)
    absent.close()


def test_who_is_new_is_pending_however_quickly_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was found while it was told of him is asked only in the next cycle."""
    lookout = Lookout(lambda _: Found(), ManualClock())
    # As quick as can be: it has looked before starting it returns.
    monkeypatch.setattr(Beside, "start", lambda _: lookout._look())
    job = WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    assert lookout.look_for({job: (70,)}).pending == {"7"}
    assert lookout.look_for({job: (70,)}).pending == frozenset()
