"""Rows of workloads and processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_gpu.model import (
    Cost,
    CostBasis,
    GpuReading,
    GpuReport,
    GpuState,
    GpuTotals,
    MethodEnergy,
    Report,
    WorkloadGpu,
    WorkloadNames,
)
from otel_gpu.top.navigation import parse_filter
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.columns import Place, places_text
from otel_gpu.view.model import Cell, Detail, ProcessRow, View, WorkloadRow
from otel_gpu.view.terminal import Tone
from otel_gpu.view.text import UNKNOWN
from tests.builders import CONTAINER, CONTAINER_ID, GIB, attribute, attribution, failed_gpu, gpu, listed, mig, snapshot
from tests.unit.metrics.builders import WORK, answer, device, part, process, split, totals, workload

SUBJECT = Subject("1.2.3", "node-1", 5.0, None, "EUR")
WORKING = replace(gpu(0, power_w=70), utilization=WORK)


def view_of(report: Report) -> View:
    return ViewBuilder(SUBJECT).build(report)


def row_of(*parts: WorkloadGpu, gpus: Sequence[GpuReport] = (), window_s: float | None = None) -> WorkloadRow:
    """The row of a workload with these parts."""
    report = answer(*(gpus or (device(),)), workloads=[workload(*parts)])
    (row,) = view_of(replace(report, window_s=window_s)).workloads
    return row


def cell(row: WorkloadRow, key: str) -> Cell:
    view = view_of(attribution())
    return row.cells[[column.key for column in view.columns].index(key)]


def process_cell(row: ProcessRow, key: str) -> Cell:
    view = view_of(attribution())
    return row.cells[[column.key for column in view.process_columns].index(key)]


def test_every_reported_workload_and_process_has_a_row() -> None:
    report = attribution()
    view = view_of(report)
    assert [row.id for row in view.workloads] == [each.ref.id for each in report.workloads if each.reported_gpus]
    assert sum(len(row.processes) for row in view.workloads) == sum(each.is_reported for each in report.processes) > 1


def test_a_workload_or_process_that_left_earlier_has_no_row() -> None:
    here, left = workload(part(measured=1)), workload(part(measured=0, active=False), ref=replace(CONTAINER, id="left"))
    report = answer(device(), workloads=[left, here], processes=[process(1, active=False), process(2)])
    (row,) = view_of(report).workloads
    assert [process_cell(each, "pid").text for each in row.processes] == ["2"]


def test_a_renamed_workload_is_another_row_with_its_own_processes() -> None:
    old = workload(part(measured=1), naming=0)
    new = workload(part(measured=1), names=WorkloadNames("other"), naming=1)
    report = answer(device(), workloads=[old, new], processes=[process(1, naming=1)])
    before, after = view_of(report).workloads
    assert before.key != after.key
    assert ([len(each.processes) for each in (before, after)], after.name) == ([0, 1], "other")


def test_a_workload_without_processes_says_so() -> None:
    assert row_of(part(measured=1)).no_processes == "This workload has no process on a GPU."


def test_an_id_without_a_name_is_shortened_as_docker_does() -> None:
    assert "d" * 12 in [row.name for row in view_of(attribution()).workloads]


def test_text_from_outside_is_printable() -> None:
    names = [row.name for row in view_of(attribution("a\x1b[31m\u202eb\nc")).workloads]
    assert "a\ufffd[31m\ufffdb\ufffdc" in names


# ---------------------------------------------------------------------------- figures


def test_a_workload_on_several_gpus_is_one_row_with_the_sums() -> None:
    row = row_of(
        part(index=0, measured=GIB, sm_ratio=0.5, state=GpuState.BUSY, energy=MethodEnergy(estimated_mj=2000)),
        part(index=1, measured=2 * GIB, sm_ratio=0.25, state=GpuState.IDLE, idle_s=7.0),
        gpus=(device(), device()),
        window_s=2.0,
    )
    assert (cell(row, "memory").value, cell(row, "sm").value, cell(row, "gpu").text) == (3 * GIB, 0.75, "0, 1")
    assert (row.state, cell(row, "state").text) == ("busy", "busy")
    assert (cell(row, "power").text, cell(row, "power").value) == ("≈ 1 W", 1.0)
    assert row.explanation[-2:] == (
        Detail("GPU 0", "1.0 GiB measured; SM 50 %; busy"),
        Detail("GPU 1", "2.0 GiB measured; SM 25 %; idle"),
    )


def test_a_workload_has_its_part_of_each_gpu_in_their_order() -> None:
    row = row_of(
        part(index=1, measured=GIB, inferred_bytes=GIB, confidence=0.9, state=GpuState.IDLE, idle_s=7.0),
        part(index=0, measured=None, inferred_bytes=GIB),
        part(index=0, mig_uuid="MIG-1", mig_profile="1g.10gb", active=False, energy=MethodEnergy(measured_mj=2000)),
        window_s=2.0,
    )
    assert row.parts == (
        ("0", UNKNOWN, "~ 1.0 GiB", UNKNOWN, UNKNOWN, UNKNOWN),
        ("0 1g.10gb", UNKNOWN, "", UNKNOWN, "1 W", "ended"),
        ("1", "1.0 GiB", "~ 1.0 GiB 90 %", UNKNOWN, UNKNOWN, "idle 7 s"),
    )
    assert {len(texts) for texts in row.parts} == {len(view_of(attribution()).part_columns)}


def test_a_workload_is_explained_by_its_state_each_figure_and_each_gpu() -> None:
    row = row_of(part(index=0, state=GpuState.BUSY), part(index=1), gpus=(device(), device()))
    found = row.explanation
    assert [each.name for each in found] == [
        *("State", "Memory", "SM", "Power", "Energy", "Idle", "Cost"),
        *("GPU 0", "GPU 1"),
    ]
    assert found[0].text == "busy (it worked in the last samples)"
    assert [each.text for each in found[1:7]] == [column.reason for column in row.cells[3:9]]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["idle", "idle"], "idle 3 s"),
        (["idle", "unknown"], "unknown"),
        (["allocated", "idle"], "idle 3 s"),
        (["allocated", "allocated"], "allocated"),
        (["busy", "unknown"], "busy"),
    ],
)
def test_a_workload_is_idle_only_if_it_may_be_busy_nowhere(states: list[str], expected: str) -> None:
    row = row_of(
        *(
            part(index=at, measured=1, state=GpuState(state), idle_s=idle_s)
            for at, (state, idle_s) in enumerate(zip(states, (5.0, 3.0), strict=True))
        )
    )
    assert cell(row, "state").text == expected


def test_a_workload_that_left_in_this_window_has_ended() -> None:
    row = row_of(part(measured=0, active=False, energy=MethodEnergy(measured_mj=1)))
    assert (row.state, cell(row, "state").text) == ("ended", "ended")
    assert (row.colour, row.tone) == (None, Tone.SOFT)


@pytest.mark.parametrize(
    ("state", "tone"),
    [
        (GpuState.BUSY, Tone.GOOD),
        (GpuState.IDLE, Tone.WARN),
        (GpuState.ALLOCATED, Tone.WARN),
        (GpuState.UNKNOWN, Tone.SOFT),
        (None, Tone.NONE),
    ],
)
def test_every_state_has_a_tone(state: GpuState | None, tone: Tone) -> None:
    report = answer(
        device(), workloads=[workload(part(measured=1, state=state))], processes=[process(1)._replace(state=state)]
    )
    (row,) = view_of(report).workloads
    assert [row.tone, *(each.tone for each in row.processes)] == [tone, tone]


def test_inferred_memory_has_a_mark_and_a_confidence() -> None:
    row = row_of(part(measured=2 * GIB, inferred_bytes=GIB, confidence=0.9))
    assert (cell(row, "memory").text, cell(row, "memory").value) == ("~ 3.0 GiB", 3 * GIB)
    assert "1.0 GiB inferred (confidence 90 %)" in (cell(row, "memory").reason or "")


def test_idle_time_of_several_gpus_is_in_gpu_time() -> None:
    idle = [part(index=at, measured=1, state=GpuState.IDLE, totals=totals(idle_us=600_000_000)) for at in range(3)]
    assert [(cell(row_of(*parts), "idle").text, cell(row_of(*parts), "idle").value) for parts in (idle, idle[:1])] == [
        ("30 GPU-m", 1800), ("10 m", 600),
    ]  # fmt: skip


def test_energy_so_far_has_the_mark_of_its_method() -> None:
    sums = totals(measured_mj=5000, estimated_mj=7000, idle_us=3_000_000, idle_mj=2000)
    report = answer(
        device(gpu(0, power_w=70), totals=GpuTotals(12, 1, 2)),
        workloads=[workload(part(measured=1, totals=sums))],
        processes=[process(1, totals=sums, energy=MethodEnergy(None, 7, None))],
    )
    (row,) = view_of(replace(report, window_s=1.0)).workloads
    assert (cell(row, "energy").text, cell(row, "energy").value) == ("≈ 12 J", 12000)
    assert cell(row, "idle").value == 3.0
    assert "using 2 J" in (cell(row, "idle").reason or "")
    (own,) = row.processes
    assert process_cell(own, "energy") == cell(row, "energy")
    assert process_cell(own, "power").value == pytest.approx(0.007)


def test_a_total_of_0_is_unknown_where_nothing_is_counted() -> None:
    uncounted = row_of(part(measured=1), gpus=[device(failed_gpu(0))])
    assert (cell(uncounted, "energy").value, cell(uncounted, "idle").value) == (None, None)
    counted = row_of(part(measured=1), gpus=[device(gpu(0, power_w=70), totals=GpuTotals(0, 0, 0))])
    assert (cell(counted, "energy").text, cell(counted, "idle").text) == ("0 J", UNKNOWN)
    working = row_of(part(measured=1), gpus=[device(WORKING, totals=GpuTotals(0, 0, 0))])
    assert cell(working, "idle").text == "0 s"


def test_an_idle_time_of_0_is_unknown_while_the_state_is_undecided() -> None:
    states = (GpuState.UNKNOWN, GpuState.BUSY)
    rows = [row_of(part(measured=1, state=state), gpus=[device(WORKING)]) for state in states]
    assert [cell(row, "idle").value for row in rows] == [None, 0.0]


# ---------------------------------------------------------------------------- cost


def costs(busy: float, idle: float) -> tuple[Cost, ...]:
    return Cost(GpuState.BUSY, CostBasis.TIME, busy), Cost(GpuState.IDLE, CostBasis.TIME, idle)


@pytest.mark.parametrize(
    ("use", "reading", "amount", "reason"),
    [
        (part(measured=1, costs=costs(2.0, 0.5)), gpu(), 2.5, "; 0.5000 EUR while idle"),
        (part(measured=1), gpu(), None, "unknown: no price"),
        (part(measured=1, costs=costs(0, 0), state=GpuState.UNKNOWN), WORKING, None, "unknown: no price"),
        (part(measured=1, costs=costs(1, 1), state=GpuState.UNKNOWN), WORKING, 2.0, "; 1.00 EUR while idle"),
        (part(measured=1, costs=costs(0, 0), state=GpuState.BUSY), WORKING, 0.0, "; 0.00 EUR while idle"),
        (part(measured=1, costs=costs(2, 0)), gpu(), 2.0, "; unknown how much of it while idle"),
    ],
    ids=["summed", "no price", "undecided", "undecided and charged", "busy", "no utilisation"],
)
def test_cost_is_summed_and_unknown_where_nothing_is_decided(
    use: WorkloadGpu, reading: GpuReading, amount: float | None, reason: str
) -> None:
    found = cell(row_of(use, gpus=[device(reading)]), "cost")
    assert found.value == amount
    assert reason in (found.reason or "")


def test_without_prices_there_is_no_cost() -> None:
    view = ViewBuilder(replace(SUBJECT, currency=None)).build(attribution())
    assert "cost" not in [column.key for column in view.columns]
    assert {len(row.cells) for row in view.workloads} == {len(view.columns)}
    assert "Cost" not in [detail.name for row in view.workloads for detail in row.explanation]


# ---------------------------------------------------------------------------- places and processes


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([(0, None)], "0"),
        ([(1, None), (0, None)], "0, 1"),
        ([(10, None), (2, None)], "2, 10"),
        ([(index, None) for index in (10, 11, 9, 2, 0, 1)], "0-2, 9-11"),
        ([(index, None) for index in range(12)], "0-11"),
        ([(2, "3g.40gb"), (2, "1g.10gb"), (2, "1g.10gb"), (1, None), (3, None)], "1, 2 1g.10gb, 2 3g.40gb, 3"),
        ([(0, None), (1, None), (1, "1g.10gb"), (2, None)], "0, 1, 1 1g.10gb, 2"),
        ([(None, None), (0, None)], "0, ?"),
    ],
)
def test_places_are_in_the_order_of_gpus_and_runs_are_short(
    places: list[tuple[int | None, str | None]], text: str
) -> None:
    assert places_text(Place(number is None, number or 0, profile or "") for number, profile in places) == text


def test_sort_keys_of_places_are_in_the_order_of_places() -> None:
    places = [Place(False, 2, ""), Place(False, 2, "1g.10gb"), Place(False, 10, ""), Place(True, 0, "")]
    assert places == sorted(places)
    assert sorted(place.sort_key for place in places) == [place.sort_key for place in places]


def test_the_largest_process_is_first() -> None:
    small, large, unknown = (process(pid, memory_bytes=bytes_) for pid, bytes_ in ((1, GIB), (2, 2 * GIB), (3, None)))
    report = answer(
        device(memory=split(measured=3)), workloads=[workload(part(measured=3))], processes=[unknown, small, large]
    )
    (row,) = view_of(report).workloads
    assert [process_cell(each, "memory").value for each in row.processes] == [2 * GIB, GIB, None]


# ---------------------------------------------------------------------------- what a filter finds


def test_a_workload_in_an_instance_is_on_its_gpu() -> None:
    (row,) = view_of(attribute(None, snapshot(gpu(2, mig=[mig("MIG-1", (1, 0), [listed(1)])])))).workloads
    assert cell(row, "gpu").text.startswith("2 ")
    for text, found in (("gpu 2", True), ("gpu 2 1g.", True), ("gpu 1", False)):
        assert parse_filter(text).matches(row) is found


def test_a_filter_finds_names_kinds_states_and_processes() -> None:
    (row,) = (row for row in view_of(attribution()).workloads if row.id == CONTAINER_ID)
    for word in ("VLLM-chat", "inference", "vllm-chat-0", "vllm:1", "container", "unknown", CONTAINER_ID[:12]):
        assert parse_filter(word).matches(row), word
    assert not parse_filter("absent").matches(row)


def test_digits_of_an_id_are_no_words() -> None:
    (row,) = (row for row in view_of(attribution()).workloads if row.name == "d" * 12)
    assert "dd" not in row.words
