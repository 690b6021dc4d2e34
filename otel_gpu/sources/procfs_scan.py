"""Whom to look at under ``/proc``: what is remembered of each process, and in which order the scan visits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from otel_gpu.model import MigAccess, ProcessFacts, WorkloadRef
from otel_gpu.sources.procfs_files import DeviceKind, DeviceNode, DeviceScan, FileMark, Stat

S_NS: Final = 1_000_000_000
_SLACK_NS: Final = S_NS // 2
YOUNG_NS: Final = 60 * S_NS
"""How long a process that appeared is looked at often: this long after its start most have opened the GPU."""

_TURNS: Final = 8
_PROMPT_PER_SETTLED: Final = 3
_UVM: Final = DeviceNode(DeviceKind.UVM)


@dataclass(frozen=True, slots=True)
class Pace:
    """After what time, in nanoseconds, files of a process are read again that change rarely; 0: in every cycle.

    Its descriptors, if it has a GPU open, and if it has none; its mappings; its cgroup; its stat, if the file is still
    that of the same process. Descriptors and mappings of one that has not run since: as seldom as ``asleep_ns`` says,
    for the kernel lets others change them (clone(2), CLONE_FILES and CLONE_VM; seccomp_unotify(2)), and next to nobody
    does. The young are always looked at.
    """

    holder_ns: int = 0
    settled_ns: int = 0
    maps_ns: int = 0
    cgroup_ns: int = 0
    stat_ns: int = 0
    asleep_ns: int = 0


EVERY_CYCLE: Final = Pace()
STEADY: Final = Pace(
    holder_ns=10 * S_NS,
    settled_ns=30 * S_NS,
    maps_ns=30 * S_NS,
    cgroup_ns=30 * S_NS,
    stat_ns=10 * S_NS,
    asleep_ns=300 * S_NS,
)
"""For an agent, whose cycles may be short: most of what /proc costs is opening files that say what they said before."""


def is_due(read_ns: int | None, pace_ns: int, now_ns: int) -> bool:
    """Whether it is time to read again what was read then; cycles do not come to the millisecond."""
    return read_ns is None or now_ns - read_ns >= pace_ns - _SLACK_NS


def stamp(pid: int, read_ns: int | None, pace_ns: int, now_ns: int) -> int:
    """When to say that a file was read which is read now: earlier for some, so that not all are due again at once.

    Each process has its turn within the pace, and keeps it; it takes it anew where it was not read in time.
    """
    if read_ns is not None and now_ns - read_ns < pace_ns + pace_ns // _TURNS:
        return now_ns
    return now_ns - pid % _TURNS * pace_ns // _TURNS


class FaultKind(StrEnum):
    """Which part of a process could not be read."""

    HIDDEN = "hidden"
    """Not even its stat, which the kernel shows to everybody unless it is mounted with hidepid."""
    DENIED = "denied"
    """Its open files or mappings, which need the right to trace it (ptrace(2), PTRACE_MODE_READ)."""
    BROKEN = "broken"
    """Something that did not answer as procfs does."""


class Fault(NamedTuple):
    """What could not be read of a process at the last look, and what the system said."""

    kind: FaultKind
    detail: str


@dataclass(slots=True)
class TrackedProcess:
    """What is remembered of one process for as long as it is listed."""

    pid: int
    inode: int
    appeared_ns: int | None
    """When it was first listed; ``None`` for those that were there before us."""
    start_ticks: int | None = None
    """``None`` until it was looked at."""
    confirmed: bool = False
    """Whether it was looked at since its directory last changed."""
    mark: FileMark | None = None
    """Which stat file it was that said so."""
    stat_text: bytes = b""
    """And what that said."""
    stat_ns: int | None = None
    """When it was read."""
    is_kernel_thread: bool = False
    name: str | None = None
    start_time_s: float | None = None
    cgroup: str | None = None
    """The text of its cgroup file, so that it is parsed again only when it changed."""
    workload: WorkloadRef | None = None
    mig_minors: frozenset[int] = frozenset()
    """The capability nodes that ``mig_access`` was told from, so that it is told again only when they changed."""
    mig_access: frozenset[MigAccess] = frozenset()
    uvm_mapping_bytes: int | None = None
    maps_cycle: int = -1
    """The cycle in which its maps were last read."""
    maps_ns: int | None = None
    """When they were, and its descriptors and cgroup; ``None`` before that."""
    looked_ns: int | None = None
    cgroup_ns: int | None = None
    cpu_ns: int | None = None
    """How long it has run, asked before anything else of it in a cycle; ``None`` if that cannot be told."""
    maps_cpu_ns: int | None = None
    """How long it had run when its maps were read, and its descriptors, and when it was told of."""
    looked_cpu_ns: int | None = None
    told_cpu_ns: int | None = None
    ahead_ns: int = 0
    """How much sooner its maps and its cgroup are due in this look."""
    turn_ns: int | None = None
    """When the scan had it last: it looked at its descriptors, or saw that it had not run since it did."""
    facts: ProcessFacts | None = None
    """What was told of it last."""
    settled_until_ns: int = 0
    """Until when nothing of it is due, so that what was told of it stands while it is the same process."""
    asleep_until_ns: int = 0
    """Until when nothing is due of what it has to run for to change it: all but its cgroup, which others put it in."""
    cgroup_until_ns: int = 0
    fault: Fault | None = None
    nodes: frozenset[DeviceNode] = frozenset()
    """The device nodes it has open, by the last complete look at its descriptors and the one under way."""
    is_holder: bool = False
    """Whether it has more of a GPU open than the control node, which monitors open too."""
    cursor: int = 0
    """Where the next look at its descriptors begins."""
    _found: frozenset[DeviceNode] = frozenset()

    def saw(self, scan: DeviceScan) -> None:
        """Book one look at its descriptors; a node counts as closed only after a complete one without it."""
        self._found |= scan.nodes
        self.cursor = scan.cursor
        if scan.cursor == 0:
            self.nodes, self._found = self._found, frozenset()
        else:
            self.nodes |= self._found
        self.is_holder = any(node.kind is not DeviceKind.CONTROL for node in self.nodes)

    def is_young(self, now_ns: int) -> bool:
        """Whether it appeared only lately."""
        return self.appeared_ns is not None and now_ns - self.appeared_ns < YOUNG_NS

    def has_been_nobody(self, now_ns: int) -> bool:
        """Whether all that was ever seen of it is that it has no GPU open, and that a while ago."""
        known = self.confirmed and self.start_ticks is not None and self.facts is None and self.fault is None
        return known and not self.nodes and self.cursor == 0 and not self.is_young(now_ns)

    def are_devices_due(self, pace: Pace, now_ns: int) -> bool:
        """Whether it is time to read its descriptors."""
        is_under_way = self.cursor != 0 or self.is_young(now_ns)
        return is_under_way or is_due(self.looked_ns, self._devices_pace_ns(pace, self.cpu_ns), now_ns)

    def are_maps_due(self, pace: Pace, now_ns: int) -> bool:
        """Whether it is time to read its mappings. The size of its address space does not tell that they are others:
        managed memory may be mapped over what was reserved for it before.
        """
        return is_due(self.maps_ns, self._maps_pace_ns(pace, self.cpu_ns) - self.ahead_ns, now_ns)

    def is_cgroup_due(self, pace: Pace, now_ns: int) -> bool:
        """Whether it is time to read its cgroup."""
        return is_due(self.cgroup_ns, pace.cgroup_ns - self.ahead_ns, now_ns)

    def look_ahead(self, pace: Pace) -> None:
        """Have what would be due before its descriptors are read again be read with them: a look costs more than what
        is read in it. Where it is read with every third look, it stays so.
        """
        self.ahead_ns = max(0, pace.holder_ns - 2 * _SLACK_NS) if self.is_holder else 0

    def settle(self, pace: Pace, now_ns: int) -> None:
        """Find out until when nothing of it is due; of most processes this is asked more often than it changes."""
        self.settled_until_ns = self.asleep_until_ns = 0
        self.told_cpu_ns = self.cpu_ns
        is_news = self.cursor != 0 or self.is_young(now_ns) or self.facts is None or self.fault is not None
        if is_news or self.cgroup_ns is None:
            return
        self.cgroup_until_ns = self.cgroup_ns + pace.cgroup_ns - _SLACK_NS
        self.settled_until_ns = min(self._until_ns(pace, None), self.cgroup_until_ns)
        self.asleep_until_ns = self._until_ns(pace, self.cpu_ns)

    def is_asleep(self, now_ns: int) -> bool:
        """Whether it has not run since it was told of, and nothing of its own is due: it is the same, and as it was."""
        has_not_run = self.cpu_ns is not None and self.cpu_ns == self.told_cpu_ns
        return has_not_run and now_ns < self.asleep_until_ns and self.confirmed

    def _until_ns(self, pace: Pace, cpu_ns: int | None) -> int:
        """Until when neither its descriptors nor its mappings are due, if it has run so long and no longer."""
        if self.looked_ns is None:
            return 0
        until_ns = self.looked_ns + self._devices_pace_ns(pace, cpu_ns)
        if _UVM in self.nodes:
            until_ns = 0 if self.maps_ns is None else min(until_ns, self.maps_ns + self._maps_pace_ns(pace, cpu_ns))
        return until_ns - _SLACK_NS

    def _devices_pace_ns(self, pace: Pace, cpu_ns: int | None) -> int:
        """A holder's descriptors are read now and then; who is no holder is only looked at to read them."""
        if cpu_ns is not None and cpu_ns == self.looked_cpu_ns:
            return pace.asleep_ns
        return pace.holder_ns if self.is_holder else 0

    def _maps_pace_ns(self, pace: Pace, cpu_ns: int | None) -> int:
        return pace.asleep_ns if cpu_ns is not None and cpu_ns == self.maps_cpu_ns else pace.maps_ns

    def numbers(self, kind: DeviceKind) -> frozenset[int]:
        """The numbers of its open nodes of this kind."""
        return frozenset(node.number for node in self.nodes if node.kind is kind and node.number is not None)


