"""Views: totals, problems, GPUs with their bars, and what an empty table means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import (
    DriverFacts,
    GpuHealth,
    GpuReport,
    GpuState,
    MethodEnergy,
    MigReport,
    Pod,
    Report,
    SourceOutcome,
    SourceState,
    WorkloadGpu,
    WorkloadRef,
)
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import Bar, Cell, GpuView, Plot, Total, View
from otel_gpu.view.terminal import Tone
from otel_gpu.view.text import UNKNOWN
from tests.builders import CONTAINER, GIB, attribution, failed_gpu, gpu
from tests.unit.metrics.builders import answer, device, part, split, workload

SUBJECT = Subject("1.2.3", "node-1", 5.0, "asked for", "EUR")


def view_of(report: Report) -> View:
    return ViewBuilder(SUBJECT).build(report)


def cells_of(view: View, gpu_: GpuView) -> dict[str, Cell]:
    """The cells of a GPU by the keys of their columns."""
    return {column.key: cell for column, cell in zip(view.gpu_columns, gpu_.bars[0].cells, strict=True)}


def plot_of(gpu_: GpuView, column: str) -> Plot | None:
    """The plot of a figure of a GPU."""
    return {figure.column: figure.plot for figure in gpu_.figures}[column]


def test_a_view_has_its_host_and_every_gpu() -> None:
    view = view_of(attribution())
    assert (view.host, view.version, view.interval_s) == ("node-1", "1.2.3", 5.0)
    assert view.simulated == "SIMULATED HOST: no figure here is from a real GPU (asked for)"
    assert (view.title, view.about) == ("node-1: GPU use by workload", ("driver 570.124.06",))
    assert (view.lost_after_s, view.plot_span_s, view.plot_gap_s) == (25.0, 3600, 37.5)
    assert [gpu.title for gpu in view.gpus] == ["GPU 0", "GPU 1", "GPU 2"]
    assert [cells_of(view, gpu)["gpu"].value for gpu in view.gpus] == [0, 1, 2]
    assert [bool(gpu.bars[0].segments) for gpu in view.gpus] == [True, True, False]
    assert view.gpus[1].bars[1].profile == "1g.10gb"
    assert [gpu.tone for gpu in view.gpus] == [Tone.GOOD, Tone.GOOD, Tone.BAD]
    state = cells_of(view, view.gpus[2])["state"]
    assert (state.text, state.reason) == ("failed", "failed: GPU is lost: it fell off the bus")


def test_text_of_drivers_and_sources_is_printable() -> None:
    report = attribution()
    hostile = replace(
        report, sources=(SourceOutcome("x", SourceState.DEGRADED, "\x1b]0;t\x07"),), driver=DriverFacts("\x9b2J")
    )
    view = view_of(hostile)
    assert all(problem.text.isprintable() for problem in view.problems)
    assert all(text.isprintable() for text in view.about)


# ---------------------------------------------------------------------------- totals


def total(view: View, name: str) -> Total:
    (found,) = (each for each in view.totals if each.name == name)
    return found


def test_totals_say_how_many_gpus_they_cover() -> None:
    view = view_of(attribution())
    assert [(each.name, each.cell.text, each.qualifier) for each in view.totals] == [
        ("GPUs", "3", "1 without figures"),
        ("Memory in use", "68.0 GiB", "of 160.0 GiB, of 2 of 3 GPUs"),
        ("Attributed", "94 %", "of the memory in use"),
        ("Power", "60 W", "of 2 of 3 GPUs"),
        ("Held while idle", UNKNOWN, "64.0 GiB undecided"),
    ]
    assert "  ".join(each.brief for each in view.totals) == (
        f"2 of 3 GPUs  68.0/160.0 GiB in use  94 % attributed  60 W  {UNKNOWN} held idle, 64.0 GiB undecided"
    )
    assert all(len(each.cell.reason or "") > 20 for each in view.totals)


def test_totals_of_complete_figures_name_no_part_of_the_gpus() -> None:
    view = view_of(answer(device(gpu(0, power_w=70), memory=split(limit=4 * GIB))))
    assert [each.qualifier for each in view.totals][:4] == ["", "of 4.0 GiB", "of the memory in use", ""]
    assert [each.brief for each in view.totals][:2] == ["1 GPU", "0.0/4.0 GiB in use"] or view.totals[1].brief.endswith(
        "in use"
    )


def test_power_of_fewer_gpus_than_memory_says_so() -> None:
    gpus = [device(gpu(0, power_w=70), memory=split()), device(gpu(1, power_w=None), memory=split())]
    assert total(view_of(answer(*gpus)), "Power").brief == "70 W of 1"


def test_without_gpus_totals_are_unknown() -> None:
    assert [each.cell.text for each in view_of(answer()).totals] == ["0", *[UNKNOWN] * 4]


BUSY = part(measured=4 * GIB, state=GpuState.BUSY)
IDLE = part(measured=2 * GIB, state=GpuState.IDLE)
UNDECIDED = part(measured=8 * GIB, state=GpuState.UNKNOWN)
UNMEASURED = part(measured=None, state=GpuState.UNKNOWN)
GRANTED = part(measured=0, state=GpuState.ALLOCATED)
ENDED = part(measured=None, active=False, energy=MethodEnergy(measured_mj=1))
COMPLETE, INCOMPLETE = device(), device(failed_gpu(0))


@pytest.mark.parametrize(
    ("device_", "parts", "brief", "qualifier"),
    [
        (COMPLETE, [BUSY], "0 MiB held idle", ""),
        (COMPLETE, [BUSY, IDLE], "2.0 GiB held idle by 1", "by 1 workload"),
        (COMPLETE, [BUSY, UNDECIDED], "0 MiB held idle, 8.0 GiB undecided", "8.0 GiB undecided"),
        (COMPLETE, [IDLE, IDLE, UNDECIDED, ENDED], "4.0 GiB held idle by 2, 8.0 GiB undecided",
         "by 2 workloads, 8.0 GiB undecided"),
        (COMPLETE, [UNDECIDED], f"{UNKNOWN} held idle, 8.0 GiB undecided", "8.0 GiB undecided"),
        (COMPLETE, [UNDECIDED, ENDED], f"{UNKNOWN} held idle, 8.0 GiB undecided", "8.0 GiB undecided"),
        (COMPLETE, [UNMEASURED], f"{UNKNOWN} held idle", f"{UNKNOWN} undecided"),
        (COMPLETE, [UNDECIDED, GRANTED], f"{UNKNOWN} held idle, 8.0 GiB undecided", "8.0 GiB undecided"),
        (COMPLETE, [BUSY, UNMEASURED], "0 MiB held idle, 1 undecided", f"{UNKNOWN} undecided"),
        (COMPLETE, [ENDED], "0 MiB held idle", ""),
        (INCOMPLETE, [ENDED], f"{UNKNOWN} held idle", ""),
    ],
)  # fmt: skip
def test_memory_held_idle_is_that_of_decided_workloads(
    device_: GpuReport, parts: list[WorkloadGpu], brief: str, qualifier: str
) -> None:
    workloads = [workload(each, ref=WorkloadRef(CONTAINER.kind, f"{number:064x}")) for number, each in enumerate(parts)]
    found = total(view_of(answer(device_, workloads=workloads)), "Held while idle")
    assert (found.brief, found.qualifier) == (brief, qualifier)


# ---------------------------------------------------------------------------- bars


def bar_of(device_: GpuReport, *parts: WorkloadGpu) -> Bar:
    workloads = [workload(each, ref=WorkloadRef(CONTAINER.kind, f"{number:064x}")) for number, each in enumerate(parts)]
    return view_of(answer(device_, workloads=workloads)).gpus[0].bars[0]


def test_segments_of_a_bar_sum_to_the_limit_though_lists_count_memory_twice() -> None:
    memory = split(limit=100, reserved=10, measured=60, overcount=20, inferred=5, unattributed=7)
    bar = bar_of(device(memory=memory), part(measured=45), part(measured=15, inferred_bytes=5))
    assert [(segment.kind, segment.bytes) for segment in bar.segments] == [
        ("measured", 30), ("measured", 10), ("inferred", 5), ("unattributed", 7), ("reserved", 10), ("free", 38),
    ]  # fmt: skip
    assert bar.segments[1].colour == bar.segments[2].colour != bar.segments[0].colour
    assert [segment.colour for segment in bar.segments[3:]] == [None] * 3


def test_holders_are_listed_with_the_figures_of_the_lists() -> None:
    memory = split(limit=100 * GIB, reserved=0, measured=60 * GIB, overcount=20 * GIB, unattributed=7 * GIB)
    report = answer(device(memory=memory), workloads=[workload(part(measured=60 * GIB))])
    (gpu_,) = view_of(report).gpus
    assert [(each.kind, each.name, each.memory.text) for each in gpu_.holders] == [
        ("measured", "vllm", "60.0 GiB"),
        ("unattributed", "unattributed", "7.0 GiB"),
    ]
    assert gpu_.bars[0].label == ("Memory of 100.0 GiB: vllm 60.0 GiB measured, 7.0 GiB unattributed, 53.0 GiB free")


def test_an_inferred_holder_has_a_confidence() -> None:
    memory = split(limit=100, inferred=5)
    report = answer(device(memory=memory), workloads=[workload(part(measured=None, inferred_bytes=5, confidence=0.96))])
    assert [each.confidence for each in view_of(report).gpus[0].holders] == ["inferred, 96 %"]


def test_a_workload_on_two_instances_has_a_segment_in_each_bar_and_two_in_that_of_the_gpu() -> None:
    instances = [MigReport(f"MIG-{number}", "1g.10gb", split(limit=50, measured=20)) for number in range(2)]
    both = [part(mig_uuid=f"MIG-{number}", mig_profile="1g.10gb", measured=20) for number in range(2)]
    report = answer(device(memory=split(limit=100, measured=40), mig=instances), workloads=[workload(*both)])
    (gpu_,) = view_of(report).gpus
    measured = [[segment.key for segment in bar.segments if segment.kind == "measured"] for bar in gpu_.bars]
    assert [len(keys) for keys in measured] == [2, 1, 1]
    assert len(set(measured[0])) == 2


def test_the_last_hour_of_a_gpu_is_described() -> None:
    builder, report = ViewBuilder(SUBJECT), attribution()
    plot = plot_of(builder.build(report).gpus[0], "utilization")
    assert plot is not None
    assert (plot.label, plot.caption) == ("Utilisation in the last hour: no data yet", "last hour: no data yet")
    builder.observe(report)
    view = builder.build(report)
    plots = [plot_of(gpu, "utilization") for gpu in view.gpus]
    assert [plot.label for plot in plots if plot] == [
        "Utilisation in the last hour: lowest 83 %, highest 83 %, now 83 %",
        *["Utilisation in the last hour: unknown"] * 2,
    ]
    assert plot_of(view.gpus[0], "temperature") is None


# ---------------------------------------------------------------------------- what an empty table means


def test_no_workload_and_unknown_workloads_differ() -> None:
    assert view_of(answer(device())).no_workloads == "No workload uses a GPU."
    unknown = "The workloads on the GPUs are unknown."
    assert view_of(answer(device(), device(failed_gpu(1)))).no_workloads == unknown
    outcome = SourceOutcome("nvml", SourceState.UNAVAILABLE, "no driver")
    assert view_of(answer(sources=[outcome])).no_workloads == unknown


def test_a_view_of_one_pod_has_no_gpus_and_no_totals() -> None:
    report = replace(attribution(), pod=Pod(name="pod-0", namespace="team"))
    view = view_of(report)
    assert (view.about[0], view.gpus, view.no_gpus, view.totals) == ("pod team/pod-0", (), "", ())
    assert view_of(replace(report, workloads=())).no_workloads == "No workload of this pod uses a GPU."


def test_a_gpu_that_does_not_answer_is_without_figures() -> None:
    health = replace(gpu(0), health=GpuHealth.PAUSED, reason="paused at 10:00 until resumed")
    view = view_of(answer(device(health)))
    assert total(view, "GPUs").qualifier == "1 without figures"
    state = cells_of(view, view.gpus[0])["state"]
    assert (state.text, state.reason) == ("paused", "paused at 10:00 until resumed")
    assert view.gpus[0].tone is Tone.WARN
