"""Post what one cycle showed of a GPU to the ledger: work, energy, time, and departures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from otel_gpu.attribution.accounts import Account, AnyAccount
from otel_gpu.attribution.activity import ActivityTracker, StateTime
from otel_gpu.attribution.cost import billed_us
from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.energy import Division, Method
from otel_gpu.attribution.gpu import GpuResult
from otel_gpu.attribution.keys import AccountKey, DeviceKey, ProcessOnDevice, WorkloadAccountKey
from otel_gpu.attribution.ledger import GRACE_NS, Ledger
from otel_gpu.attribution.residents import Resident, ShortLivedProcess, ShortLivedProcesses
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    GpuState,
    Grant,
    MethodEnergy,
    ProcessKey,
    workload_state,
)
from otel_gpu.model.report import NO_ENERGY


class ResidentFigures(NamedTuple):
    """What a process on the GPU holds, and its utilisation. ``held_bytes`` includes inferred memory."""

    pid: int
    memory_bytes: int | None
    held_bytes: int | None
    sm_ratio: float | None
    bandwidth_ratio: float | None


@dataclass(slots=True, eq=False)
class Usage:
    """What one account used of a GPU in one cycle.

    ``pids`` are its residents: processes in the driver's lists or otherwise found on the GPU. ``has_missing`` says that
    the ledger has a process of the workload on the GPU that was not found. ``held_bytes`` includes inferred memory.
    """

    account: AnyAccount
    pids: set[int] = field(default_factory=set)
    has_missing: bool = False
    processes: list[tuple[ProcessOnDevice, Usage]] = field(default_factory=list)
    """The processes of a workload on the GPU, each with the usage of its account; empty for a process."""
    energy_by_method_mj: dict[Method, int] = field(default_factory=dict)
    """Energy of this window; empty where the account had no part in a division."""
    billed_us: int = 0
    memory_bytes: int | None = None
    held_bytes: int | None = None
    sm_ratio: float | None = None
    bandwidth_ratio: float | None = None
    state: GpuState | None = None
    idle_s: float | None = None

    @property
    def is_present(self) -> bool:
        """Whether any process of it is on the GPU."""
        return bool(self.pids) or self.has_missing

    @property
    def energy_mj(self) -> int:
        """Energy of this window by all methods."""
        return sum(self.energy_by_method_mj.values())

    @property
    def energy(self) -> MethodEnergy:
        """Energy of this window by method; no figures where the account had no part in a division."""
        parts_mj = self.energy_by_method_mj
        if not parts_mj:
            return NO_ENERGY
        return MethodEnergy(
            parts_mj.get(Method.MEASURED, 0), parts_mj.get(Method.ESTIMATED, 0), parts_mj.get(Method.INFERRED, 0)
        )

    def add_resident(self, resident: ResidentFigures) -> None:
        """Add a process of it on the GPU."""
        is_first = not self.pids
        self.pids.add(resident.pid)
        if is_first:
            _, self.memory_bytes, self.held_bytes, self.sm_ratio, self.bandwidth_ratio = resident
            return
        self.memory_bytes = _sum_known(self.memory_bytes, resident.memory_bytes)
        self.held_bytes = _sum_known(self.held_bytes, resident.held_bytes)
        self.sm_ratio = _sum_known(self.sm_ratio, resident.sm_ratio)
        self.bandwidth_ratio = _sum_known(self.bandwidth_ratio, resident.bandwidth_ratio)


Usages = dict[AnyAccount, Usage]
Figure = TypeVar("Figure", int, float)


def _sum_known(first: Figure | None, second: Figure | None) -> Figure | None:
    """The sum of the figures that are known; ``None`` if none is."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


class Posting(NamedTuple):
    """What was posted for one GPU: a usage for each account with a part in the cycle, and the processes that left."""

    usages: Mapping[AnyAccount, Usage]
    departed: frozenset[ProcessOnDevice] = frozenset()


def post(ledger: Ledger, result: GpuResult, cycle: Cycle, short_lived: ShortLivedProcesses) -> Posting:
    """Post a GPU's cycle."""
    usages: Usages = {}
    uuid = result.reading.identity.uuid
    _post_work(ledger, result, cycle)
    for process in result.short_lived:
        _post_short_lived(ledger, uuid, process, cycle)
        _end(ledger, ProcessOnDevice(ProcessKey(process.pid, START_UNKNOWN), DeviceKey(uuid, "")), cycle, short_lived)
    if result.division is not None:
        _post_energy(ledger, uuid, result.division, usages, cycle)
    departed = _departed(ledger, uuid, result, cycle)
    for at in departed:
        _end(ledger, at, cycle, short_lived)
    _post_time(ledger, uuid, result, usages, cycle)
    return Posting(usages, frozenset(departed))


