"""What is told of one process, from the files that it has under ``/proc``."""

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
from otel_gpu.sources.hostfacts import cgroup_namespace_is_initial, read_mig_minors
from otel_gpu.sources.procfs_files import (
    DeviceKind,
    DeviceNode,
    ProcessDir,
    Stat,
    checked_stat,
    is_root_cgroup,
    parse_btime,
    read_file,
)
from otel_gpu.sources.procfs_scan import Fault, FaultKind, Pace, TrackedProcess, stamp

_UVM: Final = DeviceNode(DeviceKind.UVM)
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


@dataclass(slots=True)
class Pass:
    """One cycle's reading: what it has spent so far, and what it found."""

    root_fd: int
    now_ns: int
    cycle: int
    maps_left_bytes: int
    boot_time_s: int | None = None
    cgroup_namespace_is_private: bool | None = None
    mig_minors_are_new: bool = False
    directories: int = 0
    descriptors: int = 0
    untold: int = 0
    facts: dict[int, ProcessFacts] = field(default_factory=dict)


class FactsReader:
    """Reads what is due of a process, and tells that and what it remembers.

    It remembers when the machine booted and which MIG instances there are, too, which all processes share.
    """

    def __init__(
        self, root: Path, parse_workload: Callable[[str], WorkloadRef | None], ticks_per_second: int, pace: Pace
    ) -> None:
        self._root = root
        self._parse_workload = parse_workload
        self._ticks_per_second = ticks_per_second
        self._pace = pace
        self._mig_minors: dict[int, MigAccess] = {}
        self.boot_time_s: int | None = None
        """Unix time; ``None`` if it cannot be told."""

    def read_boot_time(self, this: Pass) -> None:
        """Find out when the machine booted."""
        this.boot_time_s = self.boot_time_s = _read_boot_time(this.root_fd)

    def facts(self, this: Pass, directory: ProcessDir, process: TrackedProcess, stat: Stat) -> ProcessFacts:
        """What is to be told of a process whose stat was read just now. Raises ``OSError``."""
        # Frozen at first sight: an exec, a prctl(PR_SET_NAME) or a step of the wall clock makes no other process of it.
        if process.name is None:
            process.name = stat.comm.decode("utf-8", "replace")
        if process.start_time_s is None and (boot_time_s := self._boot_time(this)) is not None:
            process.start_time_s = boot_time_s + stat.start_ticks / self._ticks_per_second
        owner_uid = directory.owner_uid()
        process.uvm_mapping_bytes = self._uvm_mapping_bytes(this, directory, process)
        workload = self._workload(this, directory, process)  # last, so that it notices an end in between
        return ProcessFacts(
            key=ProcessKey(process.pid, stat.start_ticks),
            name=process.name,
            start_time_s=process.start_time_s,
            owner_uid=owner_uid,
            workload=workload,
            gpu_minors_open=process.numbers(DeviceKind.GPU),
            mig_access=self._mig_access(this, process),
            uvm_open=_UVM in process.nodes,
            uvm_mapping_bytes=process.uvm_mapping_bytes,
            alive=stat.is_alive,
        )

    def _boot_time(self, this: Pass) -> int | None:
        # Read anew for processes that are new: the kernel derives it from the wall clock, which may have been set.
        if this.boot_time_s is None and self.boot_time_s is not None:
            this.boot_time_s = self.boot_time_s = _read_boot_time(this.root_fd) or self.boot_time_s
        return this.boot_time_s

    def _mig_access(self, this: Pass, process: TrackedProcess) -> frozenset[MigAccess]:
        minors = process.numbers(DeviceKind.MIG_CAPABILITY)
        if minors != process.mig_minors:
            # The driver numbers them all as it is loaded, thousands of them (nv-caps.c): one reading lasts. Nodes that
            # lead to no instance (config, monitor) are met as well, and cost one more per cycle in which one is opened.
            if not this.mig_minors_are_new and not minors <= self._mig_minors.keys():
                self._mig_minors, this.mig_minors_are_new = read_mig_minors(self._root), True
            process.mig_minors = minors
            process.mig_access = frozenset(self._mig_minors[minor] for minor in minors if minor in self._mig_minors)
        return process.mig_access

    def _uvm_mapping_bytes(self, this: Pass, directory: ProcessDir, process: TrackedProcess) -> int | None:
        if _UVM not in process.nodes:
            process.maps_ns = None
            return None
        if this.maps_left_bytes <= 0 or not process.are_maps_due(self._pace, this.now_ns):
            return process.uvm_mapping_bytes
        process.maps_cycle = this.cycle
        try:
            mapped_bytes, read_bytes = directory.uvm_mapping_bytes()
        except OSError as error:
            process.fault = denial(error, directory)
            return None
        this.maps_left_bytes -= read_bytes
        process.maps_ns = stamp(process.pid, process.maps_ns, self._pace.maps_ns, this.now_ns)
        process.maps_cpu_ns = process.cpu_ns
        return mapped_bytes

    def _workload(self, this: Pass, directory: ProcessDir, process: TrackedProcess) -> WorkloadRef:
        if process.workload is not None and not process.is_young(this.now_ns):
            if not process.is_cgroup_due(self._pace, this.now_ns):
                return process.workload
            process.cgroup_ns = stamp(process.pid, process.cgroup_ns, self._pace.cgroup_ns, this.now_ns)
        text = ""
        try:
            text = directory.cgroup()
        except ProcessLookupError:
            raise  # it ended while we looked: nothing read of it counts
        except OSError as error:
            process.fault = fault_of(error, FaultKind.BROKEN)
        if text != process.cgroup:
            process.cgroup = text
            # What was told before stands: cgroup v1 moves a process to the root as it exits (kernel, cgroup_exit).
            process.workload = self._parse_workload(text) or process.workload
        if process.workload is not None:
            return process.workload
        # The root is the host's only for those who see cgroups as the host does: in a cgroup namespace of its own it
        # is where the agent's own container is (cgroup_namespaces(7)).
        if is_root_cgroup(text) and not self.is_cgroup_namespace_private(this):
            return HOST_WORKLOAD
        this.untold += 1
        return UNIDENTIFIED_WORKLOAD

    def is_cgroup_namespace_private(self, this: Pass) -> bool:
        """Whether cgroups are told relative to a namespace of the agent's own."""
        if this.cgroup_namespace_is_private is None:
            this.cgroup_namespace_is_private = cgroup_namespace_is_initial(self._root) is False
        return this.cgroup_namespace_is_private


def _read_boot_time(root_fd: int) -> int | None:
    """When the machine booted, Unix seconds."""
    try:
        return parse_btime(read_file("stat", root_fd))
    except OSError:
        return None


def fault_of(error: OSError, denied: FaultKind) -> Fault | None:
    """What an error means: ``None`` if the process just ended, ``denied`` if the kernel refuses."""
    if error.errno in _GONE:
        return None
    return Fault(denied if error.errno in _DENIED else FaultKind.BROKEN, error.strerror or "input/output error")


def denial(error: OSError, directory: ProcessDir) -> Fault | None:
    """What it means that files of a process are not readable: nothing if it is about to end, which looks the same."""
    fault = fault_of(error, FaultKind.DENIED)
    if fault is None or fault.kind is not FaultKind.DENIED:
        return fault
    try:
        _, text = directory.stat()
        return None if checked_stat(text).is_exiting else fault
    except OSError as gone:
        return None if gone.errno in _GONE else fault
