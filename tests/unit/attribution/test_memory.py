"""Memory of a GPU and of its MIG instances: the holders by the driver's lists, and every byte attributed once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.memory import split
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.residents import holders, holders_by_instance
from otel_gpu.model import (
    OVERFLOW_WORKLOAD,
    DeviceMemory,
    GpuReading,
    MemorySplit,
    MigAccess,
    ProcessFacts,
    ProcessKind,
    Report,
    WorkloadRef,
)
from tests.builders import GIB, gpu, listed, memory, mig
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, workload

# ---------------------------------------------------------------------------- memory by process


def test_a_pid_in_several_lists_holds_the_largest_figure_and_not_the_sum() -> None:
    lists = [
        listed(1, 3 * GIB, ProcessKind.COMPUTE),
        listed(1, 5 * GIB, ProcessKind.GRAPHICS),
        listed(1, 4 * GIB, ProcessKind.MPS),
        listed(2, GIB, ProcessKind.COMPUTE),
    ]
    assert holders(lists) == {1: 5 * GIB, 2: GIB}


def test_a_pid_twice_in_one_list_is_one_holder() -> None:
    assert holders([listed(1, GIB), listed(1, GIB)]) == {1: GIB}


@pytest.mark.parametrize("figures", [(None, GIB), (GIB, None)])
def test_a_figure_in_any_list_is_better_than_none_in_another(figures: tuple[int | None, int | None]) -> None:
    assert holders(listed(1, figure) for figure in figures) == {1: GIB}


def test_a_process_listed_without_a_figure_is_not_taken_to_hold_nothing() -> None:
    assert holders([listed(1, None), listed(2, 0)]) == {1: None, 2: 0}


# ---------------------------------------------------------------------------- memory by MIG instance


def test_without_mig_everything_belongs_to_the_gpu_itself() -> None:
    assert holders_by_instance(gpu(0, [listed(1, GIB)])) == {None: {1: GIB}}


def test_a_gpu_that_gives_no_lists_has_no_holders() -> None:
    assert holders_by_instance(gpu(0, None)) == {None: {}}


def test_entries_that_the_gpu_repeats_of_its_instances_are_counted_once() -> None:
    reading = gpu(
        0,
        [listed(1, GIB, instance=(1, 0)), listed(2, 2 * GIB, instance=(2, 0))],
        mig=[mig("MIG-a", (1, 0), [listed(1, GIB)]), mig("MIG-b", (2, 0), [listed(2, 2 * GIB)])],
    )
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, "MIG-b": {2: 2 * GIB}, None: {}}


def test_an_instance_without_a_list_gets_the_gpus_entries_for_it() -> None:
    reading = gpu(
        0,
        [listed(1, GIB, instance=(1, 0)), listed(2, 2 * GIB, instance=(2, 0))],
        mig=[mig("MIG-a", (1, 0), [listed(1, GIB)]), mig("MIG-b", (2, 0), None)],
    )
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, "MIG-b": {2: 2 * GIB}, None: {}}


def test_an_entry_that_only_the_gpu_lists_belongs_to_no_instance() -> None:
    reading = gpu(0, [listed(9, GIB)], mig=[mig("MIG-a", (1, 0), [listed(1, GIB)])])
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, None: {9: GIB}}


def test_an_instance_that_is_not_among_those_read_belongs_to_none_of_them() -> None:
    reading = gpu(0, [listed(9, GIB, instance=(7, 0))], mig=[mig("MIG-a", (1, 0))])
    assert holders_by_instance(reading) == {"MIG-a": {}, None: {9: GIB}}


def test_a_process_that_only_the_gpu_lists_on_an_instance_is_not_lost() -> None:
    reading = gpu(0, [listed(9, GIB, instance=(1, 0))], mig=[mig("MIG-a", (1, 0), [])])
    assert holders_by_instance(reading) == {"MIG-a": {9: GIB}, None: {}}


def test_a_figure_that_only_the_gpu_has_completes_what_the_instance_lists_without_one() -> None:
    reading = gpu(0, [listed(1, GIB, instance=(1, 0))], mig=[mig("MIG-a", (1, 0), [listed(1, None)])])
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, None: {}}


@pytest.mark.parametrize("instance", [(None, None), (1, None), (7, 7)])
def test_a_repetition_that_names_no_instance_is_known_by_its_pid(instance: tuple[int | None, int | None]) -> None:
    reading = gpu(0, [listed(1, GIB, instance=instance)], mig=[mig("MIG-a", (1, 0), [listed(1, GIB)])])
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, None: {}}


def test_an_instance_without_ids_does_not_get_entries_without_an_instance() -> None:
    reading = gpu(0, [listed(9, GIB)], mig=[mig("MIG-a", (None, None), None), mig("MIG-b", (None, None), [listed(1)])])
    assert holders_by_instance(reading) == {"MIG-a": {}, "MIG-b": {1: GIB}, None: {9: GIB}}


def test_a_process_on_two_instances_holds_memory_on_both() -> None:
    reading = gpu(0, [], mig=[mig("MIG-a", (1, 0), [listed(1, GIB)]), mig("MIG-b", (2, 0), [listed(1, 2 * GIB)])])
    assert holders_by_instance(reading) == {"MIG-a": {1: GIB}, "MIG-b": {1: 2 * GIB}, None: {}}


# ---------------------------------------------------------------------------- the split of a device's memory


def parts(*, total: int, used: int, reserved: int | None, claims: list[int | None]) -> MemorySplit:
    divided = split(DeviceMemory(total, used, 0, reserved), claims)
    assert divided is not None
    assert divided.conservation_error_bytes == 0
    return divided


def test_memory_in_use_without_a_claim_is_unattributed() -> None:
    assert split(memory(total_gib=80, used_gib=10, reserved_gib=1), [2 * GIB, 3 * GIB]) == MemorySplit(
        limit_bytes=80 * GIB,
        reserved_bytes=GIB,
        measured_bytes=5 * GIB,
        overcount_bytes=0,
        inferred_bytes=0,
        unattributed_bytes=5 * GIB,
        free_bytes=69 * GIB,
    )


def test_claims_beyond_what_is_used_are_shown_as_overcount() -> None:
    divided = parts(total=100, used=10, reserved=5, claims=[8, 7])
    assert (divided.measured_bytes, divided.overcount_bytes, divided.unattributed_bytes) == (15, 5, 0)
    assert divided.free_bytes == 85


def test_a_claim_without_a_figure_explains_nothing() -> None:
    divided = parts(total=100, used=10, reserved=5, claims=[None, 4])
    assert (divided.measured_bytes, divided.unattributed_bytes) == (4, 6)


def test_where_the_driver_does_not_report_reserved_memory_it_is_unknown_and_counts_as_used() -> None:
    divided = parts(total=100, used=30, reserved=None, claims=[])
    assert (divided.reserved_bytes, divided.unattributed_bytes, divided.free_bytes) == (None, 30, 70)


def test_a_device_without_figures_has_no_split() -> None:
    assert split(None, [GIB]) is None


@pytest.mark.parametrize(
    ("total", "used", "reserved", "expected"),
    [
        (100, 200, 10, (10, 90, 0)),
        (100, 50, 300, (100, 0, 0)),
        (0, 50, 10, (0, 0, 0)),
        (100, -5, -7, (0, 0, 100)),
        (-1, 5, None, (None, 0, 0)),
    ],
    ids=["more used than there is", "more reserved than there is", "nothing there", "below zero", "less than nothing"],
)
def test_figures_that_contradict_each_other_are_limited_to_the_total(
    total: int, used: int, reserved: int | None, expected: tuple[int | None, int, int]
) -> None:
    divided = parts(total=total, used=used, reserved=reserved, claims=[])
    assert (divided.reserved_bytes, divided.unattributed_bytes, divided.free_bytes) == expected


# ---------------------------------------------------------------------------- from cycle to cycle


LEFT, RIGHT, OTHER = "MIG-left", "MIG-right", "MIG-other"
IN_LEFT, IN_RIGHT = MigAccess(0, 1, 0), MigAccess(0, 1, 1)


def hidden(pid: int, ref: WorkloadRef, *access: MigAccess) -> ProcessFacts:
    """A process that has the GPU open and is in no list."""
    return old(pid, ref)._replace(gpu_minors_open=frozenset({0}), uvm_open=True, mig_access=frozenset(access))


def shared_instance(*, used_gib: float = 6, whole: bool = True, left_listed: int | None = None) -> GpuReading:
    """Two compute instances of GPU instance 1, which both report all of its memory, and an empty GPU instance 2."""
    one = memory(total_gib=20, used_gib=used_gib, reserved_gib=0)
    processes = [] if left_listed is None else [listed(left_listed, 2 * GIB)]
    return gpu(
        0,
        (),
        memory=memory(used_gib=used_gib, reserved_gib=0) if whole else None,
        mig=[
            mig(LEFT, (1, 0), processes, memory=one),
            mig(RIGHT, (1, 1), memory=one),
            mig(OTHER, (2, 0), memory=memory(total_gib=20, used_gib=0, reserved_gib=0)),
        ],
    )


def inferred_bytes(report: Report) -> dict[tuple[str, str | None], int | None]:
    return {(each.ref.id, part.mig_uuid): part.inferred_bytes for each in report.workloads for part in each.gpus}


def test_a_hidden_process_in_one_of_two_compute_instances_is_inferred_once() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT)])
    assert inferred_bytes(report) == {("web", LEFT): 6 * GIB}
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 6 * GIB
    assert report.gpus[0].memory.conservation_error_bytes == 0
    (left, right, other) = report.gpus[0].mig or ()
    assert left.memory == right.memory, "they share it, and each reports all of it"
    assert other.memory is not None
    assert (other.memory.inferred_bytes, other.memory.unattributed_bytes) == (0, 0)


def test_hidden_processes_in_both_compute_instances_divide_the_unexplained_memory() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT), hidden(2, JOB, IN_RIGHT)])
    found = inferred_bytes(report)
    assert found.keys() == {("web", LEFT), ("job", RIGHT)}
    assert sum(each or 0 for each in found.values()) == 6 * GIB
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 6 * GIB


def test_a_process_listed_in_one_compute_instance_explains_memory_of_the_other() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(
            shared_instance(left_listed=1), processes=[old(1, WEB), hidden(2, JOB, IN_LEFT), hidden(3, JOB, IN_RIGHT)]
        )
    assert workload(report, "web").measured_bytes == 2 * GIB
    assert sum(each or 0 for each in inferred_bytes(report).values()) == 4 * GIB


def test_instances_are_reported_without_a_figure_of_the_whole_gpu() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(whole=False), processes=[hidden(1, WEB, IN_LEFT)])
    assert report.gpus[0].memory is None
    assert inferred_bytes(report) == {("web", LEFT): 6 * GIB}


def test_a_gpu_that_reports_less_in_use_than_its_instances_has_no_more_inferred_than_that() -> None:
    """The driver is asked for one after the other, and memory is allocated in between."""
    played = Played()
    for _ in range(2):
        reading = replace(shared_instance(used_gib=6), memory=memory(used_gib=4, reserved_gib=0))
        report = played.next(reading, processes=[hidden(1, WEB, IN_LEFT)])
    assert inferred_bytes(report) == {("web", LEFT): 6 * GIB}
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 4 * GIB
    assert report.gpus[0].memory.unattributed_bytes == 0


@pytest.mark.parametrize("cap", [0, 1])
def test_memory_inferred_for_a_workload_in_the_overflow_belongs_to_the_overflow(cap: int) -> None:
    played = Played(AttributionOptions(max_workloads=cap))
    for _ in range(2):
        report = played.next(gpu_with(used_gib=8), processes=[hidden(1, WEB), hidden(2, JOB)])
    assert sum(each or 0 for each in inferred_bytes(report).values()) == 8 * GIB
    shared = workload(report, OVERFLOW_WORKLOAD.id)
    assert shared.inferred_bytes == (8 * GIB if cap == 0 else 4 * GIB)
    assert shared.confidence is not None


def test_instances_that_are_gone_leave_no_state() -> None:
    played = Played()
    played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT)])
    played.next(gpu_with())
    assert set(played.attributor.to_state()["gpus"]["GPU-0"]["holdings"]) == {""}


def test_a_gpu_that_does_not_report_its_memory_has_nothing_inferred_and_nothing_measured() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(gpu(0, [listed(1, None)]), processes=[old(1, WEB)])
    part = workload(report, "web")
    assert (part.measured_bytes, part.inferred_bytes, part.confidence) == (None, None, None)
    assert report.gpus[0].memory is None
