"""The books: coming, going, caps, restarts."""

from __future__ import annotations

import json

import pytest

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.ledger import GRACE_NS, OVERFLOW_WORKLOAD, Ledger
from otel_gpu.attribution.places import Place, ProcessAt, workload_at
from otel_gpu.model import GpuState, ProcessKey, WorkloadKind, WorkloadRef

S = 1_000_000_000
EPOCH = 1_700_000_000 * S
PLACE = Place("GPU-0", "")
REF = WorkloadRef(WorkloadKind.CONTAINER, "c1", runtime="docker")


def ledger(**more: int) -> Ledger:
    return Ledger(EPOCH, retention_ns=300 * S, **more)


def at(pid: int, start: int = 1) -> ProcessAt:
    return ProcessAt(ProcessKey(pid, start), PLACE)


def admit(
    books: Ledger, who: ProcessAt, *, now_ns: int = 0, ref: WorkloadRef = REF, start_s: float | None = None
) -> None:
    books.admit(who, ref, now_ns=now_ns, name="python3", start_time_s=start_s)


def give(books: Ledger, who: ProcessAt, energy_mj: int) -> None:
    for entry in books.entries(who) or ():
        entry.sums.add_energy(Method.ESTIMATED, energy_mj)


def test_a_workload_keeps_what_its_dead_processes_used() -> None:
    books = ledger()
    admit(books, at(1))
    admit(books, at(2))
    give(books, at(1), 700)
    books.end(at(1), 10 * S)
    for now_s in (10, 400):
        admit(books, at(2), now_ns=now_s * S)
        books.sweep(now_s * S)
    assert list(books.processes) == [at(2)]
    assert books.workloads[workload_at(REF, PLACE)].sums.estimated_mj == 700


def test_an_ended_process_stays_for_the_retention_and_then_leaves_no_trace() -> None:
    books = ledger()
    admit(books, at(1))
    books.end(at(1), 10 * S)
    books.sweep(10 * S)
    books.sweep(310 * S)
    assert at(1) in books.processes
    books.sweep(310 * S + 1)
    assert books.processes == {}
    assert books.workloads == {}


def test_a_reused_pid_is_a_new_process_with_totals_of_its_own() -> None:
    books = ledger()
    admit(books, at(1, start=1))
    give(books, at(1, start=1), 5)
    books.end(at(1, start=1), 1 * S)
    admit(books, at(1, start=2), now_ns=1 * S)
    assert books.processes[at(1, start=2)].sums.estimated_mj == 0
    assert books.workloads[workload_at(REF, PLACE)].sums.estimated_mj == 5


def test_a_process_counts_from_its_own_start_or_the_ledgers() -> None:
    books = ledger()
    admit(books, at(1), start_s=EPOCH / S - 500)
    admit(books, at(2), start_s=EPOCH / S + 500)
    assert books.processes[at(1)].since_ns == EPOCH
    assert books.processes[at(2)].since_ns == EPOCH + 500 * S


def test_who_was_not_seen_for_the_grace_is_overdue() -> None:
    books = ledger()
    admit(books, at(1), now_ns=0)
    assert list(books.overdue(GRACE_NS)) == []
    assert list(books.overdue(GRACE_NS + 1)) == [at(1)]


def test_beyond_the_cap_newcomers_share_one_entry_for_life_and_sums_stay_exact() -> None:
    books = ledger(max_processes=2)
    for pid in range(1, 6):
        admit(books, at(pid))
        give(books, at(pid), 10)
    books.end(at(1), 1 * S)
    books.sweep(1000 * S)
    admit(books, at(5), now_ns=1000 * S)
    give(books, at(5), 1)
    overflow = workload_at(OVERFLOW_WORKLOAD, PLACE)
    assert at(5) not in books.processes
    assert books.workloads[overflow].sums.estimated_mj == 31
    assert sum(entry.sums.estimated_mj for entry in books.workloads.values()) >= 31


def test_beyond_the_cap_of_workloads_newcomers_share_one_entry() -> None:
    books = ledger(max_workloads=1)
    for number in range(3):
        admit(books, at(number + 1), ref=WorkloadRef(WorkloadKind.CONTAINER, f"c{number}"))
        give(books, at(number + 1), 10)
    assert sum(entry.sums.estimated_mj for entry in books.workloads.values()) == 30
    assert books.workloads[workload_at(OVERFLOW_WORKLOAD, PLACE)].sums.estimated_mj == 20


@pytest.mark.parametrize("state", list(GpuState))
def test_time_is_booked_by_state_and_memory_and_energy_only_while_idle(state: GpuState) -> None:
    books = ledger()
    admit(books, at(1))
    entry = books.processes[at(1)]
    entry.sums.add_time(state, 5, 50, 500)
    totals = entry.sums.frozen(entry.since_ns)
    times = {
        GpuState.BUSY: totals.busy_us,
        GpuState.IDLE: totals.idle_us,
        GpuState.ALLOCATED: totals.allocated_us,
        GpuState.UNKNOWN: totals.unknown_us,
    }
    assert times == {each: 5 if each is state else 0 for each in GpuState}
    assert (totals.idle_byte_us, totals.idle_mj) == ((50, 500) if state is GpuState.IDLE else (0, 0))


def test_the_books_survive_a_restart_as_plain_data() -> None:
    books = ledger()
    admit(books, at(1))
    admit(books, at(2))
    give(books, at(1), 7)
    books.end(at(2), 0)
    books.device("GPU-0").unattributed_mj = 3
    taken_up = Ledger(EPOCH + 999, retention_ns=300 * S)
    taken_up.restore(json.loads(json.dumps(books.to_state())), now_ns=50 * S)
    assert taken_up.to_state() == books.to_state()
    assert taken_up.processes[at(2)].ended_ns == 50 * S
    assert taken_up.workloads[workload_at(REF, PLACE)].ref == REF
