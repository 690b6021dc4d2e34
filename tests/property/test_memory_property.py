"""Laws of memory: it adds up with absurd figures, overlapping lists and missing lists."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.memory import split
from otel_gpu.attribution.residents import holders, holders_by_instance
from otel_gpu.model import DeviceMemory, GpuReading, ListedProcess, MemorySplit, MigReading, ProcessKind
from tests.builders import gpu, mig
from tests.depth import DEPTH

many = settings(max_examples=120 * DEPTH, deadline=None, derandomize=True, database=None)
some = settings(max_examples=60 * DEPTH, deadline=None, derandomize=True, database=None)

GIB = 1 << 30
plausible = st.integers(0, 80).map(lambda gib: gib * GIB)
# NVML's figures are unsigned 64-bit numbers; a negative figure represents a faulty driver.
device_bytes = st.one_of(plausible, st.integers(0, 2**64 - 1), st.sampled_from([0, 1, -1, 2**63, 2**64 - 1]))
process_bytes = st.one_of(st.none(), plausible, st.integers(0, 2**64 - 1))
device = st.builds(DeviceMemory, device_bytes, device_bytes, device_bytes, st.one_of(st.none(), device_bytes))
pid = st.integers(1, 6)  # few, so that they meet in several lists and instances
instance_id = st.one_of(st.none(), st.integers(0, 2))
entry = st.builds(ListedProcess, pid, st.sampled_from(ProcessKind), process_bytes, instance_id, instance_id)
entries = st.lists(entry, max_size=6)


@st.composite
def instances(draw: st.DrawFn) -> list[MigReading]:
    """MIG instances of different UUIDs; ids and lists may be missing, and ids may repeat."""
    count = draw(st.integers(0, 3))
    return [
        mig(
            f"MIG-{number}",
            (draw(instance_id), draw(instance_id)),
            draw(st.one_of(st.none(), entries)),
            memory=draw(st.one_of(st.none(), device)),
        )
        for number in range(count)
    ]


@st.composite
def reading(draw: st.DrawFn) -> GpuReading:
    """A GPU with or without MIG, with or without lists and figures."""
    return gpu(
        0,
        draw(st.one_of(st.none(), entries)),
        memory=draw(st.one_of(st.none(), device)),
        mig=draw(st.one_of(st.none(), instances())),
    )


def assert_adds_up(parts: MemorySplit) -> None:
    assert parts.conservation_error_bytes == 0
    whole = (parts.reserved_bytes or 0) + parts.measured_bytes - parts.overcount_bytes
    whole += parts.inferred_bytes + parts.unattributed_bytes + parts.free_bytes
    assert whole == parts.limit_bytes
    figures = (
        parts.limit_bytes,
        parts.reserved_bytes or 0,
        parts.measured_bytes,
        parts.overcount_bytes,
        parts.inferred_bytes,
        parts.unattributed_bytes,
        parts.free_bytes,
    )
    assert min(figures) >= 0


@many
@given(device, st.lists(process_bytes, max_size=10))
def test_the_parts_make_the_whole_and_none_is_negative(memory: DeviceMemory, measured: list[int | None]) -> None:
    parts = split(memory, measured)
    assert parts is not None
    assert_adds_up(parts)
    assert parts.measured_bytes == sum(figure or 0 for figure in measured)
    assert (parts.reserved_bytes is None) is (memory.reserved_bytes is None)
    assert not (parts.overcount_bytes and parts.unattributed_bytes)  # too much and too little exclude each other


@many
@given(plausible, plausible, plausible, st.lists(plausible, max_size=4))
def test_figures_that_can_be_true_together_are_kept_as_they_are(
    reserved: int, used: int, free: int, measured: list[int]
) -> None:
    total = reserved + used + free
    parts = split(DeviceMemory(total, used, free, reserved), measured)
    assert parts is not None
    assert (parts.limit_bytes, parts.reserved_bytes, parts.free_bytes) == (total, reserved, free)
    assert parts.measured_bytes - parts.overcount_bytes + parts.unattributed_bytes == used


@many
@given(entries, st.randoms(use_true_random=False))
def test_holders_do_not_depend_on_the_order_of_entries_and_lists(
    listed: list[ListedProcess], chance: random.Random
) -> None:
    shuffled = list(listed)
    chance.shuffle(shuffled)
    assert holders(shuffled) == holders(listed)


@many
@given(entries)
def test_a_pid_holds_its_largest_figure_and_is_counted_once(listed: list[ListedProcess]) -> None:
    held = holders([*listed, *listed])
    assert held == holders(listed)
    for holder, bytes_ in held.items():
        figures = [process.memory_bytes for process in listed if process.pid == holder]
        credible = [figure for figure in figures if figure is not None and figure <= 1 << 60]
        assert bytes_ == max(credible, default=None)
    assert held.keys() == {process.pid for process in listed}


@some
@given(reading(), st.randoms(use_true_random=False))
def test_the_order_of_the_lists_of_a_partitioned_gpu_does_not_matter(read: GpuReading, chance: random.Random) -> None:
    def shuffled(processes: tuple[ListedProcess, ...] | None) -> tuple[ListedProcess, ...] | None:
        return None if processes is None else tuple(chance.sample(processes, len(processes)))

    again = replace(read, processes=shuffled(read.processes))
    if read.mig is not None:
        again = replace(again, mig=tuple(replace(one, processes=shuffled(one.processes)) for one in read.mig))
    assert holders_by_instance(again) == holders_by_instance(read)


@some
@given(reading())
def test_the_holders_are_exactly_the_processes_that_the_driver_lists(read: GpuReading) -> None:
    lists = [read.processes, *(instance.processes for instance in read.mig or ())]
    listed = {process.pid for processes in lists for process in processes or ()}
    assert {pid for held in holders_by_instance(read).values() for pid in held} == listed


@some
@given(reading())
def test_entries_that_the_gpu_repeats_of_its_instances_are_not_counted_twice(read: GpuReading) -> None:
    """The GPU's own lists repeat the entries of its instances. With or without them the sum is the same."""
    instance_ids = [(one.gpu_instance_id, one.compute_instance_id) for one in read.mig or ()]
    if read.mig is None or len(set(instance_ids)) < len(instance_ids):
        return
    silent = replace(read, processes=None)
    repeating = replace(
        read,
        processes=tuple(
            process._replace(gpu_instance_id=one.gpu_instance_id, compute_instance_id=one.compute_instance_id)
            for one in read.mig
            for process in one.processes or ()
        ),
    )
    assert holders_by_instance(repeating) == holders_by_instance(silent)
