"""Memory of a device: the holders by the driver's lists, and the split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.memory import implausible_figures, split
from otel_gpu.attribution.residents import holders, holders_by_instance
from otel_gpu.model import DeviceMemory, MemorySplit, ProcessKind
from tests.builders import GIB, gpu, listed, memory, mig

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


# ---------------------------------------------------------------------------- implausible figures


def test_implausible_figures_are_counted() -> None:
    odd = gpu(0, [listed(1, 100 * GIB), listed(1)], memory=memory(used_gib=100), energy_mj=-1, power_w=float("nan"))
    assert implausible_figures(odd) == 5
    assert implausible_figures(replace(odd, energy_mj=1)) == 4
    assert implausible_figures(replace(odd, processes=(listed(1),))) == 3
    assert implausible_figures(gpu(0, [listed(1)], memory=memory(), energy_mj=1, power_w=0.0)) == 0
    assert implausible_figures(gpu(0, None, mig=[mig("MIG-1", (1, 0), [listed(1, -1)])])) == 1
