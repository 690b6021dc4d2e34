"""Those under ``/proc`` who are told of, from cycle to cycle: while none of them has run, nobody goes through them."""

from __future__ import annotations

from collections.abc import Mapping

from otel_gpu.model import ProcessFacts
from otel_gpu.sources.cpuclock import CpuClock, CpuClocks
from otel_gpu.sources.procfs_scan import ProcessTable, TrackedProcess


class Known:
    """Processes that were asked for or have a GPU open, least recently looked at first.

    It stands for as long as nobody comes, goes or is looked at, and the same are asked for.
    """

    def __init__(self, table: ProcessTable, asked: frozenset[int], clock: CpuClock) -> None:
        self._table = table
        self._changes = table.changes
        self.asked = asked
        self.processes = [process for process in table if process.pid in asked or process.is_holder]
        self.pids = frozenset(process.pid for process in self.processes)
        self.clocks = CpuClocks(clock, [process.pid for process in self.processes])
        self._asleep_cpu_ns: list[int | None] | None = None
        self._asleep_until_ns = 0
        self.told: Mapping[int, ProcessFacts] = {}
        """What was told of them when they were last seen to be all asleep."""

    def stands(self, asked: frozenset[int]) -> bool:
        """Whether they are who is known in this cycle, too."""
        return self._changes == self._table.changes and self.asked == asked

    def are_asleep(self, cpu_ns: list[int | None], now_ns: int) -> bool:
        """Whether none of them has run since all were seen to be asleep, and nothing is due of any: ``told`` stands.

        ``cpu_ns`` is how long each of them has run.
        """
        return now_ns < self._asleep_until_ns and cpu_ns == self._asleep_cpu_ns

    def remember(self, told: Mapping[int, ProcessFacts]) -> None:
        """Remember what was told of them, and until when it stands, if all are asleep and nobody was looked at."""
        self._asleep_until_ns = 0
        if self._changes == self._table.changes and told.keys() == self.pids and all(map(_is_asleep, self.processes)):
            self.told = told
            self._asleep_cpu_ns = [process.cpu_ns for process in self.processes]
            self._asleep_until_ns = min(
                (min(process.asleep_until_ns, process.cgroup_until_ns) for process in self.processes), default=0
            )


def _is_asleep(process: TrackedProcess) -> bool:
    """Whether it has not run since it was told of; until when nothing of it is due is another question."""
    return process.cpu_ns is not None and process.cpu_ns == process.told_cpu_ns and process.confirmed
