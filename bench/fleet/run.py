"""One run: start everything, let agents push, kill a gateway meanwhile, bring it back, wait for all, compare."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TextIO

from bench.fleet.agents import End, Look
from bench.fleet.backend import Backend, Totals, backend
from bench.fleet.crews import Agents, agents
from bench.fleet.errors import FleetError
from bench.fleet.ledger import Balance, balance
from bench.fleet.tiers import Collector, Cost, Tiers, tiers
from otel_gpu.config.values import Address

DRAIN_S: Final = 180.0
"""How long to wait for the rest at the end. Nodes wait up to 45 s between two tries (30 s, half more or less)."""

_SETTLE_S: Final = 10.0
_TURN_S: Final = 0.5
_TOLD_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """How large, how long, how often. The gateway is away for the middle third of ``seconds``."""

    agents: int = 200
    processes: int = 4
    nodes: int = 4
    gateways: int = 2
    seconds: float = 90.0
    interval_s: float = 5.0
    export_interval_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Outage:
    """What it was like while a gateway was away: whether its ports refused, what was sent, what nodes had to keep."""

    gateway: str
    away_s: float
    refused: bool
    sent_points: int
    node_queue_bytes: int


@dataclass(frozen=True, slots=True)
class TierCost:
    """What a tier's Collectors have taken together so far, and hold now."""

    collectors: int
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Everybody's figures at one time (monotonic, in s)."""

    time_s: float
    agents: Look
    totals: Totals
    nodes: TierCost
    gateways: TierCost


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that a run found. ``began`` is when the last agent had started, ``ended`` when they all stopped, and
    ``drained`` when the backend had all, or it was given up.
    """

    options: Options
    balance: Balance
    outage: Outage
    began: Moment
    ended: Moment
    drained: Moment
    last: End


class Progress:
    """Says what is being done: at once where that is new, and every ten seconds while it goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began_s = self._told_s = time.monotonic()

    def say(self, text: str) -> None:
        """Something new."""
        self._told_s = time.monotonic()
        self._stream.write(f"fleet: {self._told_s - self._began_s:4.0f} s  {text}\n")
        self._stream.flush()

    def still(self, text: Callable[[], str]) -> None:
        """The same as before, if it has not been told for a while."""
        if time.monotonic() - self._told_s >= _TOLD_EVERY_S:
            self.say(text())


def run(options: Options, stream: TextIO) -> Result:
    """Run a fleet in a directory of its own; everything has ended when this returns, or raises."""
    progress = Progress(stream)
    with (
        TemporaryDirectory(prefix="otel-gpu-fleet-") as name,
        backend() as end,
        tiers(Path(name), nodes=options.nodes, gateways=options.gateways, backend=end.address) as collectors,
    ):
        progress.say(f"starting {options.gateways} gateways and {options.nodes} node Collectors")
        collectors.start()
        progress.say(f"making {options.agents} agents in {options.processes} processes")
        with agents(
            options.agents,
            processes=options.processes,
            nodes=[node.addresses.otlp_http for node in collectors.nodes],
            interval_s=options.interval_s,
            export_interval_s=options.export_interval_s,
        ) as crew:
            return _Run(options, collectors, end, crew, progress).play()


class _Run:
    def __init__(self, options: Options, collectors: Tiers, end: Backend, crew: Agents, progress: Progress) -> None:
        self._options = options
        self._collectors = collectors
        self._backend = end
        self._agents = crew
        self._progress = progress

    def play(self) -> Result:
        options = self._options
        third_s = options.seconds / 3
        self._progress.say(f"starting agents, one after the other within {options.export_interval_s:g} s")
        self._agents.start()
        self._pass(options.export_interval_s, "starting")
        began = self._moment(self._agents.look())
        self._progress.say(f"all push, every {options.export_interval_s:g} s")
        self._pass(third_s, "all is up")
        outage = self._outage(self._collectors.gateways[-1], third_s)
        self._pass(third_s, f"{outage.gateway} is back")
        self._progress.say("agents export once more and stop")
        ended = self._moment(self._agents.look())
        last = self._agents.end()
        self._drain(last.look.points)
        drained = self._moment(last.look)
        found = balance(last.sent, self._backend.received())
        return Result(options, found, outage, began, ended, drained, last)

    def _moment(self, look: Look) -> Moment:
        return Moment(
            time_s=time.monotonic(),
            agents=look,
            totals=self._backend.totals(),
            nodes=_together([node.cost() for node in self._collectors.nodes]),
            gateways=_together([gateway.cost() for gateway in self._collectors.gateways]),
        )

    def _outage(self, gateway: Collector, seconds: float) -> Outage:
        """Kill one, let time pass, start it again."""
        before = self._agents.look().points
        gateway.kill()
        killed_s = time.monotonic()
        self._progress.say(f"{gateway.name} is killed (SIGKILL)")
        most_bytes = self._pass(seconds, f"{gateway.name} is away")
        refused = _refuses(gateway.addresses.otlp_grpc) and _refuses(gateway.addresses.member)
        sent = self._agents.look().points - before
        self._collectors.start_gateway(gateway)
        gateway.wait()
        away_s = time.monotonic() - killed_s
        self._progress.say(f"{gateway.name} is back; nodes kept {most_bytes / 1e6:.1f} MB meanwhile")
        return Outage(gateway.name, away_s, refused, sent, most_bytes)

    def _pass(self, seconds: float, what: str) -> int:
        """Let time pass; the most that waited in all nodes' queues, in bytes."""
        until_s = time.monotonic() + seconds
        most_bytes = 0
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_TURN_S, left_s))
            self._collectors.check()
            most_bytes = max(most_bytes, sum(node.queue_bytes() for node in self._collectors.nodes))
            self._progress.still(lambda: f"{what}: {self._figures()}")
        return most_bytes

    def _drain(self, sent: int) -> None:
        """Wait until the backend has everything, and then a little for what comes twice; not for ever."""
        until_s = time.monotonic() + DRAIN_S
        complete = False
        while time.monotonic() < until_s:
            self._collectors.check()
            received = self._backend.totals().distinct_points
            if received >= sent and not complete:
                complete, until_s = True, time.monotonic() + _SETTLE_S
            everybody = (*self._collectors.nodes, *self._collectors.gateways)
            if complete and not any(one.queue_bytes() for one in everybody):
                return
            self._progress.still(lambda: f"waiting for the rest: {self._figures()}")
            time.sleep(_TURN_S)

    def _figures(self) -> str:
        look, totals = self._agents.look(), self._backend.totals()
        return f"{look.points:,} points sent, {totals.distinct_points:,} received"


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
