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
from tests.waiting import until

PATIENCE_S = 20.0


class Watcher:
    """A source under test, read in cycles."""

    def __init__(self, source: KubernetesSource) -> None:
        self.source = source
        self.errors = 0
        self.states: set[SourceState] = set()

    def read(self, *refs: WorkloadRef) -> NameRead:
        """Read one cycle; adds up errors and collects states."""
        read = self.source.read(dict.fromkeys(refs, ()))
        self.errors += read.errors
        self.states.add(read.state)
        return read

    def until(self, met: Callable[[NameRead], bool], *refs: WorkloadRef) -> NameRead:
        """Read cycle after cycle until a condition holds."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not met(read := self.read(*refs)):
            assert time.monotonic() < deadline_s, read
            time.sleep(0.01)
        return read

    def until_known(self, *container_ids: str) -> NameRead:
        """Read cycle after cycle until these are known."""
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
    """Creates sources, and closes them."""
    with ExitStack() as closed:

        def watch(server: ApiServer, clock: Clock | None = None, **options: object) -> Watcher:
            given: Mapping[str, object] = {"node_name": NODE, "clock": clock or SystemClock(), "timeout_s": 5.0}
            source = KubernetesSource(server, **(dict(given) | options))  # type: ignore[arg-type]  # a test's own options
            closed.callback(source.close)
            return Watcher(source)

        yield watch


def ref(container_id: str, runtime: str | None = None, pod_uid: str | None = "some-uid") -> WorkloadRef:
    """A container's reference from its cgroup."""
    return WorkloadRef(WorkloadKind.CONTAINER, container_id, runtime=runtime, pod_uid=pod_uid)


def watch_again(api: KubernetesApi, clock: ManualClock) -> None:
    """End the watch, and wait for the next one: by then its events are applied."""
    watches = len(api.received("watch"))
    clock.advance(300)
    api.end_watches()
    until(lambda: len(api.received("watch")) > watches)
