"""One run: start everything, push, kill a gateway, restart it, wait until all points arrive, and compare."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TextIO

from bench.fleet.agent_pool import AgentPool, agents
from bench.fleet.agents import Activity, End
from bench.fleet.backend import Backend, Totals, backend
from bench.fleet.errors import FleetError
from bench.fleet.ledger import Balance, balance
from bench.fleet.tiers import Collector, Cost, Tiers, tiers
from otel_gpu.config.values import Address

DRAIN_S: Final = 180.0
"""Time limit for the remaining points at the end. Nodes wait up to 45 s between two attempts (30 s ± 50 %)."""

_SETTLE_S: Final = 10.0
_TURN_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """Size, duration and intervals. One gateway is down in the middle third of ``seconds``."""

    agents: int = 200
    processes: int = 4
    nodes: int = 4
    gateways: int = 2
    seconds: float = 90.0
    interval_s: float = 5.0
    export_interval_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Figures of a gateway's outage: whether its ports refused, points sent, and bytes queued at nodes."""

    gateway: str
    away_s: float
    refused: bool
    sent_points: int
    node_queue_bytes: int


@dataclass(frozen=True, slots=True)
class TierCost:
    """CPU time of a tier's Collectors so far, and their memory now."""

    collectors: int
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """All figures at one time (monotonic, in s)."""

    time_s: float
    agents: Activity
    totals: Totals
    nodes: TierCost
    gateways: TierCost


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. ``began`` is when the last agent had started, ``ended`` when all stopped, and ``drained``
    when the backend had all points, or at the time limit.
    """

    options: Options
    balance: Balance
    outage: Outage
    began: Moment
    ended: Moment
    drained: Moment
    last: End


class Progress:
    """Progress lines: at once for each new phase, and every ten seconds during it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started_s = self._last_s = time.monotonic()

    def write(self, text: str) -> None:
        """Write a line."""
        self._last_s = time.monotonic()
        self._stream.write(f"fleet: {self._last_s - self._started_s:4.0f} s  {text}\n")
        self._stream.flush()

    def repeat(self, text: Callable[[], str]) -> None:
        """Write a line if the last one is old enough."""
        if time.monotonic() - self._last_s >= _PROGRESS_EVERY_S:
            self.write(text())


def run(options: Options, stream: TextIO) -> Result:
    """Run a fleet in a temporary directory. All processes have ended on return."""
    progress = Progress(stream)
    with (
        TemporaryDirectory(prefix="otel-gpu-fleet-") as name,
        backend() as end,
        tiers(Path(name), nodes=options.nodes, gateways=options.gateways, backend=end.address) as collectors,
    ):
        progress.write(f"starting {options.gateways} gateways and {options.nodes} node Collectors")
        collectors.start()
        progress.write(f"preparing {options.agents} agents in {options.processes} processes")
        with agents(
            options.agents,
            processes=options.processes,
            nodes=[node.addresses.otlp_http for node in collectors.nodes],
            interval_s=options.interval_s,
            export_interval_s=options.export_interval_s,
        ) as pool:
            return _Run(options, collectors, end, pool, progress).play()


class _Run:
    def __init__(self, options: Options, collectors: Tiers, end: Backend, pool: AgentPool, progress: Progress) -> None:
        self._options = options
        self._collectors = collectors
        self._backend = end
        self._agents = pool
        self._progress = progress

    def play(self) -> Result:
        options = self._options
        third_s = options.seconds / 3
        self._progress.write(f"starting agents, one after the other within {options.export_interval_s:g} s")
        self._agents.start()
        self._pass(options.export_interval_s, "starting")
        began = self._moment(self._agents.activity())
        self._progress.write(f"all agents push every {options.export_interval_s:g} s")
        self._pass(third_s, "all are up")
        outage = self._outage(self._collectors.gateways[-1], third_s)
        self._pass(third_s, f"{outage.gateway} is back")
        self._progress.write("agents export once more and stop")
        ended = self._moment(self._agents.activity())
        last = self._agents.end()
        self._drain(last.activity.points)
        drained = self._moment(last.activity)
        found = balance(last.sent, self._backend.received())
        return Result(options, found, outage, began, ended, drained, last)

    def _moment(self, activity: Activity) -> Moment:
        return Moment(
            time_s=time.monotonic(),
            agents=activity,
            totals=self._backend.totals(),
            nodes=_together([node.cost() for node in self._collectors.nodes]),
            gateways=_together([gateway.cost() for gateway in self._collectors.gateways]),
        )

    def _outage(self, gateway: Collector, seconds: float) -> Outage:
        """Kill a gateway, wait, and start it again."""
        before = self._agents.activity().points
        gateway.kill()
        killed_s = time.monotonic()
        self._progress.write(f"{gateway.name} is killed (SIGKILL)")
        most_bytes = self._pass(seconds, f"{gateway.name} is down")
        refused = _refuses(gateway.addresses.otlp_grpc) and _refuses(gateway.addresses.member)
        sent = self._agents.activity().points - before
        self._collectors.start_gateway(gateway)
        gateway.wait()
        away_s = time.monotonic() - killed_s
        self._progress.write(f"{gateway.name} is back; nodes kept {most_bytes / 1e6:.1f} MB")
        return Outage(gateway.name, away_s, refused, sent, most_bytes)

    def _pass(self, seconds: float, what: str) -> int:
        """Wait; returns the largest total of all nodes' queues, in bytes."""
        until_s = time.monotonic() + seconds
        most_bytes = 0
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_TURN_S, left_s))
            self._collectors.check()
            most_bytes = max(most_bytes, sum(node.queue_bytes() for node in self._collectors.nodes))
            self._progress.repeat(lambda: f"{what}: {self._figures()}")
        return most_bytes

    def _drain(self, sent: int) -> None:
        """Wait until the backend has all points, then a little longer for duplicates; with a time limit."""
        until_s = time.monotonic() + DRAIN_S
        complete = False
        while time.monotonic() < until_s:
            self._collectors.check()
            received = self._backend.totals().distinct_points
            if received >= sent and not complete:
                complete, until_s = True, time.monotonic() + _SETTLE_S
            all_collectors = (*self._collectors.nodes, *self._collectors.gateways)
            if complete and not any(one.queue_bytes() for one in all_collectors):
                return
            self._progress.repeat(lambda: f"waiting for the rest: {self._figures()}")
            time.sleep(_TURN_S)

    def _figures(self) -> str:
        activity, totals = self._agents.activity(), self._backend.totals()
        return f"{activity.points:,} points sent, {totals.distinct_points:,} received"


def _refuses(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except OSError as error:
        raise FleetError(f"{address}: {error}") from None
    return False


def _together(costs: list[Cost]) -> TierCost:
    return TierCost(len(costs), sum(cost.cpu_s for cost in costs), sum(cost.memory_bytes for cost in costs))
