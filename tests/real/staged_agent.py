"""An agent in this process, on a simulated host whose clock stands still: what it shows is one cycle, until told."""

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
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Pod, Report
from otel_gpu.sources.base import GpuRead, GpuSource
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import WorldSpec
from tests.web import ask

PATIENCE_S: Final = 30.0
BECAUSE: Final = "requested with --source sim"


class Altered:
    """A GPU source of which some answers are changed before anybody reads them."""

    def __init__(self, gpus: GpuSource, alter: Callable[[GpuRead], GpuRead]) -> None:
        self.name = gpus.name
        self._gpus = gpus
        self._alter = alter

    def read(self) -> GpuRead:
        """What the source says, altered."""
        return self._alter(self._gpus.read())

    def close(self) -> None:
        """Close what is behind it."""
        self._gpus.close()


class StagedAgent:
    """An agent at work. ``advance`` lets time pass and has it look again."""

    def __init__(
        self, world: WorldSpec, flags: Mapping[str, str], alter: Callable[[GpuRead], GpuRead], pod: Pod | None
    ) -> None:
        self.clock = ManualClock(wall_ns=1_767_261_600_000_000_000)
        simulated = SimulatedHost(world, self.clock)
        gpus = Altered(simulated.gpu_source(), alter)
        host = Host(gpus, simulated.process_source(), (simulated.name_source(),), BECAUSE, pod=pod)
        settings = {"interval": "1h", "listen": "127.0.0.1:0", "source": "sim", "exporters": "none", **flags}
        resources = Resources({"host.name": "gpu-node-1"}, {"service.name": "otel-gpu"})
        self.agent = Agent(load(settings, {}).config, host, resources, self.clock)
        self.stop = threading.Event()
        self.seen: Report | None = None
        self.thread = threading.Thread(target=self.agent.run, args=(self.stop, self._see), daemon=True)

    def _see(self, attribution: Report) -> None:
        self.seen = attribution

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.agent.web.url

    def is_followed(self) -> bool:
        """Whether any page is told of cycles."""
        return self.agent.events.feed.has_subscribers

    def advance(self, seconds: float) -> Report:
        """Let time pass; the cycle of now, once everybody who follows was told."""
        self.clock.advance(seconds)
        return self.now()

    def now(self) -> Report:
        """The cycle of this instant of the clock."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.seen is None or self.seen.monotonic_ns < self.clock.monotonic_ns():
            assert time.monotonic() < deadline_s, "no sample"
            assert ask(self.agent.web.address, "/api/attribution").status in (
                HTTPStatus.OK,
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return self.seen


@contextmanager
def staged_agent(
    world: WorldSpec | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    alter: Callable[[GpuRead], GpuRead] = lambda read: read,
    pod: Pod | None = None,
) -> Iterator[StagedAgent]:
    """An agent on this world, or the demo's, with two cycles behind it; of this pod only, if one is named."""
    staged = StagedAgent(world or demo_world(1), flags or {}, alter, pod)
    staged.thread.start()
    try:
        staged.now()
        staged.advance(5)
        yield staged
    finally:
        staged.stop.set()
        staged.thread.join(PATIENCE_S)
        assert not staged.thread.is_alive()
