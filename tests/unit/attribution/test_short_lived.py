"""Processes that only the driver's accounting tells of: booked once, whatever it tells again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    UNIDENTIFIED_WORKLOAD,
    AccountingRecord,
    GpuReading,
    ListedProcess,
    Report,
)
from tests.builders import WALL_NS, listed
from tests.unit.attribution.played import Played, assert_adds_up, gpu_with, old, process, time_us, totals, workload

START_S = 6  # after the books began


def record(pid: int, *, start_s: float = START_S, time_ms: int = 2000, percent: int | None = 50) -> AccountingRecord:
    """A process that ran for 2 s from ``start_s`` after the first cycle, at half of the GPU."""
    return AccountingRecord(pid, WALL_NS // 1000 + round(start_s * 1e6), time_ms, percent, None, None, running=False)


def telling(*records: AccountingRecord, processes: Iterable[ListedProcess] = ()) -> GpuReading:
    """A GPU whose books are these."""
    return replace(gpu_with(*processes), accounting=records)


def compute_us(answer: Report) -> int:
    """What is booked to nobody in particular."""
    return totals(workload(answer, UNIDENTIFIED_WORKLOAD.id)).compute_us


def started(options: AttributionOptions | None = None) -> Played:
    """A host two cycles (5 s) after the books began."""
    played = Played(options)
    for _ in range(2):
        played.next(telling())
    return played


def test_who_came_and_went_unseen_is_booked_once_to_nobody_in_particular() -> None:
    played = started()
    answer = played.next(telling(record(7)))
    for _ in range(3):
        for part in (process(answer, 7), workload(answer, UNIDENTIFIED_WORKLOAD.id)):
            assert totals(part).compute_us == 1_000_000
            assert (part.active, part.energy.total_mj or 0, time_us(part)) == (False, 0, 0)
        assert (process(answer, 7).name, process(answer, 7).start_time_s) == (None, None)
        assert_adds_up(answer)
        answer = played.next(telling(record(7)))


def test_a_record_is_booked_once_over_a_restart_and_after_its_line_is_forgotten() -> None:
    played = started()
    played.next(telling(record(7)))
    played.restart()
    assert compute_us(played.next(telling(record(7)))) == 1_000_000
    for _ in range(70):
        answer = played.next(telling(record(7)))
    assert answer.workloads == ()


def test_a_record_told_twice_in_one_answer_is_one() -> None:
    assert compute_us(started().next(telling(record(7), record(7)))) == 1_000_000


def test_rows_of_a_pid_after_its_record_add_nothing_to_it() -> None:
    played = started()
    played.next(telling(record(7)))
    answer = played.next(replace(telling(), utilization=played.rows((7, 80))))
    assert compute_us(answer) == 1_000_000


def test_a_record_of_who_was_seen_is_no_news() -> None:
    played = started()
    for _ in range(2):
        answer = played.next(telling(processes=[listed(7)]), processes=[old(7)])
    for _ in range(2):
        answer = played.next(telling(record(7, start_s=-500)))
    assert [each.ref.id for each in answer.workloads] == ["host"]
    assert [each.key.start_ticks for each in answer.processes] == [1]


def test_a_record_of_who_is_still_there_is_no_news() -> None:
    played = started()
    for _ in range(2):
        reading = telling(record(7), processes=[listed(7)])
        answer = played.next(reading, processes=[old(7)])
    assert [each.ref.id for each in answer.workloads] == ["host"]


def test_a_record_of_who_was_in_the_overflow_is_no_news() -> None:
    played = started(AttributionOptions(max_processes=0))
    for _ in range(2):
        played.next(telling(processes=[listed(7)]), processes=[old(7)])
    before = played.next(telling())
    after = played.next(telling(record(7)))
    assert process(after, OVERFLOW_PROCESS.pid).totals == process(before, OVERFLOW_PROCESS.pid).totals
    assert [each.ref.id for each in after.workloads] == ["host"]


def test_in_full_books_a_record_is_booked_to_the_overflow_once() -> None:
    played = started(AttributionOptions(max_processes=0))
    for _ in range(2):
        answer = played.next(telling(record(7)))
    assert totals(process(answer, OVERFLOW_PROCESS.pid)).compute_us == compute_us(answer) == 1_000_000


def test_a_later_process_with_the_same_pid_is_booked_too() -> None:
    played = started()
    played.next(telling(record(7)))
    answer = played.next(telling(record(7), record(7, start_s=12, time_ms=1000)))
    assert compute_us(answer) == 1_500_000
    assert totals(process(answer, 7)).compute_us == 1_500_000


def test_a_later_process_with_the_pid_of_one_that_was_seen_is_booked() -> None:
    played = started()
    for _ in range(2):
        played.next(telling(processes=[listed(7)]), processes=[old(7)])
    played.next(telling())
    later_s = played.at_s + 1
    answer = played.next(telling(record(7, start_s=later_s)))
    assert compute_us(answer) == 1_000_000


@pytest.mark.parametrize(
    ("told", "booked_us"),
    [
        (record(7, time_ms=1 << 62), 2_000_000),  # from 6 s to now, at half
        (record(7, start_s=-1e6, time_ms=1 << 62), 5_000_000),  # since the books began, at half
        (record(7, start_s=-1e6), 0),  # long over by then
        (record(7, start_s=-1), 500_000),  # the second of its two seconds
        (record(7, start_s=1e9), 0),
        (record(7, percent=None), 0),
        (record(7, percent=1000), 2_000_000),
        (record(7, time_ms=-5), 0),
    ],
)
def test_nobody_worked_for_longer_than_the_books_and_it_both_lasted(told: AccountingRecord, booked_us: int) -> None:
    answer = started().next(telling(told))
    assert compute_us(answer) == totals(process(answer, 7)).compute_us == booked_us


def test_a_thousand_of_them_take_no_line_from_who_is_there() -> None:
    played = started(AttributionOptions(max_processes=100))
    many = [record(1000 + n) for n in range(1000)]
    played.next(telling(*many, processes=[listed(7)]), processes=[old(7)])
    answer = played.next(telling(processes=[listed(7)]), processes=[old(7)])
    assert process(answer, 7).active
    assert len(answer.processes) == 101
    assert compute_us(answer) == sum(totals(p).compute_us for p in answer.processes) == 1_000_000_000
