"""Log lines of sources that have not answered yet."""

from __future__ import annotations

import logging

import pytest

from otel_gpu.agent.sampling import StateLog
from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.sources.names.poller import NO_ANSWER_YET


def logged(caplog: pytest.LogCaptureFixture, *cycles: SourceOutcome) -> list[str]:
    caplog.set_level(logging.INFO)
    state_log = StateLog()
    for cycle in cycles:
        state_log.observe((cycle,))
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


NOT_ANSWERED = SourceOutcome("docker", SourceState.DEGRADED, NO_ANSWER_YET)
OK = SourceOutcome("docker", SourceState.OK)


@pytest.mark.parametrize("cycles", [1, 2])
def test_a_source_that_answers_while_workloads_are_held_is_not_logged(
    caplog: pytest.LogCaptureFixture, cycles: int
) -> None:
    assert logged(caplog, *[NOT_ANSWERED] * cycles, OK) == []


def test_a_source_that_takes_longer_is_logged_once_and_again_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, *[NOT_ANSWERED] * 5, OK) == [
        "WARNING docker is degraded: has not answered yet",
        "INFO docker is ok again",
    ]


def test_the_patience_is_configurable(caplog: pytest.LogCaptureFixture) -> None:
    state_log = StateLog(patience_cycles=10)
    for _ in range(10):
        state_log.observe((NOT_ANSWERED,))
    assert not caplog.records
    state_log.observe((NOT_ANSWERED,))
    assert len(caplog.records) == 1


def test_a_source_whose_first_answer_is_a_failure_is_logged_with_it(caplog: pytest.LogCaptureFixture) -> None:
    away = SourceOutcome("docker", SourceState.UNAVAILABLE, "connection refused")
    assert logged(caplog, NOT_ANSWERED, away, away) == ["WARNING docker is unavailable: connection refused"]


def test_a_source_that_answers_again_while_some_gpus_fail_is_not_logged_as_ok(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = SourceOutcome("nvml", SourceState.UNAVAILABLE, "the driver is not loaded")
    partly = SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: GPU is lost", by_gpu=True)
    assert logged(caplog, away, partly, partly) == [
        "WARNING nvml is unavailable: the driver is not loaded",
        "INFO nvml answers again",
    ]
    assert caplog.records[-1].fields["state"] == "degraded"  # type: ignore[attr-defined]  # a field of ours