class ProcessTable:
    """Every listed process, least recently scanned first. Its size is that of the last listing."""

    def __init__(self) -> None:
        self._processes: dict[int, TrackedProcess] = {}
        self._listed: Mapping[int, int] | None = None
        self._started = False
        self._no_turn: tuple[Pace, int] | None = None
        """At which pace until when it is nobody's turn to be scanned, as long as nobody comes or is looked at."""
        self.changes = 0
        """How often anybody came, went, was looked at or is to be: while it is the same, so is all but whom the scan
        has passed by."""

    def __iter__(self) -> Iterator[TrackedProcess]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def get(self, pid: int) -> TrackedProcess | None:
        """What is remembered of a listed pid."""
        return self._processes.get(pid)

    def update(self, listed: Mapping[int, int], now_ns: int) -> None:
        """Forget who is gone, take in who came. ``listed``: pid to inode."""
        if listed is self._listed or listed == self._listed:
            return
        self._listed = listed
        self._changed()
        for pid in self._processes.keys() - listed.keys():
            del self._processes[pid]
        for pid, inode in listed.items():
            process = self._processes.get(pid)
            if process is None:
                self._processes[pid] = TrackedProcess(pid, inode, now_ns if self._started else None)
            elif process.inode != inode:
                # A directory's inode belongs to one process; procfs may give that process another inode after
                # dropping it from its caches. So a change is a hint that the pid was reused, at no cost.
                process.inode = inode
                process.confirmed = False
        self._started = True

    def identify(
        self, pid: int, stat: Stat, now_ns: int, mark: FileMark | None = None, text: bytes = b""
    ) -> TrackedProcess:
        """The process that a stat read just now speaks of: a new one if the pid's start is another.

        ``mark`` is that of the file, from before it was read, and ``text`` what it said.
        """
        self._changed()
        process = self._processes.pop(pid)
        if process.start_ticks not in {None, stat.start_ticks}:
            process = TrackedProcess(pid, process.inode, now_ns, cpu_ns=process.cpu_ns)
        process.start_ticks = stat.start_ticks
        process.is_kernel_thread = stat.is_kernel_thread
        process.mark, process.stat_text, process.stat_ns = mark, text, now_ns
        process.confirmed = True
        process.fault = None
        self._processes[pid] = process  # now the most recently scanned
        return process

    def passed(self, process: TrackedProcess) -> None:
        """Book that nobody needs to ask who somebody is; the next look waits its turn."""
        self._no_turn = None
        self._processes[process.pid] = self._processes.pop(process.pid)  # now the most recently scanned

    def failed(self, pid: int, fault: Fault | None) -> None:
        """Book a look that came to nothing; the next one waits its turn. No fault: the process just ended."""
        self._changed()
        process = self._processes.pop(pid)
        process.confirmed = True
        process.fault = fault
        process.settled_until_ns = process.asleep_until_ns = 0
        self._processes[pid] = process

    def disturb(self, pid: int) -> None:
        """Have a process looked at in full when it is asked for next."""
        process = self._processes.get(pid)
        if process is not None:
            self._changed()
            process.settled_until_ns = process.asleep_until_ns = 0

    def to_scan(self, now_ns: int, pace: Pace = EVERY_CYCLE) -> Iterator[TrackedProcess]:
        """Processes that may have opened a GPU unnoticed and whose turn it is, most urgent first.

        Those never looked at, then the young ones, then all others; one of the others after every three, so
        that a host that starts processes all the time does not keep the scan from coming round.
        """
        if self._no_turn is not None and self._no_turn[0] is pace and now_ns < self._no_turn[1]:
            return iter(())
        unknown: list[TrackedProcess] = []
        young: list[TrackedProcess] = []
        settled: list[TrackedProcess] = []
        # Everybody on the host passes here in every cycle: ``is_young`` and ``is_due``, without calling them.
        young_ns, due_ns = now_ns - YOUNG_NS, now_ns - pace.settled_ns + _SLACK_NS
        for process in self._processes.values():
            if not process.confirmed:
                unknown.append(process)
            elif process.is_kernel_thread or process.is_holder:
                continue
            elif process.appeared_ns is not None and process.appeared_ns > young_ns:
                young.append(process)
            elif process.turn_ns is None or process.turn_ns <= due_ns or process.cursor != 0:
                settled.append(process)
        if not (unknown or young or settled):
            self._no_turn = pace, self._next_turn_ns(pace)
        return _three_to_one(iter(unknown + young), iter(settled))

    def _next_turn_ns(self, pace: Pace) -> int:
        """When it is anybody's turn, who are all confirmed, and none of them young."""
        turns = (
            process.turn_ns
            for process in self._processes.values()
            if process.turn_ns is not None and not process.is_kernel_thread and not process.is_holder
        )
        return min(turns, default=0) + pace.settled_ns - _SLACK_NS

    def _changed(self) -> None:
        self.changes += 1
        self._no_turn = None


def _three_to_one(prompt: Iterator[TrackedProcess], settled: Iterator[TrackedProcess]) -> Iterator[TrackedProcess]:
    while batch := [*islice(prompt, _PROMPT_PER_SETTLED), *islice(settled, 1)]:
        yield from batch
