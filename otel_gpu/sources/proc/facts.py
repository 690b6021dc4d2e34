"""Read the facts of one process from its files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_gpu.model import (
    HOST_WORKLOAD,
    UNIDENTIFIED_WORKLOAD,
    MigAccess,
    ProcessFacts,
    ProcessKey,
    WorkloadRef,
)
from otel_gpu.sources.proc.files import DeviceKind, ProcessDir, Stat, is_root_cgroup, parse_btime, read_file
from otel_gpu.sources.proc.host import cgroup_namespace_is_initial, read_mig_minors
from otel_gpu.sources.proc.table import UVM, Fault, FaultKind, ReadIntervals, TrackedProcess, staggered

_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


@dataclass(slots=True)
class CycleReads:
    """What one cycle has read so far, and how much it may still read."""

    root_fd: int
    now_ns: int
    cycle: int
    maps_left_bytes: int
    boot_time_s: int | None = None
    cgroup_namespace_is_private: bool | None = None
    mig_minors_are_current: bool = False
    directories: int = 0
    descriptors: int = 0
    unidentified: int = 0
    facts: dict[int, ProcessFacts] = field(default_factory=dict)


class FactsReader:
    """Reads the files of a process that are due, and returns its facts.

    It keeps what all processes share: the boot time and the minors of MIG instances.
    """

    def __init__(
        self,
        root: Path,
        parse_workload: Callable[[str], WorkloadRef | None],
        ticks_per_second: int,
        intervals: ReadIntervals,
    ) -> None:
        self._root = root
        self._parse_workload = parse_workload
        self._ticks_per_second = ticks_per_second
        self._intervals = intervals
        self._mig_minors: dict[int, MigAccess] = {}
        self.boot_time_s: int | None = None
        """Unix time; ``None`` if unknown."""

    def read_boot_time(self, reads: CycleReads) -> None:
        """Read when the machine booted."""
        reads.boot_time_s = self.boot_time_s = _read_boot_time(reads.root_fd)

    def facts(self, reads: CycleReads, directory: ProcessDir, process: TrackedProcess, stat: Stat) -> ProcessFacts:
        """The facts of a process whose stat was read in this look. Raises ``OSError``."""
        # Name and start time are frozen: exec, prctl(PR_SET_NAME) and clock steps do not make another process of it.
        if process.name is None:
            process.name = stat.comm.decode("utf-8", "replace")
        if process.start_time_s is None and (boot_time_s := self._boot_time(reads)) is not None:
            process.start_time_s = boot_time_s + stat.start_ticks / self._ticks_per_second
        owner_uid = directory.owner_uid()
        process.uvm_mapping_bytes = self._uvm_mapping_bytes(reads, directory, process)
        workload = self._workload(reads, directory, process)  # last, so that it notices if the process has ended
        return ProcessFacts(
            key=ProcessKey(process.pid, stat.start_ticks),
            name=process.name,
            start_time_s=process.start_time_s,
            owner_uid=owner_uid,
            workload=workload,
            gpu_minors_open=process.numbers(DeviceKind.GPU),
            mig_access=self._mig_access(reads, process),
            uvm_open=UVM in process.nodes,
            uvm_mapping_bytes=process.uvm_mapping_bytes,
            alive=stat.is_alive,
        )

    def _boot_time(self, reads: CycleReads) -> int | None:
        # Read again for new processes: the kernel derives it from the wall clock, which may have been set.
        if reads.boot_time_s is None and self.boot_time_s is not None:
            reads.boot_time_s = self.boot_time_s = _read_boot_time(reads.root_fd) or self.boot_time_s
        return reads.boot_time_s

    def _mig_access(self, reads: CycleReads, process: TrackedProcess) -> frozenset[MigAccess]:
        minors = process.numbers(DeviceKind.MIG_CAPABILITY)
        if minors != process.mig_minors:
            # The driver numbers all of them, several thousand, when it is loaded (nv-caps.c). An unknown minor is of a
            # driver that was loaded again, or of a node without an instance (config, monitor): one read per cycle.
            if not reads.mig_minors_are_current and not minors <= self._mig_minors.keys():
                self._mig_minors, reads.mig_minors_are_current = read_mig_minors(self._root), True
            process.mig_minors = minors
            process.mig_access = frozenset(self._mig_minors[minor] for minor in minors if minor in self._mig_minors)
        return process.mig_access

    def _uvm_mapping_bytes(self, reads: CycleReads, directory: ProcessDir, process: TrackedProcess) -> int | None:
        if UVM not in process.nodes or process.is_measured:
            process.maps_ns = None
            return None
        if not process.are_maps_due(self._intervals, reads.now_ns):
            return process.uvm_mapping_bytes
        if reads.maps_left_bytes <= 0:
            process.maps_ns = None
            return process.uvm_mapping_bytes
        process.maps_cycle = reads.cycle
        try:
            mapped_bytes, read_bytes = directory.uvm_mapping_bytes()
        except OSError as error:
            process.fault = denial_of(error, directory)
            return None
        reads.maps_left_bytes -= read_bytes
        process.maps_ns = staggered(process.pid, process.maps_ns, self._intervals.maps_ns, reads.now_ns)
        return mapped_bytes

    def _workload(self, reads: CycleReads, directory: ProcessDir, process: TrackedProcess) -> WorkloadRef:
        if process.is_cgroup_due(self._intervals, reads.now_ns):
            self._read_cgroup(reads, directory, process)
        if process.workload is not None:
            return process.workload
        # In a private cgroup namespace, the root is the cgroup of the agent's own container (cgroup_namespaces(7)).
        if is_root_cgroup(process.cgroup or "") and not self.is_cgroup_namespace_private(reads):
            return HOST_WORKLOAD
        reads.unidentified += 1
        return UNIDENTIFIED_WORKLOAD

    def _read_cgroup(self, reads: CycleReads, directory: ProcessDir, process: TrackedProcess) -> None:
        process.cgroup_ns = staggered(process.pid, process.cgroup_ns, self._intervals.cgroup_ns, reads.now_ns)
        text = ""
        try:
            text = directory.cgroup()
        except ProcessLookupError:
            raise  # it has ended: nothing that was read of it counts
        except OSError as error:
            process.fault = fault_of(error, FaultKind.BROKEN)
        if text != process.cgroup:
            process.cgroup = text
            # The workload persists: cgroup v1 moves a process to the root when it exits (kernel, cgroup_exit).
            process.workload = self._parse_workload(text) or process.workload

    def is_cgroup_namespace_private(self, reads: CycleReads) -> bool:
        """Whether cgroup paths are relative to a cgroup namespace of the agent."""
        if reads.cgroup_namespace_is_private is None:
            reads.cgroup_namespace_is_private = cgroup_namespace_is_initial(self._root) is False
        return reads.cgroup_namespace_is_private


def _read_boot_time(root_fd: int) -> int | None:
    """When the machine booted, as Unix time."""
    try:
        return parse_btime(read_file("stat", root_fd))
    except OSError:
        return None


def fault_of(error: OSError, denied: FaultKind) -> Fault | None:
    """The fault behind an error: ``None`` if the process has ended, ``denied`` if the kernel refuses."""
    if error.errno in _GONE:
        return None
    return Fault(denied if error.errno in _DENIED else FaultKind.BROKEN, error.strerror or "input/output error")


def denial_of(error: OSError, directory: ProcessDir) -> Fault | None:
    """The fault behind unreadable descriptors or mappings; ``None`` if the process is exiting, which looks the same."""
    fault = fault_of(error, FaultKind.DENIED)
    if fault is None or fault.kind is not FaultKind.DENIED:
        return fault
    try:
        return None if directory.stat().is_exiting else fault
    except OSError as gone:
        return None if gone.errno in _GONE else fault
