"""Problems: GPUs, sources and processes that cannot be read in full, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_gpu.model import UNIDENTIFIED_WORKLOAD, GpuHealth, GpuReport, Report, SourceState
from otel_gpu.view.columns import Place, places_text
from otel_gpu.view.gpus import HEALTH_TONES
from otel_gpu.view.model import Problem
from otel_gpu.view.terminal import Tone, printable
from otel_gpu.view.text import plural, state_with_reason

_SOURCE_TONES: Final = {
    SourceState.DEGRADED: Tone.WARN,
    SourceState.UNAVAILABLE: Tone.BAD,
    SourceState.PAUSED: Tone.WARN,
}


def problems(report: Report) -> tuple[Problem, ...]:
    """All problems of a cycle: GPUs, then sources, then processes that cannot be identified."""
    of_gpus = list(_of_gpus(report))
    return (*of_gpus, *_of_sources(report, has_gpu_problems=bool(of_gpus)), *_of_processes(report))


def dropped_series(count: int) -> tuple[Problem, ...]:
    """The problem of an agent whose collections leave out this many series."""
    if not count:
        return ()
    text = f"export: {count:,} series of processes are not exported, because there are too many series"
    return (Problem("export limited", text, Tone.WARN),)


def remedy(host: str) -> str:
    """What to do about problems on this host."""
    return f"otel-gpu doctor{f' on {host}' if host else ''} explains how to fix this"


def _of_gpus(report: Report) -> Iterator[Problem]:
    """A problem for all GPUs with the same state and reason."""
    gpus: dict[tuple[GpuHealth, str | None], list[GpuReport]] = {}
    for gpu in report.gpus:
        if gpu.reading.health is not GpuHealth.OK:
            gpus.setdefault((gpu.reading.health, gpu.reading.reason), []).append(gpu)
    for (health, reason), alike in gpus.items():
        name = f"GPU {places_text(Place(has_no_number=False, number=gpu.identity.index, profile='') for gpu in alike)}"
        text = printable(f"{name}: {state_with_reason(health.value, reason)}")
        yield Problem(f"{name} {health.value}", text, HEALTH_TONES[health])


def _of_sources(report: Report, *, has_gpu_problems: bool) -> Iterator[Problem]:
    """A state that comes from single GPUs is theirs, and is not repeated."""
    for source in report.sources:
        if (source.state is SourceState.OK and not source.blind) or (source.by_gpu and has_gpu_problems):
            continue
        # A source that answers and is blind nevertheless is worse than degraded.
        is_blind = source.blind and source.state.answers
        state = "blind" if is_blind else source.state.value
        tone = Tone.BAD if is_blind else _SOURCE_TONES[source.state]
        text = f"{source.name}: {state_with_reason(state, source.reason)}"
        yield Problem(printable(f"{source.name} {state}"), printable(text), tone)


def _of_processes(report: Report) -> Iterator[Problem]:
    name = UNIDENTIFIED_WORKLOAD.id
    if any(workload.ref == UNIDENTIFIED_WORKLOAD and workload.active_gpus for workload in report.workloads):
        text = f"{name}: the driver lists processes that are not visible in /proc here"
        yield Problem(f"{name} processes", text, Tone.WARN)
    reasons = {str(reason): count for reason, count in report.unreadable.items() if count}
    if reasons:
        processes = plural(sum(reasons.values()), "process")
        detail = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        text = f"{processes} could not be read: {detail}; see otel-gpu doctor"
        yield Problem(f"{processes} unreadable", text, Tone.WARN)
