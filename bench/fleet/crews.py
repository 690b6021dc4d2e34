"""All agents, in a few processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from bench.fleet.agents import Crew, End, Look, Plan
from bench.fleet.child import Child, child
from otel_gpu.config.values import Address


class Agents:
    """All agents, in their child processes."""

    def __init__(self, crews: Sequence[Child]) -> None:
        self._crews = crews

    def start(self) -> None:
        """Start agents one after the other within one export interval, without waiting."""
        self._send("start")

    def look(self) -> Look:
        """The sums of activity and cost so far."""
        self._send("look")
        return _together([crew.receive(Look) for crew in self._crews])

    def end(self) -> End:
        """Export once more and stop; returns what was sent, and the cost."""
        self._send("end")
        ends = [crew.receive(End) for crew in self._crews]
        return End(
            look=_together([end.look for end in ends]),
            sent=[one for end in ends for one in end.sent],
            plain_bytes=sum(end.plain_bytes for end in ends),
            gzip_bytes=sum(end.gzip_bytes for end in ends),
            points=sum(end.points for end in ends),
        )

    def _send(self, message: str) -> None:
        for crew in self._crews:
            crew.send(message)


@contextmanager
def agents(
    count: int, *, processes: int, nodes: Sequence[Address], interval_s: float, export_interval_s: float
) -> Iterator[Agents]:
    """``count`` agents in child processes, ready to start."""
    with ExitStack() as held:
        crews = [
            held.enter_context(
                child(
                    f"agents {place}",
                    _serve,
                    Plan(range(place, count, processes), nodes, interval_s, export_interval_s),
                )
            )
            for place in range(min(processes, count))
        ]
        for crew in crews:
            crew.receive(Look)  # ready
        yield Agents(crews)


def _serve(connection: Connection, plan: Plan) -> None:
    logging.disable(logging.WARNING)  # rejected requests are counted
    crew = Crew(plan)
    stop = threading.Event()
    starting = threading.Thread(target=crew.start, args=(stop,), daemon=True)
    connection.send(crew.look())
    while True:
        order = connection.recv()
        if order == "start":
            starting.start()
        elif order == "look":
            connection.send(crew.look())
        else:
            stop.set()
            starting.join()
            connection.send(crew.end())


def _together(looks: Sequence[Look]) -> Look:
    return Look(
        agents=sum(look.agents for look in looks),
        cycles=sum(look.cycles for look in looks),
        exports=sum(look.exports for look in looks),
        points=sum(look.points for look in looks),
        cpu_s=sum(look.cpu_s for look in looks),
        simulation_cpu_s=sum(look.simulation_cpu_s for look in looks),
        memory_bytes=sum(look.memory_bytes for look in looks),
    )
