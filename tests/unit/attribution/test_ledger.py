"""The ledger: arrivals, departures, caps, renames, restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_gpu.attribution.accounts import FINAL_NS, Account
from otel_gpu.attribution.activity import StateTime
from otel_gpu.attribution.checkpoint import ledger_state, restore_ledger
from otel_gpu.attribution.cycle import LedgerTime
from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.keys import DeviceKey, ProcessAccountKey, ProcessOnDevice, WorkloadAccountKey, workload_on
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.residents import Resident
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    GpuState,
    ProcessKey,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)

S = 1_000_000_000
EPOCH = 1_700_000_000 * S
DEVICE = DeviceKey("GPU-0", "")
REF = WorkloadRef(WorkloadKind.CONTAINER, "c1", runtime="docker")
OVERFLOW_KEY = ProcessAccountKey(ProcessOnDevice(OVERFLOW_PROCESS, DEVICE))
OVERFLOW_WORKLOAD_KEY = WorkloadAccountKey(workload_on(OVERFLOW_WORKLOAD, DEVICE))


def new_ledger(**more: int) -> Ledger:
    return Ledger(EPOCH, retention_ns=300 * S, **more)


def at(pid: int, start: int = 1, device: DeviceKey = DEVICE) -> ProcessOnDevice:
    return ProcessOnDevice(ProcessKey(pid, start), device)


def key(pid: int, start: int = 1, naming: int = 0) -> ProcessAccountKey:
    return ProcessAccountKey(at(pid, start), naming)


def ledger_time(now_s: float) -> LedgerTime:
    now_ns = round(now_s * S)
    return LedgerTime(now_ns, EPOCH + now_ns - 5 * S, EPOCH + now_ns)


def admit(
    ledger: Ledger, process: ProcessOnDevice, *, now_s: float = 0, ref: WorkloadRef = REF, start_s: float | None = None
) -> None:
    ledger.admit(Resident(process, ref, "python3", start_s, listed=True, memory_bytes=None), ledger_time(now_s))


def post_energy(ledger: Ledger, process: ProcessOnDevice, energy_mj: int) -> None:
    ledger.gpus["GPU-0"].attributed_mj += energy_mj
    for account in ledger.accounts_of(process, ledger_time(0)):
        account.totals.add_energy(Method.ESTIMATED, energy_mj)


def close_cycle(ledger: Ledger, now_s: float, devices: set[DeviceKey] | None = None) -> None:
    ledger.close_cycle(ledger_time(now_s), {DEVICE} if devices is None else devices)


def end(ledger: Ledger, process: ProcessOnDevice, now_s: float) -> None:
    ledger.end(process, round(now_s * S))


def workload(ledger: Ledger, ref: WorkloadRef = REF, naming: int = 0) -> Account[WorkloadAccountKey]:
    return ledger.workloads.by_key[WorkloadAccountKey(workload_on(ref, DEVICE), naming)]


def container(number: int) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, f"c{number}")


# ---------------------------------------------------------------------------- arrivals and departures


def test_a_workload_keeps_what_its_dead_processes_used() -> None:
    ledger = new_ledger()
    admit(ledger, at(1))
    admit(ledger, at(2))
    post_energy(ledger, at(1), 700)
    end(ledger, at(1), 10)
    for now_s in (10, 400):
        admit(ledger, at(2), now_s=now_s)
        close_cycle(ledger, now_s)
    assert list(ledger.processes.by_key) == [key(2)]
    assert workload(ledger).totals.estimated_mj == 700
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_an_ended_process_stays_for_the_retention_and_then_leaves_no_trace() -> None:
    ledger = new_ledger()
    admit(ledger, at(1))
    end(ledger, at(1), 10)
    close_cycle(ledger, 10)
    close_cycle(ledger, 310)
    assert key(1) in ledger.processes.by_key
    close_cycle(ledger, 310.1)
    assert ledger.processes.by_key == {}
    assert ledger.workloads.by_key == {}
    assert ledger.assignments == {}


def test_a_reused_pid_is_a_new_process_and_the_old_one_is_evicted_at_once() -> None:
    ledger = new_ledger()
    admit(ledger, at(1, start=1))
    post_energy(ledger, at(1, start=1), 5)
    end(ledger, at(1, start=1), 1)
    admit(ledger, at(1, start=2), now_s=1)
    close_cycle(ledger, 1)
    assert list(ledger.processes.by_key) == [key(1, start=2)]
    assert ledger.processes.by_key[key(1, start=2)].totals.estimated_mj == 0
    assert workload(ledger).totals.estimated_mj == 5
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_a_process_counts_from_its_own_start_or_the_ledgers() -> None:
    ledger = new_ledger()
    admit(ledger, at(1), start_s=EPOCH / S - 500)
    admit(ledger, at(2), start_s=EPOCH / S + 500, now_s=600)
    assert ledger.processes.by_key[key(1)].since_ns == EPOCH
    assert ledger.processes.by_key[key(2)].since_ns == EPOCH + 500 * S


def test_an_account_never_starts_in_the_future() -> None:
    ledger = new_ledger()
    admit(ledger, at(1), start_s=EPOCH / S + 1e9, now_s=10)
    assert ledger.processes.by_key[key(1)].since_ns == EPOCH + 10 * S


def test_a_process_that_returns_after_its_account_was_dropped_starts_at_zero_now() -> None:
    ledger = new_ledger()
    admit(ledger, at(1), start_s=EPOCH / S)
    post_energy(ledger, at(1), 9)
    end(ledger, at(1), 10)
    close_cycle(ledger, 10)
    close_cycle(ledger, 400)
    admit(ledger, at(1), start_s=EPOCH / S, now_s=500)
    for account in (ledger.processes.by_key[key(1)], workload(ledger)):
        assert account.totals.estimated_mj == 0
        assert account.since_ns == EPOCH + 495 * S


def test_a_process_that_returns_after_its_drop_was_forgotten_starts_now_too() -> None:
    ledger = new_ledger()
    for pid in range(1, 4000):
        admit(ledger, at(pid), start_s=EPOCH / S)
        end(ledger, at(pid), 1)
        if pid % 100 == 0:
            close_cycle(ledger, 1)
            close_cycle(ledger, 400)
    close_cycle(ledger, 1000)
    admit(ledger, at(1), start_s=EPOCH / S, now_s=1005)
    admit(ledger, at(9000), start_s=EPOCH / S + 1004, now_s=1005)
    assert ledger.processes.by_key[key(1)].since_ns == EPOCH + 1000 * S
    assert ledger.processes.by_key[key(9000)].since_ns == EPOCH + 1004 * S


def test_a_process_that_moves_to_another_cgroup_stays_with_the_workload_it_came_with() -> None:
    ledger = new_ledger()
    admit(ledger, at(1))
    admit(ledger, at(1), ref=container(9), now_s=5)
    assert ledger.accounts_of(at(1), ledger_time(0))[1].key == WorkloadAccountKey(workload_on(REF, DEVICE))
    assert len(ledger.workloads.by_key) == 1


# ---------------------------------------------------------------------------- caps


def test_processes_beyond_the_cap_share_the_overflow_account_for_life_and_workloads_keep_their_accounts() -> None:
    ledger = new_ledger(max_processes=2)
    for pid in range(1, 6):
        admit(ledger, at(pid), ref=container(pid))
        post_energy(ledger, at(pid), 10)
    end(ledger, at(1), 1)
    close_cycle(ledger, 1)
    close_cycle(ledger, 1000)
    admit(ledger, at(5), ref=container(5), now_s=1000)
    post_energy(ledger, at(5), 1)
    assert key(5) not in ledger.processes.by_key
    assert ledger.processes.by_key[OVERFLOW_KEY].totals.estimated_mj == 31
    assert workload(ledger, container(5)).totals.estimated_mj == 11
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_a_process_in_the_overflow_account_stays_there_when_its_workload_is_renamed() -> None:
    ledger, other = new_ledger(max_processes=1), WorkloadRef(WorkloadKind.CONTAINER, "c2")
    for number, name in enumerate("aabb"):
        ledger.namings.observe([REF, other], {other.key: WorkloadNames(container=name)})
        admit(ledger, at(1), now_s=number)
        admit(ledger, at(2), now_s=number, ref=other)
    process, workload = ledger.accounts_of(at(2), ledger_time(3))
    assert process.key == OVERFLOW_KEY
    assert workload.key == WorkloadAccountKey(workload_on(other, DEVICE), 1), "its workload has the new name"


def test_workloads_beyond_the_cap_share_the_overflow_account_for_life() -> None:
    ledger = new_ledger(max_workloads=1)
    for number in (1, 2, 3):
        admit(ledger, at(number), ref=container(number))
        post_energy(ledger, at(number), 10)
    end(ledger, at(1), 0)
    close_cycle(ledger, 0)
    close_cycle(ledger, 1000)
    admit(ledger, at(22), ref=container(2), now_s=1000)
    post_energy(ledger, at(22), 5)
    assert container(2) not in {account.ref for account in ledger.workloads.by_key.values()}
    assert ledger.workloads.by_key[OVERFLOW_WORKLOAD_KEY].totals.estimated_mj == 25
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_at_the_cap_the_account_that_ended_first_is_dropped_once_its_final_values_are_exported() -> None:
    ledger = new_ledger(max_processes=2)
    for pid in (1, 2):
        admit(ledger, at(pid))
        post_energy(ledger, at(pid), 10)
        end(ledger, at(pid), pid)
    close_cycle(ledger, 2)
    admit(ledger, at(3), now_s=3)
    assert ledger.accounts_of(at(3), ledger_time(0))[0].key == OVERFLOW_KEY, "no account ended long enough ago"
    later_s = 2 + FINAL_NS / S
    close_cycle(ledger, 3)
    admit(ledger, at(4), now_s=later_s)
    close_cycle(ledger, later_s)
    assert sorted(ledger.processes.by_key) == [OVERFLOW_KEY, key(2), key(4)]
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_the_overflow_account_is_open_while_it_has_processes_and_keeps_its_totals() -> None:
    ledger = new_ledger(max_processes=0)
    admit(ledger, at(1))
    post_energy(ledger, at(1), 10)
    close_cycle(ledger, 1000)
    assert ledger.processes.by_key[OVERFLOW_KEY].ended_ns is None
    end(ledger, at(1), 1001)
    close_cycle(ledger, 1001)
    assert ledger.processes.by_key[OVERFLOW_KEY].ended_ns == 1001 * S
    close_cycle(ledger, 9000)
    assert ledger.processes.by_key[OVERFLOW_KEY].totals.estimated_mj == 10
    close_cycle(ledger, 9001, devices=set())
    assert ledger.processes.by_key == {}, "it is dropped with its device"
    assert ledger.energy_errors_mj()["GPU-0"] == 0


def test_energy_of_a_process_without_an_account_goes_to_the_overflow() -> None:
    ledger = new_ledger()
    post_energy(ledger, at(7), 3)
    assert ledger.processes.by_key[OVERFLOW_KEY].totals.estimated_mj == 3
    assert ledger.energy_errors_mj()["GPU-0"] == 0


# ---------------------------------------------------------------------------- names


def test_on_a_rename_the_old_accounts_end_and_their_successors_start_at_zero() -> None:
    ledger = new_ledger()
    for now_s, name in ((0, "old"), (5, "new")):
        ledger.namings.observe([REF], {REF.key: WorkloadNames(container=name)})
        admit(ledger, at(1), now_s=now_s, start_s=EPOCH / S)
        post_energy(ledger, at(1), 10)
        close_cycle(ledger, now_s)
    for old, new in (
        (ledger.processes.by_key[key(1)], ledger.processes.by_key[key(1, naming=1)]),
        (workload(ledger), workload(ledger, naming=1)),
    ):
        assert (old.totals.estimated_mj, old.ended_ns) == (10, 5 * S)
        assert (new.totals.estimated_mj, new.ended_ns, new.since_ns) == (10, None, EPOCH)
    names = [ledger.namings.names(REF, number) for number in (0, 1)]
    assert names == [WorkloadNames(container="old"), WorkloadNames(container="new")]
    admit(ledger, at(1), now_s=400)
    close_cycle(ledger, 400)
    assert list(ledger.processes.by_key) == [key(1, naming=1)]
    assert ledger.namings.names(REF, 0) is None
    assert ledger.energy_errors_mj()["GPU-0"] == 0


# ---------------------------------------------------------------------------- time


@pytest.mark.parametrize("state", list(GpuState))
def test_time_is_posted_by_state_and_idle_memory_and_energy_only_while_idle(state: GpuState) -> None:
    ledger = new_ledger()
    admit(ledger, at(1))
    account = ledger.processes.by_key[key(1)]
    account.totals.add_time(StateTime(state, 5, 50, 500))
    totals = account.totals.frozen(account.since_ns)
    times = {
        GpuState.BUSY: totals.busy_us,
        GpuState.IDLE: totals.idle_us,
        GpuState.ALLOCATED: totals.allocated_us,
        GpuState.UNKNOWN: totals.unknown_us,
    }
    assert times == {each: 5 if each is state else 0 for each in GpuState}
    assert (totals.idle_byte_us, totals.idle_mj) == ((50, 500) if state is GpuState.IDLE else (0, 0))


# ---------------------------------------------------------------------------- restarts


def some_ledger() -> Ledger:
    ledger = new_ledger(max_processes=2)
    ledger.namings.observe([REF], {REF.key: WorkloadNames(container="web")})
    for pid in (1, 2, 3):
        admit(ledger, at(pid))
        post_energy(ledger, at(pid), pid)
    end(ledger, at(2), 0)
    ledger.gpus["GPU-0"].unattributed_mj = 3
    close_cycle(ledger, 1)
    return ledger


def plain(ledger: Ledger, now_s: float = 1) -> Any:
    return json.loads(json.dumps(ledger_state(ledger, now_ns=round(now_s * S))))


def test_the_ledger_survives_a_restart_as_plain_data() -> None:
    ledger = some_ledger()
    restored = Ledger(EPOCH + 999, retention_ns=300 * S)
    restore_ledger(restored, plain(ledger), now_ns=50 * S)
    assert plain(restored, now_s=50) == plain(ledger)
    assert restored.processes.by_key[key(2)].ended_ns == 49 * S, "it ended a second before the restart"
    assert workload(restored).ref == REF
    assert restored.accounts_of(at(3), ledger_time(0))[0].key == OVERFLOW_KEY, "it stays in the overflow"
    assert restored.energy_errors_mj()["GPU-0"] == 0


def test_dropped_accounts_survive_a_restart() -> None:
    ledger = new_ledger()
    for pid in range(20):
        admit(ledger, at(pid), now_s=pid)
        end(ledger, at(pid), now_s=pid)
        close_cycle(ledger, pid)
    close_cycle(ledger, 10_000)
    restored = new_ledger()
    restore_ledger(restored, plain(ledger, 10_000), now_ns=50 * S)
    assert restored.processes.dropped == ledger.processes.dropped
    assert restored.processes.dropped_before_ns == ledger.processes.dropped_before_ns
    assert len(restored.processes.dropped) == 20


def test_an_overflow_without_an_account_is_refused() -> None:
    saved = plain(some_ledger())
    saved["workloads"]["overflow"] = [[["host", "overflow", ["GPU-0", ""]], 0]]
    with pytest.raises(ValueError, match="an overflow without an account"):
        restore_ledger(new_ledger(), saved, now_ns=0)
