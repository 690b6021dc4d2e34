"""The agents of a fleet, in a few child processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from bench.fleet.agents import Activity, AgentGroup, End, Plan
from bench.fleet.child import Child, child
from otel_gpu.config.values import Address


class AgentPool:
    """The agents of a fleet in child processes."""

    def __init__(self, groups: Sequence[Child]) -> None:
        self._groups = groups

    def start(self) -> None:
        """Start agents one after the other within one export interval, without waiting."""
        self._send("start")

    def activity(self) -> Activity:
        """The sums of activity and cost so far."""
        self._send("activity")
        return _together([group.receive(Activity) for group in self._groups])

    def end(self) -> End:
        """Export once more and stop; returns what was sent, and the cost."""
        self._send("end")
        ends = [group.receive(End) for group in self._groups]
        return End(
            activity=_together([end.activity for end in ends]),
            sent=[one for end in ends for one in end.sent],
            plain_bytes=sum(end.plain_bytes for end in ends),
            gzip_bytes=sum(end.gzip_bytes for end in ends),
            points=sum(end.points for end in ends),
        )

    def _send(self, message: str) -> None:
        for group in self._groups:
            group.send(message)


@contextmanager
def agents(
    count: int, *, processes: int, nodes: Sequence[Address], interval_s: float, export_interval_s: float
) -> Iterator[AgentPool]:
    """``count`` agents in child processes, ready to start."""
    with ExitStack() as held:
        groups = [
            held.enter_context(
                child(
                    f"agents {place}",
                    _serve,
                    Plan(range(place, count, processes), nodes, interval_s, export_interval_s),
                )
            )
            for place in range(min(processes, count))
        ]
        for group in groups:
            group.receive(Activity)  # ready
        yield AgentPool(groups)


def _serve(connection: Connection, plan: Plan) -> None:
    logging.disable(logging.WARNING)  # rejected requests are counted
    group = AgentGroup(plan)
    stop = threading.Event()
    starting = threading.Thread(target=group.start, args=(stop,), daemon=True)
    connection.send(group.activity())
    while True:
        order = connection.recv()
        if order == "start":
            starting.start()
        elif order == "activity":
            connection.send(group.activity())
        else:
            stop.set()
            starting.join()
            connection.send(group.end())


def _together(activities: Sequence[Activity]) -> Activity:
    return Activity(
        agents=sum(activity.agents for activity in activities),
        cycles=sum(activity.cycles for activity in activities),
        exports=sum(activity.exports for activity in activities),
        points=sum(activity.points for activity in activities),
        cpu_s=sum(activity.cpu_s for activity in activities),
        simulation_cpu_s=sum(activity.simulation_cpu_s for activity in activities),
        memory_bytes=sum(activity.memory_bytes for activity in activities),
    )
