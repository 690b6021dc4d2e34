"""The facts of one process, from what was read of it and what is known of it from earlier cycles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from otel_gpu.errors import Unavailable
from otel_gpu.model import (
    HOST_WORKLOAD,
    UNIDENTIFIED_WORKLOAD,
    MigAccess,
    ProcessFacts,
    ProcessKey,
    UnreadableReason,
    WorkloadRef,
)
from otel_gpu.sources.proc.files import DeviceKind, Stat, is_root_cgroup
from otel_gpu.sources.proc.host import cgroup_namespace_is_initial, read_mig_minors
from otel_gpu.sources.proc.reader import ProcessReader, ProcessRecord
from otel_gpu.sources.proc.table import Fault, ReadIntervals, TrackedProcess, staggered


class Cycle:
    """One cycle of the process source: its time, its number, and what has been found out in it."""

    def __init__(self, now_ns: int, number: int, deadline_s: float) -> None:
        self.now_ns = now_ns
        self.number = number
        self.deadline_s = deadline_s
        """On the monotonic clock, in seconds."""
        self.facts: dict[int, ProcessFacts] = {}
        self.mig_minors_are_current = False
        self.cgroup_namespace_is_private: bool | None = None


class FactsBuilder:
    """Builds the facts of processes. Keeps what all processes share: the boot time and the minors of MIG instances."""

    def __init__(
        self,
        root: Path,
        reader: ProcessReader,
        parse_workload: Callable[[str], WorkloadRef | None],
        ticks_per_second: int,
        intervals: ReadIntervals,
    ) -> None:
        self._root = root
        self._reader = reader
        self._parse_workload = parse_workload
        self._ticks_per_second = ticks_per_second
        self._intervals = intervals
        self._mig_minors: dict[int, MigAccess] = {}
        self.boot_time_s: int | None = None
        """Unix time; ``None`` if unknown."""

    def build(self, cycle: Cycle, record: ProcessRecord, process: TrackedProcess, stat: Stat) -> ProcessFacts:
        """The facts of a process whose stat was read in this cycle."""
        # Read again for new processes: the kernel derives it from the wall clock, which may have been set.
        self.boot_time_s = record.boot_time_s or self.boot_time_s
        # Name and start time are frozen: exec, prctl(PR_SET_NAME) and clock steps do not make another process of it.
        if process.name is None:
            process.name = stat.comm.decode("utf-8", "replace")
        if process.start_time_s is None and self.boot_time_s is not None:
            process.start_time_s = self.boot_time_s + stat.start_ticks / self._ticks_per_second
        process.uvm_mapping_bytes = self._uvm_mapping_bytes(cycle, record, process)
        return ProcessFacts(
            key=ProcessKey(process.pid, stat.start_ticks),
            name=process.name,
            start_time_s=process.start_time_s,
            owner_uid=record.owner_uid,
            workload=self._workload(cycle, record, process, stat),
            gpu_minors_open=process.numbers(DeviceKind.GPU),
            mig_access=self._mig_access(cycle, process),
            uvm_open=process.has_uvm,
            uvm_mapping_bytes=process.uvm_mapping_bytes,
            alive=stat.is_alive,
        )

    def _mig_access(self, cycle: Cycle, process: TrackedProcess) -> frozenset[MigAccess]:
        minors = process.numbers(DeviceKind.MIG_CAPABILITY)
        if minors != process.mig_minors:
            # The driver numbers all of them, several thousand, when it is loaded (nv-caps.c). An unknown minor is of a
            # driver that was loaded again, or of a node without an instance (config, monitor): one read per cycle.
            if not cycle.mig_minors_are_current and not minors <= self._mig_minors.keys():
                self._read_mig_minors(cycle)
            process.mig_minors = minors
            process.mig_access = frozenset(self._mig_minors[minor] for minor in minors if minor in self._mig_minors)
        return process.mig_access

    def _read_mig_minors(self, cycle: Cycle) -> None:
        cycle.mig_minors_are_current = True
        try:
            self._mig_minors = self._reader.call(partial(read_mig_minors, self._root), cycle.deadline_s)
        except Unavailable:
            self._mig_minors = {}

    def _uvm_mapping_bytes(self, cycle: Cycle, record: ProcessRecord, process: TrackedProcess) -> int | None:
        if not process.has_uvm or process.is_measured:
            process.maps_ns = None
            return None
        maps = record.maps
        if maps is None:
            if record.fault is not None:
                return None
            if process.are_maps_due(self._intervals, cycle.now_ns):
                process.maps_ns = None  # the budget of the cycle is used up
            return process.uvm_mapping_bytes
        process.maps_cycle = cycle.number
        if maps.mapped_bytes is not None:
            process.maps_ns = staggered(process.pid, process.maps_ns, self._intervals.maps_ns, cycle.now_ns)
            process.maps_backoff = None
            return maps.mapped_bytes
        process.maps_ns = None
        if maps.read_bytes < self._reader.limits.maps_bytes_per_process:
            return process.uvm_mapping_bytes  # the budget of the cycle is used up
        process.pause_maps(cycle.now_ns)
        process.fault = Fault(UnreadableReason.TOO_LARGE, f"its maps are over {maps.read_bytes >> 20} MiB")
        return None

    def _workload(self, cycle: Cycle, record: ProcessRecord, process: TrackedProcess, stat: Stat) -> WorkloadRef:
        if record.cgroup is not None:
            process.cgroup_ns = staggered(process.pid, process.cgroup_ns, self._intervals.cgroup_ns, cycle.now_ns)
            if record.cgroup != process.cgroup:
                process.cgroup = record.cgroup
                # The workload persists: cgroup v1 moves a process to the root when it exits (kernel, cgroup_exit).
                process.workload = self._parse_workload(record.cgroup) or process.workload
        if process.workload is not None:
            return process.workload
        # In a private cgroup namespace, the root is the cgroup of the agent's own container (cgroup_namespaces(7)).
        is_root = is_root_cgroup(process.cgroup or "") and not stat.is_leader_exiting
        if is_root and not self.is_cgroup_namespace_private(cycle):
            return HOST_WORKLOAD
        return UNIDENTIFIED_WORKLOAD

    def is_cgroup_namespace_private(self, cycle: Cycle) -> bool:
        """Whether cgroup paths are relative to a cgroup namespace of the agent."""
        if cycle.cgroup_namespace_is_private is None:
            cycle.cgroup_namespace_is_private = cgroup_namespace_is_initial(self._root) is False
        return cycle.cgroup_namespace_is_private
