"""In which order the lines of the books are told, and what of each never changes, while they are the same lines."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, TypeAlias

from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.places import Place, ProcessLine, WorkloadAt, WorkloadLine
from otel_gpu.model import START_UNKNOWN, ProcessKey, WorkloadNames, WorkloadRef


class OrderedProcess(NamedTuple):
    """A process's line, and what is told of it beside figures."""

    entry: Entry
    key: ProcessKey
    name: str | None
    start_time_s: float | None
    ref: WorkloadRef
    naming: int


class OrderedWorkload(NamedTuple):
    """A workload under one of the names it had, with its line at each place."""

    ref: WorkloadRef
    naming: int
    lines: list[tuple[WorkloadAt, Place, Entry]]


Named: TypeAlias = tuple[WorkloadNames | None, bool]
"""The names of a workload, and whether it is held back until they are known."""


class Order:
    """The lines of one ledger, processes by place and workloads by who they are."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changes = (-1, -1)
        self._settled: object = None
        self._named: list[Named] = []
        self.processes: list[tuple[Place, list[OrderedProcess]]] = []
        self.workloads: list[OrderedWorkload] = []

    def follow(self) -> None:
        """Take in lines that were opened or forgotten: see ``Lines.changes``."""
        processes, workloads = self._ledger.processes, self._ledger.workloads
        changes = (processes.changes, workloads.changes)
        if changes == self._changes:
            return
        self._changes, self._settled = changes, None
        by_place = sorted(processes.entries.items(), key=lambda item: (item[0].at.place, item[0]))
        self.processes = [
            (place, [_process(line, entry) for line, entry in lines])
            for place, lines in groupby(by_place, key=lambda item: item[0].at.place)
        ]
        by_identity: dict[tuple[str, str, int], list[tuple[WorkloadLine, Entry]]] = {}
        for line, entry in sorted(workloads.entries.items()):
            by_identity.setdefault((line.at.kind, line.at.id, line.naming), []).append((line, entry))
        self.workloads = [
            OrderedWorkload(lines[-1][1].ref, naming, [(line.at, line.at.place, entry) for line, entry in lines])
            for (_, _, naming), lines in sorted(by_identity.items())
        ]

    def names(self) -> list[Named]:
        """The names of ``workloads``, in the same order."""
        namings = self._ledger.namings
        settled = namings.settled
        if settled is None or settled is not self._settled:
            self._named = [(namings.names(ref, naming), namings.waiting(ref)) for ref, naming, _ in self.workloads]
            self._settled = settled
        return self._named


def _process(line: ProcessLine, entry: Entry) -> OrderedProcess:
    key = line.at.key
    start_time_s = entry.start_time_s if key.start_ticks != START_UNKNOWN else None
    return OrderedProcess(entry, key, entry.name, start_time_s, entry.ref, line.naming)
