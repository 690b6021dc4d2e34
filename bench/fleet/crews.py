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
    """All agents, as whoever runs them sees them."""

    def __init__(self, crews: Sequence[Child]) -> None:
        self._crews = crews

    def start(self) -> None:
        """Begin, one after the other within an export's interval; this does not wait for it."""
        self._say("start")

    def look(self) -> Look:
        """What they have done and cost so far, together."""
        self._say("look")
        return _together([crew.hear(Look) for crew in self._crews])

    def end(self) -> End:
        """Let all export once more, and stop; what was sent, and what it took."""
        self._say("end")
        ends = [crew.hear(End) for crew in self._crews]
        return End(
            look=_together([end.look for end in ends]),
            sent=[one for end in ends for one in end.sent],
            plain_bytes=sum(end.plain_bytes for end in ends),
            gzip_bytes=sum(end.gzip_bytes for end in ends),
            points=sum(end.points for end in ends),
        )

    def _say(self, message: str) -> None:
        for crew in self._crews:
            crew.say(message)


@contextmanager
def agents(
    count: int, *, processes: int, nodes: Sequence[Address], interval_s: float, export_interval_s: float
) -> Iterator[Agents]:
    """So many agents, ready to start, divided among processes."""
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
            crew.hear(Look)  # ready
        yield Agents(crews)


def _serve(connection: Connection, plan: Plan) -> None:
    logging.disable(logging.WARNING)  # what was not taken is counted
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
