"""Many agents in one process: each the real engine, sampler, encoder and exporter, on a simulated host of its own."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.fleet.ledger import Sent, counters_of, metrics_of
from bench.fleet.metered import MeteredHost
from bench.fleet.world import fleet_world, host_name
from otel_gpu.agent.own_process import SelfUsage
from otel_gpu.agent.resources import host_resources
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import load
from otel_gpu.config.values import Address
from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp import open_otlp
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.push import Pusher
from otel_gpu.export.sender import ExportResult, Sender
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.sources.sim.host import SimulatedHost

LAST_EXPORT_S: Final = 20.0
"""Time limit of an agent's last export."""

_TOGETHER: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """Agents of one process: their numbers, the Collectors of their nodes, and their intervals (s)."""

    numbers: range
    nodes: Sequence[Address]
    interval_s: float
    export_interval_s: float


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity and cost of the agents of one process so far.

    ``simulation_cpu_s`` is the part of ``cpu_s`` that simulates hosts; real hosts take time in the driver instead.
    """

    agents: int
    cycles: int
    exports: int
    points: int
    cpu_s: float
    simulation_cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class End:
    """The final result of one process's agents; ``plain_bytes`` and ``gzip_bytes`` are of one agent's last export."""

    activity: Activity
    sent: Sequence[Sent]
    plain_bytes: int
    gzip_bytes: int
    points: int


class _Account:
    """The requests of one agent, recorded by its senders."""

    def __init__(self, host: str, resources: Resources) -> None:
        self.host = host
        self._resources = resources
        self.points: dict[int, int] = {}
        self.untaken_points = 0
        self._last: list[Batch] = []
        self._last_ns = 0

    def note(self, batch: Batch, *, accepted: bool) -> None:
        """Record one request after its answer or its failure."""
        points = sum(len(block.points) for block in batch.blocks)
        self.points[batch.time_ns] = self.points.get(batch.time_ns, 0) + points
        if not accepted:
            self.untaken_points += points  # the receiver may have it if only the answer was late
        if batch.time_ns == self._last_ns:
            self._last.append(batch)
        else:
            self._last_ns, self._last = batch.time_ns, [batch]

    def last(self) -> list[bytes]:
        """The requests of the last export."""
        return [encode(batch, self._resources).SerializeToString() for batch in self._last]

    def sent(self) -> Sent:
        return Sent(self.host, dict(self.points), self.untaken_points, counters_of(self.last()))


class _Noting:
    """A sender whose requests are recorded."""

    def __init__(self, sender: Sender, account: _Account) -> None:
        self._sender, self._account = sender, account

    def send(self, batch: Batch) -> ExportResult:
        result = self._sender.send(batch)
        self._account.note(batch, accepted=result.accepted)
        return result

    def close(self) -> None:
        self._sender.close()


class FleetAgent:
    """One agent with the parts of ``otel-gpu run``, without a listener."""

    def __init__(self, number: int, plan: Plan, clock: Clock) -> None:
        node = plan.nodes[number % len(plan.nodes)]
        settings = {
            "interval": f"{round(plan.interval_s * 1e3)}ms",
            "export-interval": f"{round(plan.export_interval_s * 1e3)}ms",
            "otlp-endpoint": f"http://{node}",
        }
        config = load(settings, {}).config
        self._metered = MeteredHost(SimulatedHost(fleet_world(number), clock))
        self._sampling = Sampling(config, self._metered.host, clock)
        resources = host_resources(
            service_name=config.export.service,
            given={"host.name": host_name(number), "host.id": f"{number:032x}"},
            environment={},
        )
        self.account = _Account(host_name(number), resources)
        self.pusher = Pusher(
            str(config.export.otlp.target),
            lambda timeout_s: _Noting(open_otlp(config.export, resources, timeout_s), self.account),
            AgentMetrics(self._sampling.metrics).collect,
            resources,
            interval_s=config.export.interval_s,
            export_timeout_s=config.export.timeout_s,
            request_timeout_s=config.export.otlp.timeout_s,
            monotonic_s=lambda: clock.monotonic_ns() / 1e9,
        )

    @property
    def cycles(self) -> int:
        """Samples taken."""
        return self._sampling.sampler.cycles

    @property
    def simulation_cpu_s(self) -> float:
        """CPU time of the simulated host."""
        return self._metered.cpu_s

    def start(self) -> None:
        """Start sampling and exporting."""
        self._sampling.start()
        self.pusher.start()

    def begin_stop(self) -> None:
        """Request the last export."""
        self.pusher.begin_stop(LAST_EXPORT_S)

    def finish_stop(self) -> None:
        """Wait for the last export, and stop."""
        self.pusher.finish_stop()
        self._sampling.stop()


class AgentGroup:
    """The agents of one process."""

    def __init__(self, plan: Plan) -> None:
        clock = SystemClock()
        self._plan = plan
        self._usage = SelfUsage()
        self._agents = [FleetAgent(number, plan, clock) for number in plan.numbers]
        self._started = 0

    def start(self, stop: threading.Event) -> None:
        """Start them one after the other within one export interval, because hosts of a fleet are not synchronised."""
        pause_s = self._plan.export_interval_s / len(self._agents)
        for agent in self._agents:
            agent.start()
            self._started += 1
            if stop.wait(pause_s):
                return

    def activity(self) -> Activity:
        """Activity and cost so far."""
        return Activity(
            agents=len(self._agents),
            cycles=sum(agent.cycles for agent in self._agents),
            exports=sum(len(agent.account.points) for agent in self._agents),
            points=sum(sum(list(agent.account.points.values())) for agent in self._agents),
            cpu_s=time.process_time(),
            simulation_cpu_s=sum(agent.simulation_cpu_s for agent in self._agents),
            memory_bytes=self._usage.memory_bytes() or 0,
        )

    def end(self) -> End:
        """Export once more and stop, a few agents at a time, because hosts of a fleet are not synchronised."""
        running = self._agents[: self._started]
        for first in range(0, len(running), _TOGETHER):
            few = running[first : first + _TOGETHER]
            for agent in few:
                agent.begin_stop()
            for agent in few:
                agent.finish_stop()
        activity = self.activity()
        last = running[0].account.last() if running else []
        return End(
            activity=activity,
            sent=[agent.account.sent() for agent in self._agents],
            plain_bytes=sum(map(len, last)),
            gzip_bytes=sum(len(gzip.compress(body, 6)) for body in last),
            points=sum(len(points) for body in last for _, points in metrics_of(body)),
        )
