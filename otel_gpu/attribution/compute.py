"""Whose work it was: from the driver's utilisation rows to microseconds of SM and memory-bandwidth time per pid.

The driver samples a GPU every 139 or 167 ms into a ring of about 10 s; a sample credits all of an engine to the one
process active on it. A row is that process's mean over *all* samples after the time asked for, so row times the time
those samples stand for is its work, however idle the rest was. ``nvml.h`` promises a row for each process "that had
some non-zero utilization": a row of zeros is work below one percent, and no row is no work. A row that cannot be true
is neither: whoever has only such rows may have done anything.

Nothing is counted twice although a read may ask again for up to 1 s that the read before has covered: it does so only
back to the newest sample with work that it knows, and what came after that sample showed none. That second adds time
to the mean and no work to its sum, so row times the whole asked time is the work of the new part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from otel_gpu.model import UtilizationRead, UtilizationRow

RING_US: Final = 10_000_000
"""What the driver remembers at least. ``ctrl2080gpumon.h``: the queue wraps after 10 seconds; longer ones exist."""

SAMPLE_US: Final = 150_000
"""About the time between two samples. Used only for where a window begins and ends between samples."""

_LONGEST_SAMPLE_US: Final = 170_000
_CLOCK_SLACK_US: Final = 1_000_000
"""Wall and monotonic time may differ by this between two reads (slow calls) before the wall clock was set."""

_HIGHEST_SUM_PERCENT: Final = 105
"""Means of one engine cannot sum to more than 100, and rounding adds little: beyond are single samples, or an error."""

_REMEMBERED_ANSWERS: Final = 60
"""For how many answers several rows of one pid are remembered: over a quiet spell, not over a driver upgrade."""

_DOUBTED_ANSWERS: Final = 3
"""For how many answers a sum that no means can have is remembered: a second one must come that soon to be believed, and
so many answers that look like means end the belief."""

_TELLING_US: Final = 4 * SAMPLE_US
"""In less time than this, one row per pid is no sign of means: there were hardly more samples than pids."""

_STEP_US: Final = 100
"""Time is counted in these, and the rest kept for the next read: whole percents of it are whole microseconds, and no
window's rounding adds up to anything over months."""

_MAX_PID: Final = 1 << 22  # PID_MAX_LIMIT of the kernel; the driver's own "nobody" is 2^32 - 1


@dataclass(frozen=True, slots=True)
class Work:
    """What one pid did in a window, in microseconds of the whole GPU's SM time and memory bandwidth.

    ``bandwidth_us`` is ``None`` where the driver's figure cannot be true.
    """

    sm_us: int
    bandwidth_us: int | None


class ComputeWindow(NamedTuple):
    """What the driver's rows say of one cycle.

    ``covered_us`` is the time since the last answer that the samples stand for: about ``window_us``, less after a gap
    longer than the ring, more where an answer was missing, 0 where the clock was set back. ``work`` has every pid that
    showed work, and sums to at most ``covered_us``. ``untold`` has every pid of whom there are only rows that cannot be
    true: it may have worked or not. ``samples`` is about how many samples stand behind it. ``anomalies`` counts the
    rows that cannot be true, and one more if the rest cannot be true together.
    """

    window_us: int
    covered_us: int
    samples: int
    work: Mapping[int, Work]
    untold: Set[int]
    anomalies: int

    @property
    def pids(self) -> Set[int]:
        """Everybody the driver has a row of, whether it can be true or not: a sign that they are on the GPU."""
        return self.work.keys() | self.untold

    @property
    def is_quiet(self) -> bool:
        """Whether the driver has no row of anybody."""
        return not self.work and not self.untold

    def share(self, pid: int) -> float | None:
        """SM share of this pid, 0 to 1; ``None`` if no time is covered, or nothing credible is told of it."""
        if self.covered_us == 0 or pid in self.untold:
            return None
        return self.work[pid].sm_us / self.covered_us if pid in self.work else 0.0

    def bandwidth_share(self, pid: int) -> float | None:
        """Memory-bandwidth share of this pid, 0 to 1; ``None`` as for ``share``, or without a credible figure."""
        if self.covered_us == 0 or pid in self.untold:
            return None
        if pid not in self.work:
            return 0.0
        bandwidth_us = self.work[pid].bandwidth_us
        return None if bandwidth_us is None else bandwidth_us / self.covered_us

    def shares(self, pids: Sequence[int]) -> list[float | None]:
        """The SM shares of several."""
        if self.is_quiet:  # of everybody the same
            return [0.0 if self.covered_us else None] * len(pids)
        if self.covered_us == 0 or self.untold:
            return [self.share(pid) for pid in pids]
        covered_us, work = self.covered_us, self.work
        return [work[pid].sm_us / covered_us if pid in work else 0.0 for pid in pids]

    def bandwidth_shares(self, pids: Sequence[int]) -> list[float | None]:
        """The memory-bandwidth shares of several."""
        if self.is_quiet:
            return [0.0 if self.covered_us else None] * len(pids)
        if self.covered_us == 0 or self.untold:
            return [self.bandwidth_share(pid) for pid in pids]
        covered_us, work = self.covered_us, self.work
        told_us = [work[pid].bandwidth_us if pid in work else 0 for pid in pids]
        return [None if bandwidth_us is None else bandwidth_us / covered_us for bandwidth_us in told_us]

    def worked(self, pid: int) -> bool | None:
        """Whether this pid showed work on any engine; ``None`` if untold, or most of the window is not covered."""
        if pid in self.untold or not self.tells:
            return None
        return pid in self.work

    @property
    def tells(self) -> bool:
        """Whether most of the window is covered: only then is no row a sign of no work."""
        return 2 * self.covered_us >= max(1, self.window_us)

    def others_worked(self, pid: int) -> bool:
        """Whether anybody but this pid showed work, or may have."""
        return any(other != pid for other in self.pids)


