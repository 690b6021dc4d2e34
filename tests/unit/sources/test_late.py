from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.absent import AbsentSource
from otel_gpu.sources.base import Claim, Known, NameRead, NameSource, PodContainer
from otel_gpu.sources.late import LateSources

WAIT_S = 10.0


def known(name: str, id_: str = "a") -> dict[str, Known]:
    return {id_: Known(WorkloadRef(WorkloadKind.CONTAINER, id_), WorkloadNames(container=name))}


class Told:
    """A source that says what it is told to."""

    def __init__(self, name: str, read: NameRead) -> None:
        self.name = name
        self.answer = read
        self.closed = False

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        return self.answer

    def wait(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class Finder:
    """Finds what it is given, one after the other."""

    def __init__(self, *found: Sequence[NameSource]) -> None:
        self._found = list(found)
        self.empty = threading.Event()
        self.told: list[Collection[WorkloadKind]] = []

    def __call__(self, kinds: Collection[WorkloadKind]) -> Sequence[NameSource]:
        self.told.append(kinds)
        if self._found:
            return self._found.pop(0)
        self.empty.set()
        return ()


def after_looking(*found: Sequence[NameSource]) -> LateSources:
    finder = Finder(*found)
    late = LateSources(finder, look_s=0.001)
    late.read({})
    assert finder.empty.wait(WAIT_S)
    return late


def test_while_nobody_has_come_nothing_is_known_and_all_is_well() -> None:
    late = after_looking()
    assert late.read({}) == NameRead()
    assert late.name == "environment"
    assert late.wait(0.0)
    late.close()


def test_it_does_not_look_before_its_time() -> None:
    finder = Finder([AbsentSource("docker", "gone")])
    late = LateSources(finder, look_s=3600.0)
    assert late.read({}).state is SourceState.OK
    late.close()
    assert not finder.empty.is_set()
    assert late.read({}).state is SourceState.OK


def test_a_kind_of_workload_that_is_new_makes_it_look_at_once() -> None:
    finder = Finder()
    late = LateSources(finder, look_s=3600.0)
    late.read({WorkloadRef(WorkloadKind.SLURM_JOB, "7"): [1]})
    assert finder.empty.wait(WAIT_S)
    finder.empty.clear()
    late.read({WorkloadRef(WorkloadKind.SLURM_JOB, "8"): [1]})
    late.close()
    assert finder.told == [{WorkloadKind.SLURM_JOB}]


def test_who_comes_late_is_heard_and_closed_with_it() -> None:
    docker = Told("docker", NameRead(known("web"), pending=frozenset({"b"}), errors=2))
    late = after_looking([], [docker])
    read = late.read({})
    assert read.known == known("web")
    assert (read.pending, read.errors, read.state) == (frozenset({"b"}), 2, SourceState.OK)
    late.close()
    assert docker.closed


def test_of_two_who_know_one_the_first_is_believed_and_the_worst_state_is_told_with_its_name() -> None:
    first = Told("cri", NameRead(known("web"), {PodContainer("n", "p", "c"): (Claim("0"),)}))
    second = Told("docker", NameRead(known("k8s_web") | known("db", "b"), state=SourceState.DEGRADED, reason="slow"))
    late = after_looking([first], [second])
    read = late.read({})
    assert {id_: each.names.container for id_, each in read.known.items()} == {"a": "web", "b": "db"}
    assert list(read.pods) == [PodContainer("n", "p", "c")]
    assert (read.state, read.reason) == (SourceState.DEGRADED, "docker: slow")
    late.close()


def test_as_long_as_nothing_changes_it_gives_the_same_objects() -> None:
    source = Told("docker", NameRead(known("web")))
    late = after_looking([source], [Told("cri", NameRead())])
    before = late.read({})
    again = late.read({})
    assert again.known is before.known
    assert again.pods is before.pods
    source.answer = NameRead(known("shop"))
    assert late.read({}).known["a"].names.container == "shop"
    late.close()


@pytest.mark.parametrize("error", [Unavailable("no"), RuntimeError("bug")])
def test_a_look_that_fails_is_told_and_costs_nothing_else(error: Exception) -> None:
    called = threading.Event()

    def fail(_kinds: Collection[WorkloadKind]) -> Sequence[NameSource]:
        called.set()
        raise error

    late = LateSources(fail, look_s=0.001)
    late.read({})
    assert called.wait(WAIT_S)
    assert late._board.wait(WAIT_S)
    assert late.read({}).state is SourceState.UNAVAILABLE
    late.close()


def test_a_source_that_cannot_be_says_why() -> None:
    absent = AbsentSource("kubernetes", "which node this is is not known")
    assert absent.read({}) == NameRead(state=SourceState.UNAVAILABLE, reason="which node this is is not known")
    assert absent.wait(0.0)
    absent.close()
