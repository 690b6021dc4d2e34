"""Errors and their summaries, as pure functions of truth and claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_gpu.sources.sim.truth import PJ_PER_MJ, GpuTruth


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of many workloads, in percent of the truth."""

    count: int
    mean: float
    p95: float


def summarise(errors: Sequence[float]) -> Summary:
    """Mean and 95th percentile."""
    if not errors:
        return Summary(0, math.nan, math.nan)
    return Summary(len(errors), sum(errors) / len(errors), percentile(errors, 0.95))


def percentile(values: Sequence[float], quantile: float) -> float:
    """The value at a quantile (0 to 1), linearly interpolated."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def relative_errors(truth: Mapping[str, float], claims: Mapping[str, float]) -> list[float]:
    """|claim - truth| in percent of the truth, for every key with a truth above 0; a missing claim counts as 0."""
    return [100 * abs(claims.get(workload, 0.0) - true) / true for workload, true in sorted(truth.items()) if true > 0]


# ---------------------------------------------------------------------------- energy and busy time


def resident_energy_mj(truth: GpuTruth) -> dict[str, float]:
    """The energy due to each workload under the policy ``resident``, in mJ, by workload id.

    The energy of its own work, and while it is resident an equal part of the power that the GPU draws without work.
    """
    standing_w = truth.static_w + truth.context_w
    due: dict[str, float] = {}
    for process in truth.processes:
        own_mj = process.dynamic_pj / PJ_PER_MJ + process.equal_share_s * standing_w * 1e3
        due[process.workload.id] = due.get(process.workload.id, 0.0) + own_mj
    return due


def busy_s(truth: GpuTruth) -> dict[str, float]:
    """∫ SM share dt of each workload, in seconds, by workload id."""
    busy: dict[str, float] = {}
    for process in truth.processes:
        busy[process.workload.id] = busy.get(process.workload.id, 0.0) + process.busy_s
    return busy


# ---------------------------------------------------------------------------- memory


def hidden_bytes(truth: GpuTruth) -> dict[str, int]:
    """Bytes of each workload that no list shows, by workload id."""
    held: dict[str, int] = {}
    for process in truth.processes:
        if process.hidden:
            held[process.workload.id] = held.get(process.workload.id, 0) + process.resident_bytes
    return held


class ByteTime:
    """Errors of a memory figure over time: Σ |claim - truth| over the polls in percent of Σ truth, per workload.

    A figure that is right at the end but was wrong for minutes has an error. Bytes claimed for a workload before or
    after it held any count as errors, too.
    """

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._held: dict[str, int] = {}

    def add(self, truth: Mapping[str, int], claims: Mapping[str, int]) -> None:
        """One poll."""
        for workload in truth.keys() | claims.keys():
            true = truth.get(workload, 0)
            self._held[workload] = self._held.get(workload, 0) + true
            self._missed[workload] = self._missed.get(workload, 0) + abs(claims.get(workload, 0) - true)

    def errors(self) -> list[float]:
        """In percent, for every workload that held memory."""
        return [100 * self._missed[workload] / held for workload, held in sorted(self._held.items()) if held > 0]


# ---------------------------------------------------------------------------- idleness


class IdlePoll(NamedTuple):
    """One poll of one process: whether it worked since the previous poll, and whether it was called idle."""

    at_s: float
    worked: bool
    called_idle: bool


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """The result of a rule for one process. ``working_s`` is the time until its final stop.

    A false alarm is a run of polls that call it idle although it worked in at least one of them; ``false_s`` is the
    time of the polls with work. ``delay_s`` is the time from the stop until the final idle run; ``None`` without one.
    """

    working_s: float
    false_alarms: int
    false_s: float
    delay_s: float | None


def idle_record(polls: Sequence[IdlePoll], stopped_s: float) -> IdleRecord:
    """Judge the polls of a process with a final stop."""
    false_alarms, false_s, run_is_false = 0, 0.0, False
    since_s: float | None = None
    previous_s = polls[0].at_s if polls else 0.0
    for poll in polls:
        if not poll.called_idle:
            since_s, run_is_false = None, False
        else:
            since_s = poll.at_s if since_s is None else since_s
            if poll.worked:
                false_s += poll.at_s - previous_s
                false_alarms += not run_is_false
                run_is_false = True
        previous_s = poll.at_s
    first_s = polls[0].at_s if polls else 0.0
    return IdleRecord(
        working_s=max(0.0, stopped_s - first_s),
        false_alarms=false_alarms,
        false_s=false_s,
        delay_s=None if since_s is None else max(0.0, since_s - stopped_s),
    )


@dataclass(frozen=True, slots=True)
class IdleSummary:
    """Many records: false alarms per hour of work, false idle time in percent of it, delay in s."""

    count: int
    hours: float
    alarms_per_hour: float
    false_percent: float
    mean_delay_s: float
    worst_delay_s: float
    never: int


def summarise_idle(records: Iterable[IdleRecord]) -> IdleSummary:
    """All records together; without work there is no false alarm."""
    known = list(records)
    working_s = sum(record.working_s for record in known)
    delays_s = [record.delay_s for record in known if record.delay_s is not None]
    alarms = sum(record.false_alarms for record in known)
    false_s = sum(record.false_s for record in known)
    return IdleSummary(
        count=len(known),
        hours=working_s / 3600,
        alarms_per_hour=3600 * alarms / working_s if working_s > 0 else 0.0,
        false_percent=100 * false_s / working_s if working_s > 0 else 0.0,
        mean_delay_s=sum(delays_s) / len(delays_s) if delays_s else math.nan,
        worst_delay_s=max(delays_s, default=math.nan),
        never=len(known) - len(delays_s),
    )