def post_silence(ledger: Ledger, gpu_uuid: str, cycle: Cycle, short_lived: ShortLivedProcesses) -> Posting:
    """Post a cycle in which a GPU did not answer: running processes may still be on it."""
    usages: Usages = {}
    for at in _departed(ledger, gpu_uuid, None, cycle):
        _end(ledger, at, cycle, short_lived)
    _post_time(ledger, gpu_uuid, None, usages, cycle)
    return Posting(usages)


def admit_unused_grants(ledger: Ledger, gpu_uuid: str, cycle: Cycle) -> dict[Account[WorkloadAccountKey], Grant]:
    """Open or find the accounts of workloads that were granted this GPU and have no process on it."""
    grants = [grant for grant in cycle.grants if grant.gpu_uuid == gpu_uuid and not grant.possible]
    if not grants:
        return {}
    present = {(assignment.ref.key, at.device) for at, assignment in ledger.present(gpu_uuid)}
    return {
        ledger.admit_grant(grant, cycle.time): grant
        for grant in grants
        if (grant.workload.key, DeviceKey(gpu_uuid, grant.mig_uuid)) not in present
    }


def _usage_of(usages: Usages, account: AnyAccount) -> Usage:
    usage = usages.get(account)
    if usage is None:
        usage = usages[account] = Usage(account)
    return usage


# ---------------------------------------------------------------------------- work and energy


def _post_work(ledger: Ledger, result: GpuResult, cycle: Cycle) -> None:
    """Post compute time. Rows may report the last work of a process that has left: it keeps its pid until then."""
    work = result.compute.work if result.compute is not None else {}
    if not work:
        return
    by_pid = {at.process.pid: at for at in result.residents}
    if not work.keys() <= by_pid.keys():
        # The accounting record of a process that /proc never showed covers its whole life, so rows add nothing to it.
        known = sorted(filter(_was_seen, ledger.assignments.get(result.reading.identity.uuid, ())))
        by_pid = {at.process.pid: at for at in known} | by_pid
    for pid, done in work.items():
        if pid in by_pid:
            for account in ledger.accounts_of(by_pid[pid], cycle.time):
                account.totals.compute_us += done.sm_us


def _was_seen(at: ProcessOnDevice) -> bool:
    return at.process.start_ticks != START_UNKNOWN


def _post_short_lived(ledger: Ledger, gpu_uuid: str, process: ShortLivedProcess, cycle: Cycle) -> None:
    """Post a process that came and went between two cycles. /proc never showed it, so its workload is unknown."""
    at = ProcessOnDevice(ProcessKey(process.pid, START_UNKNOWN), DeviceKey(gpu_uuid, ""))
    start_time_s = process.start_time_us / 1e6
    ledger.admit(Resident(at, UNIDENTIFIED_WORKLOAD, None, start_time_s, listed=True, memory_bytes=None), cycle.time)
    for account in ledger.accounts_of(at, cycle.time):
        account.totals.compute_us += process.compute_us


def _post_energy(ledger: Ledger, gpu_uuid: str, division: Division, usages: Usages, cycle: Cycle) -> None:
    gpu = ledger.gpus[gpu_uuid]
    gpu.attributed_mj += division.attributed_mj
    gpu.idle_mj += division.idle_mj
    gpu.unattributed_mj += division.unattributed_mj
    for at, energy_mj in division.parts_mj.items():
        method = division.methods[at]
        for account in ledger.accounts_of(at, cycle.time):
            account.totals.add_energy(method, energy_mj)
            account.last_energy_ns = cycle.time.now_ns
            parts_mj = _usage_of(usages, account).energy_by_method_mj
            parts_mj[method] = parts_mj.get(method, 0) + energy_mj


# ---------------------------------------------------------------------------- departures


def _departed(ledger: Ledger, gpu_uuid: str, result: GpuResult | None, cycle: Cycle) -> list[ProcessOnDevice]:
    """Processes that have left: gone from /proc, or missing from the lists for longer than the grace period.

    A process missing from one cycle has not left. Where the lists could not be read, running processes are still
    there as far as anything shows.
    """
    residents = {} if result is None else result.residents
    lists_read = result is not None and result.visibility.lists_read
    reused = {(at.process.pid, at.device) for at in residents}
    departed = []
    for at, assignment in ledger.assignments.get(gpu_uuid, {}).items():
        if at in residents or assignment.ended_ns is not None:
            continue
        is_alive = cycle.is_alive(at)
        if is_alive and not lists_read:
            assignment.last_seen_ns = cycle.time.now_ns
        is_gone = (lists_read and not is_alive) or (at.process.pid, at.device) in reused
        if is_gone or cycle.time.now_ns - assignment.last_seen_ns > GRACE_NS:
            departed.append(at)
    return sorted(departed)


def _end(ledger: Ledger, at: ProcessOnDevice, cycle: Cycle, short_lived: ShortLivedProcesses) -> None:
    ledger.end(at, cycle.time.now_ns)
    short_lived.note_departure(at, cycle)


# ---------------------------------------------------------------------------- time


