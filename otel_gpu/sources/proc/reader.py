"""Read the files of processes on a thread, without waiting for a process whose files do not respond.

A read of ``/proc/<pid>/…`` may never return: it takes locks of the process (``mmap_lock``), and the ``stat`` of an open
file asks its file system, which may be a FUSE server of the process itself. Such a read is abandoned on its thread, and
another thread continues with the next process. What was read of the process before that is kept.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from otel_gpu.errors import Unavailable
from otel_gpu.model import UnreadableReason
from otel_gpu.sources.proc.cgroup import tenant
from otel_gpu.sources.proc.files import (
    DIRECTORY_FLAGS,
    DeviceKind,
    DeviceNode,
    DeviceScan,
    FileId,
    MapsRead,
    ProcessDir,
    Stat,
    is_root_cgroup,
    name_no_device,
    parse_btime,
    parse_majors,
    read_file,
)
from otel_gpu.sources.proc.table import Fault
from otel_gpu.sources.workers import Pending, TooLate, Worker

T = TypeVar("T")

STALL_S: Final = 0.25
"""A read of one process that takes longer is abandoned. Ordinary processes take less than a millisecond."""
MAX_ABANDONED: Final = 32
"""Reads that may be abandoned at a time, each with its thread. At this number no process is read."""
MAX_ABANDONED_BY_SCAN: Final = 24
"""At this number only processes on a GPU are read, so that processes without one cannot keep the agent from them."""
MAX_ABANDONED_PER_TENANT: Final = 4
"""Abandoned reads of processes of one container, or of one user outside of containers."""
MAX_ABANDONED_CALLS: Final = 4
"""Abandoned calls that are not about one process, such as the list of all."""
SLOW_S: Final = 0.05
"""A read that takes longer counts towards what a tenant may use of a cycle."""
_TENANT_S: Final = 0.25
_MANY_DESCRIPTORS: Final = 1024
_TENANT_PART: Final = 4
"""A tenant may use a quarter of the descriptors of a cycle, and ``_TENANT_S``, before others have been read."""

_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Wanted(NamedTuple):
    """What to read of one process.

    ``start_ticks`` is the start of the process that this is about; of another one everything is read. ``is_tracked``:
    it is on a GPU, so that its cgroup and mappings are of interest. ``is_without_gpu``: it had no GPU open; if it still
    has none, only its descriptors are read. ``is_measured``: its mappings are of no interest, else those of
    ``uvm_files`` are.
    """

    pid: int
    start_ticks: int | None = None
    is_tracked: bool = False
    is_measured: bool = False
    is_without_gpu: bool = False
    devices: bool = True
    cursor: int = 0
    uvm_files: frozenset[FileId] = frozenset()
    maps: bool = False
    cgroup: bool = False
    boot_time: bool = False


@dataclass(slots=True)
class ProcessRecord:
    """What was read of one process, filled while it is read. What is ``None`` was not read.

    ``fault`` is why the process, or one of its files, could not be read. ``is_gone``: it has ended.
    ``descriptors_without_gpu``: it still has no GPU open, and nothing else was read. ``is_postponed``: its tenant has
    used up its part of the cycle, and the process is read in a later one. ``took_s`` is how long the read took.
    """

    wanted: Wanted
    is_gone: bool = False
    is_postponed: bool = False
    took_s: float = 0.0
    fault: Fault | None = None
    descriptors_without_gpu: int | None = None
    owner_uid: int | None = None
    stat: Stat | None = None
    devices: DeviceScan | None = None
    cgroup: str | None = None
    maps: MapsRead | None = None
    boot_time_s: int | None = None


class Limits(NamedTuple):
    """How much one cycle reads. Directories of descriptors and descriptors count for untracked processes only."""

    processes: int
    descriptors: int
    descriptors_per_process: int
    maps_bytes: int
    maps_bytes_per_process: int


class Procfs(NamedTuple):
    """A procfs, the directory of device nodes, and the file with the major numbers of devices."""

    root: Path
    device_dir: str
    devices_file: Path


class ProcessReader:
    """Reads processes of one procfs."""

    def __init__(
        self,
        procfs: Procfs,
        limits: Limits,
        *,
        stall_s: float = STALL_S,
    ) -> None:
        self._procfs = procfs
        self.limits = limits
        self.devices_error: str | None = None
        """Why device nodes could not be verified in the last round that had any."""
        self._stall_s = stall_s
        self._worker = _new_worker()
        self._abandoned: dict[Pending[Any], _Abandoned] = {}

    @property
    def is_full(self) -> bool:
        """Whether too many reads have not returned to read all processes."""
        return len(self._abandoned) >= MAX_ABANDONED_BY_SCAN

    def stuck_pids(self) -> frozenset[int]:
        """Processes whose abandoned read has not returned. No second read is made of them."""
        self._abandoned = {pending: each for pending, each in self._abandoned.items() if not pending.finished}
        return frozenset(each.pid for each in self._abandoned.values() if each.pid is not None)

    def call(self, call: Callable[[], T], deadline_s: float) -> T:
        """Make another call on the thread. Raises Unavailable if it has no answer at ``deadline_s`` (monotonic)."""
        if sum(each.pid is None for each in self._abandoned.values()) >= MAX_ABANDONED_CALLS:
            raise Unavailable(f"{MAX_ABANDONED_CALLS} calls have not returned")
        pending = self._worker.start(call)
        try:
            return pending.result(deadline_s)
        except TooLate:
            self._abandon(pending, _Abandoned())
            raise

    def read(self, wanted: Sequence[Wanted], deadline_s: float) -> list[ProcessRecord]:
        """Read these processes in order, within the limits and until ``deadline_s`` (monotonic).

        Tracked processes come first. Raises Unavailable if the procfs cannot be opened.
        """
        budget = _Budget(self.limits)
        records: list[ProcessRecord] = []
        left = wanted
        while left and time.monotonic() < deadline_s:
            if len(self._abandoned) >= MAX_ABANDONED_BY_SCAN:
                left = [each for each in left if each.is_tracked]
            if not left or len(self._abandoned) >= MAX_ABANDONED:
                break
            round_ = _Round(self._procfs, left, budget, self._full_tenants())
            pending = self._worker.start(round_.run)
            try:
                self._wait(round_, pending, deadline_s)
            except TooLate:
                has_stalled = round_.stalled_s(time.monotonic()) >= self._stall_s
                current = round_.abandon()
                records += round_.records
                self._note_devices_error(round_)
                if current is None:
                    self._abandon(pending, _Abandoned())
                    break
                is_unlisted = current.devices is None
                self._abandon(pending, _Abandoned(current.wanted.pid, tenant_of(current), is_unlisted))
                if has_stalled:  # else only the time of the cycle is over
                    detail = f"no answer within {self._stall_s:g} s"
                    current.fault = Fault(UnreadableReason.TIMED_OUT, detail, hides_devices=is_unlisted)
                    records.append(current)
                left = left[len(round_.records) + 1 :]
            else:
                self._note_devices_error(round_)
                return records + round_.records
        return records

    def _note_devices_error(self, round_: _Round) -> None:
        if round_.majors is not None:
            self.devices_error = round_.devices_error

    def _wait(self, round_: _Round, pending: Pending[None], deadline_s: float) -> None:
        """Wait until the round is complete. Raises TooLate if one process takes too long, or all do."""
        while True:
            now_s = time.monotonic()
            try:
                return pending.result(min(deadline_s, now_s + self._stall_s))
            except TooLate:
                now_s = time.monotonic()
                if now_s >= deadline_s or round_.stalled_s(now_s) >= self._stall_s:
                    raise

    def _abandon(self, pending: Pending[Any], abandoned: _Abandoned) -> None:
        self._abandoned[pending] = abandoned
        self._worker.close()
        self._worker = _new_worker()

    def _full_tenants(self) -> _FullTenants:
        of_processes = [each for each in self._abandoned.values() if each.tenant is not None]
        unlisted = [each for each in of_processes if each.before_devices]
        return _FullTenants(_full(of_processes), _full(unlisted), is_any_abandoned=bool(self._abandoned))


def tenant_of(record: ProcessRecord) -> str:
    """The tenant that a process counts for."""
    return tenant(record.cgroup or "", record.owner_uid)


class _Abandoned(NamedTuple):
    """A read that has not returned: of which process and tenant, and whether it was to list the open devices."""

    pid: int | None = None
    tenant: str | None = None
    before_devices: bool = False


class _FullTenants(NamedTuple):
    """Tenants of which too many reads have not returned: all of them, and those that were to list open devices."""

    all_reads: frozenset[str]
    before_devices: frozenset[str]
    is_any_abandoned: bool


def _full(abandoned: Sequence[_Abandoned]) -> frozenset[str]:
    count = Counter(each.tenant for each in abandoned if each.tenant is not None)
    return frozenset(tenant for tenant, number in count.items() if number >= MAX_ABANDONED_PER_TENANT)


def _new_worker() -> Worker:
    return Worker("otel-gpu-procfs")


# ---------------------------------------------------------------------------- one round


class _Budget:
    """What is left of the limits in this cycle."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.maps_left_bytes = limits.maps_bytes
        self._processes_left = limits.processes
        self._descriptors_left = limits.descriptors
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._descriptors: Counter[str] = Counter()

    @property
    def has_heavy_tenants(self) -> bool:
        """Whether a tenant has used much of this cycle."""
        return bool(self._seconds or self._descriptors)

    def is_spent_by(self, tenant: str) -> bool:
        """Whether a tenant has used up its part of this cycle."""
        most = max(self.limits.descriptors // _TENANT_PART, self.limits.descriptors_per_process)
        return self._seconds.get(tenant, 0.0) >= _TENANT_S or self._descriptors[tenant] >= most

    def is_used_up(self, wanted: Wanted) -> bool:
        """Whether this process has to wait for the next cycle."""
        if wanted.is_tracked:
            return False
        return self._processes_left <= 0 or self._descriptors_left < self.limits.descriptors_per_process

    def charge(self, record: ProcessRecord) -> None:
        """Take off what was read. A process without descriptors counts as one descriptor."""
        if record.maps is not None:
            self.maps_left_bytes -= record.maps.read_bytes
        if record.took_s >= SLOW_S:
            self._seconds[tenant_of(record)] += record.took_s
        if record.wanted.is_tracked or record.is_postponed:
            return
        if record.devices is not None and record.devices.descriptors >= _MANY_DESCRIPTORS:
            self._descriptors[tenant_of(record)] += record.devices.descriptors
        if record.descriptors_without_gpu is not None:
            descriptors = record.descriptors_without_gpu
        elif record.devices is not None:
            descriptors = record.devices.descriptors
        else:
            self._descriptors_left -= 1
            return
        self._processes_left -= 1
        self._descriptors_left -= descriptors


class _Round:
    """Reads processes in order, on a thread. Once it is abandoned, nothing that it reads counts."""

    def __init__(
        self,
        procfs: Procfs,
        wanted: Sequence[Wanted],
        budget: _Budget,
        full_tenants: _FullTenants,
    ) -> None:
        self._procfs = procfs
        self._wanted = wanted
        self._budget = budget
        self._full_tenants = full_tenants
        self._boot_time_s: int | None = None
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._current: ProcessRecord | None = None
        self._started_s = 0.0
        self.records: list[ProcessRecord] = []
        self.majors: frozenset[int] | None = None
        """The majors of NVIDIA's devices; ``None`` while no descriptor names a device."""
        self.devices_error: str | None = None

    def run(self) -> None:
        """Read until everything wanted is read or the budget is used up. Raises Unavailable."""
        try:
            root_fd = os.open(self._procfs.root, DIRECTORY_FLAGS)
        except OSError as error:
            raise Unavailable(error.strerror or "cannot be opened") from None
        try:
            for wanted in self._wanted:
                if self._budget.is_used_up(wanted):
                    return
                record = ProcessRecord(wanted)
                with self._lock:
                    self._current, self._started_s = record, time.monotonic()
                self._read(root_fd, record)
                with self._lock:
                    if self._is_abandoned:
                        return
                    self._current = None
                    record.took_s = time.monotonic() - self._started_s
                    self.records.append(record)
                    self._budget.charge(record)
        finally:
            os.close(root_fd)

    def stalled_s(self, now_s: float) -> float:
        """How long the read in progress has taken."""
        with self._lock:
            return 0.0 if self._current is None else now_s - self._started_s

    def abandon(self) -> ProcessRecord | None:
        """Discard everything read from now on. Returns a copy of what was read of the process in progress."""
        with self._lock:
            self._is_abandoned = True
            return None if self._current is None else replace(self._current)

    # -- one process ----------------------------------------------------------------

    def _read(self, root_fd: int, record: ProcessRecord) -> None:
        wanted = record.wanted
        if wanted.is_without_gpu:
            try:
                limit = self._budget.limits.descriptors_per_process
                record.descriptors_without_gpu = name_no_device(root_fd, wanted.pid, limit, self._procfs.device_dir)
            except OSError:
                record.descriptors_without_gpu = None  # its stat tells whether it has ended
            if record.descriptors_without_gpu is not None:
                return
        try:
            with ProcessDir(root_fd, wanted.pid, self._procfs.device_dir) as directory:
                record.owner_uid = directory.owner_uid()
                if self._full_tenants.is_any_abandoned or self._budget.has_heavy_tenants:
                    self._read_cgroup(directory, record)
                    if self._budget.is_spent_by(tenant_of(record)):
                        record.is_postponed = True
                        return
                    if self._is_in(self._full_tenants.before_devices, record):
                        return
                stat = directory.stat()
                record.stat = stat
                thread = directory.living_thread(wanted.pid) if stat.is_leader_exiting else None
                if thread is None:
                    self._read_files(root_fd, directory, record, stat)
                else:
                    with thread:
                        self._read_files(root_fd, thread, record, stat)
        except OSError as error:
            record.fault = fault_of(error, UnreadableReason.HIDDEN)
            record.is_gone = record.fault is None

    def _read_files(self, root_fd: int, directory: ProcessDir, record: ProcessRecord, stat: Stat) -> None:
        """Read what is wanted; last what may wait for the process or for a file system of its user."""
        wanted = record.wanted
        is_same = stat.start_ticks == wanted.start_ticks
        named: Sequence[tuple[str, DeviceNode]] = ()
        if (wanted.devices or not is_same) and not stat.is_kernel_thread:
            limit = self._budget.limits.descriptors_per_process
            try:
                found = directory.named_devices(wanted.cursor if is_same else 0, limit)
            except OSError as error:
                # Unreadable descriptors are not closed: the result of the last scan persists.
                record.fault = denial_of(error, directory)
            else:
                named = found.nodes
                record.devices = DeviceScan(frozenset(), found.descriptors, found.cursor)
        is_of_interest = wanted.is_tracked or any(node.kind is not DeviceKind.CONTROL for _, node in named)
        is_heavy = record.devices is not None and record.devices.descriptors >= _MANY_DESCRIPTORS
        if record.cgroup is None and (named or is_heavy or (is_of_interest and (wanted.cgroup or not is_same))):
            self._read_cgroup(directory, record)
        if is_of_interest and (wanted.boot_time or not is_same):
            record.boot_time_s = self._read_boot_time(root_fd)
        if self._is_in(self._full_tenants.all_reads, record):
            return
        self._verify(directory, record, named)
        if is_of_interest and not wanted.is_measured and (wanted.maps or not is_same):
            self._read_maps(directory, record, wanted.uvm_files if is_same else frozenset())

    def _is_in(self, full_tenants: frozenset[str], record: ProcessRecord) -> bool:
        """Whether too many reads of its container or user have not returned."""
        if not full_tenants or tenant_of(record) not in full_tenants:
            return False
        detail = f"{MAX_ABANDONED_PER_TENANT} reads of its container or user have not returned"
        record.fault = Fault(UnreadableReason.TIMED_OUT, detail, hides_devices=record.devices is None)
        return True

    def _read_cgroup(self, directory: ProcessDir, record: ProcessRecord) -> None:
        try:
            text = directory.cgroup()
            # cgroup v1 moves a main thread to the root when it exits, and others may go on in their cgroup.
            if is_root_cgroup(text) and (thread := directory.living_thread(record.wanted.pid)) is not None:
                with thread:
                    text = thread.cgroup()
            record.cgroup = text
        except ProcessLookupError:
            raise  # it has ended: nothing that was read of it counts
        except OSError as error:
            record.cgroup, record.fault = "", fault_of(error, UnreadableReason.MALFORMED)

    def _verify(self, directory: ProcessDir, record: ProcessRecord, named: Sequence[tuple[str, DeviceNode]]) -> None:
        if not named or record.devices is None:
            return
        if self.majors is None:
            self.majors = self._read_majors()
        try:
            for descriptor, node in named:
                if (device := directory.verify(descriptor, node, self.majors)) is not None:
                    record.devices = record.devices._replace(nodes=record.devices.nodes | {device})
        except OSError as error:
            record.devices, record.fault = None, denial_of(error, directory)

    def _read_maps(self, directory: ProcessDir, record: ProcessRecord, known: frozenset[FileId]) -> None:
        nodes = frozenset() if record.devices is None else record.devices.nodes
        files = known | {node.file for node in nodes if node.file is not None}
        limit_bytes = min(self._budget.maps_left_bytes, self._budget.limits.maps_bytes_per_process)
        if not files or limit_bytes <= 0:
            return
        try:
            record.maps = directory.uvm_mapping_bytes(files, limit_bytes)
        except OSError as error:
            record.fault = denial_of(error, directory)

    def _read_majors(self) -> frozenset[int]:
        try:
            return parse_majors(read_file(os.fspath(self._procfs.devices_file)).decode("ascii", "replace"))
        except OSError as error:
            self.devices_error = f"{self._procfs.devices_file}: {error.strerror}"
            return frozenset()

    def _read_boot_time(self, root_fd: int) -> int | None:
        if self._boot_time_s is None:
            self._boot_time_s = read_boot_time(root_fd)
        return self._boot_time_s


def read_boot_time(root_fd: int) -> int | None:
    """When the machine booted, as Unix time."""
    try:
        return parse_btime(read_file("stat", root_fd))
    except OSError:
        return None


# ---------------------------------------------------------------------------- errors


def fault_of(error: OSError, denied: UnreadableReason) -> Fault | None:
    """The fault behind an error: ``None`` if the process has ended, ``denied`` if the kernel refuses.

    Raises Unavailable if the agent itself lacks descriptors or memory, not the process.
    """
    if error.errno in _GONE:
        return None
    if error.errno in _OUT_OF_RESOURCES:
        raise Unavailable(f"{error.strerror}") from None
    kind = denied if error.errno in _DENIED else UnreadableReason.MALFORMED
    return Fault(kind, error.strerror or "input/output error", hides_devices=error.errno in _DENIED)


def denial_of(error: OSError, directory: ProcessDir) -> Fault | None:
    """The fault behind unreadable descriptors or mappings; ``None`` if the process is exiting, which looks the same."""
    fault = fault_of(error, UnreadableReason.DENIED)
    if fault is None or fault.reason is not UnreadableReason.DENIED:
        return fault
    try:
        return None if directory.stat().is_exiting else fault
    except OSError as gone:
        return None if gone.errno in _GONE else fault
