"""The cycle: read every source into one Snapshot, attribute it, and keep the newest Report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.model import (
    NAMEABLE_KINDS,
    NO_PROCESSES,
    NO_UNREADABLE,
    GpuReading,
    GpuReport,
    MigReading,
    MigReport,
    Pod,
    ProcessFacts,
    Report,
    Snapshot,
    SourceOutcome,
    SourceState,
    UnreadableReason,
    WorkloadRef,
)
from otel_gpu.sources.base import GpuRead, GpuSource, NameRead, NameSource, ProcessRead, ProcessSource
from otel_gpu.sources.names.discovery import SourceDiscovery
from otel_gpu.sources.names.factory import close_all
from otel_gpu.sources.names.resolver import NameResolver, Resolution, pids_by_workload
from otel_gpu.sources.proc.pid_trust import driver_pids, measured_pids, pid_trust, separate_pids, without_utilization

SHORTEST_WINDOW_S: Final = 1.0
"""The driver takes about seven utilisation samples a second. A shorter window holds too few of them."""

_T = TypeVar("_T")


class AttributionRules(Protocol):
    """Turns Snapshots into Reports, with a ledger that outlives the agent."""

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that were on a GPU and that /proc has to be read for."""

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads that are held back until their names are known."""

    @property
    def known_processes(self) -> Mapping[int, ProcessFacts]:
        """Processes of the last cycle, by pid; before the first cycle, those of an earlier run."""

    def observe(self, snapshot: Snapshot) -> Report:
        """Attribute one cycle."""


class Engine:
    """Reads the sources and attributes what they say. ``sample`` may be called from any thread; cycles never overlap.

    With a ``pod``, Reports cover that pod only.
    """

    def __init__(
        self,
        *,
        gpus: GpuSource,
        processes: ProcessSource,
        clock: Clock,
        names: Sequence[NameSource] = (),
        discovery: SourceDiscovery | None = None,
        options: AttributionOptions | None = None,
        rules: AttributionRules | None = None,
        pod: Pod | None = None,
    ) -> None:
        self._gpus = gpus
        self._processes = processes
        self._names = tuple(names)
        self._discovery = discovery
        self._clock = clock
        self._resolver = NameResolver()
        self._rules: Attributor | AttributionRules = Attributor(options) if rules is None else rules
        self._pod = pod
        self._cycle_lock = threading.Lock()
        self._last_processes = NO_PROCESSES if rules is None else rules.known_processes
        self._latest: Report | None = None
        self._lists_are_trusted = False
        """Whether, by the last cycle, the driver's pids are those of ``/proc``."""

    @property
    def latest(self) -> Report | None:
        """The newest Report; ``None`` before the first cycle."""
        return self._latest

    def age_s(self) -> float | None:
        """The age of the newest Report in seconds, counted from the start of its cycle."""
        latest = self._latest
        return None if latest is None else (self._clock.monotonic_ns() - latest.monotonic_ns) / 1e9

    def sample(self) -> Report:
        """Run one cycle. Returns the newest Report instead if that is younger than ``SHORTEST_WINDOW_S``."""
        with self._cycle_lock:
            age_s = self.age_s()
            if self._latest is not None and age_s is not None and age_s < SHORTEST_WINDOW_S:
                return self._latest
            snapshot = self._read_snapshot()
            report = self._rules.observe(snapshot)
            if self._pod is not None:
                report = narrowed(report, self._pod)
            # Only after success: a cycle that failed shows no exits, so the next one compares with the last that did.
            self._last_processes, self._latest = snapshot.processes, report
            return report

    def close(self) -> None:
        """Release the driver and close every name source."""
        self._gpus.close()
        if self._discovery is not None:
            self._discovery.close()
        close_all(self._name_sources())

    # -- reading --------------------------------------------------------------------

    def _read_snapshot(self) -> Snapshot:
        """Read every source once."""
        wall_ns, monotonic_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        gpu_read, gpus_s = self._timed(self._gpus.read)
        pids = driver_pids(gpu_read.gpus) | self._rules.watched_pids
        measured = measured_pids(gpu_read.gpus) if self._lists_are_trusted else frozenset()
        process_read, processes_s = self._timed(partial(self._processes.read, pids, measured))
        gpus, processes = self._match_pids(gpu_read, process_read)
        resolution, name_outcomes = self._resolve_names(processes, gpus)
        return Snapshot(
            wall_ns=wall_ns,
            monotonic_ns=monotonic_ns,
            gpus=gpus,
            processes=processes,
            names=resolution.names,
            sources=(
                replace(_outcome(self._gpus.name, gpu_read, gpus_s), blind=not gpu_read.state.answers),
                replace(
                    _outcome(self._processes.name, process_read, processes_s), blind=self._hides_processes(process_read)
                ),
                *name_outcomes,
            ),
            driver=gpu_read.driver,
            pids_complete=process_read.pids_complete,
            names_pending=resolution.pending,
            grants=resolution.grants,
            infers=self._pod is None or process_read.all_visible,
            unreadable=_unreadable(process_read),
        )

    def _hides_processes(self, read: ProcessRead) -> bool:
        """Whether no process of a workload can be seen. In a sidecar the pid namespace is that of its pod."""
        return not read.state.answers or (self._pod is None and not read.pids_complete)

    def _match_pids(
        self, gpu_read: GpuRead, process_read: ProcessRead
    ) -> tuple[tuple[GpuReading, ...], Mapping[int, ProcessFacts]]:
        """Readings and processes in which the same pid means the same process."""
        if process_read.state is SourceState.UNAVAILABLE and (self._latest is not None or self._last_processes):
            # A /proc that cannot be read shows no exits: the processes of the last cycle persist.
            return gpu_read.gpus, self._last_processes
        trusted = pid_trust(gpu_read.driver, process_read)
        self._lists_are_trusted = trusted.lists
        gpus = gpu_read.gpus if trusted.rows else without_utilization(gpu_read.gpus)
        if not trusted.lists:
            return separate_pids(gpus, process_read.processes)
        return gpus, _with_exited(process_read.processes, driver_pids(gpus), self._last_processes)

    def _resolve_names(
        self, processes: Mapping[int, ProcessFacts], gpus: Sequence[GpuReading]
    ) -> tuple[Resolution, list[SourceOutcome]]:
        """Names and grants known by now, and the outcome of every name source."""
        workloads = pids_by_workload(processes.values(), also=self._rules.held_workloads)
        sources = self._name_sources()
        timed = [self._timed(partial(source.read, workloads)) for source in sources]
        resolution = self._resolver.resolve([read for read, _ in timed], workloads, gpus)
        outcomes = [
            _outcome(source.name, read, duration_s)
            for source, read, (_, duration_s) in zip(sources, resolution.reads, timed, strict=True)
        ]
        if self._discovery is None:
            return resolution, outcomes
        unnamed = {
            ref: pids
            for ref, pids in workloads.items()
            if ref.kind in NAMEABLE_KINDS and ref.key not in resolution.names
        }
        found, duration_s = self._timed(partial(self._discovery.search_for, unnamed))
        outcomes.append(_outcome(self._discovery.name, found, duration_s))
        searched = frozenset(ref.key for ref in unnamed if ref.id in found.pending)
        return resolution._replace(pending=resolution.pending | searched), outcomes

    def _name_sources(self) -> tuple[NameSource, ...]:
        """Every name source by precedence. Discovered ones come last, so that the others keep their places."""
        return self._names if self._discovery is None else (*self._names, *self._discovery.sources)

    def _timed(self, read: Callable[[], _T]) -> tuple[_T, float]:
        """What a source returned, and the time it took in seconds."""
        started_ns = self._clock.monotonic_ns()
        result = read()
        return result, (self._clock.monotonic_ns() - started_ns) / 1e9


