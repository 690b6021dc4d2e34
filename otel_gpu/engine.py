"""One pass over the sources, one Snapshot, one Report."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.directory import Directory, Named, PidsByWorkload
from otel_gpu.model import (
    NO_PROCESSES,
    GpuReading,
    Pod,
    ProcessFacts,
    Report,
    Snapshot,
    SourceOutcome,
    SourceState,
    WorkloadKind,
    WorkloadRef,
)
from otel_gpu.pidspace import NamedPids, kept_apart, trust, without_rows
from otel_gpu.scope import narrowed
from otel_gpu.sources.base import GpuRead, GpuSource, NameRead, NameSource, ProcessRead, ProcessSource
from otel_gpu.sources.late import Lookout

SHORTEST_WINDOW_S: Final = 1.0
"""Shorter windows hold too few of the driver's samples (about seven a second) to mean anything."""

CLOSING_S: Final = 1.0
"""What closing all sources of names may take together. A thread that hangs beyond that ends with the process."""

_HAVE_NAMES: Final = frozenset({WorkloadKind.CONTAINER, WorkloadKind.SLURM_JOB})
"""Whose names somebody may know; all others are named by their cgroups."""


class Rules(Protocol):
    """What makes an answer of a Snapshot: an Attributor, or one whose books outlive the agent."""

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that /proc has to be asked for."""

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads whose names are waited for."""

    @property
    def known_processes(self) -> Mapping[int, ProcessFacts]:
        """Whom /proc showed last; before the first cycle, to an earlier run."""

    def observe(self, snapshot: Snapshot) -> Report:
        """Take in a cycle."""


