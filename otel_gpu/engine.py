"""One pass over the sources, one Snapshot, one Attribution."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.directory import Directory, Named, pids_by_workload
from otel_gpu.model import (
    Attribution,
    GpuReading,
    ProcessFacts,
    Snapshot,
    SourceOutcome,
    SourceState,
)
from otel_gpu.pidspace import kept_apart, named_pids, trust, without_rows
from otel_gpu.sources.base import GpuRead, GpuSource, NameRead, NameSource, ProcessRead, ProcessSource

SHORTEST_WINDOW_S: Final = 1.0
"""Shorter windows hold too few of the driver's samples (about seven a second) to mean anything."""


class Engine:
    """Reads the world and attributes it. ``sample`` may be called from any thread; passes never overlap."""

    def __init__(
        self,
        *,
        gpus: GpuSource,
        processes: ProcessSource,
        clock: Clock,
        names: Sequence[NameSource] = (),
        options: AttributionOptions | None = None,
    ) -> None:
        self._gpus = gpus
        self._processes = processes
        self._names = tuple(names)
        self._directory = Directory()
        self._clock = clock
        self._pass = threading.Lock()
        self._attributor = Attributor(options)
        self._snapshot: Snapshot | None = None
        self._latest: Attribution | None = None

    @property
    def latest(self) -> Attribution | None:
        """The newest answer; ``None`` before the first pass."""
        return self._latest

    def age_s(self) -> float | None:
        """How old the newest answer is."""
        latest = self._latest
        return None if latest is None else (self._clock.monotonic_ns() - latest.monotonic_ns) / 1e9

    def sample(self) -> Attribution:
        """Read and attribute; the newest answer instead if it is younger than the shortest window."""
        with self._pass:
            age_s = self.age_s()
            if self._latest is not None and age_s is not None and age_s < SHORTEST_WINDOW_S:
                return self._latest
            snapshot = self._read()
            attribution = self._attributor.observe(snapshot)
            self._snapshot, self._latest = snapshot, attribution
            return attribution

    def close(self) -> None:
        """Let go of the driver, and ask nobody for names any more."""
        self._gpus.close()
        for source in self._names:
            source.close()

    # -- reading --------------------------------------------------------------------

    def _read(self) -> Snapshot:
        outcomes: list[SourceOutcome] = []
        wall_ns, started_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        gpu_read = self._gpus.read()
        outcomes.append(self._outcome(self._gpus.name, gpu_read, started_ns))
        started_processes_ns = self._clock.monotonic_ns()
        process_read = self._processes.read(named_pids(gpu_read.gpus) | self._attributor.watched_pids)
        outcomes.append(self._outcome(self._processes.name, process_read, started_processes_ns))
        gpus, processes = self._matched(gpu_read, process_read)
        named = self._named(processes.values(), gpus, outcomes)
        return Snapshot(
            wall_ns=wall_ns,
            monotonic_ns=started_ns,
            gpus=gpus,
            processes=MappingProxyType(processes),
            names=MappingProxyType(named.names),
            sources=tuple(outcomes),
            driver=gpu_read.driver,
            pids_complete=process_read.pids_complete,
            names_pending=named.pending,
            grants=named.grants,
        )

    def _named(
        self, processes: Iterable[ProcessFacts], gpus: Sequence[GpuReading], outcomes: list[SourceOutcome]
    ) -> Named:
        """Names and grants as far as anybody knows by now."""
        workloads = pids_by_workload(processes, also=self._attributor.held_workloads)
        reads, started_ns = [], []
        for source in self._names:
            started_ns.append(self._clock.monotonic_ns())
            reads.append(source.read(workloads))
        ended_ns = [*started_ns[1:], self._clock.monotonic_ns()]
        named = self._directory.update(reads, workloads, gpus)
        for number, (source, read) in enumerate(zip(self._names, reads, strict=True)):
            judged = self._directory.judged(number, read)
            outcomes.append(self._outcome(source.name, judged, started_ns[number], ended_ns[number]))
        return named

    def _matched(
        self, gpu_read: GpuRead, process_read: ProcessRead
    ) -> tuple[tuple[GpuReading, ...], dict[int, ProcessFacts]]:
        """What the driver and /proc said, such that whoever has the same pid in both is the same process."""
        if process_read.state is SourceState.UNAVAILABLE and self._snapshot is not None:
            # Nobody has left because nobody could look: what was known before stands.
            return gpu_read.gpus, dict(self._snapshot.processes)
        trusted = trust(gpu_read.driver, process_read)
        gpus = gpu_read.gpus if trusted.rows else without_rows(gpu_read.gpus)
        if not trusted.lists:
            return kept_apart(gpus, process_read.processes)
        return gpus, self._with_the_departed(process_read.processes, gpus)

    def _with_the_departed(
        self, seen: Mapping[int, ProcessFacts], gpus: tuple[GpuReading, ...]
    ) -> dict[int, ProcessFacts]:
        """Add processes that the driver still lists and /proc has shown before: exiting takes the driver a while."""
        processes = dict(seen)
        if self._snapshot is not None:
            for pid in named_pids(gpus) - processes.keys():
                before = self._snapshot.processes.get(pid)
                if before is not None:
                    processes[pid] = before if not before.alive else _departed(before)
        return processes

    def _outcome(
        self, name: str, read: GpuRead | ProcessRead | NameRead, started_ns: int, ended_ns: int | None = None
    ) -> SourceOutcome:
        duration_s = ((self._clock.monotonic_ns() if ended_ns is None else ended_ns) - started_ns) / 1e9
        return SourceOutcome(name, read.state, read.reason, duration_s, read.errors)


def _departed(facts: ProcessFacts) -> ProcessFacts:
    return ProcessFacts(facts.key, facts.name, facts.start_time_s, facts.owner_uid, facts.workload, alive=False)
