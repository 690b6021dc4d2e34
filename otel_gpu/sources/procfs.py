"""Processes as ``/proc`` shows them: the pids asked for, and whoever else has a GPU's device node open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.model import (
    NO_PROCESSES,
    ProcessFacts,
    SourceState,
    WorkloadRef,
)
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.cgroup import parse_cgroup
from otel_gpu.sources.cpuclock import CpuClock, cpu_clock_for, cpu_time_ns, not_told
from otel_gpu.sources.procfs_facts import FactsReader, Pass, denial, fault_of
from otel_gpu.sources.procfs_files import (
    DEVICE_DIR,
    DIRECTORY_FLAGS,
    DeviceKind,
    DeviceNode,
    Listing,
    ProcessDir,
    checked_stat,
    few_devices,
    read_cgroup,
    read_stat,
    stat_mark,
)
from otel_gpu.sources.procfs_known import Known
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
from otel_gpu.sources.vigil import Vigil, most_to_watch

PROCESSES_PER_CYCLE: Final = 256
DESCRIPTORS_PER_CYCLE: Final = 16_384
DESCRIPTORS_PER_PROCESS: Final = 4_096
MAPS_BYTES_PER_CYCLE: Final = 16 << 20
OWN_PROC: Final = Path("/proc")

_UVM: Final = DeviceNode(DeviceKind.UVM)
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


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
    ``cpu_clock`` tells how long whoever has a pid in ``root`` has run, and ``vigil`` who of them has ended; by default
    the kernel does, where it can mean them.
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
        cpu_clock: CpuClock | None = None,
        vigil: Vigil | None = None,
    ) -> None:
        self._root = root
        self._clock = clock
        self._outlook = Outlook(root, own_proc, in_pod=in_pod)
        self._facts = FactsReader(root, parse_workload, ticks_per_second or os.sysconf("SC_CLK_TCK"), pace)
        self._device_dir = device_dir
        self._processes_per_cycle = processes_per_cycle
        self._descriptors_per_cycle = descriptors_per_cycle
        self._descriptors_per_process = min(descriptors_per_process, descriptors_per_cycle)
        self._maps_bytes_per_cycle = maps_bytes_per_cycle
        self._pace = pace
        self._given_clock, self._given_vigil = cpu_clock, vigil
        self._listing = Listing()
        self._table = ProcessTable()
        self._known: Known | None = None
        self._faults: tuple[int, list[Fault]] = (-1, [])
        self._told: Mapping[int, ProcessFacts] = NO_PROCESSES
        self._cycle = 0

    @cached_property
    def _cpu_clock(self) -> CpuClock:
        if self._pace.asleep_ns == 0:  # everything is read in every cycle, whoever ran
            return not_told
        return self._given_clock or cpu_clock_for(self._root)

    @cached_property
    def _vigil(self) -> Vigil:
        if self._given_vigil is not None:
            return self._given_vigil
        return Vigil(most_to_watch() if self._cpu_clock is cpu_time_ns else 0)

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
        this = Pass(root_fd, self._clock.monotonic_ns(), self._cycle, self._maps_bytes_per_cycle)
        listed = self._listing.read(root_fd)
        if self._facts.boot_time_s is None or not listed:
            self._facts.read_boot_time(this)
        if self._facts.boot_time_s is None and not listed:
            return self._unavailable("no process and no boot time in it")
        self._table.update(listed, this.now_ns)
        for pid in self._vigil.ended():
            self._table.disturb(pid)
        known = self._who_is_known(frozenset(pids))
        all_asleep = self._read_known(this, known)
        self._scan(this, known.pids)
        missed = Missed(
            faults=self._current_faults(),
            init=1 not in listed,
            untold=this.untold,
            in_own_cgroups=this.untold > 0 and self._facts.is_cgroup_namespace_private(this),
            start_times=self._facts.boot_time_s is None,
        )
        reasons = self._outlook.reasons(missed, root_fd)
        if all_asleep:
            self._tell(known.told if not this.facts else {**known.told, **this.facts})
        else:
            self._tell(this.facts)
            known.remember(self._told)
        return ProcessRead(
            self._told,
            SourceState.DEGRADED if reasons else SourceState.OK,
            "; ".join(reasons) or None,
            len(reasons),
            pids_complete=self._outlook.are_pids_complete,
            pids_are_own=self._outlook.are_pids_own,
            all_visible=self._outlook.shows_everybody(missed),
        )

    def _tell(self, facts: Mapping[int, ProcessFacts]) -> None:
        if facts is not self._told and facts != self._told:
            self._told = MappingProxyType(dict(facts))

    def _who_is_known(self, asked: frozenset[int]) -> Known:
        if self._known is None or not self._known.stands(asked):
            self._known = Known(self._table, asked, self._cpu_clock)
        return self._known

    def _read_known(self, this: Pass, known: Known) -> bool:
        """Tell of those who are known. True if nothing was done, as all of them sleep: what was told stands."""
        cpu_ns = known.clocks.read()
        if known.are_asleep(cpu_ns, this.now_ns):
            return True
        awake: list[TrackedProcess] = []
        for process, ran_ns in zip(known.processes, cpu_ns, strict=True):
            process.cpu_ns = ran_ns
            # Who is settled has no cgroup due, so that the order of the two questions does not matter.
            if process.facts is not None and (self._is_settled(this, process) or self._is_asleep(this, process)):
                this.facts[process.pid] = process.facts
            else:
                awake.append(process)
        awake.sort(key=lambda process: process.maps_cycle)
        for process in awake:
            self._look(this, process, asked=process.pid in known.asked)
        return False

    def _is_settled(self, this: Pass, process: TrackedProcess) -> bool:
        """Whether a process that is known not to have ended has run, and nothing of it is due all the same."""
        return this.now_ns < process.settled_until_ns and process.pid in self._vigil

    def _is_asleep(self, this: Pass, process: TrackedProcess) -> bool:
        """Whether a process has not run since it was told of, and nobody has put it elsewhere."""
        if not process.is_asleep(this.now_ns):
            return False
        if this.now_ns < process.cgroup_until_ns:
            return True
        try:
            text = read_cgroup(f"{process.pid}/cgroup", this.root_fd)
        except OSError:
            return False
        if text != process.cgroup or self._cpu_clock(process.pid) != process.cpu_ns:  # it is no longer the same
            return False
        process.cgroup_ns = stamp(process.pid, process.cgroup_ns, self._pace.cgroup_ns, this.now_ns)
        process.settle(self._pace, this.now_ns)
        return True

    def _scan(self, this: Pass, known: frozenset[int]) -> None:
        this.directories = this.descriptors = 0
        for process in self._table.to_scan(this.now_ns, self._pace):
            if this.directories >= self._processes_per_cycle:
                return
            if this.descriptors + self._descriptors_per_process > self._descriptors_per_cycle:
                return
            if process.pid not in known:
                process.cpu_ns = self._cpu_clock(process.pid)
                if not self._is_still_nobody(this, process):
                    self._look(this, process, asked=False)

    def _is_still_nobody(self, this: Pass, process: TrackedProcess) -> bool:
        """Whether one who never had a GPU open has none now either: then nobody asks who it is."""
        if not process.has_been_nobody(this.now_ns):
            return False
        if process.are_devices_due(self._pace, this.now_ns):
            try:
                scan = few_devices(this.root_fd, process.pid, self._descriptors_per_process, self._device_dir)
            except OSError:
                return False
            if scan is None or scan.nodes:
                return False
            this.directories += 1
            this.descriptors += scan.descriptors
            process.saw(scan)
            process.looked_ns, process.looked_cpu_ns = this.now_ns, process.cpu_ns
        else:
            this.descriptors += 1
        process.turn_ns = stamp(process.pid, process.turn_ns, self._pace.settled_ns, this.now_ns)
        self._table.passed(process)
        return True

    def _is_as_it_was(self, this: Pass, process: TrackedProcess) -> bool:
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

    def _look(self, this: Pass, process: TrackedProcess, *, asked: bool) -> None:
        pid = process.pid
        try:
            if self._is_as_it_was(this, process):
                return
            had_fault = process.fault is not None
            if process.is_holder and process.facts is not None and process.facts.alive:
                self._vigil.watch(pid)  # before its stat says who that is
            with ProcessDir(this.root_fd, pid, self._device_dir) as directory:
                mark, text = directory.stat()
                stat = checked_stat(text)
                process = self._table.identify(pid, stat, this.now_ns, mark, text)
                process.ahead_ns = 0
                if had_fault or process.are_devices_due(self._pace, this.now_ns):
                    self._look_for_devices(this, directory, process)
                    process.look_ahead(self._pace)
                told, process.facts = process.facts, None
                if asked or process.is_holder:
                    facts = self._facts.facts(this, directory, process, stat)
                    process.facts = this.facts[pid] = told if facts == told and told is not None else facts
                process.settle(self._pace, this.now_ns)
        except OSError as error:
            this.descriptors += 1
            self._table.failed(pid, fault_of(error, FaultKind.HIDDEN))

    def _look_for_devices(self, this: Pass, directory: ProcessDir, process: TrackedProcess) -> None:
        if process.is_kernel_thread:
            this.descriptors += 1
            return
        this.directories += 1
        pace_ns = self._pace.holder_ns if process.is_holder else self._pace.settled_ns
        process.looked_ns = stamp(process.pid, process.looked_ns, pace_ns, this.now_ns)
        process.turn_ns = stamp(process.pid, process.turn_ns, self._pace.settled_ns, this.now_ns)
        process.looked_cpu_ns = None
        try:
            scan = directory.devices(process.cursor, self._descriptors_per_process)
        except OSError as error:
            # Not readable is not closed: what the last look found stands.
            process.fault = denial(error, directory)
        else:
            this.descriptors += scan.descriptors
            process.looked_cpu_ns = process.cpu_ns
            process.saw(scan)

    def _current_faults(self) -> list[Fault]:
        changes, faults = self._faults
        if changes != self._table.changes:
            # Init is guarded more closely than others in sandboxes, and never uses a GPU: its refusal means nothing.
            faults = [
                process.fault
                for process in self._table
                if process.fault is not None and not (process.pid == 1 and process.fault.kind is FaultKind.DENIED)
            ]
            self._faults = self._table.changes, faults
        return faults

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
            all_visible=False,
        )
