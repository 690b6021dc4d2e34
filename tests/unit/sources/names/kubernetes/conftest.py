"""An API server for each test, and sources that watch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_gpu.clock import Clock, ManualClock, SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.kubernetes import ApiServer, KubernetesSource
from tests.kubernetes_api import NODE, KubernetesApi

PATIENCE_S = 20.0


class Watcher:
    """A source under test, and waiting for what it comes to know."""

    def __init__(self, source: KubernetesSource) -> None:
        self.source = source
        self.errors = 0
        self.states: set[SourceState] = set()

    def read(self, *refs: WorkloadRef) -> NameRead:
        """A cycle; errors are added up, states collected."""
        read = self.source.read(dict.fromkeys(refs, ()))
        self.errors += read.errors
        self.states.add(read.state)
        return read

    def until(self, met: Callable[[NameRead], bool], *refs: WorkloadRef) -> NameRead:
        """Cycles until something is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not met(read := self.read(*refs)):
            assert time.monotonic() < deadline_s, read
            time.sleep(0.01)
        return read

    def until_known(self, *container_ids: str) -> NameRead:
        """Cycles until these are known."""
        return self.until(lambda read: all(container_id in read.known for container_id in container_ids))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    """An API server without pods."""
    server = KubernetesApi(tmp_path)
    yield server
    server.close()


Watching = Callable[..., Watcher]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Makes sources, and closes them."""
    with ExitStack() as closed:

        def watch(server: ApiServer, clock: Clock | None = None, **options: object) -> Watcher:
            given: Mapping[str, object] = {"node_name": NODE, "clock": clock or SystemClock(), "timeout_s": 5.0}
            source = KubernetesSource(server, **(dict(given) | options))  # type: ignore[arg-type]  # a test's own options
            closed.callback(source.close)
            return Watcher(source)

        yield watch


def ref(container_id: str, runtime: str | None = None, pod_uid: str | None = "some-uid") -> WorkloadRef:
    """A container as its cgroup tells it."""
    return WorkloadRef(WorkloadKind.CONTAINER, container_id, runtime=runtime, pod_uid=pod_uid)


def until(met: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def watch_again(api: KubernetesApi, clock: ManualClock) -> None:
    """End the watch, at its time; what it told before that has been heard when the next one is there."""
    watches = len(api.asked("watch"))
    clock.advance(300)
    api.end_watches()
    until(lambda: len(api.asked("watch")) > watches)
