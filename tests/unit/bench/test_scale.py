"""Far larger than any host: work grows linearly, memory is bounded, and sums stay exact."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES, split_by_size
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    GpuReading,
    ProcessFacts,
    Report,
    Snapshot,
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.builders import GIB, MIB, WALL_NS, facts, gpu, listed, memory, mig, snapshot

S_NS = 1_000_000_000
WATTS = 300
RESOURCES = Resources({"host.name": "node"}, {"service.name": "otel-gpu"})


def container(number: int) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, f"{number:064x}")


def cycles(gpus: Sequence[GpuReading], processes: Sequence[ProcessFacts], count: int = 3) -> Iterator[Snapshot]:
    """So many seconds in which every GPU draws the same power, and the first process of each does all the work."""
    for second in range(count):
        now_us = (WALL_NS + second * S_NS) // 1000
        read = [
            replace(
                each,
                taken_at_ns=second * S_NS,
                energy_mj=1_000_000 + second * WATTS * 1000,
                power_w=float(WATTS),
                utilization=None
                if each.mig is not None
                else UtilizationRead(
                    now_us - 1_000_000,
                    now_us,
                    tuple(UtilizationRow(p.pid, now_us - 5, 90, 5, 0, 0) for p in (each.processes or ())[:1]),
                ),
            )
            for each in gpus
        ]
        yield snapshot(*read, processes=processes, at_s=second)


def many_processes(count: int) -> tuple[list[GpuReading], list[ProcessFacts]]:
    """One GPU, with every process in a container of its own."""
    pids = range(1, count + 1)
    reading = gpu(0, [listed(pid, MIB) for pid in pids], memory=memory(used_gib=count / 1024, total_gib=80))
    return [reading], [facts(pid, container(pid)) for pid in pids]


def many_instances(gpus: int) -> tuple[list[GpuReading], list[ProcessFacts]]:
    """GPUs with seven MIG instances each, and a process in every one."""
    readings, processes = [], []
    for index in range(gpus):
        instances = []
        for slot in range(7):
            pid = 1 + 7 * index + slot
            entry = listed(pid, GIB, instance=(slot + 1, 0))
            instances.append(
                mig(f"MIG-{index}-{slot}", (slot + 1, 0), [entry], memory=memory(total_gib=10, used_gib=2))
            )
            processes.append(facts(pid, container(pid)))
        readings.append(gpu(index, [], mig=instances, memory=memory(used_gib=14)))
    return readings, processes


def python_calls(work: Callable[[], object]) -> int:
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def attributed(world: tuple[list[GpuReading], list[ProcessFacts]], count: int = 3) -> Report:
    attributor = Attributor()
    answers = [attributor.observe(each) for each in cycles(*world, count=count)]
    return answers[-1]


def exported(answer: Report, names: WorkloadNames | None = None) -> tuple[list[int], int, int]:
    """Sizes of OTLP requests, the size of the text, and how many series there are."""
    if names is not None:
        named = tuple(each._replace(names=names, awaiting_names=False) for each in answer.workloads)
        answer = replace(answer, workloads=named)
    collection = MetricCollector(lambda: SelfStats(started_ns=1), include_awaiting_names=True).collect(answer)
    batches = split_by_size(collection, RESOURCES)
    requests = [encode(batch, RESOURCES).ByteSize() for batch in batches]
    series = sum(len(block.values) for block in collection.blocks)
    return requests, len(PrometheusRenderer(RESOURCES).render(collection, Exposition.TEXT)), series


def check_sums(answer: Report, seconds: int) -> None:
    """Every millijoule and every byte is attributed exactly once."""
    for device in answer.gpus:
        assert device.energy_error_mj == 0
        assert device.totals is not None
        assert device.totals.total_mj == seconds * WATTS * 1000
        assert device.memory is not None
        assert device.memory.conservation_error_bytes == 0
    booked_mj = sum(p.totals.energy.total_mj or 0 for p in answer.processes if p.totals is not None)
    assert booked_mj == sum(device.totals.attributed_mj for device in answer.gpus if device.totals is not None)
    parts = [part for workload in answer.workloads for part in workload.gpus if part.totals is not None]
    assert sum(part.totals.energy.total_mj or 0 for part in parts if part.totals is not None) == booked_mj


@pytest.mark.long
def test_ten_thousand_processes_are_booked_to_the_millijoule_with_the_rest_in_the_overflow() -> None:
    answer = attributed(many_processes(10_000))
    check_sums(answer, seconds=2)
    assert len(answer.processes) == 2001
    assert len(answer.workloads) == 2001
    (rest,) = [process for process in answer.processes if process.key == OVERFLOW_PROCESS]
    assert rest.memory_bytes == 8_000 * MIB
    (others,) = [workload for workload in answer.workloads if workload.ref == OVERFLOW_WORKLOAD]
    assert sum(part.measured_bytes or 0 for part in others.gpus) == 8_000 * MIB
    requests, _, _ = exported(answer)
    assert max(requests) <= LARGEST_REQUEST_BYTES


def test_a_thousand_mig_instances_are_booked_to_the_millijoule() -> None:
    answer = attributed(many_instances(143))
    check_sums(answer, seconds=2)
    assert sum(len(device.mig or ()) for device in answer.gpus) == 1001
    assert len(answer.processes) == 1001


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "small", "large"),
    [(many_processes, 250, 1_000), (many_instances, 18, 72)],
    ids=["processes", "instances"],
)
def test_four_times_the_size_takes_at_most_five_times_the_work(
    world: Callable[[int], tuple[list[GpuReading], list[ProcessFacts]]], small: int, large: int
) -> None:
    counts = [_calls(world(size)) for size in (small, large)]
    (small_rules, small_export), (large_rules, large_export) = counts
    assert large_rules <= 5 * small_rules
    assert large_export <= 5 * small_export


def _calls(world: tuple[list[GpuReading], list[ProcessFacts]]) -> tuple[int, int]:
    """The cost of attributing and exporting a cycle."""
    attributor = Attributor()
    first, second, third = cycles(*world)
    attributor.observe(first)
    attributor.observe(second)
    answers: list[Report] = []
    rules = python_calls(lambda: answers.append(attributor.observe(third)))
    return rules, python_calls(lambda: exported(answers[0]))


def test_names_of_four_kilobytes_make_more_requests_and_no_larger_ones() -> None:
    text = "名" * 1365  # 4 kB
    names = WorkloadNames(container=text, image=text, pod=text, namespace=text)
    answer = attributed(many_processes(300))
    requests, text_bytes, series = exported(answer, names)
    assert max(requests) <= LARGEST_REQUEST_BYTES
    assert len(requests) > 1
    # A label is as long as the name; nothing is longer than its parts.
    assert text_bytes < series * 8 * 4096
