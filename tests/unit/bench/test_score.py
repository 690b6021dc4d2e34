"""Scoring, on truth made by hand."""

from __future__ import annotations

import math

import pytest

from bench.accuracy.score import (
    ByteTime,
    IdlePoll,
    IdleRecord,
    busy_s,
    hidden_bytes,
    idle_record,
    percentile,
    relative_errors,
    resident_energy_mj,
    summarise,
    summarise_idle,
)
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef
from otel_gpu.sources.sim.truth import GpuTruth, ProcessTruth


def process(pid: int, workload: str, *, joules: int = 0, equal_s: float = 0.0, held: int = 0) -> ProcessTruth:
    return ProcessTruth(
        key=ProcessKey(pid, 0),
        workload=WorkloadRef(WorkloadKind.CONTAINER, workload),
        gpu_uuid="GPU-0",
        mig_uuid=None,
        hidden=held > 0,
        ended=False,
        resident_bytes=held,
        dynamic_pj=joules * 10**12,
        busy_s=float(pid),
        resident_s=600.0,
        equal_share_s=equal_s,
        memory_share_s=0.0,
        work_share_s=0.0,
        idle_since_s=None,
    )


def gpu(*processes: ProcessTruth) -> GpuTruth:
    return GpuTruth("GPU-0", 30.0, 20.0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, processes)


def test_an_error_is_the_distance_in_percent_of_the_truth() -> None:
    truth = {"a": 200.0, "b": 50.0, "c": 10.0}
    assert relative_errors(truth, {"a": 150.0, "b": 75.0}) == [25.0, 50.0, 100.0]


def test_a_truth_of_zero_has_no_relative_error() -> None:
    assert relative_errors({"a": 0.0}, {"a": 5.0}) == []


def test_a_percentile_lies_on_the_line_between_its_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 1.0) == 2.0
    assert percentile([7.0], 0.95) == 7.0


def test_no_errors_at_all_are_not_a_mean_of_zero() -> None:
    assert summarise([]).count == 0
    assert math.isnan(summarise([]).mean)
    assert summarise([1.0, 3.0]).mean == 2.0


def test_the_energy_due_is_own_work_and_a_part_of_the_standing_power() -> None:
    due = resident_energy_mj(
        gpu(process(1, "a", joules=100, equal_s=150.0), process(2, "a", equal_s=150.0), process(3, "b", equal_s=300.0))
    )
    assert due == {"a": 100e3 + 300 * 50e3, "b": 300 * 50e3}


def test_busy_time_and_hidden_memory_of_a_workload_are_those_of_its_processes() -> None:
    truth = gpu(process(1, "a", held=5), process(2, "a", held=7), process(3, "b"))
    assert busy_s(truth) == {"a": 3.0, "b": 3.0}
    assert hidden_bytes(truth) == {"a": 12}


def test_memory_wrong_for_half_of_the_time_is_half_wrong() -> None:
    score = ByteTime()
    score.add({"a": 100}, {"a": 100})
    score.add({"a": 100}, {"a": 0})
    assert score.errors() == [50.0]


def test_bytes_claimed_for_a_departed_workload_count_as_errors() -> None:
    score = ByteTime()
    score.add({"a": 100, "b": 100}, {"a": 100, "b": 100})
    score.add({"b": 100}, {"a": 50, "b": 100, "ghost": 10})
    assert score.errors() == [50.0, 0.0]


def polls(*said: tuple[bool, bool]) -> list[IdlePoll]:
    return [IdlePoll(5.0 * number, worked, idle) for number, (worked, idle) in enumerate(said)]


def test_a_process_called_idle_two_polls_after_its_stop_has_a_delay_and_no_false_alarm() -> None:
    record = idle_record(polls((False, False), (True, False), (True, False), (False, False), (False, True)), 9.0)
    assert record == IdleRecord(working_s=9.0, false_alarms=0, false_s=0.0, delay_s=11.0)


def test_one_run_of_false_polls_of_any_length_is_one_alarm() -> None:
    said = polls((False, False), (True, True), (True, True), (True, False), (True, True), (False, True))
    record = idle_record(said, 20.0)
    assert (record.false_alarms, record.false_s) == (2, 15.0)
    assert record.delay_s == 0.0


def test_a_pause_that_is_called_idle_is_no_alarm() -> None:
    record = idle_record(polls((False, False), (True, False), (False, True), (True, False), (False, True)), 15.0)
    assert record.false_alarms == 0
    assert record.delay_s == 5.0


def test_a_process_never_called_idle_has_no_delay() -> None:
    assert idle_record(polls((False, True), (False, False)), 0.0).delay_s is None


def test_records_are_summed_up_over_the_hours_of_work() -> None:
    summary = summarise_idle([IdleRecord(1800.0, 1, 18.0, 10.0), IdleRecord(1800.0, 2, 18.0, None)])
    assert summary.hours == 1.0
    assert summary.alarms_per_hour == 3.0
    assert summary.false_percent == pytest.approx(1.0)
    assert (summary.mean_delay_s, summary.worst_delay_s, summary.never) == (10.0, 10.0, 1)


def test_without_work_there_is_no_false_alarm() -> None:
    summary = summarise_idle([IdleRecord(0.0, 0, 0.0, 5.0)])
    assert (summary.alarms_per_hour, summary.false_percent, summary.mean_delay_s) == (0.0, 0.0, 5.0)
