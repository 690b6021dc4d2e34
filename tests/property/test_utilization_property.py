"""Laws of compute time: never more than elapsed and never counted twice, for any read of the driver."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.attribution.utilization import RING_US, ComputeWindow, UtilizationRows
from otel_gpu.model import UtilizationRead, UtilizationRow

S = 1_000_000
SLACK_US = S + 100

PERCENTS = st.one_of(st.integers(0, 100), st.integers(-(2**40), 2**40))
TIMES = st.one_of(st.integers(0, 100 * S), st.integers(-(2**63), 2**64))
ROWS = st.builds(
    UtilizationRow, st.one_of(st.integers(1, 4), st.integers(-5, 2**33)), TIMES, PERCENTS, PERCENTS, PERCENTS, PERCENTS
)
READS = st.builds(UtilizationRead, TIMES, TIMES, st.lists(ROWS, max_size=8).map(tuple))
CYCLES = st.lists(st.tuples(st.none() | READS, st.one_of(st.integers(0, 20 * S), st.integers(-S, 2**62))), max_size=12)


def windows(reads: Sequence[tuple[UtilizationRead | None, int]]) -> list[ComputeWindow | None]:
    rows = UtilizationRows()
    return [rows.observe(read, window_us) for read, window_us in reads]


@given(CYCLES)
def test_work_is_never_negative_and_never_more_than_the_time_covered(
    cycles: list[tuple[UtilizationRead | None, int]],
) -> None:
    rows, elapsed_us = UtilizationRows(), 0
    for read, window_us in cycles:
        elapsed_us += max(0, window_us)
        window = rows.observe(read, window_us)
        assert (window is None) == (read is None)
        if read is None or window is None:
            continue
        assert 0 <= window.covered_us <= min(RING_US, elapsed_us + SLACK_US)
        assert elapsed_us or not window.covered_us
        bandwidths_us = [w.bandwidth_us for w in window.work.values() if w.bandwidth_us is not None]
        for work in ([w.sm_us for w in window.work.values()], bandwidths_us):
            assert all(each_us >= 0 for each_us in work)
            assert sum(work) <= window.covered_us
        assert 0 <= window.anomalies <= len(read.rows) + 1
        for pid in window.work:
            share = window.share(pid)
            assert share is None or 0.0 <= share <= 1.0
        elapsed_us = 0


@given(CYCLES)
def test_a_pid_with_a_row_is_never_reported_without_work(cycles: list[tuple[UtilizationRead | None, int]]) -> None:
    for (read, _), window in zip(cycles, windows(cycles), strict=True):
        if read is None or window is None:
            continue
        assert window.work.keys().isdisjoint(window.unknown_pids)
        assert window.pids == {row.pid for row in read.rows if 0 < row.pid <= 1 << 22}
        assert all(window.worked({pid}) is not False for pid in window.pids)
        assert len(window.unknown_pids) <= window.anomalies
        for pid in window.unknown_pids:
            assert (window.worked({pid}), window.share(pid), window.bandwidth_share(pid)) == (None, None, None)


@given(CYCLES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(
    cycles: list[tuple[UtilizationRead | None, int]], shuffle: random.Random
) -> None:
    mixed: list[tuple[UtilizationRead | None, int]] = []
    for read, window_us in cycles:
        if read is None:
            mixed.append((None, window_us))
            continue
        rows = list(read.rows)
        shuffle.shuffle(rows)
        mixed.append((UtilizationRead(read.since_us, read.read_at_us, tuple(rows)), window_us))
    assert windows(cycles) == windows(mixed)


@given(CYCLES, st.integers(0, 12))
def test_a_state_saved_at_any_time_makes_no_difference(
    cycles: list[tuple[UtilizationRead | None, int]], cut: int
) -> None:
    rows = UtilizationRows()
    found = []
    for number, (read, window_us) in enumerate(cycles):
        if number == cut:
            rows = UtilizationRows.from_state(json.loads(json.dumps(rows.to_state())))
        found.append(rows.observe(read, window_us))
    assert found == windows(cycles)
    assert len(json.dumps(rows.to_state())) < 400


class Driver:
    """A driver with known samples: each is idle (0) or all of one pid, and the ring is long enough."""

    def __init__(self, owners: Sequence[int], period_us: int) -> None:
        self.owners = owners
        self.period_us = period_us
        self._newest_us = 0
        self._last_us = 0

    def read(self, at_us: int) -> UtilizationRead:
        """Read as the sources do: from the newest row, at most 1 s before the last read."""
        since_us = max(self._newest_us, self._last_us - S)
        numbers = range(since_us // self.period_us + 1, at_us // self.period_us + 1)
        counts: dict[int, int] = {}
        newest: dict[int, int] = {}
        for number in numbers:
            pid = self.owners[number % len(self.owners)]
            if pid:
                counts[pid] = counts.get(pid, 0) + 1
                newest[pid] = number * self.period_us
        self._last_us = at_us
        self._newest_us = max(newest.values(), default=self._newest_us)
        rows = tuple(
            UtilizationRow(pid, newest[pid], 100 * n // len(numbers), 0, 0, 0) for pid, n in sorted(counts.items())
        )
        return UtilizationRead(since_us, at_us, rows)


@given(
    st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=300),
    st.sampled_from([139_000, 167_000]),
    st.lists(st.integers(S, 9 * S), min_size=1, max_size=40),
)
def test_every_sample_counts_once_however_reads_and_samples_fall(
    owners: list[int], period_us: int, windows_us: list[int]
) -> None:
    """Per read, truncated percents lose up to 1 % of what was asked for, and the ends are off by half a period."""
    driver, rows = Driver(owners, period_us), UtilizationRows()
    rows.observe(driver.read(0), 0)
    now_us, totals, lost_us = 0, {1: 0, 2: 0}, 0
    for window_us in windows_us:
        now_us += window_us
        window = rows.observe(driver.read(now_us), window_us)
        assert window is not None
        lost_us += (window_us + S) // 100
        for pid, work in window.work.items():
            totals[pid] += work.sm_us
    ends_us = len(windows_us) * period_us
    for pid, total_us in totals.items():
        numbers = range(1, now_us // period_us + 1)
        true_us = period_us * sum(owners[number % len(owners)] == pid for number in numbers)
        assert true_us - lost_us - ends_us <= total_us <= true_us + ends_us


@given(st.sampled_from([139_000, 167_000]), st.lists(st.integers(S, 9 * S), min_size=1, max_size=60))
def test_windows_of_a_full_gpu_join_without_gap_or_overlap(period_us: int, windows_us: list[int]) -> None:
    driver, rows = Driver([1], period_us), UtilizationRows()
    rows.observe(driver.read(0), 0)
    now_us, total_us = 0, 0
    for window_us in windows_us:
        now_us += window_us
        window = rows.observe(driver.read(now_us), window_us)
        assert window is not None
        assert window.share(1) == 1.0
        total_us += window.work[1].sm_us
    assert abs(total_us - now_us) <= 2 * period_us
