"""An agent in this process on a simulated host with a manual clock: a test advances it from cycle to cycle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.config.values import Address
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Pod, Report
from otel_gpu.sources.base import GpuRead, GpuSource
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import WorldSpec
from tests.web import ask

PATIENCE_S: Final = 30.0
REASON: Final = "requested with --source sim"


class AlteredGpus:
    """A GPU source whose reads are changed by a function."""

    def __init__(self, gpus: GpuSource, alter: Callable[[GpuRead], GpuRead]) -> None:
        self.name = gpus.name
        self._gpus = gpus
        self._alter = alter

    def read(self) -> GpuRead:
        """The read of the source, altered."""
        return self._alter(self._gpus.read())

    def close(self) -> None:
        """Close the source."""
        self._gpus.close()


class SteppedAgent:
    """A running agent. ``advance`` advances its clock and waits for the cycle of that time."""

    def __init__(
        self, world: WorldSpec, flags: Mapping[str, str], alter: Callable[[GpuRead], GpuRead], pod: Pod | None
    ) -> None:
        self.clock = ManualClock(wall_ns=1_767_261_600_000_000_000)
        simulated = SimulatedHost(world, self.clock)
        gpus = AlteredGpus(simulated.gpu_source(), alter)
        host = Host(gpus, simulated.process_source(), (simulated.name_source(),), REASON, pod=pod)
        settings = {"interval": "1h", "listen": "127.0.0.1:0", "source": "sim", "exporters": "none", **flags}
        resources = Resources({"host.name": "gpu-node-1"}, {"service.name": "otel-gpu"})
        self.agent = Agent(load(settings, {}).config, host, resources, self.clock)
        self.stop = threading.Event()
        self.latest: Report | None = None
        self.thread = threading.Thread(target=self.agent.run, args=(self.stop, self._take), daemon=True)

    def _take(self, report: Report) -> None:
        self.latest = report

    @property
    def url(self) -> str:
        """The URL of the page."""
        return self.agent.web.url

    @property
    def address(self) -> Address:
        """The address of its endpoints."""
        return self.agent.web.address

    def is_followed(self) -> bool:
        """Whether a page subscribes to cycles."""
        return self.agent.events.feed.has_subscribers

    def advance(self, seconds: float) -> Report:
        """Advance the clock; the report of that time, after every subscriber has received it."""
        self.clock.advance(seconds)
        return self.now()

    def now(self) -> Report:
        """The report of the present time of the clock."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.latest is None or self.latest.monotonic_ns < self.clock.monotonic_ns():
            assert time.monotonic() < deadline_s, "no sample"
            assert ask(self.address, "/api/attribution").status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
        return self.latest


@contextmanager
def stepped_agent(
    world: WorldSpec | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    alter: Callable[[GpuRead], GpuRead] = lambda read: read,
    pod: Pod | None = None,
) -> Iterator[SteppedAgent]:
    """Start an agent on this world (default: the demo) and take two cycles. With ``pod`` it reports that pod only."""
    agent = SteppedAgent(world or demo_world(1), flags or {}, alter, pod)
    agent.thread.start()
    try:
        agent.now()
        agent.advance(5)
        yield agent
    finally:
        agent.stop.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()