class Engine:
    """Reads the world and attributes it. ``sample`` may be called from any thread; passes never overlap.

    With a ``pod`` its answers speak of that pod only.
    """

    def __init__(
        self,
        *,
        gpus: GpuSource,
        processes: ProcessSource,
        clock: Clock,
        names: Sequence[NameSource] = (),
        lookout: Lookout | None = None,
        options: AttributionOptions | None = None,
        rules: Rules | None = None,
        pod: Pod | None = None,
    ) -> None:
        self._gpus = gpus
        self._processes = processes
        self._names = tuple(names)
        self._lookout = lookout
        self._pids = NamedPids()
        self._pids_by_workload = PidsByWorkload()
        self._directory = Directory()
        self._clock = clock
        self._pass = threading.Lock()
        self._attributor: Attributor | Rules = Attributor(options) if rules is None else rules
        self._pod = pod
        self._earlier = NO_PROCESSES if rules is None else rules.known_processes
        self._matched_last: tuple[object, object] = (None, None)
        """What was matched the last time, and what it was taken for."""
        self._nobody_unseen: tuple[object, object] = (None, None)
        """Pids and processes among which nobody was missing the last time."""
        self._nameless: Mapping[WorkloadRef, Collection[int]] = {}
        self._nameless_among: tuple[object, object] = (None, None)
        """Among which workloads, and whose names, those were found."""
        self._snapshot: Snapshot | None = None
        self._latest: Report | None = None

    @property
    def latest(self) -> Report | None:
        """The newest answer; ``None`` before the first pass."""
        return self._latest

    def age_s(self) -> float | None:
        """How old the newest answer is."""
        latest = self._latest
        return None if latest is None else (self._clock.monotonic_ns() - latest.monotonic_ns) / 1e9

    def sample(self) -> Report:
        """Read and attribute; the newest answer instead if it is younger than the shortest window."""
        with self._pass:
            age_s = self.age_s()
            if self._latest is not None and age_s is not None and age_s < SHORTEST_WINDOW_S:
                return self._latest
            snapshot = self._read()
            attribution = self._attributor.observe(snapshot)
            if self._pod is not None:
                attribution = narrowed(attribution, self._pod)
            self._snapshot, self._latest = snapshot, attribution
            return attribution

    def close(self) -> None:
        """Let go of the driver, and ask nobody for names any more."""
        self._gpus.close()
        if self._lookout is not None:
            self._lookout.close()
        close_together(self._asked_for_names())

    # -- reading --------------------------------------------------------------------

    def _read(self) -> Snapshot:
        outcomes: list[SourceOutcome] = []
        wall_ns, started_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        gpu_read = self._gpus.read()
        outcomes.append(self._outcome(self._gpus.name, gpu_read, started_ns))
        started_processes_ns = self._clock.monotonic_ns()
        process_read = self._processes.read(self._pids.of(gpu_read.gpus) | self._attributor.watched_pids)
        outcomes.append(self._outcome(self._processes.name, process_read, started_processes_ns))
        gpus, processes = self._matched(gpu_read, process_read)
        processes = self._as_before(processes)
        named = self._named(processes, gpus, outcomes)
        return Snapshot(
            wall_ns=wall_ns,
            monotonic_ns=started_ns,
            gpus=gpus,
            processes=processes,
            names=named.names,
            sources=tuple(outcomes),
            driver=gpu_read.driver,
            pids_complete=process_read.pids_complete,
            names_pending=named.pending,
            grants=named.grants,
            infers=self._pod is None or process_read.everybody,
        )

    def _as_before(self, processes: Mapping[int, ProcessFacts]) -> Mapping[int, ProcessFacts]:
        """The mapping of the cycle before where it says the same, in whatever order: most cycles are like that.

        Whoever reads a Snapshot sees by that, without looking into it, that nothing has changed.
        """
        before = None if self._snapshot is None else self._snapshot.processes
        matched, taken_for = self._matched_last
        # After a pass that failed, what it had read is in no Snapshot: it has to be compared with the one there is.
        is_known = processes is matched and before is taken_for
        if before is None or (not is_known and processes != before):
            before = MappingProxyType(dict(processes))
        self._matched_last = processes, before
        return before

    def _named(
        self, processes: Mapping[int, ProcessFacts], gpus: Sequence[GpuReading], outcomes: list[SourceOutcome]
    ) -> Named:
        """Names and grants as far as anybody knows by now."""
        workloads = self._pids_by_workload.of(processes, also=self._attributor.held_workloads)
        sources, reads, started_ns = self._asked_for_names(), [], []
        for source in sources:
            started_ns.append(self._clock.monotonic_ns())
            reads.append(source.read(workloads))
        ended_ns = [*started_ns[1:], self._clock.monotonic_ns()]
        named = self._directory.update(reads, workloads, gpus)
        for number, (source, read) in enumerate(zip(sources, reads, strict=True)):
            judged = self._directory.judged(number, read)
            outcomes.append(self._outcome(source.name, judged, started_ns[number], ended_ns[number]))
        return named if self._lookout is None else self._looked_for(named, workloads, self._lookout, outcomes)

    def _looked_for(
        self,
        named: Named,
        workloads: Mapping[WorkloadRef, Collection[int]],
        lookout: Lookout,
        outcomes: list[SourceOutcome],
    ) -> Named:
        """Have somebody looked for who knows those whom nobody knew; they wait while that is under way."""
        started_ns = self._clock.monotonic_ns()
        if workloads is not self._nameless_among[0] or named.names is not self._nameless_among[1]:
            self._nameless_among = workloads, named.names
            self._nameless = {
                ref: pids for ref, pids in workloads.items() if ref.kind in _HAVE_NAMES and ref.key not in named.names
            }
        nameless = self._nameless
        read = lookout.look_for(nameless)
        outcomes.append(self._outcome(lookout.name, read, started_ns))
        if not read.pending:
            return named
        waiting = frozenset(ref.key for ref in nameless if ref.id in read.pending)
        return replace(named, pending=named.pending | waiting)

    def _asked_for_names(self) -> tuple[NameSource, ...]:
        """Everybody by now. Who comes later is at the end: the others keep their places, and count before him."""
        return self._names if self._lookout is None else (*self._names, *self._lookout.sources)

    def _matched(
        self, gpu_read: GpuRead, process_read: ProcessRead
    ) -> tuple[tuple[GpuReading, ...], Mapping[int, ProcessFacts]]:
        """What the driver and /proc said, such that whoever has the same pid in both is the same process."""
        if process_read.state is SourceState.UNAVAILABLE and (self._snapshot is not None or self._earlier):
            # Nobody has left because nobody could look: what was known before stands, to an earlier run too.
            return gpu_read.gpus, self._shown_before
        trusted = trust(gpu_read.driver, process_read)
        gpus = gpu_read.gpus if trusted.rows else without_rows(gpu_read.gpus)
        if not trusted.lists:
            return kept_apart(gpus, process_read.processes)
        return gpus, self._with_the_departed(process_read.processes, gpus)

    def _with_the_departed(
        self, seen: Mapping[int, ProcessFacts], gpus: tuple[GpuReading, ...]
    ) -> Mapping[int, ProcessFacts]:
        """Add processes that the driver still lists and /proc has shown before: exiting takes the driver a while."""
        named = self._pids.of(gpus)
        if named is self._nobody_unseen[0] and seen is self._nobody_unseen[1]:
            return seen
        unseen = named - seen.keys()
        if not unseen:
            self._nobody_unseen = named, seen
            return seen
        processes, known = dict(seen), self._shown_before
        for pid in unseen:
            before = known.get(pid)
            if before is not None:
                processes[pid] = before if not before.alive else _departed(before)
        return processes

    @property
    def _shown_before(self) -> Mapping[int, ProcessFacts]:
        """Whom /proc showed last, before this pass or to an earlier run."""
        return self._earlier if self._snapshot is None else self._snapshot.processes

    def _outcome(
        self, name: str, read: GpuRead | ProcessRead | NameRead, started_ns: int, ended_ns: int | None = None
    ) -> SourceOutcome:
        duration_s = ((self._clock.monotonic_ns() if ended_ns is None else ended_ns) - started_ns) / 1e9
        by_gpu = isinstance(read, GpuRead) and read.by_gpu
        return SourceOutcome(name, read.state, read.reason, duration_s, read.errors, by_gpu)


def _departed(facts: ProcessFacts) -> ProcessFacts:
    return ProcessFacts(facts.key, facts.name, facts.start_time_s, facts.owner_uid, facts.workload, alive=False)


def close_together(sources: Iterable[NameSource]) -> None:
    """Close everybody at once, and wait for all together: many that hang take no longer than one."""
    closing = [threading.Thread(target=source.close, name="otel-gpu-close", daemon=True) for source in sources]
    for thread in closing:
        try:
            thread.start()
        except RuntimeError:  # the container's limit of pids counts threads
            thread.run()
    deadline_s = time.monotonic() + CLOSING_S
    for thread in closing:
        if thread.is_alive():
            thread.join(max(0.0, deadline_s - time.monotonic()))
