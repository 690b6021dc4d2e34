"""The processes that ``/proc`` lists, from cycle to cycle, and the order in which they are scanned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from otel_gpu.model import MigAccess, ProcessFacts, UnreadableReason, WorkloadRef
from otel_gpu.sources.backoff import Backoff
from otel_gpu.sources.proc.files import DeviceKind, DeviceNode, DeviceScan, FileId, Stat

S_NS: Final = 1_000_000_000
_SLACK_NS: Final = S_NS // 2
"""Cycles do not start exactly on time."""

YOUNG_NS: Final = 60 * S_NS
"""A process is scanned in every cycle for this long after it appeared: most open the GPU soon after their start."""

_STAGGER: Final = 8
_PROMPT_PER_ROUTINE: Final = 3
_FIRST_PAUSE_S: Final = 30.0
_MAX_PAUSE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ReadIntervals:
    """The time in nanoseconds after which a file of a process is read again; 0: in every cycle.

    Descriptors of a process that has a GPU open (a holder), descriptors of another one, mappings, and cgroup. Young
    processes are read in every cycle. A measured holder counts as another one: nothing is inferred from its files.
    """

    holder_fds_ns: int = 0
    other_fds_ns: int = 0
    maps_ns: int = 0
    cgroup_ns: int = 0


EVERY_CYCLE: Final = ReadIntervals()
STEADY: Final = ReadIntervals(holder_fds_ns=10 * S_NS, other_fds_ns=30 * S_NS, maps_ns=30 * S_NS, cgroup_ns=30 * S_NS)
"""For the agent. Opening files is most of the cost of ``/proc``, and most files do not change between two cycles."""


def is_due(read_ns: int | None, interval_ns: int, now_ns: int) -> bool:
    """Whether it is time to read a file again."""
    return read_ns is None or now_ns - read_ns >= interval_ns - _SLACK_NS


def staggered(pid: int, read_ns: int | None, interval_ns: int, now_ns: int) -> int:
    """The read time to record for a file that is read now, so that files of many processes are not due together.

    The time is now if the file was read on time. Else it is up to an interval earlier, depending on the pid.
    """
    if read_ns is not None and now_ns - read_ns < interval_ns + interval_ns // _STAGGER:
        return now_ns
    return now_ns - pid % _STAGGER * interval_ns // _STAGGER


class Fault(NamedTuple):
    """What could not be read of a process the last time. ``hides_devices``: its open devices are unknown."""

    reason: UnreadableReason
    detail: str
    hides_devices: bool = False


@dataclass(slots=True)
class TrackedProcess:
    """What is known of a listed process."""

    pid: int
    inode: int
    appeared_ns: int | None
    """When it was first listed; ``None`` if that was in the first listing."""
    start_ticks: int | None = None
    """``None`` until its stat was read."""
    confirmed: bool = False
    """Whether its stat was read since the inode of its directory last changed."""
    is_kernel_thread: bool = False
    name: str | None = None
    start_time_s: float | None = None
    cgroup: str | None = None
    """The text of its cgroup file, which is parsed again only if it changed."""
    workload: WorkloadRef | None = None
    mig_minors: frozenset[int] = frozenset()
    """The capability nodes that ``mig_access`` follows from."""
    mig_access: frozenset[MigAccess] = frozenset()
    uvm_mapping_bytes: int | None = None
    maps_cycle: int = -1
    """The number of the cycle in which its mappings were last read."""
    maps_ns: int | None = None
    """When its mappings were read; ``None`` if they are yet to be read."""
    fds_ns: int | None = None
    cgroup_ns: int | None = None
    facts: ProcessFacts | None = None
    """The facts last returned; ``None`` if it was neither asked for nor a holder."""
    settled_until_ns: int = 0
    """Until this time ``facts`` are returned without reading a file."""
    fault: Fault | None = None
    backoff: Backoff | None = None
    """The back-off after reads that did not return, and the time until which the process is not read."""
    not_before_ns: int = 0
    slow_reads: int = 0
    """How many of its last reads in a row were slow."""
    maps_backoff: Backoff | None = None
    """The same for mappings that are too large to read."""
    maps_not_before_ns: int = 0
    nodes: frozenset[DeviceNode] = frozenset()
    """Its open device nodes, from the last complete scan of its descriptors and the one in progress."""
    is_holder: bool = False
    """Whether it has a GPU open: more than the control node, which monitoring tools open too."""
    is_measured: bool = False
    """Whether the driver gives a figure for its memory. Then its mappings are of no interest."""
    cursor: int = 0
    """The descriptor with which the next slice begins; 0 if no scan is in progress."""
    _found: frozenset[DeviceNode] = frozenset()

    def add_scan(self, scan: DeviceScan) -> None:
        """Take in one slice of its descriptors. A node counts as closed after a complete scan without it."""
        self._found |= scan.nodes
        self.cursor = scan.cursor
        if scan.cursor == 0:
            self.nodes, self._found = self._found, frozenset()
        else:
            self.nodes |= self._found
        self.is_holder = any(node.kind is not DeviceKind.CONTROL for node in self.nodes)

    def set_measured(self, *, measured: bool) -> None:
        """Set whether it is measured. If that changed, its files are due."""
        if measured != self.is_measured:
            self.is_measured = measured
            self.settled_until_ns = 0

    def is_young(self, now_ns: int) -> bool:
        """Whether it appeared less than ``YOUNG_NS`` ago."""
        return self.appeared_ns is not None and now_ns - self.appeared_ns < YOUNG_NS

    def is_settled(self, now_ns: int) -> bool:
        """Whether it is the same process as before and none of its files is due."""
        return self.confirmed and now_ns < self.settled_until_ns

    def is_known_without_gpu(self, now_ns: int) -> bool:
        """Whether it is known to be an older process that had no GPU open and that was not asked for."""
        is_known = self.confirmed and self.start_ticks is not None and self.facts is None and self.fault is None
        return is_known and not self.nodes and self.cursor == 0 and not self.is_young(now_ns)

    def fds_interval_ns(self, intervals: ReadIntervals) -> int:
        """How often its descriptors are read."""
        return intervals.holder_fds_ns if self.is_holder and not self.is_measured else intervals.other_fds_ns

    def are_fds_due(self, intervals: ReadIntervals, now_ns: int) -> bool:
        """Whether to read its descriptors in this look. A look at a process without a GPU open is for these only."""
        if not self.is_holder or self.cursor != 0 or self.is_young(now_ns):
            return True
        return is_due(self.fds_ns, self.fds_interval_ns(intervals), now_ns)

    def are_maps_due(self, intervals: ReadIntervals, now_ns: int) -> bool:
        """Whether to read its mappings in this look.

        An address space of the same size may have other mappings: managed memory may replace a reservation.
        """
        if self.is_measured or now_ns < self.maps_not_before_ns:
            return False
        return is_due(self.maps_ns, self._until_next_look_ns(intervals.maps_ns, intervals), now_ns)

    def is_cgroup_due(self, intervals: ReadIntervals, now_ns: int) -> bool:
        """Whether to read its cgroup in this look."""
        if self.workload is None or self.is_young(now_ns):
            return True
        return is_due(self.cgroup_ns, self._until_next_look_ns(intervals.cgroup_ns, intervals), now_ns)

    def settle(self, intervals: ReadIntervals, now_ns: int) -> None:
        """Set the time of the next look after everything that was due was read."""
        is_complete = self.is_holder and self.cursor == 0 and self.facts is not None and self.fault is None
        is_identified = self.workload is not None and not self.is_young(now_ns)
        has_maps = self.is_measured or self.maps_ns is not None or not self.has_uvm
        self.settled_until_ns = 0
        if is_complete and is_identified and has_maps and self.fds_ns is not None:
            self.settled_until_ns = self.fds_ns + self.fds_interval_ns(intervals) - _SLACK_NS

    def pause(self, now_ns: int) -> None:
        """Do not read it for a while, longer each time."""
        self.backoff = self.backoff or Backoff(_MAX_PAUSE_S, _FIRST_PAUSE_S)
        self.not_before_ns = now_ns + round(self.backoff.failed() * S_NS)

    def pause_maps(self, now_ns: int) -> None:
        """Do not read its mappings for a while, longer each time."""
        self.maps_backoff = self.maps_backoff or Backoff(_MAX_PAUSE_S, _FIRST_PAUSE_S)
        self.maps_not_before_ns = now_ns + round(self.maps_backoff.failed() * S_NS)

    @property
    def has_uvm(self) -> bool:
        """Whether it has ``nvidia-uvm`` open, as every CUDA process has."""
        return any(node.kind is DeviceKind.UVM for node in self.nodes)

    @property
    def uvm_files(self) -> frozenset[FileId]:
        """The nodes whose mappings are managed memory."""
        return frozenset(node.file for node in self.nodes if node.file is not None)

    def numbers(self, kind: DeviceKind) -> frozenset[int]:
        """The numbers of its open nodes of this kind."""
        return frozenset(node.number for node in self.nodes if node.kind is kind and node.number is not None)

    def _until_next_look_ns(self, interval_ns: int, intervals: ReadIntervals) -> int:
        """The interval of a file that is only read in looks at the descriptors: it must not pass before the next."""
        return interval_ns - max(0, self.fds_interval_ns(intervals) - 2 * _SLACK_NS) if self.is_holder else interval_ns


class ProcessTable:
    """The listed processes, least recently scanned first."""

    def __init__(self) -> None:
        self._processes: dict[int, TrackedProcess] = {}
        self._listed: Mapping[int, int] | None = None

    def __iter__(self) -> Iterator[TrackedProcess]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def update(self, listed: Mapping[int, int], now_ns: int) -> None:
        """Take over a listing: pids and the inodes of their directories."""
        if listed == self._listed:
            return
        appeared_ns = None if self._listed is None else now_ns
        self._listed = listed
        for pid in self._processes.keys() - listed.keys():
            del self._processes[pid]
        for pid, inode in listed.items():
            process = self._processes.get(pid)
            if process is None:
                self._processes[pid] = TrackedProcess(pid, inode, appeared_ns)
            elif process.inode != inode:
                # Either the pid was reused, or procfs dropped the directory from its caches. Stat tells which.
                process.inode = inode
                process.confirmed = False
                process.not_before_ns = 0

    def get(self, pid: int) -> TrackedProcess | None:
        """The process, if it is listed."""
        return self._processes.get(pid)

    def identify(self, pid: int, stat: Stat, now_ns: int) -> TrackedProcess:
        """The process whose stat was read: a new one if the start time differs. It becomes the last to be scanned."""
        process = self._processes.pop(pid)
        if process.start_ticks not in {None, stat.start_ticks}:
            process = TrackedProcess(pid, process.inode, now_ns)
        process.start_ticks = stat.start_ticks
        process.is_kernel_thread = stat.is_kernel_thread
        process.confirmed = True
        process.fault = None
        self._processes[pid] = process
        return process

    def move_to_end(self, pid: int) -> TrackedProcess:
        """Make this process the last to be scanned."""
        process = self._processes[pid] = self._processes.pop(pid)
        return process

    def record_failure(self, pid: int, fault: Fault | None) -> TrackedProcess:
        """Record that a process could not be read, and make it the last to be scanned. No fault: it has ended."""
        process = self._processes.pop(pid)
        if not process.confirmed:
            process.facts = None  # of a process that may have ended
        process.confirmed = True
        process.fault = fault
        process.settled_until_ns = 0
        self._processes[pid] = process
        return process

    def to_scan(self, now_ns: int, intervals: ReadIntervals = EVERY_CYCLE) -> Iterator[TrackedProcess]:
        """Processes that may have opened a GPU, most urgent first.

        Unknown processes come first, then young ones, then all others that are due. One of the others comes after
        every three, so that a host that starts processes all the time does not stop the scan of the rest.
        """
        unknown: list[TrackedProcess] = []
        young: list[TrackedProcess] = []
        routine: list[TrackedProcess] = []
        # In every cycle for every process of the host, so ``is_young`` and ``is_due`` are written out.
        young_ns, due_ns = now_ns - YOUNG_NS, now_ns - intervals.other_fds_ns + _SLACK_NS
        for process in self._processes.values():
            if not process.confirmed:
                unknown.append(process)
            elif process.is_kernel_thread or process.is_holder:
                continue
            elif process.appeared_ns is not None and process.appeared_ns > young_ns:
                young.append(process)
            elif process.fds_ns is None or process.fds_ns <= due_ns or process.cursor != 0:
                routine.append(process)
        return _three_to_one(iter(unknown + young), iter(routine))


def _three_to_one(prompt: Iterator[TrackedProcess], routine: Iterator[TrackedProcess]) -> Iterator[TrackedProcess]:
    while batch := [*islice(prompt, _PROMPT_PER_ROUTINE), *islice(routine, 1)]:
        yield from batch