def _with_exited(
    processes: Mapping[int, ProcessFacts], pids: frozenset[int], last: Mapping[int, ProcessFacts]
) -> Mapping[int, ProcessFacts]:
    """Add processes that have exited and whose ``pids`` the driver still names: it takes a while to drop them."""
    exited = {pid: _exited(last[pid]) for pid in pids - processes.keys() if pid in last}
    return {**processes, **exited} if exited else processes


def _exited(facts: ProcessFacts) -> ProcessFacts:
    """The identity of a process without the devices it had open."""
    if not facts.alive:
        return facts
    return ProcessFacts(facts.key, facts.name, facts.start_time_s, facts.owner_uid, facts.workload, alive=False)


def _unreadable(read: ProcessRead) -> Mapping[str, int]:
    """Processes that could not be read, for every reason; empty if the source did not answer."""
    return (
        {reason: read.unreadable.get(reason, 0) for reason in UnreadableReason} if read.state.answers else NO_UNREADABLE
    )


def _outcome(name: str, read: GpuRead | ProcessRead | NameRead, duration_s: float) -> SourceOutcome:
    by_gpu = isinstance(read, GpuRead) and read.by_gpu
    return SourceOutcome(name, read.state, read.reason, duration_s, read.errors, by_gpu)


# ---------------------------------------------------------------------------- scope pod


def narrowed(report: Report, pod: Pod) -> Report:
    """The Report of the pod's workloads and processes only, without figures of whole GPUs, which others share.

    If every sidecar on a GPU, and the node's agent, reported figures of the whole GPU, a sum over a fleet would count
    them several times.
    """
    workloads = tuple(workload for workload in report.workloads if pod.has(workload.ref, workload.names))
    kept = {(workload.ref.key, workload.naming) for workload in workloads}
    processes = tuple(
        process
        for process in report.processes
        if (process.workload.key, process.naming) in kept or pod.has(process.workload, None)
    )
    devices = {(part.gpu_uuid, part.mig_uuid) for workload in workloads for part in workload.gpus}
    devices |= {(process.gpu_uuid, process.mig_uuid) for process in processes}
    uuids = {gpu_uuid for gpu_uuid, _ in devices}
    return replace(
        report,
        gpus=tuple(
            _without_figures(
                gpu, frozenset(mig_uuid for gpu_uuid, mig_uuid in devices if gpu_uuid == gpu.identity.uuid)
            )
            for gpu in report.gpus
            if gpu.identity.uuid in uuids
        ),
        workloads=workloads,
        processes=processes,
        pod=pod,
    )


def _without_figures(gpu: GpuReport, used: frozenset[str | None]) -> GpuReport:
    """The identity and health of a GPU and the identity of its instances in ``used``, without their figures."""
    reading = gpu.reading
    instances = None if reading.mig is None else tuple(map(_identity, (m for m in reading.mig if m.uuid in used)))
    return GpuReport(
        reading=GpuReading(reading.identity, reading.taken_at_ns, reading.health, reading.reason, mig=instances),
        memory=None,
        energy=None,
        mig=None if gpu.mig is None else tuple(MigReport(m.uuid, m.profile, None) for m in gpu.mig if m.uuid in used),
        has_energy=gpu.has_energy,
        has_utilization=gpu.has_utilization,
    )


def _identity(mig: MigReading) -> MigReading:
    return replace(mig, sm_count=None, memory=None, processes=None)