def _post_time(ledger: Ledger, gpu_uuid: str, result: GpuResult | None, usages: Usages, cycle: Cycle) -> None:
    """Post presence by state. An account works if any process of it does; a workload's time is its own.

    A process missing from the lists, or on a GPU that does not answer, may do anything: its state is unknown.
    """
    _add_presence(ledger, gpu_uuid, result, usages)
    allocated = [_usage_of(usages, account) for account in admit_unused_grants(ledger, gpu_uuid, cycle)]
    allocated = [usage for usage in allocated if not usage.is_present]  # the overflow account may have processes
    # Together with users that the agent cannot see, the number of holders that share a GPU's time is unknown.
    if cycle.may_infer or (result is not None and not result.visibility.may_have_unseen_users):
        _bill(usages, allocated, result, cycle)
    for usage in allocated:  # neither busy nor idle
        usage.account.close_activity()
        time_us = _window_us(usage.account, cycle)
        usage.account.totals.add_time(StateTime(GpuState.ALLOCATED, time_us, 0, 0, usage.billed_us))
        usage.state = GpuState.ALLOCATED
    for usage in usages.values():
        if usage.is_present:
            _post_activity(usage, result, cycle)
        else:  # it has left: what it did at the end is unknown
            usage.account.totals.unknown_mj += usage.energy_mj
    if result is not None:
        _set_workload_states(usages.values(), result)


def _add_presence(ledger: Ledger, gpu_uuid: str, result: GpuResult | None, usages: Usages) -> None:
    """Which processes of each account are on the GPU, what they hold, and their utilisation."""
    for at, assignment in ledger.present(gpu_uuid):
        process, workload = _usage_of(usages, assignment.process), _usage_of(usages, assignment.workload)
        workload.processes.append((at, process))
        if result is not None and at in result.residents:
            pid, compute = at.process.pid, result.compute
            resident = ResidentFigures(
                pid,
                result.residents[at].memory_bytes,
                result.held_bytes(at),
                None if compute is None else compute.share(pid),
                None if compute is None else compute.bandwidth_share(pid),
            )
            process.add_resident(resident)
            workload.add_resident(resident)
        else:
            process.has_missing = workload.has_missing = True


def _bill(usages: Usages, allocated: Iterable[Usage], result: GpuResult | None, cycle: Cycle) -> None:
    """Divide the GPU's time among the workloads that hold it."""
    by_key = {usage.account.key: usage for usage in usages.values() if usage.processes}
    by_key |= {usage.account.key: usage for usage in allocated}
    holders: dict[DeviceKey, list[AccountKey]] = {}
    for key in by_key:
        holders.setdefault(key.subject.device, []).append(key)
    instances = () if result is None else result.reading.mig or ()
    sm_counts = {mig.uuid: mig.sm_count or 1 for mig in instances}
    for key, time_us in billed_us(cycle.window_us, holders, sm_counts).items():
        by_key[key].billed_us = time_us


def _post_activity(usage: Usage, result: GpuResult | None, cycle: Cycle) -> None:
    account = usage.account
    window_us = _window_us(account, cycle)
    if account.activity is None:
        account.activity = ActivityTracker()
    worked, others_worked = _work_of(usage, result)
    step = account.activity.observe(
        window_us=window_us,
        worked=worked,
        others_worked=others_worked,
        held_bytes=usage.held_bytes,
        energy_mj=usage.energy_mj,
        billed_us=usage.billed_us,
    )
    usage.state, usage.idle_s = step.state, step.idle_s
    for time in step.decided:
        account.totals.add_time(time)


def _window_us(account: AnyAccount, cycle: Cycle) -> int:
    """The window, or for an account that was opened in it the part since then."""
    if account.activity is not None or account.since_ns <= cycle.time.window_start_ns:
        return cycle.window_us
    return min(cycle.window_us, max(0, cycle.time.wall_ns - account.since_ns) // 1000)


def _work_of(usage: Usage, result: GpuResult | None) -> tuple[bool | None, bool]:
    """Whether a process of an account worked, ``None`` where that is unknown; and whether others did, or may have."""
    if result is None:
        return None, False
    if result.compute is None:
        return None, result.visibility.may_have_unseen_users
    worked = result.compute.worked(usage.pids) if usage.pids else None
    if usage.has_missing and not worked:
        worked = None
    return worked, result.visibility.may_have_unseen_users or result.compute.others_worked(usage.pids)


def _set_workload_states(usages: Collection[Usage], result: GpuResult) -> None:
    """A workload is busy if any of its processes is, and idle if all of them that hold memory are."""
    for usage in usages:
        states = [
            process.state
            for at, process in usage.processes
            if process.state is not None and (at not in result.residents or result.held_bytes(at) != 0)
        ]
        state = workload_state(states)
        if state is not None and usage.state is not None and state is not usage.state:
            usage.state = state
            usage.idle_s = 0.0 if state is GpuState.BUSY else None