_tuple: Final = tuple.__new__
_NO_WORK: Final[Mapping[int, Work]] = MappingProxyType({})
_NOBODY: Final[frozenset[int]] = frozenset()


class _Reach(NamedTuple):
    """Which time the samples of a read stand for. ``overlap_us`` of it an earlier read has covered, without work."""

    begin_us: int
    end_us: int
    overlap_us: int
    covered_us: int


class _Credible(NamedTuple):
    """What of an answer can be true: its rows, those of them with a figure of bandwidth, whose rows all cannot."""

    rows: list[UtilizationRow]
    with_bandwidth: list[UtilizationRow]
    untold: frozenset[int]
    anomalies: int


_NOTHING_TOLD: Final = _Credible([], [], frozenset(), 0)


class ComputeRows:
    """Turns the reads of one GPU, one after the other, into work. Its state does not grow."""

    __slots__ = ("_doubted_answers", "_elapsed_us", "_newest_us", "_owed_us", "_sampled_answers", "_until_us")

    def __init__(self) -> None:
        self._newest_us: int | None = None
        self._until_us: int | None = None
        self._elapsed_us = 0
        self._owed_us = 0
        # For how many more answers rows are taken for samples, and a sum that no means can have would be a second one.
        self._sampled_answers = 0
        self._doubted_answers = 0

    def observe(self, read: UtilizationRead | None, window_us: int) -> ComputeWindow | None:
        """Work of a cycle that lasted ``window_us`` of monotonic time, 0 for the first; ``None`` if nobody tells.

        What a cycle without an answer missed is in the next one's, as far as the ring goes.
        """
        window_us = max(0, window_us)
        if read is not None and not read.rows:
            return self._without_rows(read, window_us)
        self._elapsed_us += window_us
        if read is None:
            return None
        told = _credible(read)
        newest_us = max([row.timestamp_us for row in told.rows], default=None)
        reach = self._reach(read, newest_us)
        excessive = sum([row.sm_percent for row in told.rows]) > _HIGHEST_SUM_PERCENT
        sampled = self._are_samples(told.rows, reach, excessive=excessive)
        sm_us: dict[int, int] = {}
        bandwidth_us: dict[int, int] = {}
        if told.rows:
            weigh = _by_sample if sampled else _by_mean
            sm_us = _fit(weigh(told.rows, reach, _SM_PERCENT), reach.covered_us)
            bandwidth_us = _fit(weigh(told.with_bandwidth, reach, _MEMORY_PERCENT), reach.covered_us)
        if newest_us is not None:
            self._newest_us = newest_us
        self._until_us = reach.end_us
        self._elapsed_us = 0
        return ComputeWindow(
            window_us=window_us,
            covered_us=reach.covered_us,
            samples=round(reach.covered_us / SAMPLE_US),
            work=MappingProxyType({pid: Work(sm_us[pid], bandwidth_us.get(pid)) for pid in sorted(sm_us)}),
            untold=told.untold,
            anomalies=told.anomalies + (excessive and not sampled),
        )

    def _without_rows(self, read: UtilizationRead, window_us: int) -> ComputeWindow:
        """The same where nobody has a row: who gives rows, and of what kind, is not learnt from none."""
        self._elapsed_us += window_us
        end_us = read.read_at_us - SAMPLE_US // 2
        covered_us = self._covered_us(self._begin_us(read), end_us)
        self._until_us = end_us
        self._elapsed_us = 0
        samples = round(covered_us / SAMPLE_US)
        return _tuple(ComputeWindow, (window_us, covered_us, samples, _NO_WORK, _NOBODY, 0))

    def _reach(self, read: UtilizationRead, newest_us: int | None) -> _Reach:
        """From sample to sample where the samples are known: only so do windows of 1 s join without gap or overlap.

        The newest sample is the newest row's if that is younger than a sample period. Otherwise it was an idle one
        and its time is not told: on average it was half a period before the read. Likewise at the beginning.
        """
        fresh = newest_us is not None and read.read_at_us - newest_us <= SAMPLE_US
        end_us = newest_us if newest_us is not None and fresh else read.read_at_us - SAMPLE_US // 2
        begin_us = self._begin_us(read)
        until_us = begin_us if self._until_us is None else max(begin_us, self._until_us)
        covered_us = self._covered_us(begin_us, end_us)
        overlap_us, _ = _whole_steps(until_us - begin_us + _STEP_US // 2)
        return _Reach(begin_us, end_us, min(overlap_us, RING_US - covered_us), covered_us)

    def _begin_us(self, read: UtilizationRead) -> int:
        # A known sample ahead of the read is from before the clock was set back. One after the time asked for means
        # that the source has started anew: work up to it is counted already.
        if self._newest_us is not None and read.since_us <= self._newest_us <= read.read_at_us:
            return self._newest_us
        return read.since_us - SAMPLE_US // 2

    def _covered_us(self, begin_us: int, end_us: int) -> int:
        """The time up to there that no earlier read has covered, in whole steps."""
        before_us = self._until_us
        until_us = begin_us if before_us is None or before_us < begin_us else before_us
        covered_us = 0 if end_us < until_us else min(end_us - until_us, RING_US)
        slack_us = _CLOCK_SLACK_US if before_us is not None and self._elapsed_us else 0
        if covered_us > self._elapsed_us + slack_us:
            covered_us = self._elapsed_us  # first sight, or the wall clock was set forward
        covered_us += self._owed_us
        self._owed_us = covered_us % _STEP_US
        return covered_us - self._owed_us

    def _are_samples(self, rows: list[UtilizationRow], reach: _Reach, *, excessive: bool) -> bool:
        """Whether this driver gives a row per sample.

        Several rows of one pid prove it. A quiet answer of such a driver has one row per pid, and read as means its one
        sample would be a whole window of work: hence the memory. One row per pid with a sum that no means can have
        proves nothing: drivers err (their rows go over 100 too), and read as samples, means would be a thirtieth of
        the work. It is scaled to 100, and believed if it comes again soon, until answers look like means once more.
        """
        if len({row.pid for row in rows}) < len(rows):
            self._sampled_answers = _REMEMBERED_ANSWERS
        elif excessive:
            if self._doubted_answers:
                self._sampled_answers = max(self._sampled_answers, _DOUBTED_ANSWERS)
            self._doubted_answers = _DOUBTED_ANSWERS
        elif rows and reach.overlap_us + reach.covered_us >= _TELLING_US:
            self._sampled_answers = max(0, self._sampled_answers - 1)
            self._doubted_answers = max(0, self._doubted_answers - 1)
        return self._sampled_answers > 0

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What is remembered from read to read, as plain data."""
        return {
            "newest_us": self._newest_us,
            "until_us": self._until_us,
            "elapsed_us": self._elapsed_us,
            "owed_us": self._owed_us,
            "sampled_answers": self._sampled_answers,
            "doubted_answers": self._doubted_answers,
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        try:
            times = [data["newest_us"], data["until_us"]]
            counts = [data["elapsed_us"], data["owed_us"], data["sampled_answers"], data["doubted_answers"]]
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("not a state of compute rows") from error
        if not all(each is None or type(each) is int for each in times):
            raise ValueError("compute rows: a time that is none")
        if not all(type(each) is int and each >= 0 for each in counts) or counts[1] >= _STEP_US:
            raise ValueError("compute rows: a count that is none")
        rows = cls()
        rows._newest_us, rows._until_us = times
        rows._elapsed_us, rows._owed_us, rows._sampled_answers, rows._doubted_answers = counts
        return rows


def _whole_steps(time_us: int) -> tuple[int, int]:
    """Time in whole steps, and what is left of it."""
    return time_us - time_us % _STEP_US, time_us % _STEP_US


_Percent = Callable[[UtilizationRow], int]
_SM_PERCENT: Final[_Percent] = attrgetter("sm_percent")
_MEMORY_PERCENT: Final[_Percent] = attrgetter("memory_percent")


def _by_mean(rows: list[UtilizationRow], reach: _Reach, percent: _Percent) -> dict[int, int]:
    """One row per pid: its mean, times the time of all samples it is the mean of."""
    span_us = reach.overlap_us + reach.covered_us
    return {row.pid: _hundredths(percent(row) * span_us) for row in rows}


def _by_sample(rows: list[UtilizationRow], reach: _Reach, percent: _Percent) -> dict[int, int]:
    """A row per sample and pid. A sample stands for the time since the one before, or for a period after idle ones.

    So idle samples, which have no rows, need not be counted.
    """
    times_us = sorted({row.timestamp_us for row in rows})
    before_us = [reach.begin_us, *times_us]
    stands_for_us = {at: min(at - before, _LONGEST_SAMPLE_US) for before, at in zip(before_us, times_us, strict=False)}
    sums: dict[int, int] = {}
    for row in rows:
        sums[row.pid] = sums.get(row.pid, 0) + percent(row) * max(0, stands_for_us[row.timestamp_us])
    return {pid: _hundredths(total) for pid, total in sums.items()}


def _hundredths(percent_us: int) -> int:
    """Percent-microseconds to microseconds: exact for whole steps, to the nearest for samples."""
    return (percent_us + 50) // 100


def _fit(work_us: dict[int, int], limit_us: int) -> dict[int, int]:
    """Scale down what whole percents and unseen sample times push over the limit."""
    total_us = sum(work_us.values())
    if total_us <= limit_us:
        return work_us
    return {pid: each_us * limit_us // total_us for pid, each_us in work_us.items()}


def _credible(read: UtilizationRead) -> _Credible:
    """The rows that can be true, one per pid and time.

    Drivers have returned percents in the thousands, rows older than asked for, and, after the clock was set back,
    rows from the future. Pid 0 is the padding of a buffer that was not filled. A row with one figure that cannot be
    true still counts if its SM figure shows work; that there is a row, and zeros in it, then mean nothing.
    """
    if not read.rows:
        return _NOTHING_TOLD
    latest_us = read.read_at_us + _CLOCK_SLACK_US  # the samples go on while the call is under way
    since_us = read.since_us
    rows: dict[tuple[int, int], UtilizationRow] = {}
    pids: set[int] = set()
    answered = 0
    for row in read.rows:
        pid, at_us = row.pid, row.timestamp_us
        answered += pid != 0
        if not 0 < pid <= _MAX_PID:
            continue
        pids.add(pid)
        if since_us < at_us <= latest_us and (0 < row.sm_percent <= 100 or _is_true(row)):
            known = rows.get((pid, at_us))
            rows[pid, at_us] = row if known is None else max(row, known, key=_percents)
    kept = list(rows.values())
    return _Credible(
        rows=kept,
        with_bandwidth=[row for row in kept if 0 <= row.memory_percent <= 100],
        untold=frozenset(pids.difference([row.pid for row in kept])),
        anomalies=answered - sum(map(_is_true, kept)),
    )


def _is_true(row: UtilizationRow) -> bool:
    return (
        0 <= row.sm_percent <= 100
        and 0 <= row.memory_percent <= 100
        and 0 <= row.encoder_percent <= 100
        and 0 <= row.decoder_percent <= 100
    )


def _percents(row: UtilizationRow) -> tuple[int, int, int, int]:
    return row.sm_percent, row.memory_percent, row.encoder_percent, row.decoder_percent
