"""The process source: processes that are asked for, and processes that have a GPU device open."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.model import UNIDENTIFIED_WORKLOAD, SourceState, UnreadableReason, WorkloadRef
from otel_gpu.sources.base import ProcessRead, UnreadableProcess
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.proc.facts import Cycle, FactsBuilder
from otel_gpu.sources.proc.files import DEVICE_DIR, DIRECTORY_FLAGS, list_processes
from otel_gpu.sources.proc.reader import (
    SLOW_S,
    STALL_S,
    Limits,
    ProcessReader,
    ProcessRecord,
    Procfs,
    Wanted,
    read_boot_time,
)
from otel_gpu.sources.proc.table import (
    EVERY_CYCLE,
    Fault,
    ProcessTable,
    ReadIntervals,
    TrackedProcess,
    staggered,
)
from otel_gpu.sources.proc.visibility import ProcVisibility, ReadGaps

PROCESSES_PER_CYCLE: Final = 256
DESCRIPTORS_PER_CYCLE: Final = 16_384
DESCRIPTORS_PER_PROCESS: Final = 4_096
MAPS_BYTES_PER_CYCLE: Final = 16 << 20
MAPS_BYTES_PER_PROCESS: Final = 8 << 20
"""A process has at most 65,530 mappings (vm.max_map_count), of about 100 bytes each."""
DEADLINE_S: Final = 2.0
OWN_PROC: Final = Path("/proc")

_MAX_NAMED: Final = 20
"""Unreadable processes that are named, for the doctor."""

_MAX_SLOW_READS: Final = 2
"""Slow reads of a process in a row after which it is left alone for a while."""

_MAX_AGE_S: Final = 15.0
"""How long the last answer is given while the procfs does not answer."""


class _Listing(NamedTuple):
    """Every listed pid with the inode of its directory. ``error``: the procfs cannot be read."""

    processes: Mapping[int, int] = MappingProxyType({})
    boot_time_s: int | None = None
    error: str | None = None


class ProcfsSource:
    """Reads a procfs. The cost of a cycle does not grow with the number of processes on the host.

    A cycle lists all processes and reads those asked for and those with a GPU open (holders). It scans others for
    open device nodes within a budget: ``processes_per_cycle`` descriptor directories and ``descriptors_per_cycle``
    descriptors, where a process without descriptors counts as one. It reads ``descriptors_per_process`` of one
    process and continues there in the next cycle. After ``maps_bytes_per_cycle`` of ``maps``, the remaining
    processes keep their figures and come first in the next cycle. A cycle takes at most ``deadline_s``; a process whose
    read takes longer than ``stall_s`` is left alone for a while and delays no other (see ``reader``).

    ``root`` may be the procfs of a host, mounted elsewhere. ``own_proc`` is always the agent's own, and shows its
    pid namespace. With ``in_pod`` the agent reports its own pod only, so it lacks nothing if other processes are
    out of sight. ``devices_file`` replaces ``devices`` of ``root``.
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
        devices_file: Path | None = None,
        processes_per_cycle: int = PROCESSES_PER_CYCLE,
        descriptors_per_cycle: int = DESCRIPTORS_PER_CYCLE,
        descriptors_per_process: int = DESCRIPTORS_PER_PROCESS,
        maps_bytes_per_cycle: int = MAPS_BYTES_PER_CYCLE,
        intervals: ReadIntervals = EVERY_CYCLE,
        deadline_s: float = DEADLINE_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._root = root
        self._clock = clock
        self._visibility = ProcVisibility(root, own_proc, in_pod=in_pod)
        limits = Limits(
            processes_per_cycle,
            descriptors_per_cycle,
            min(descriptors_per_process, descriptors_per_cycle),
            maps_bytes_per_cycle,
            MAPS_BYTES_PER_PROCESS,
        )
        procfs = Procfs(root, device_dir, root / "devices" if devices_file is None else devices_file)
        self._reader = ProcessReader(procfs, limits, stall_s=min(stall_s, deadline_s / 2))
        ticks_per_second = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._facts = FactsBuilder(root, self._reader, parse_workload, ticks_per_second, intervals)
        self._intervals = intervals
        self._deadline_s = deadline_s
        self._table = ProcessTable()
        self._cycle = 0
        # Before the first answer it is unknown what is missing.
        self._last = ProcessRead(pids_complete=False, all_visible=False)
        self._answered_ns = clock.monotonic_ns()

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """Facts of the existing processes among ``pids``, and of every process found with a GPU device open.

        Mappings of the ``measured`` among them are not read. If the procfs does not answer in time, the last answer is
        returned, as degraded.
        """
        self._cycle += 1
        cycle = Cycle(self._clock.monotonic_ns(), self._cycle, time.monotonic() + self._deadline_s)
        try:
            listing = self._reader.call(partial(_list, self._root, self._facts.boot_time_s), cycle.deadline_s)
            if listing.error is not None:
                return self._unavailable(listing.error)
            self._facts.boot_time_s = listing.boot_time_s
            self._last = self._read(cycle, listing.processes, frozenset(pids), frozenset(measured))
            self._answered_ns = cycle.now_ns
        except Unavailable as late:
            if cycle.now_ns - self._answered_ns > _MAX_AGE_S * 1e9:
                return self._unavailable(str(late))
            reason = f"{late}; the processes of the last answer are used"
            return replace(self._last, state=SourceState.DEGRADED, reason=reason, errors=1)
        return self._last

    def _read(
        self, cycle: Cycle, listed: Mapping[int, int], asked: frozenset[int], measured: frozenset[int]
    ) -> ProcessRead:
        self._table.update(listed, cycle.now_ns)
        tracked = [process for process in self._table if process.is_holder or process.pid in asked]
        for process in tracked:
            process.set_measured(measured=process.pid in measured)
        wanted = list(self._wanted(cycle, tracked, frozenset([process.pid for process in tracked])))
        for record in self._reader.read(wanted, cycle.deadline_s) if wanted else ():
            self._apply(cycle, record, asked)
        for process in tracked:
            # Those that are settled, that do not let themselves be read, and those left for the next cycle.
            is_listed = self._table.get(process.pid) is process
            if process.pid not in cycle.facts and is_listed and process.facts is not None and _keeps_facts(process):
                cycle.facts[process.pid] = process.facts
        return self._answer(cycle, is_init_hidden=1 not in listed)

    # -- what to read ---------------------------------------------------------------

    def _wanted(self, cycle: Cycle, tracked: list[TrackedProcess], tracked_pids: frozenset[int]) -> Iterator[Wanted]:
        """What is due: of the processes asked for and the holders of the last cycle, then of others, in order."""
        stuck = self._reader.stuck_pids()
        due = [process for process in tracked if process.facts is None or not process.is_settled(cycle.now_ns)]
        # First what was never read: a process that has just come must not wait behind others that take long.
        due.sort(key=lambda process: (process.facts is not None, process.maps_cycle))
        for process in due:
            if process.pid not in stuck and process.not_before_ns <= cycle.now_ns:
                yield self._wanted_of(cycle, process, is_tracked=True)
        for process in self._table.to_scan(cycle.now_ns, self._intervals):
            if process.pid not in tracked_pids and process.pid not in stuck and process.not_before_ns <= cycle.now_ns:
                yield self._wanted_of(cycle, process, is_tracked=False)

    def _wanted_of(self, cycle: Cycle, process: TrackedProcess, *, is_tracked: bool) -> Wanted:
        return Wanted(
            process.pid,
            process.start_ticks,
            is_tracked=is_tracked,
            is_measured=process.is_measured,
            is_without_gpu=not is_tracked and process.is_known_without_gpu(cycle.now_ns),
            devices=process.fault is not None or process.are_fds_due(self._intervals, cycle.now_ns),
            cursor=process.cursor,
            uvm_files=process.uvm_files,
            maps=process.are_maps_due(self._intervals, cycle.now_ns),
            cgroup=process.is_cgroup_due(self._intervals, cycle.now_ns),
            boot_time=process.start_time_s is None,
        )

    # -- what was read --------------------------------------------------------------

    def _apply(self, cycle: Cycle, record: ProcessRecord, asked: frozenset[int]) -> None:
        """Take in what was read of one process."""
        pid, fault = record.wanted.pid, record.fault
        if record.is_postponed:
            return
        if record.descriptors_without_gpu is not None:
            process = self._table.move_to_end(pid)
            process.fds_ns = staggered(pid, process.fds_ns, self._intervals.other_fds_ns, cycle.now_ns)
            return
        if record.stat is None or record.is_gone:
            process = self._table.record_failure(pid, fault)
        else:
            process = self._table.identify(pid, record.stat, cycle.now_ns)
            process.fault = fault
            self._take_devices(cycle, record, process)
            if pid in asked or process.is_holder:
                facts = self._facts.build(cycle, record, process, record.stat)
                process.facts = cycle.facts[pid] = facts
            else:
                process.facts = None
            process.settle(self._intervals, cycle.now_ns)
        process.slow_reads = process.slow_reads + 1 if record.took_s >= SLOW_S else 0
        has_timed_out = fault is not None and fault.reason is UnreadableReason.TIMED_OUT
        if has_timed_out or process.slow_reads >= _MAX_SLOW_READS:
            process.pause(cycle.now_ns)
        elif process.slow_reads == 0:
            process.backoff = None

    def _take_devices(self, cycle: Cycle, record: ProcessRecord, process: TrackedProcess) -> None:
        if process.is_kernel_thread:
            return
        if record.devices is not None:
            process.add_scan(record.devices)
        if record.wanted.devices or record.devices is not None:
            interval_ns = process.fds_interval_ns(self._intervals)
            process.fds_ns = staggered(process.pid, process.fds_ns, interval_ns, cycle.now_ns)

    # -- the answer -----------------------------------------------------------------

    def _answer(self, cycle: Cycle, *, is_init_hidden: bool) -> ProcessRead:
        faults = dict(self._faults())
        unidentified = [pid for pid, facts in cycle.facts.items() if facts.workload == UNIDENTIFIED_WORKLOAD]
        is_relative = bool(unidentified) and self._facts.is_cgroup_namespace_private(cycle)
        gaps = ReadGaps(
            faults=list(faults.values()),
            init_is_hidden=is_init_hidden,
            unidentified=len(unidentified),
            cgroups_are_relative=is_relative,
            start_times_are_unknown=self._facts.boot_time_s is None,
            devices_error=self._reader.devices_error,
            are_too_many_stuck=self._reader.is_full,
        )
        for pid in unidentified:
            faults.setdefault(pid, _NOT_IDENTIFIED)
        reasons = self._visibility.reasons(gaps)
        return ProcessRead(
            MappingProxyType(cycle.facts),
            SourceState.DEGRADED if reasons else SourceState.OK,
            "; ".join(reasons) or None,
            len(reasons),
            pids_complete=self._visibility.are_pids_complete,
            pids_are_own=self._visibility.are_pids_own,
            all_visible=self._visibility.shows_all(gaps),
            unreadable=dict(Counter(fault.reason for fault in faults.values())),
            unreadable_processes=tuple(self._named(faults)),
        )

    def _faults(self) -> Iterator[tuple[int, Fault]]:
        for process in self._table:
            # Sandboxes guard init more closely than other processes, and it never uses a GPU: ignore a denial.
            is_guarded_init = (
                process.pid == 1 and process.fault is not None and process.fault.reason is UnreadableReason.DENIED
            )
            if process.fault is not None and not is_guarded_init:
                yield process.pid, process.fault

    def _named(self, faults: Mapping[int, Fault]) -> Iterator[UnreadableProcess]:
        """The first unreadable processes. Denials come last: they are of every process, for lack of a privilege."""
        order = sorted(faults, key=lambda pid: (faults[pid].reason in _DENIALS, pid))
        for pid in order[:_MAX_NAMED]:
            process = self._table.get(pid)
            name = None if process is None else process.name
            yield UnreadableProcess(pid, name, faults[pid].reason, faults[pid].detail)

    def _unavailable(self, detail: str) -> ProcessRead:
        return ProcessRead(
            state=SourceState.UNAVAILABLE,
            reason=f"{self._root} is not a readable procfs ({detail}): "
            "set --proc-root or HOST_PROC to the host's /proc",
            errors=1,
            pids_complete=self._visibility.are_pids_complete,
            pids_are_own=self._visibility.are_pids_own,
            all_visible=False,
        )


_DENIALS: Final = frozenset({UnreadableReason.HIDDEN, UnreadableReason.DENIED})
_NOT_IDENTIFIED: Final = Fault(UnreadableReason.UNIDENTIFIED, "its cgroup does not show its workload")


def _keeps_facts(process: TrackedProcess) -> bool:
    """Whether the last facts of a process that was not read still count.

    They do not if its stat could not be read, or if the pid may have been reused.
    """
    if not process.confirmed:
        return False
    return process.fault is None or process.fault.reason not in {UnreadableReason.HIDDEN, UnreadableReason.MALFORMED}


def _list(root: Path, boot_time_s: int | None) -> _Listing:
    try:
        root_fd = os.open(root, DIRECTORY_FLAGS)
    except OSError as error:
        return _Listing(error=error.strerror or "cannot be opened")
    try:
        processes = list_processes(root_fd)
        if boot_time_s is None or not processes:
            boot_time_s = read_boot_time(root_fd)
    except OSError as error:
        return _Listing(error=error.strerror or "cannot be read")
    finally:
        os.close(root_fd)
    if boot_time_s is None and not processes:
        return _Listing(error="no process and no boot time in it")
    return _Listing(processes, boot_time_s)
