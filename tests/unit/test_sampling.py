"""What is logged of sources that have not answered yet."""

from __future__ import annotations

import logging

import pytest

from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.sampling import StateLog
from otel_gpu.sources.beside import NOT_YET


def logged(caplog: pytest.LogCaptureFixture, *cycles: SourceOutcome) -> list[str]:
    caplog.set_level(logging.INFO)
    state_log = StateLog()
    for cycle in cycles:
        state_log.observe((cycle,))
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


YET = SourceOutcome("docker", SourceState.DEGRADED, NOT_YET)
WELL = SourceOutcome("docker", SourceState.OK)


@pytest.mark.parametrize("cycles", [1, 2])
def test_a_source_that_answers_while_workloads_still_wait_is_not_logged(
    caplog: pytest.LogCaptureFixture, cycles: int
) -> None:
    assert logged(caplog, *[YET] * cycles, WELL) == []


def test_one_that_takes_longer_is_logged_once_and_again_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, *[YET] * 5, WELL) == [
        "WARNING docker is degraded: has not answered yet",
        "INFO docker is ok again",
    ]


def test_patience_can_be_had(caplog: pytest.LogCaptureFixture) -> None:
    state_log = StateLog(patience_cycles=10)
    for _ in range(10):
        state_log.observe((YET,))
    assert not caplog.records
    state_log.observe((YET,))
    assert len(caplog.records) == 1


def test_one_whose_first_answer_is_bad_is_logged_with_that(caplog: pytest.LogCaptureFixture) -> None:
    away = SourceOutcome("docker", SourceState.UNAVAILABLE, "connection refused")
    assert logged(caplog, YET, away, away) == ["WARNING docker is unavailable: connection refused"]


def test_one_that_answers_again_while_some_of_its_gpus_do_not_is_not_said_to_be_ok(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = SourceOutcome("nvml", SourceState.UNAVAILABLE, "the driver is not loaded")
    partly = SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: GPU is lost", by_gpu=True)
    assert logged(caplog, away, partly, partly) == [
        "WARNING nvml is unavailable: the driver is not loaded",
        "INFO nvml answers again",
    ]
    assert caplog.records[-1].fields["state"] == "degraded"  # type: ignore[attr-defined]  # a field of ours
