"""Processes known only from the driver's accounting records: each is posted once, however often it is read."""

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

START_S = 6  # after the ledger began


def record(pid: int, *, start_s: float = START_S, time_ms: int = 2000, percent: int | None = 50) -> AccountingRecord:
    """A process that ran for 2 s from ``start_s`` after the first cycle, at half of the GPU."""
    return AccountingRecord(pid, WALL_NS // 1000 + round(start_s * 1e6), time_ms, percent, None, None, running=False)


def with_records(*records: AccountingRecord, processes: Iterable[ListedProcess] = ()) -> GpuReading:
    """A GPU with these accounting records."""
    return replace(gpu_with(*processes), accounting=records)


def compute_us(report: Report) -> int:
    """Compute time of the workload ``unidentified``."""
    return totals(workload(report, UNIDENTIFIED_WORKLOAD.id)).compute_us


def started(options: AttributionOptions | None = None) -> Played:
    """A host after two cycles, 5 s after the ledger began."""
    played = Played(options)
    for _ in range(2):
        played.next(with_records())
    return played


def test_a_process_that_came_and_went_unseen_is_posted_once_to_unidentified() -> None:
    played = started()
    report = played.next(with_records(record(7)))
    for _ in range(3):
        for part in (process(report, 7), workload(report, UNIDENTIFIED_WORKLOAD.id)):
            assert totals(part).compute_us == 1_000_000
            assert (part.active, part.energy.total_mj or 0, time_us(part)) == (False, 0, 0)
        assert (process(report, 7).name, process(report, 7).start_time_s) == (None, None)
        assert_adds_up(report)
        report = played.next(with_records(record(7)))


def test_a_record_is_posted_once_over_a_restart_and_after_its_account_was_dropped() -> None:
    played = started()
    played.next(with_records(record(7)))
    played.restart()
    assert compute_us(played.next(with_records(record(7)))) == 1_000_000
    for _ in range(70):
        report = played.next(with_records(record(7)))
    assert report.workloads == ()


def test_a_record_that_is_twice_in_one_reading_counts_once() -> None:
    assert compute_us(started().next(with_records(record(7), record(7)))) == 1_000_000


def test_rows_of_a_pid_after_its_record_add_nothing_to_it() -> None:
    played = started()
    played.next(with_records(record(7)))
    report = played.next(replace(with_records(), utilization=played.rows((7, 80))))
    assert compute_us(report) == 1_000_000


def test_a_record_of_a_process_that_was_seen_adds_nothing() -> None:
    played = started()
    for _ in range(2):
        report = played.next(with_records(processes=[listed(7)]), processes=[old(7)])
    for _ in range(2):
        report = played.next(with_records(record(7, start_s=-500)))
    assert [each.ref.id for each in report.workloads] == ["host"]
    assert [each.key.start_ticks for each in report.processes] == [1]


def test_a_record_of_a_process_that_is_present_adds_nothing() -> None:
    played = started()
    for _ in range(2):
        reading = with_records(record(7), processes=[listed(7)])
        report = played.next(reading, processes=[old(7)])
    assert [each.ref.id for each in report.workloads] == ["host"]


def test_a_record_of_a_process_that_was_in_the_overflow_adds_nothing() -> None:
    played = started(AttributionOptions(max_processes=0))
    for _ in range(2):
        played.next(with_records(processes=[listed(7)]), processes=[old(7)])
    before = played.next(with_records())
    after = played.next(with_records(record(7)))
    assert process(after, OVERFLOW_PROCESS.pid).totals == process(before, OVERFLOW_PROCESS.pid).totals
    assert [each.ref.id for each in after.workloads] == ["host"]


def test_in_a_full_ledger_a_record_is_posted_to_the_overflow_once() -> None:
    played = started(AttributionOptions(max_processes=0))
    for _ in range(2):
        report = played.next(with_records(record(7)))
    assert totals(process(report, OVERFLOW_PROCESS.pid)).compute_us == compute_us(report) == 1_000_000


def test_a_later_process_with_the_same_pid_is_posted_too() -> None:
    played = started()
    played.next(with_records(record(7)))
    report = played.next(with_records(record(7), record(7, start_s=12, time_ms=1000)))
    assert compute_us(report) == 1_500_000
    assert totals(process(report, 7)).compute_us == 1_500_000


def test_a_later_process_with_the_pid_of_one_that_was_seen_is_posted() -> None:
    played = started()
    for _ in range(2):
        played.next(with_records(processes=[listed(7)]), processes=[old(7)])
    played.next(with_records())
    later_s = played.at_s + 1
    report = played.next(with_records(record(7, start_s=later_s)))
    assert compute_us(report) == 1_000_000


@pytest.mark.parametrize(
    ("read", "posted_us"),
    [
        (record(7, time_ms=1 << 62), 2_000_000),  # from 6 s to now, at half
        (record(7, start_s=-1e6, time_ms=1 << 62), 5_000_000),  # since the ledger began, at half
        (record(7, start_s=-1e6), 0),  # it ended before the ledger began
        (record(7, start_s=-1), 500_000),  # the second of its two seconds
        (record(7, start_s=1e9), 0),
        (record(7, percent=None), 0),
        (record(7, percent=1000), 2_000_000),
        (record(7, time_ms=-5), 0),
    ],
)
def test_a_record_counts_only_within_the_life_of_its_process_and_of_the_ledger(
    read: AccountingRecord, posted_us: int
) -> None:
    report = started().next(with_records(read))
    assert compute_us(report) == totals(process(report, 7)).compute_us == posted_us


def test_a_thousand_short_lived_processes_take_no_account_from_a_present_one() -> None:
    played = started(AttributionOptions(max_processes=100))
    many = [record(1000 + n) for n in range(1000)]
    played.next(with_records(*many, processes=[listed(7)]), processes=[old(7)])
    report = played.next(with_records(processes=[listed(7)]), processes=[old(7)])
    assert process(report, 7).active
    assert len(report.processes) == 101
    assert compute_us(report) == sum(totals(p).compute_us for p in report.processes) == 1_000_000_000
