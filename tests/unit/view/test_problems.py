"""Problems: each one once, with its reason and tone, and what to do about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from otel_gpu.model import GpuHealth, GpuReading, Report, SourceOutcome, SourceState
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import Problem, View
from otel_gpu.view.problems import problems
from otel_gpu.view.terminal import Tone
from tests.builders import attribute, attribution, failed_gpu, gpu, snapshot

SUBJECT = Subject("1.2.3", "node-1", 5.0)
PAUSED = "paused at 10:00 until resumed"


def view_of(report: Report, subject: Subject = SUBJECT) -> View:
    return ViewBuilder(subject).build(report)


def of(*gpus: GpuReading, sources: tuple[SourceOutcome, ...] = ()) -> tuple[Problem, ...]:
    return problems(attribute(None, snapshot(*gpus, sources=sources)))


def paused(index: int) -> GpuReading:
    return replace(gpu(index), health=GpuHealth.PAUSED, reason=PAUSED)


def test_gpus_sources_and_unidentified_processes_are_problems() -> None:
    assert problems(attribution()) == (
        Problem("GPU 2 failed", "GPU 2: failed: GPU is lost: it fell off the bus", Tone.BAD),
        Problem("nvml degraded", "nvml: degraded: GPU 2: GPU is lost: it fell off the bus", Tone.WARN),
        Problem(
            "unidentified processes",
            "unidentified: the driver lists processes that are not visible in /proc here",
            Tone.WARN,
        ),
    )


def test_a_host_without_problems_has_no_remedy() -> None:
    view = view_of(attribute(None, snapshot(gpu(0), sources=[SourceOutcome("nvml", SourceState.OK)])))
    assert (view.problems, view.remedy) == ((), "")


def test_gpus_with_the_same_problem_are_one_problem() -> None:
    found = of(paused(0), paused(1), paused(2), failed_gpu(3, "it is lost"), paused(5))
    assert [(each.brief, each.text) for each in found] == [
        ("GPU 0-2, 5 paused", f"GPU 0-2, 5: {PAUSED}"),
        ("GPU 3 failed", "GPU 3: failed: it is lost"),
    ]


@pytest.mark.parametrize(
    ("counts", "brief", "text"),
    [
        ({"timed_out": 1}, "1 process unreadable", "1 process could not be read: 1 timed_out; see otel-gpu doctor"),
        (
            {"denied": 0, "timed_out": 1, "too_large": 1},
            "2 processes unreadable",
            "2 processes could not be read: 1 timed_out, 1 too_large; see otel-gpu doctor",
        ),
    ],
)
def test_unreadable_processes_are_one_problem(counts: Mapping[str, int], brief: str, text: str) -> None:
    report = attribute(None, snapshot(gpu(0), sources=[]))
    assert problems(replace(report, unreadable=counts)) == (Problem(brief, text, Tone.WARN),)
    assert problems(replace(report, unreadable=dict.fromkeys(counts, 0))) == ()


def test_a_source_that_answers_and_is_blind_is_worse_than_degraded() -> None:
    [hidden] = of(sources=(SourceOutcome("procfs", SourceState.DEGRADED, "a pid namespace of its own", blind=True),))
    assert hidden == Problem("procfs blind", "procfs: blind: a pid namespace of its own", Tone.BAD)
    [away] = of(sources=(SourceOutcome("procfs", SourceState.UNAVAILABLE, "no /proc", blind=True),))
    assert away == Problem("procfs unavailable", "procfs: unavailable: no /proc", Tone.BAD)


@pytest.mark.parametrize(("by_gpu", "count"), [(True, 1), (False, 2)])
def test_a_source_does_not_repeat_the_problems_of_its_gpus(by_gpu: bool, count: int) -> None:
    source = SourceOutcome("nvml", SourceState.DEGRADED, "GPU 0: it is lost", by_gpu=by_gpu)
    assert len(of(failed_gpu(0, "it is lost"), sources=(source,))) == count


@pytest.mark.parametrize(
    ("state", "tone"),
    [(SourceState.DEGRADED, Tone.WARN), (SourceState.UNAVAILABLE, Tone.BAD), (SourceState.PAUSED, Tone.WARN)],
)
def test_every_state_of_a_source_has_a_tone(state: SourceState, tone: Tone) -> None:
    (problem,) = of(gpu(0), sources=(SourceOutcome("docker", state, "why"),))
    assert problem == Problem(f"docker {state.value}", f"docker: {state.value}: why", tone)


def test_the_remedy_names_the_host_and_a_simulated_host_has_none() -> None:
    assert view_of(attribution()).remedy == "otel-gpu doctor on node-1 explains how to fix this"
    assert view_of(attribution(), replace(SUBJECT, host_name="")).remedy == "otel-gpu doctor explains how to fix this"
    assert view_of(attribution(), replace(SUBJECT, simulated_because="asked for")).remedy == ""
