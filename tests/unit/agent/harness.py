"""An agent on the sources of a test, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Pod, Report
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.pause import PausableGpus
from tests.builders import FakeGpus, FakeProcesses
from tests.web import Answer, ask

Flags = Mapping[str, str]
NO_FLAGS: Flags = MappingProxyType({})
NO_PROCESSES = ProcessRead()
PATIENCE_S = 30.0
RESOURCES = Resources({"host.name": "here"}, {"service.name": "otel-gpu"})


def settings(interval: str = "1h", listen: str = "127.0.0.1:0") -> dict[str, str]:
    """Flags of an agent that samples once, and again only on request unless the test sets an interval."""
    return {"interval": interval, "listen": listen, "source": "sim", "exporters": "none"}


class Running:
    """A running agent, and the Reports it passed on."""

    def __init__(
        self,
        gpus: FakeGpus,
        simulated_because: str | None = None,
        flags: Flags = NO_FLAGS,
        *,
        control: Path | None = None,
        processes: ProcessRead = NO_PROCESSES,
        pod: Pod | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.gpus = gpus
        pausable = PausableGpus(gpus, self.clock)
        self.host = Host(pausable, FakeProcesses(processes), (), simulated_because, pod=pod, pausable=pausable)
        given = {**settings(), **flags, **({} if control is None else {"control-socket": str(control)})}
        self.agent = Agent(load(given, {}).config, self.host, RESOURCES, self.clock, control=control)
        self.seen: list[Report] = []
        self.first_seen = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.agent.run, args=(self.stop, self._show), daemon=True)

    def _show(self, attribution: Report) -> None:
        self.seen.append(attribution)
        self.first_seen.set()

    def get(self, path: str, **headers: str) -> Answer:
        """The agent's answer at this path."""
        return ask(self.agent.web.address, path, headers=headers)

    def readiness(self) -> int:
        """The status of /readyz after a new sample."""
        self.clock.advance(5)
        self.get("/api/attribution")
        return self.get("/readyz").status


@contextmanager
def running(
    gpus: FakeGpus,
    simulated_because: str | None = None,
    *,
    control: Path | None = None,
    flags: Flags = NO_FLAGS,
    processes: ProcessRead = NO_PROCESSES,
    pod: Pod | None = None,
) -> Iterator[Running]:
    """An agent whose thread runs. At the end it stops and has released the driver."""
    agent = Running(gpus, simulated_because, flags, control=control, processes=processes, pod=pod)
    agent.thread.start()
    try:
        yield agent
    finally:
        agent.stop.set()
        agent.agent.wake()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()
        assert gpus.closed


@contextmanager
def after_the_first_sample(
    gpus: FakeGpus,
    simulated_because: str | None = None,
    *,
    control: Path | None = None,
    flags: Flags = NO_FLAGS,
    processes: ProcessRead = NO_PROCESSES,
    pod: Pod | None = None,
) -> Iterator[Running]:
    """The same once it has passed on a Report."""
    given = running(gpus, simulated_because, control=control, flags=flags, processes=processes, pod=pod)
    with given as agent:
        assert agent.first_seen.wait(PATIENCE_S)
        yield agent
