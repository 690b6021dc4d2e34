"""SM time and memory-bandwidth time per pid, in microseconds, from the driver's utilisation rows.

The driver samples a GPU every 139 or 167 ms into a ring of about 10 s. A sample credits all of an engine to the one
process that is active on it. A row is the mean of one process over *all* samples after the time asked for, so the row
times the time that these samples cover is the work of that process. ``nvml.h`` documents a row for each process "that
had some non-zero utilization": a row of zeros is work below one percent, and no row is no work. Drivers also return
figures that cannot be true. The work of a pid that has only such rows is unknown.

A read may ask again for up to 1 s that the previous read has covered. This counts no work twice: a source asks back to
the newest sample with work that it knows, and the samples after that one showed none. The overlap adds time to the
mean and no work, so the row times the whole time asked for is the work of the new part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.saved_values import integer, optional, restoring, whole
from otel_gpu.model import UtilizationRead, UtilizationRow

RING_US: Final = 10_000_000
"""The least time that the driver keeps samples. ``ctrl2080gpumon.h``: the queue wraps after 10 s; some are longer."""

SAMPLE_US: Final = 150_000
"""Approximate sample period. Used only to place the ends of a window between samples."""

_LONGEST_SAMPLE_US: Final = 170_000
_CLOCK_SLACK_US: Final = 1_000_000
"""Wall and monotonic time may differ by this much between two reads (slow calls). More means that the wall clock was
set."""

_HIGHEST_SUM_PERCENT: Final = 105
"""Means of one engine sum to at most 100, plus some rounding. A higher sum means single samples, or an error."""

_REMEMBERED_READS: Final = 60
"""Reads for which several rows of one pid are remembered: long enough for a quiet period, not for a driver upgrade."""

_DOUBTED_READS: Final = 3
"""Reads for which an excessive sum is remembered. A second excessive sum within this number of reads means that rows
are samples; the same number of reads that look like means revoke it."""

_MIN_MEANS_US: Final = 4 * SAMPLE_US
"""Below this time, one row per pid does not show that rows are means: there are hardly more samples than pids."""

_STEP_US: Final = 100
"""Time is counted in these steps and the rest is carried to the next read. Whole percents of a step are whole
microseconds, so rounding does not accumulate over months."""

_MAX_PID: Final = 1 << 22  # PID_MAX_LIMIT of the kernel; the driver fills unused rows with 2^32 - 1


class Work(NamedTuple):
    """Work of one pid in a window, in microseconds of the whole GPU's SM time and memory bandwidth.

    ``bandwidth_us`` is ``None`` where the driver's figure cannot be true.
    """

    sm_us: int
    bandwidth_us: int | None


class ComputeWindow(NamedTuple):
    """Work per pid in one cycle.

    ``covered_us`` is the time since the last read that the samples cover: about ``window_us``; less after a gap longer
    than the ring, more where the previous read failed, 0 where the clock was set back. ``work`` has every pid that
    showed work; its SM times sum to at most ``covered_us``. ``unknown_pids`` has every pid whose rows all cannot be
    true: it may have worked or not. ``samples`` is the approximate number of samples. ``anomalies`` counts the rows
    that cannot be true, plus one if the others cannot be true together.
    """

    window_us: int
    covered_us: int
    samples: int
    work: Mapping[int, Work]
    unknown_pids: Set[int]
    anomalies: int

    @property
    def pids(self) -> Set[int]:
        """Every pid that has a row, plausible or not: a row shows that the process is on the GPU."""
        return self.work.keys() | self.unknown_pids

    def share(self, pid: int) -> float | None:
        """SM share of a pid, 0 to 1; ``None`` if no time is covered or its work is unknown."""
        if self.covered_us == 0 or pid in self.unknown_pids:
            return None
        return self.work[pid].sm_us / self.covered_us if pid in self.work else 0.0

    def bandwidth_share(self, pid: int) -> float | None:
        """Memory-bandwidth share of a pid, 0 to 1; ``None`` as for ``share``, or without a plausible figure."""
        if self.covered_us == 0 or pid in self.unknown_pids:
            return None
        if pid not in self.work:
            return 0.0
        bandwidth_us = self.work[pid].bandwidth_us
        return None if bandwidth_us is None else bandwidth_us / self.covered_us

    def worked(self, pids: Set[int]) -> bool | None:
        """Whether any of these pids showed work on any engine; ``None`` if that is unknown."""
        if 2 * self.covered_us < max(1, self.window_us):  # only where most is covered, a missing row means no work
            return None
        if not self.work.keys().isdisjoint(pids):
            return True
        return False if self.unknown_pids.isdisjoint(pids) else None

    def others_worked(self, pids: Set[int]) -> bool:
        """Whether any other pid showed work, or may have worked."""
        return not (self.work.keys() <= pids and self.unknown_pids <= pids)


class _Coverage(NamedTuple):
    """The time that the samples of a read cover. An earlier read has covered ``overlap_us`` of it, without work."""

    begin_us: int
    end_us: int
    overlap_us: int
    covered_us: int


class _PlausibleRows(NamedTuple):
    """The plausible rows of a read, the rows with a plausible bandwidth too, and the pids without a plausible row."""

    rows: list[UtilizationRow]
    with_bandwidth: list[UtilizationRow]
    unknown_pids: frozenset[int]
    anomalies: int


class UtilizationRows:
    """Converts the consecutive utilisation reads of one GPU into work. Its state has a fixed size."""

    __slots__ = ("_doubted_reads", "_elapsed_us", "_newest_us", "_remainder_us", "_sampled_reads", "_until_us")

    def __init__(self) -> None:
        self._newest_us: int | None = None  # the newest sample with work
        self._until_us: int | None = None  # the end of the time covered so far
        self._elapsed_us = 0  # monotonic time since the last read that succeeded
        self._remainder_us = 0  # covered time below one step
        self._sampled_reads = 0  # number of further reads whose rows are taken as samples
        self._doubted_reads = 0  # number of further reads in which an excessive sum is the second one

    def observe(self, read: UtilizationRead | None, window_us: int) -> ComputeWindow | None:
        """Work of a cycle that lasted ``window_us`` of monotonic time, 0 for the first; ``None`` without a read.

        After a cycle without a read, the next read contains its work, up to the length of the driver's ring.
        """
        window_us = max(0, window_us)
        self._elapsed_us += window_us
        if read is None:
            return None
        plausible = _plausible_rows(read)
        newest_us = max([row.timestamp_us for row in plausible.rows], default=None)
        coverage = self._coverage(read, newest_us)
        is_excessive = sum([row.sm_percent for row in plausible.rows]) > _HIGHEST_SUM_PERCENT
        are_samples = self._are_samples(plausible.rows, coverage, is_excessive=is_excessive)
        work_of = _work_from_samples if are_samples else _work_from_means
        sm_us = _fit(work_of(plausible.rows, coverage, _SM_PERCENT), coverage.covered_us)
        bandwidth_us = _fit(work_of(plausible.with_bandwidth, coverage, _MEMORY_PERCENT), coverage.covered_us)
        if newest_us is not None:
            self._newest_us = newest_us
        self._until_us = coverage.end_us
        self._elapsed_us = 0
        return ComputeWindow(
            window_us=window_us,
            covered_us=coverage.covered_us,
            samples=round(coverage.covered_us / SAMPLE_US),
            work=MappingProxyType({pid: Work(sm_us[pid], bandwidth_us.get(pid)) for pid in sorted(sm_us)}),
            unknown_pids=plausible.unknown_pids,
            anomalies=plausible.anomalies + (is_excessive and not are_samples),
        )

    def _coverage(self, read: UtilizationRead, newest_us: int | None) -> _Coverage:
        """The time that a read covers, from sample to sample where these are known.

        Then windows of 1 s join without gap or overlap. The newest sample is the one of the newest row if it is
        younger than a sample period. Otherwise the newest sample was idle and its time is unknown: on average it was
        taken half a period before the read. The same holds for the beginning.
        """
        is_fresh = newest_us is not None and read.read_at_us - newest_us <= SAMPLE_US
        end_us = newest_us if newest_us is not None and is_fresh else read.read_at_us - SAMPLE_US // 2
        begin_us = read.since_us - SAMPLE_US // 2
        # A known sample later than the read is from before the clock was set back. One later than the time asked for
        # means that the source was restarted: the work up to it is already counted.
        if self._newest_us is not None and read.since_us <= self._newest_us <= read.read_at_us:
            begin_us = self._newest_us
        until_us = begin_us if self._until_us is None else max(begin_us, self._until_us)
        covered_us = self._new_us(until_us, end_us)
        overlap_us = until_us - begin_us + _STEP_US // 2
        overlap_us -= overlap_us % _STEP_US
        return _Coverage(begin_us, end_us, min(overlap_us, RING_US - covered_us), covered_us)

    def _new_us(self, until_us: int, end_us: int) -> int:
        """The time from ``until_us`` to ``end_us`` in whole steps; the rest is carried to the next read."""
        covered_us = min(max(0, end_us - until_us), RING_US)
        slack_us = _CLOCK_SLACK_US if self._until_us is not None and self._elapsed_us else 0
        if covered_us > self._elapsed_us + slack_us:
            covered_us = self._elapsed_us  # the first read, or the wall clock was set forward
        covered_us += self._remainder_us
        self._remainder_us = covered_us % _STEP_US
        return covered_us - self._remainder_us

    def _are_samples(self, rows: list[UtilizationRow], coverage: _Coverage, *, is_excessive: bool) -> bool:
        """Whether this driver returns a row per sample.

        Several rows of one pid prove it. In a quiet period such a driver returns one row per pid, and read as a mean
        this single sample would be a whole window of work: so the proof is remembered. One row per pid with a sum
        that means cannot have proves nothing. Drivers return wrong figures (rows above 100 too), and means read as
        samples would be a thirtieth of the work. Such a sum is scaled to 100. A second one soon after the first counts
        as proof until reads look like means again.
        """
        if len({row.pid for row in rows}) < len(rows):
            self._sampled_reads = _REMEMBERED_READS
        elif is_excessive:
            if self._doubted_reads:
                self._sampled_reads = max(self._sampled_reads, _DOUBTED_READS)
            self._doubted_reads = _DOUBTED_READS
        elif rows and coverage.overlap_us + coverage.covered_us >= _MIN_MEANS_US:
            self._sampled_reads = max(0, self._sampled_reads - 1)
            self._doubted_reads = max(0, self._doubted_reads - 1)
        return self._sampled_reads > 0

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All that is remembered between reads, as plain data."""
        return {
            "newest_us": self._newest_us,
            "until_us": self._until_us,
            "elapsed_us": self._elapsed_us,
            "owed_us": self._remainder_us,
            "sampled_answers": self._sampled_reads,
            "doubted_answers": self._doubted_reads,
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """Restore what ``to_state`` returned; ValueError for anything else."""
        restored = cls()
        with restoring("utilization rows"):
            restored._newest_us = optional(integer, data["newest_us"])
            restored._until_us = optional(integer, data["until_us"])
            restored._elapsed_us = whole(data["elapsed_us"])
            restored._remainder_us = whole(data["owed_us"])
            restored._sampled_reads = whole(data["sampled_answers"])
            restored._doubted_reads = whole(data["doubted_answers"])
        if restored._remainder_us >= _STEP_US:
            raise ValueError("utilization rows: more than one step is left over")
        return restored


_Percent = Callable[[UtilizationRow], int]
_SM_PERCENT: Final[_Percent] = attrgetter("sm_percent")
_MEMORY_PERCENT: Final[_Percent] = attrgetter("memory_percent")


def _work_from_means(rows: list[UtilizationRow], coverage: _Coverage, percent: _Percent) -> dict[int, int]:
    """Microseconds of work per pid where each has one row: its mean times the time of all samples."""
    time_us = coverage.overlap_us + coverage.covered_us
    return {row.pid: (percent(row) * time_us + 50) // 100 for row in rows}


def _work_from_samples(rows: list[UtilizationRow], coverage: _Coverage, percent: _Percent) -> dict[int, int]:
    """Microseconds of work per pid where there is a row per sample and pid.

    A sample covers the time since the previous one, at most one period. So idle samples, which have no rows, need not
    be counted.
    """
    times_us = sorted({row.timestamp_us for row in rows})
    previous_us = [coverage.begin_us, *times_us]
    sample_us = {at: min(at - before, _LONGEST_SAMPLE_US) for before, at in zip(previous_us, times_us, strict=False)}
    sums: dict[int, int] = {}
    for row in rows:
        sums[row.pid] = sums.get(row.pid, 0) + percent(row) * max(0, sample_us[row.timestamp_us])
    return {pid: (total + 50) // 100 for pid, total in sums.items()}


def _fit(work_us: dict[int, int], limit_us: int) -> dict[int, int]:
    """Scale work down where whole percents and unknown sample times exceed the limit."""
    total_us = sum(work_us.values())
    if total_us <= limit_us:
        return work_us
    return {pid: each_us * limit_us // total_us for pid, each_us in work_us.items()}


def _plausible_rows(read: UtilizationRead) -> _PlausibleRows:
    """The rows that can be true, one per pid and time.

    Drivers have returned percents in the thousands, rows older than asked for and, after the clock was set back, rows
    from the future. Pid 0 is the padding of a buffer that was not filled. A row with one implausible figure still
    counts if its SM figure shows work. Otherwise neither its presence nor its zeros have a meaning.
    """
    latest_us = read.read_at_us + _CLOCK_SLACK_US  # the driver takes samples during the call
    rows: dict[tuple[int, int], UtilizationRow] = {}
    pids: set[int] = set()
    for row in read.rows:
        if not 0 < row.pid <= _MAX_PID:
            continue
        pids.add(row.pid)
        if read.since_us < row.timestamp_us <= latest_us and (0 < row.sm_percent <= 100 or _is_plausible(row)):
            key = row.pid, row.timestamp_us
            rows[key] = max(row, rows.get(key, row), key=_percents)
    kept = list(rows.values())
    returned = sum(row.pid != 0 for row in read.rows)
    return _PlausibleRows(
        rows=kept,
        with_bandwidth=[row for row in kept if 0 <= row.memory_percent <= 100],
        unknown_pids=frozenset(pids.difference([row.pid for row in kept])),
        anomalies=returned - sum(map(_is_plausible, kept)),
    )


def _is_plausible(row: UtilizationRow) -> bool:
    percents = _percents(row)
    return min(percents) >= 0 and max(percents) <= 100


def _percents(row: UtilizationRow) -> tuple[int, int, int, int]:
    return row.sm_percent, row.memory_percent, row.encoder_percent, row.decoder_percent
