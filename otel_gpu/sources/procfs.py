"""Processes as ``/proc`` shows them: the pids asked for, and whoever else has a GPU's device node open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.model import (
    HOST_WORKLOAD,
    UNIDENTIFIED_WORKLOAD,
    MigAccess,
    ProcessFacts,
    ProcessKey,
    SourceState,
    WorkloadRef,
)
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.cgroup import parse_cgroup
from otel_gpu.sources.hostfacts import cgroup_namespace_is_initial, read_mig_minors
from otel_gpu.sources.procfs_files import (
    DEVICE_DIR,
    DIRECTORY_FLAGS,
    DeviceKind,
    DeviceNode,
    ProcessDir,
    Stat,
    checked_stat,
    few_devices,
    is_root_cgroup,
    list_processes,
    parse_btime,
    read_file,
    read_stat,
    stat_mark,
)
from otel_gpu.sources.procfs_outlook import Missed, Outlook
from otel_gpu.sources.procfs_scan import (
    EVERY_CYCLE,
    Fault,
    FaultKind,
    Pace,
    ProcessTable,
    TrackedProcess,
    is_due,
    stamp,
)

PROCESSES_PER_CYCLE: Final = 256
DESCRIPTORS_PER_CYCLE: Final = 16_384
DESCRIPTORS_PER_PROCESS: Final = 4_096
MAPS_BYTES_PER_CYCLE: Final = 16 << 20
OWN_PROC: Final = Path("/proc")

_UVM: Final = DeviceNode(DeviceKind.UVM)
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


@dataclass(slots=True)
class _Pass:
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


class ProcfsSource:
    """Reads ``/proc`` (or a host's, mounted elsewhere) at a cost per cycle that does not grow with the host.

    Each cycle lists the processes, looks at those asked for and at those known to have a GPU open, and scans
    others for open device nodes: at most ``processes_per_cycle`` descriptor directories and
    ``descriptors_per_cycle`` descriptors (what has none, a kernel thread or a process that ended, counts as
    one). Of one process at most ``descriptors_per_process`` are read in a cycle; the next look goes on from
    there. Once ``maps_bytes_per_cycle`` of ``maps`` files were read, the remaining processes keep the figure
    they had and come first in the next cycle.

    ``own_proc`` is the agent's own ``/proc``, which tells in which pid namespace it runs, whatever ``root`` is. Who is
    to be seen ``in_pod`` only lacks nothing where the host's processes and what they have open are out of sight.
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
        pace: Pace = EVERY_CYCLE,
    ) -> None:
        self._root = root
        self._clock = clock
        self._outlook = Outlook(root, own_proc, in_pod=in_pod)
        self._parse_workload = parse_workload
        self._ticks_per_second = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._device_dir = device_dir
        self._processes_per_cycle = processes_per_cycle
        self._descriptors_per_cycle = descriptors_per_cycle
        self._descriptors_per_process = min(descriptors_per_process, descriptors_per_cycle)
        self._maps_bytes_per_cycle = maps_bytes_per_cycle
        self._pace = pace
        self._table = ProcessTable()
        self._boot_time_s: int | None = None
        self._mig_minors: dict[int, MigAccess] = {}
        self._cycle = 0

    def read(self, pids: Collection[int]) -> ProcessRead:
        """Facts of those of ``pids`` that exist, and of every process found with a GPU device open."""
        try:
            root_fd = os.open(self._root, DIRECTORY_FLAGS)
        except OSError as error:
            return self._unavailable(error.strerror)
        try:
            return self._read(root_fd, pids)
        except OSError as error:
            return self._unavailable(error.strerror)
        finally:
            os.close(root_fd)

    def _read(self, root_fd: int, pids: Collection[int]) -> ProcessRead:
        self._cycle += 1
        this = _Pass(root_fd, self._clock.monotonic_ns(), self._cycle, self._maps_bytes_per_cycle)
        listed = list_processes(root_fd)
        if self._boot_time_s is None or not listed:
            this.boot_time_s = self._boot_time_s = _read_boot_time(root_fd)
        if self._boot_time_s is None and not listed:
            return self._unavailable("no process and no boot time in it")
        self._table.update(listed, this.now_ns)
        known = self._read_known(this, frozenset(pids))
        self._scan(this, known)
        missed = Missed(
            faults=self._faults(),
            init=1 not in listed,
            untold=this.untold,
            in_own_cgroups=this.untold > 0 and self._is_cgroup_namespace_private(this),
            start_times=self._boot_time_s is None,
        )
        reasons = self._outlook.reasons(missed, root_fd)
        return ProcessRead(
            MappingProxyType(this.facts),
            SourceState.DEGRADED if reasons else SourceState.OK,
            "; ".join(reasons) or None,
            len(reasons),
            pids_complete=self._outlook.are_pids_complete,
            pids_are_own=self._outlook.are_pids_own,
            everybody=self._outlook.shows_everybody(missed),
        )

    def _read_known(self, this: _Pass, asked: frozenset[int]) -> frozenset[int]:
        known = [process for process in self._table if process.pid in asked or process.is_holder]
        known.sort(key=lambda process: process.maps_cycle)
        for process in known:
            self._look(this, process, asked=process.pid in asked)
        return frozenset(process.pid for process in known)

    def _scan(self, this: _Pass, known: frozenset[int]) -> None:
        this.directories = this.descriptors = 0
        for process in self._table.to_scan(this.now_ns, self._pace):
            if this.directories >= self._processes_per_cycle:
                return
            if this.descriptors + self._descriptors_per_process > self._descriptors_per_cycle:
                return
            if process.pid not in known and not self._is_still_nobody(this, process):
                self._look(this, process, asked=False)

    def _is_still_nobody(self, this: _Pass, process: TrackedProcess) -> bool:
        """Whether one who never had a GPU open has none now either: then nobody asks who it is."""
        if not process.has_been_nobody(this.now_ns):
            return False
        try:
            scan = few_devices(this.root_fd, process.pid, self._descriptors_per_process, self._device_dir)
        except OSError:
            return False
        if scan is None or scan.nodes:
            return False
        this.directories += 1
        this.descriptors += scan.descriptors
        process.looked_ns = stamp(process.pid, process.looked_ns, self._pace.settled_ns, this.now_ns)
        self._table.saw_nothing(process, scan)
        return True

    def _is_as_it_was(self, this: _Pass, process: TrackedProcess) -> bool:
        """Whether nothing of a process is due but whether it still is the same one: then what was told stands."""
        if process.facts is None or this.now_ns >= process.settled_until_ns:
            return False
        path = f"{process.pid}/stat"
        is_text_due = is_due(process.stat_ns, self._pace.stat_ns, this.now_ns)
        if not is_text_due and stat_mark(path, this.root_fd) == process.mark:  # nobody has taken its place
            this.facts[process.pid] = process.facts
            return True
        mark, text = read_stat(path, this.root_fd)
        if text == process.stat_text:  # it has not even run since
            process.mark, process.stat_ns = mark, this.now_ns
            this.facts[process.pid] = process.facts
            return True
        stat = checked_stat(text)
        if (stat.start_ticks, stat.is_alive) != (process.start_ticks, process.facts.alive):
            return False
        self._table.identify(process.pid, stat, this.now_ns, mark, text)
        this.facts[process.pid] = process.facts
        return True

    def _look(self, this: _Pass, process: TrackedProcess, *, asked: bool) -> None:
        pid = process.pid
        try:
            if self._is_as_it_was(this, process):
                return
            had_fault = process.fault is not None
            with ProcessDir(this.root_fd, pid, self._device_dir) as directory:
                mark, text = directory.stat()
                stat = checked_stat(text)
                process = self._table.identify(pid, stat, this.now_ns, mark, text)
                if had_fault or process.are_devices_due(self._pace, this.now_ns):
                    self._look_for_devices(this, directory, process)
                told, process.facts = process.facts, None
                if asked or process.is_holder:
                    facts = self._facts(this, directory, process, stat)
                    process.facts = this.facts[pid] = told if facts == told and told is not None else facts
                process.settle(self._pace, this.now_ns)
        except OSError as error:
            this.descriptors += 1
            self._table.failed(pid, _fault(error, FaultKind.HIDDEN))

    def _look_for_devices(self, this: _Pass, directory: ProcessDir, process: TrackedProcess) -> None:
        if process.is_kernel_thread:
            this.descriptors += 1
            return
        this.directories += 1
        pace_ns = self._pace.holder_ns if process.is_holder else self._pace.settled_ns
        process.looked_ns = stamp(process.pid, process.looked_ns, pace_ns, this.now_ns)
        try:
            scan = directory.devices(process.cursor, self._descriptors_per_process)
        except OSError as error:
            # Not readable is not closed: what the last look found stands.
            process.fault = _denial(error, directory)
        else:
            this.descriptors += scan.descriptors
            process.saw(scan)

    def _facts(self, this: _Pass, directory: ProcessDir, process: TrackedProcess, stat: Stat) -> ProcessFacts:
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

    def _boot_time(self, this: _Pass) -> int | None:
        # Read anew for processes that are new: the kernel derives it from the wall clock, which may have been set.
        if this.boot_time_s is None and self._boot_time_s is not None:
            this.boot_time_s = self._boot_time_s = _read_boot_time(this.root_fd) or self._boot_time_s
        return this.boot_time_s

    def _mig_access(self, this: _Pass, process: TrackedProcess) -> frozenset[MigAccess]:
        minors = process.numbers(DeviceKind.MIG_CAPABILITY)
        if minors != process.mig_minors:
            # The driver numbers them all as it is loaded, thousands of them (nv-caps.c): one reading lasts. Nodes that
            # lead to no instance (config, monitor) are met as well, and cost one more per cycle in which one is opened.
            if not this.mig_minors_are_new and not minors <= self._mig_minors.keys():
                self._mig_minors, this.mig_minors_are_new = read_mig_minors(self._root), True
            process.mig_minors = minors
            process.mig_access = frozenset(self._mig_minors[minor] for minor in minors if minor in self._mig_minors)
        return process.mig_access

    def _uvm_mapping_bytes(self, this: _Pass, directory: ProcessDir, process: TrackedProcess) -> int | None:
        if _UVM not in process.nodes:
            process.maps_ns = None
            return None
        if this.maps_left_bytes <= 0 or not process.are_maps_due(self._pace, this.now_ns):
            return process.uvm_mapping_bytes
        process.maps_cycle = this.cycle
        try:
            mapped_bytes, read_bytes = directory.uvm_mapping_bytes()
        except OSError as error:
            process.fault = _denial(error, directory)
            return None
        this.maps_left_bytes -= read_bytes
        process.maps_ns = stamp(process.pid, process.maps_ns, self._pace.maps_ns, this.now_ns)
        return mapped_bytes

    def _workload(self, this: _Pass, directory: ProcessDir, process: TrackedProcess) -> WorkloadRef:
        if process.workload is not None and not process.is_young(this.now_ns):
            if not is_due(process.cgroup_ns, self._pace.cgroup_ns, this.now_ns):
                return process.workload
            process.cgroup_ns = stamp(process.pid, process.cgroup_ns, self._pace.cgroup_ns, this.now_ns)
        text = ""
        try:
            text = directory.cgroup()
        except ProcessLookupError:
            raise  # it ended while we looked: nothing read of it counts
        except OSError as error:
            process.fault = _fault(error, FaultKind.BROKEN)
        if text != process.cgroup:
            process.cgroup = text
            # What was told before stands: cgroup v1 moves a process to the root as it exits (kernel, cgroup_exit).
            process.workload = self._parse_workload(text) or process.workload
        if process.workload is not None:
            return process.workload
        # The root is the host's only for those who see cgroups as the host does: in a cgroup namespace of its own it
        # is where the agent's own container is (cgroup_namespaces(7)).
        if is_root_cgroup(text) and not self._is_cgroup_namespace_private(this):
            return HOST_WORKLOAD
        this.untold += 1
        return UNIDENTIFIED_WORKLOAD

    def _is_cgroup_namespace_private(self, this: _Pass) -> bool:
        if this.cgroup_namespace_is_private is None:
            this.cgroup_namespace_is_private = cgroup_namespace_is_initial(self._root) is False
        return this.cgroup_namespace_is_private

    def _faults(self) -> list[Fault]:
        # Init is guarded more closely than others in sandboxes, and never uses a GPU: its refusal means nothing.
        return [
            process.fault
            for process in self._table
            if process.fault is not None and not (process.pid == 1 and process.fault.kind is FaultKind.DENIED)
        ]

    def _unavailable(self, detail: str | None) -> ProcessRead:
        reason = (
            f"{self._root} is no readable procfs ({detail}): "
            "name the host's /proc with --proc-root or the environment variable HOST_PROC"
        )
        return ProcessRead(
            state=SourceState.UNAVAILABLE,
            reason=reason,
            errors=1,
            pids_complete=self._outlook.are_pids_complete,
            pids_are_own=self._outlook.are_pids_own,
            everybody=False,
        )


def _read_boot_time(root_fd: int) -> int | None:
    """When the machine booted, Unix seconds."""
    try:
        return parse_btime(read_file("stat", root_fd))
    except OSError:
        return None


def _fault(error: OSError, denied: FaultKind) -> Fault | None:
    """What an error means: ``None`` if the process just ended, ``denied`` if the kernel refuses."""
    if error.errno in _GONE:
        return None
    return Fault(denied if error.errno in _DENIED else FaultKind.BROKEN, error.strerror or "input/output error")


def _denial(error: OSError, directory: ProcessDir) -> Fault | None:
    """What it means that files of a process are not readable: nothing if it is about to end, which looks the same."""
    fault = _fault(error, FaultKind.DENIED)
    if fault is None or fault.kind is not FaultKind.DENIED:
        return fault
    try:
        _, text = directory.stat()
        return None if checked_stat(text).is_exiting else fault
    except OSError as gone:
        return None if gone.errno in _GONE else fault
