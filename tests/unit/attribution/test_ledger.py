"""The books: coming, going, caps, renames, restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle import Booked
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.ledger_state import ledger_state, restore_ledger
from otel_gpu.attribution.lines import FINAL_NS, Entry, Moment
from otel_gpu.attribution.places import Place, ProcessAt, ProcessLine, WorkloadLine, workload_at
from otel_gpu.attribution.presence import Resident
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
PLACE = Place("GPU-0", "")
REF = WorkloadRef(WorkloadKind.CONTAINER, "c1", runtime="docker")
OVERFLOW_LINE = ProcessLine(ProcessAt(OVERFLOW_PROCESS, PLACE))
OVERFLOW_WORKLOAD_LINE = WorkloadLine(workload_at(OVERFLOW_WORKLOAD, PLACE))


def ledger(**more: int) -> Ledger:
    return Ledger(EPOCH, retention_ns=300 * S, **more)


def at(pid: int, start: int = 1, place: Place = PLACE) -> ProcessAt:
    return ProcessAt(ProcessKey(pid, start), place)


def line(pid: int, start: int = 1, naming: int = 0) -> ProcessLine:
    return ProcessLine(at(pid, start), naming)


def moment(now_s: float) -> Moment:
    now_ns = round(now_s * S)
    return Moment(now_ns, EPOCH + now_ns - 5 * S, EPOCH + now_ns)


def admit(
    books: Ledger, who: ProcessAt, *, now_s: float = 0, ref: WorkloadRef = REF, start_s: float | None = None
) -> None:
    books.admit(Resident(who, ref, "python3", start_s, listed=True, memory_bytes=None), moment(now_s))


def give(books: Ledger, who: ProcessAt, energy_mj: int) -> None:
    books.device("GPU-0").attributed_mj += energy_mj
    for each in books.lines(who, moment(0)):
        books.entry(each).sums.add_energy(Method.ESTIMATED, energy_mj)


def settle(books: Ledger, now_s: float, places: set[Place] | None = None) -> None:
    books.settle(round(now_s * S))
    books.sweep(moment(now_s), {PLACE} if places is None else places)


def end(books: Ledger, who: ProcessAt, now_s: float) -> None:
    books.end(who, round(now_s * S))


def workload(books: Ledger, ref: WorkloadRef = REF, naming: int = 0) -> Entry:
    return books.workloads.entries[WorkloadLine(workload_at(ref, PLACE), naming)]


def container(number: int) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, f"c{number}")


# ---------------------------------------------------------------------------- coming and going


def test_a_workload_keeps_what_its_dead_processes_used() -> None:
    books = ledger()
    admit(books, at(1))
    admit(books, at(2))
    give(books, at(1), 700)
    end(books, at(1), 10)
    for now_s in (10, 400):
        admit(books, at(2), now_s=now_s)
        settle(books, now_s)
    assert list(books.processes.entries) == [line(2)]
    assert workload(books).sums.estimated_mj == 700
    assert books.energy_error_mj("GPU-0") == 0


def test_an_ended_process_stays_for_the_retention_and_then_leaves_no_trace() -> None:
    books = ledger()
    admit(books, at(1))
    end(books, at(1), 10)
    settle(books, 10)
    settle(books, 310)
    assert line(1) in books.processes.entries
    settle(books, 310.1)
    assert books.processes.entries == {}
    assert books.workloads.entries == {}
    assert list(books.gpu_uuids) == []


def test_a_reused_pid_is_a_new_process_and_the_old_one_is_evicted_at_once() -> None:
    books = ledger()
    admit(books, at(1, start=1))
    give(books, at(1, start=1), 5)
    end(books, at(1, start=1), 1)
    admit(books, at(1, start=2), now_s=1)
    settle(books, 1)
    assert list(books.processes.entries) == [line(1, start=2)]
    assert books.processes.entries[line(1, start=2)].sums.estimated_mj == 0
    assert workload(books).sums.estimated_mj == 5
    assert books.energy_error_mj("GPU-0") == 0


def test_a_process_counts_from_its_own_start_or_the_ledgers() -> None:
    books = ledger()
    admit(books, at(1), start_s=EPOCH / S - 500)
    admit(books, at(2), start_s=EPOCH / S + 500, now_s=600)
    assert books.processes.entries[line(1)].since_ns == EPOCH
    assert books.processes.entries[line(2)].since_ns == EPOCH + 500 * S


def test_nobody_started_in_the_future() -> None:
    books = ledger()
    admit(books, at(1), start_s=EPOCH / S + 1e9, now_s=10)
    assert books.processes.entries[line(1)].since_ns == EPOCH + 10 * S


def test_who_returns_after_it_was_forgotten_starts_at_zero_from_now_on() -> None:
    books = ledger()
    admit(books, at(1), start_s=EPOCH / S)
    give(books, at(1), 9)
    end(books, at(1), 10)
    settle(books, 10)
    settle(books, 400)
    admit(books, at(1), start_s=EPOCH / S, now_s=500)
    for entry in (books.processes.entries[line(1)], workload(books)):
        assert entry.sums.estimated_mj == 0
        assert entry.since_ns == EPOCH + 495 * S


def test_who_returns_when_too_many_were_forgotten_to_tell_them_apart_counts_from_now_on_too() -> None:
    books = ledger()
    for pid in range(1, 4000):
        admit(books, at(pid), start_s=EPOCH / S)
        end(books, at(pid), 1)
        if pid % 100 == 0:
            settle(books, 1)
            settle(books, 400)
    settle(books, 1000)
    admit(books, at(1), start_s=EPOCH / S, now_s=1005)
    admit(books, at(9000), start_s=EPOCH / S + 1004, now_s=1005)
    assert books.processes.entries[line(1)].since_ns == EPOCH + 1000 * S
    assert books.processes.entries[line(9000)].since_ns == EPOCH + 1004 * S


def test_a_process_that_moves_to_another_cgroup_stays_with_the_workload_it_came_with() -> None:
    books = ledger()
    admit(books, at(1))
    admit(books, at(1), ref=container(9), now_s=5)
    assert books.lines(at(1), moment(0))[1] == WorkloadLine(workload_at(REF, PLACE))
    assert len(books.workloads.entries) == 1


# ---------------------------------------------------------------------------- caps


def test_beyond_the_cap_newcomers_share_one_line_for_life_and_their_workloads_keep_their_own() -> None:
    books = ledger(max_processes=2)
    for pid in range(1, 6):
        admit(books, at(pid), ref=container(pid))
        give(books, at(pid), 10)
    end(books, at(1), 1)
    settle(books, 1)
    settle(books, 1000)
    admit(books, at(5), ref=container(5), now_s=1000)
    give(books, at(5), 1)
    assert line(5) not in books.processes.entries
    assert books.processes.entries[OVERFLOW_LINE].sums.estimated_mj == 31
    assert workload(books, container(5)).sums.estimated_mj == 11
    assert books.energy_error_mj("GPU-0") == 0


def test_beyond_the_cap_of_workloads_newcomers_share_one_line_for_life() -> None:
    books = ledger(max_workloads=1)
    for number in (1, 2, 3):
        admit(books, at(number), ref=container(number))
        give(books, at(number), 10)
    end(books, at(1), 0)
    settle(books, 0)
    settle(books, 1000)
    admit(books, at(22), ref=container(2), now_s=1000)
    give(books, at(22), 5)
    assert container(2) not in {entry.ref for entry in books.workloads.entries.values()}
    assert books.workloads.entries[OVERFLOW_WORKLOAD_LINE].sums.estimated_mj == 25
    assert books.energy_error_mj("GPU-0") == 0


def test_at_the_cap_who_ended_first_makes_room_but_not_before_everybody_has_read_its_end() -> None:
    books = ledger(max_processes=2)
    for pid in (1, 2):
        admit(books, at(pid))
        give(books, at(pid), 10)
        end(books, at(pid), pid)
    settle(books, 2)
    admit(books, at(3), now_s=3)
    assert books.lines(at(3), moment(0))[0] == OVERFLOW_LINE, "nobody has ended long enough ago"
    later_s = 2 + FINAL_NS / S
    settle(books, 3)
    admit(books, at(4), now_s=later_s)
    settle(books, later_s)
    assert sorted(books.processes.entries) == [OVERFLOW_LINE, line(2), line(4)]
    assert books.energy_error_mj("GPU-0") == 0


def test_the_overflow_is_there_while_it_has_members_and_keeps_its_sums_for_ever() -> None:
    books = ledger(max_processes=0)
    admit(books, at(1))
    give(books, at(1), 10)
    settle(books, 1000)
    assert books.processes.entries[OVERFLOW_LINE].ended_ns is None
    end(books, at(1), 1001)
    settle(books, 1001)
    assert books.processes.entries[OVERFLOW_LINE].ended_ns == 1001 * S
    settle(books, 9000)
    assert books.processes.entries[OVERFLOW_LINE].sums.estimated_mj == 10
    settle(books, 9001, places=set())
    assert books.processes.entries == {}, "but not longer than there is such a GPU or instance"
    assert books.energy_error_mj("GPU-0") == 0


def test_who_is_booked_nowhere_is_booked_to_the_overflow_and_nothing_is_lost() -> None:
    books = ledger()
    give(books, at(7), 3)
    assert books.processes.entries[OVERFLOW_LINE].sums.estimated_mj == 3
    assert books.energy_error_mj("GPU-0") == 0


# ---------------------------------------------------------------------------- names


def test_with_a_new_name_the_old_lines_end_and_their_successors_start_at_zero() -> None:
    books = ledger()
    for now_s, name in ((0, "old"), (5, "new")):
        books.namings.observe([REF], {REF.key: WorkloadNames(container=name)})
        admit(books, at(1), now_s=now_s, start_s=EPOCH / S)
        give(books, at(1), 10)
        settle(books, now_s)
    for old, new in (
        (books.processes.entries[line(1)], books.processes.entries[line(1, naming=1)]),
        (workload(books), workload(books, naming=1)),
    ):
        assert (old.sums.estimated_mj, old.ended_ns) == (10, 5 * S)
        assert (new.sums.estimated_mj, new.ended_ns, new.since_ns) == (10, None, EPOCH)
    names = [books.namings.names(REF, number) for number in (0, 1)]
    assert names == [WorkloadNames(container="old"), WorkloadNames(container="new")]
    admit(books, at(1), now_s=400)
    settle(books, 400)
    assert list(books.processes.entries) == [line(1, naming=1)]
    assert books.namings.names(REF, 0) is None
    assert books.energy_error_mj("GPU-0") == 0


# ---------------------------------------------------------------------------- time


@pytest.mark.parametrize("state", list(GpuState))
def test_time_is_booked_by_state_and_memory_and_energy_only_while_idle(state: GpuState) -> None:
    books = ledger()
    admit(books, at(1))
    entry = books.processes.entries[line(1)]
    entry.sums.add_time(Booked(state, 5, 50, 500))
    totals = entry.sums.frozen(entry.since_ns)
    times = {
        GpuState.BUSY: totals.busy_us,
        GpuState.IDLE: totals.idle_us,
        GpuState.ALLOCATED: totals.allocated_us,
        GpuState.UNKNOWN: totals.unknown_us,
    }
    assert times == {each: 5 if each is state else 0 for each in GpuState}
    assert (totals.idle_byte_us, totals.idle_mj) == ((50, 500) if state is GpuState.IDLE else (0, 0))


# ---------------------------------------------------------------------------- restarts


def some_books() -> Ledger:
    books = ledger(max_processes=2)
    books.namings.observe([REF], {REF.key: WorkloadNames(container="web")})
    for pid in (1, 2, 3):
        admit(books, at(pid))
        give(books, at(pid), pid)
    end(books, at(2), 0)
    books.device("GPU-0").unattributed_mj = 3
    settle(books, 1)
    return books


def plain(books: Ledger, now_s: float = 1) -> Any:
    return json.loads(json.dumps(ledger_state(books, now_ns=round(now_s * S))))


def test_the_books_survive_a_restart_as_plain_data() -> None:
    books = some_books()
    taken_up = Ledger(EPOCH + 999, retention_ns=300 * S)
    restore_ledger(taken_up, plain(books), now_ns=50 * S)
    assert plain(taken_up, now_s=50) == plain(books)
    assert taken_up.processes.entries[line(2)].ended_ns == 49 * S, "it had ended a second before"
    assert workload(taken_up).ref == REF
    assert taken_up.lines(at(3), moment(0))[0] == OVERFLOW_LINE, "membership is for life, over restarts too"
    assert taken_up.energy_error_mj("GPU-0") == 0


def test_a_restart_takes_no_more_memory_for_those_who_are_gone() -> None:
    """Thousands of them, from a few places: a place is one object for all, as it was before."""
    books = ledger()
    for pid in range(20):
        admit(books, at(pid), now_s=pid)
        end(books, at(pid), now_s=pid)
        settle(books, pid)
    settle(books, 10_000)
    taken_up = ledger()
    restore_ledger(taken_up, plain(books, 10_000), now_ns=50 * S)
    gone = taken_up.processes.gone.at
    assert gone == books.processes.gone.at
    assert len(gone) == 20
    assert len({id(who.place) for who in gone}) == 1


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += _paths(value, (*path, key))
    return found


_KINDS: tuple[Any, ...] = (None, -1, 1.5, "x", [], {}, True)


@pytest.mark.parametrize("junk", _KINDS, ids=repr)
def test_books_with_anything_wrong_in_them_are_refused_whole_or_are_books(junk: Any) -> None:
    for path in _paths(plain(some_books())):
        data = plain(some_books())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = junk
        taken_up = Ledger(EPOCH, retention_ns=300 * S)
        before = plain(taken_up)
        try:
            restore_ledger(taken_up, data, now_ns=0)
        except ValueError:
            assert plain(taken_up) == before, path
        else:
            settle(taken_up, 10)
            assert all(min(entry.sums.to_state()) >= 0 for entry in taken_up.workloads.entries.values())
