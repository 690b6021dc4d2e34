"""The process source: processes that are asked for, and processes that have a GPU device open."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadRef
from otel_gpu.sources.base import ProcessRead, ProcessSource
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.proc.facts import CycleReads, FactsReader, denial_of, fault_of
from otel_gpu.sources.proc.files import (
    DEVICE_DIR,
    DIRECTORY_FLAGS,
    ProcessDir,
    list_processes,
    scan_few_descriptors,
)
from otel_gpu.sources.proc.table import (
    EVERY_CYCLE,
    Fault,
    FaultKind,
    ProcessTable,
    ReadIntervals,
    TrackedProcess,
    staggered,
)
from otel_gpu.sources.proc.visibility import ProcVisibility, ReadGaps
from otel_gpu.sources.workers import Pending, Worker

PROCESSES_PER_CYCLE: Final = 256
DESCRIPTORS_PER_CYCLE: Final = 16_384
DESCRIPTORS_PER_PROCESS: Final = 4_096
MAPS_BYTES_PER_CYCLE: Final = 16 << 20
OWN_PROC: Final = Path("/proc")

_by_maps_cycle: Final[Callable[[TrackedProcess], int]] = attrgetter("maps_cycle")


class ProcfsSource:
    """Reads a procfs. The cost of a cycle does not grow with the number of processes on the host.

    A cycle lists all processes and reads those asked for and those with a GPU open (holders). It scans others for
    open device nodes within a budget: ``processes_per_cycle`` descriptor directories and ``descriptors_per_cycle``
    descriptors, where a process without descriptors counts as one. It reads ``descriptors_per_process`` of one
    process and continues there in the next cycle. After ``maps_bytes_per_cycle`` of ``maps``, the remaining
    processes keep their figures and come first in the next cycle.

    ``root`` may be the procfs of a host, mounted elsewhere. ``own_proc`` is always the agent's own, and shows its
    pid namespace. With ``in_pod`` the agent reports its own pod only, so it lacks nothing if other processes are
    out of sight.
    """

    name: Final = "procfs"

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        own_proc: Path = OWN_PROC,
        in_pod: bool = False,
        parse_workload: Callable[[str], WorkloadRef | None] = parse_cgroup,
        ticks_per_second: int | None = None,
        device_dir: str = DEVICE_DIR,
        processes_per_cycle: int = PROCESSES_PER_CYCLE,
        descriptors_per_cycle: int = DESCRIPTORS_PER_CYCLE,
        descriptors_per_process: int = DESCRIPTORS_PER_PROCESS,
        maps_bytes_per_cycle: int = MAPS_BYTES_PER_CYCLE,
        intervals: ReadIntervals = EVERY_CYCLE,
    ) -> None:
        self._root = root
        self._clock = clock
        self._visibility = ProcVisibility(root, own_proc, in_pod=in_pod)
        self._facts = FactsReader(root, parse_workload, ticks_per_second or os.sysconf("SC_CLK_TCK"), intervals)
        self._device_dir = device_dir
        self._processes_per_cycle = processes_per_cycle
        self._descriptors_per_cycle = descriptors_per_cycle
        self._descriptors_per_process = min(descriptors_per_process, descriptors_per_cycle)
        self._maps_bytes_per_cycle = maps_bytes_per_cycle
        self._intervals = intervals
        self._table = ProcessTable()
        self._cycle = 0

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """Facts of the existing processes among ``pids``, and of every process found with a GPU device open.

        Mappings of the ``measured`` among them are not read.
        """
        try:
            root_fd = os.open(self._root, DIRECTORY_FLAGS)
        except OSError as error:
            return self._unavailable(error.strerror)
        try:
            return self._read(root_fd, frozenset(pids), frozenset(measured))
        except OSError as error:
            return self._unavailable(error.strerror)
        finally:
            os.close(root_fd)

    def _read(self, root_fd: int, asked: frozenset[int], measured: frozenset[int]) -> ProcessRead:
        self._cycle += 1
        reads = CycleReads(root_fd, self._clock.monotonic_ns(), self._cycle, self._maps_bytes_per_cycle)
        listed = list_processes(root_fd)
        if self._facts.boot_time_s is None or not listed:
            self._facts.read_boot_time(reads)
        if self._facts.boot_time_s is None and not listed:
            return self._unavailable("no process and no boot time in it")
        self._table.update(listed, reads.now_ns)
        tracked = [process for process in self._table if process.is_holder or process.pid in asked]
        for process in tracked:
            process.set_measured(measured=process.pid in measured)
        self._read_tracked(reads, tracked, asked)
        self._scan(reads, frozenset([process.pid for process in tracked]))
        gaps = ReadGaps(
            faults=self._current_faults(),
            init_is_hidden=1 not in listed,
            unidentified=reads.unidentified,
            cgroups_are_relative=reads.unidentified > 0 and self._facts.is_cgroup_namespace_private(reads),
            start_times_are_unknown=self._facts.boot_time_s is None,
        )
        reasons = self._visibility.reasons(gaps, root_fd)
        return ProcessRead(
            MappingProxyType(reads.facts),
            SourceState.DEGRADED if reasons else SourceState.OK,
            "; ".join(reasons) or None,
            len(reasons),
            pids_complete=self._visibility.are_pids_complete,
            pids_are_own=self._visibility.are_pids_own,
            all_visible=self._visibility.shows_all(gaps),
        )

    def _read_tracked(self, reads: CycleReads, tracked: list[TrackedProcess], asked: frozenset[int]) -> None:
        """Read the processes asked for and the holders of the last cycle."""
        due = []
        for process in tracked:
            if process.facts is not None and process.is_settled(reads.now_ns):
                reads.facts[process.pid] = process.facts
            else:
                due.append(process)
        due.sort(key=_by_maps_cycle)
        for process in due:
            self._look(reads, process, asked=process.pid in asked)

    def _scan(self, reads: CycleReads, tracked_pids: frozenset[int]) -> None:
        """Look for new holders among the other processes, within the budget."""
        reads.directories = reads.descriptors = 0
        for process in self._table.to_scan(reads.now_ns, self._intervals):
            if reads.directories >= self._processes_per_cycle:
                return
            if reads.descriptors + self._descriptors_per_process > self._descriptors_per_cycle:
                return
            if process.pid not in tracked_pids and not self._is_still_without_gpu(reads, process):
                self._look(reads, process, asked=False)

    def _is_still_without_gpu(self, reads: CycleReads, process: TrackedProcess) -> bool:
        """Whether an older process that had no GPU open still has none. Then its other files are of no interest."""
        if not process.is_known_without_gpu(reads.now_ns):
            return False
        try:
            scan = scan_few_descriptors(reads.root_fd, process.pid, self._descriptors_per_process, self._device_dir)
        except OSError:
            return False
        if scan is None or scan.nodes:
            return False
        reads.directories += 1
        reads.descriptors += scan.descriptors
        process.fds_ns = staggered(process.pid, process.fds_ns, self._intervals.other_fds_ns, reads.now_ns)
        self._table.move_to_end(process)
        return True

    def _look(self, reads: CycleReads, process: TrackedProcess, *, asked: bool) -> None:
        """Read the files of a process that are due."""
        pid = process.pid
        had_fault = process.fault is not None
        try:
            with ProcessDir(reads.root_fd, pid, self._device_dir) as directory:
                stat = directory.stat()
                process = self._table.identify(pid, stat, reads.now_ns)
                if had_fault or process.are_fds_due(self._intervals, reads.now_ns):
                    self._look_for_devices(reads, directory, process)
                process.facts = None
                if asked or process.is_holder:
                    process.facts = reads.facts[pid] = self._facts.facts(reads, directory, process, stat)
                process.settle(self._intervals, reads.now_ns)
        except OSError as error:
            reads.descriptors += 1
            self._table.record_failure(pid, fault_of(error, FaultKind.HIDDEN))

    def _look_for_devices(self, reads: CycleReads, directory: ProcessDir, process: TrackedProcess) -> None:
        if process.is_kernel_thread:
            reads.descriptors += 1
            return
        reads.directories += 1
        process.fds_ns = staggered(process.pid, process.fds_ns, process.fds_interval_ns(self._intervals), reads.now_ns)
        try:
            scan = directory.devices(process.cursor, self._descriptors_per_process)
        except OSError as error:
            # Unreadable descriptors are not closed: those of the last scan persist.
            process.fault = denial_of(error, directory)
        else:
            reads.descriptors += scan.descriptors
            process.add_scan(scan)

    def _current_faults(self) -> list[Fault]:
        # Sandboxes guard init more closely than other processes, and it never uses a GPU: ignore a denial.
        return [
            process.fault
            for process in self._table
            if process.fault is not None and not (process.pid == 1 and process.fault.kind is FaultKind.DENIED)
        ]

    def _unavailable(self, detail: str | None) -> ProcessRead:
        return ProcessRead(
            state=SourceState.UNAVAILABLE,
            reason=f"{self._root} is not a readable procfs ({detail}): "
            "set --proc-root or HOST_PROC to the host's /proc",
            errors=1,
            pids_complete=self._visibility.are_pids_complete,
            pids_are_own=self._visibility.are_pids_own,
            all_visible=False,
        )


# ---------------------------------------------------------------------------- a deadline for the source


class DeadlineProcessSource:
    """Reads another source on a thread of its own. After the deadline it returns the last answer, as degraded.

    A late answer is the last answer of the next read. A source that always takes longer than the deadline is one
    cycle late, and only a source that never answers has no effect.
    """

    def __init__(self, source: ProcessSource, deadline_s: float) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._worker = Worker(f"otel-gpu-{source.name}")
        self._late: Pending[ProcessRead] | None = None
        # Before the first answer it is unknown what is missing.
        self._last = ProcessRead(pids_complete=False, all_visible=False)

    @property
    def name(self) -> str:
        """The other source's name."""
        return self._source.name

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """The other source's answer, or its last one if it is late."""
        asked, with_figure = frozenset(pids), frozenset(measured)
        self._take_late()
        try:
            pending = self._late = self._worker.start(lambda: self._source.read(asked, with_figure))
            self._last = pending.result(time.monotonic() + self._deadline_s)
        except Unavailable as late:
            reason = f"{late}; processes are those of the last answer"
            return replace(self._last, state=SourceState.DEGRADED, reason=reason, errors=1)
        self._late = None
        return self._last

    def _take_late(self) -> None:
        late = self._late
        if late is not None and late.finished:
            self._late = None
            with suppress(Unavailable):
                self._last = late.result(0.0)
