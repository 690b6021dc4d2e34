from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from otel_gpu.metrics.agent_values import SelfAccount, SelfStats
from otel_gpu.model import GpuTotals, Report, SourceOutcome, SourceState, UnreadableReason
from tests.builders import gpu, uuid_of
from tests.unit.metrics.builders import EPOCH_NS, STARTED_NS, STATS, answer, device, points_of, split, values_by

SOURCE = "otel_gpu.source"


@pytest.mark.parametrize("state", SourceState)
def test_a_source_has_every_state_one_of_them_1_and_is_up_unless_it_gave_no_answer(state: SourceState) -> None:
    attribution = answer(sources=[SourceOutcome("nvml", state, duration_s=0.25)])
    states = values_by("otel_gpu.source.state", attribution, SOURCE, "otel_gpu.state")
    assert states == {("nvml", each): int(each == state) for each in ("ok", "degraded", "unavailable", "paused")}
    assert values_by("otel_gpu.up", attribution, SOURCE) == {
        "nvml": int(state in (SourceState.OK, SourceState.DEGRADED))
    }
    assert values_by("otel_gpu.collection.duration", attribution, SOURCE) == {"nvml": 0.25}


def test_unreadable_processes_have_a_point_for_every_reason_while_the_process_source_answers() -> None:
    counts = dict.fromkeys(map(str, UnreadableReason), 0) | {"denied": 3}
    report = replace(answer(), unreadable=counts)
    assert values_by("otel_gpu.process.unreadable", report, "otel_gpu.reason") == counts
    assert points_of("otel_gpu.process.unreadable", answer()) == []


def test_errors_count_since_the_agent_started_and_anomalies_since_the_ledger_began() -> None:
    stats = replace(STATS, source_errors={"nvml": 3, "procfs": 0})
    found = points_of("otel_gpu.source.errors", answer(anomalies=2), stats)
    assert {point.attributes[SOURCE]: (point.value, point.start_ns) for point in found} == {
        "nvml": (3, STARTED_NS),
        "procfs": (0, STARTED_NS),
        "attribution": (2, EPOCH_NS),
    }


def test_coverage_is_the_attributed_part_of_the_used_memory() -> None:
    attribution = answer(
        device(gpu(0), memory=split(measured=40, overcount=10, inferred=15, unattributed=15)),
        device(gpu(1), memory=split(measured=5)),
        device(gpu(2), memory=split()),
        device(gpu(3)),
    )
    # Without used memory there is no fraction.
    assert values_by("otel_gpu.attribution.coverage", attribution, "hw.id") == {uuid_of(0): 0.75, uuid_of(1): 1.0}


def test_sums_that_do_not_hold_are_exported() -> None:
    wrong = split()._replace(free_bytes=90)
    attribution = answer(device(gpu(energy_mj=1), memory=wrong, totals=GpuTotals(5, 0, 0), energy_error_mj=-7))
    assert values_by("otel_gpu.conservation.memory.error", attribution, "hw.id") == {uuid_of(0): 9}
    assert values_by("otel_gpu.conservation.energy.error", attribution, "hw.id") == {uuid_of(0): -0.007}


def test_an_error_that_cannot_be_computed_is_absent() -> None:
    attribution = answer(device(gpu()))
    for kind in ("memory", "energy"):
        assert points_of(f"otel_gpu.conservation.{kind}.error", attribution) == []


def test_the_agent_exports_its_own_cost_as_far_as_it_is_known() -> None:
    names = ("otel_gpu.cpu.time", "otel_gpu.memory.usage")
    stats = SelfStats(STARTED_NS, cpu_s=1.5, memory_bytes=7)
    found = [
        (point.value, dict(point.attributes), point.start_ns)
        for name in names
        for point in points_of(name, answer(), stats)
    ]
    assert found == [(1.5, {}, STARTED_NS), (7, {}, None)]
    assert [points_of(name, answer()) for name in names] == [[], []]


def test_the_number_of_series_counts_itself() -> None:
    [point] = points_of("otel_gpu.series", answer())
    [errors] = points_of("otel_gpu.source.errors", answer())
    assert errors.attributes == {SOURCE: "attribution"}
    [dropped] = points_of("otel_gpu.series.dropped", answer())
    assert (dropped.value, dropped.attributes) == (0, {"otel_gpu.series.kind": "process"})
    assert (point.value, dict(point.attributes), point.start_ns) == (3, {}, None)


# ---------------------------------------------------------------------------- the account


def account() -> SelfAccount:
    return SelfAccount(started_ns=STARTED_NS, cpu_s=lambda: 1.5, memory_bytes=lambda: None)


def cycle(at_ns: int, **errors: int) -> Report:
    sources = [SourceOutcome(name, SourceState.OK, errors=count) for name, count in errors.items()]
    return answer(sources=sources, at_ns=at_ns)


def test_errors_of_cycles_add_up_by_source_from_0() -> None:
    own = account()
    own.observe(cycle(1, nvml=0, procfs=2))
    assert own.stats().source_errors == {"nvml": 0, "procfs": 2}
    own.observe(cycle(2, nvml=1, procfs=3))
    assert own.stats().source_errors == {"nvml": 1, "procfs": 5}


def test_a_cycle_shown_twice_or_late_counts_once() -> None:
    own = account()
    for at_ns in (5, 5, 4, 5):
        own.observe(cycle(at_ns, nvml=1))
    assert own.stats().source_errors == {"nvml": 1}


class SlowSources(tuple[SourceOutcome, ...]):  # noqa: SLOT001 - a tuple's subclass has no slots for a thread
    """Sources during whose reading another thread does ``work``, if it can."""

    work: threading.Thread

    def __iter__(self) -> Iterator[SourceOutcome]:
        self.work.start()
        self.work.join(0.2)
        return super().__iter__()


def test_cycles_that_two_threads_observe_at_the_same_time_both_count() -> None:
    own = account()
    sources = SlowSources(cycle(1, nvml=1).sources)
    sources.work = threading.Thread(target=own.observe, args=[cycle(2, nvml=1)])
    own.observe(replace(cycle(1), sources=sources))
    sources.work.join()
    assert own.stats().source_errors == {"nvml": 2}


def test_a_source_that_is_gone_keeps_its_count() -> None:
    own = account()
    own.observe(cycle(1, nvml=1, names=1))
    own.observe(cycle(2, nvml=1))
    assert own.stats().source_errors == {"nvml": 2, "names": 1}


def test_figures_are_read_on_demand_and_a_snapshot_of_them_does_not_change() -> None:
    spent = [1.0]
    own = SelfAccount(started_ns=STARTED_NS, cpu_s=lambda: spent[0], memory_bytes=lambda: 7)
    own.observe(cycle(1, nvml=1))
    before = own.stats()
    spent[0] = 2.0
    own.observe(cycle(2, nvml=1))
    after = own.stats()
    assert (before.cpu_s, before.source_errors) == (1.0, {"nvml": 1})
    assert (after.cpu_s, after.source_errors) == (2.0, {"nvml": 2})
    assert (after.started_ns, after.memory_bytes) == (STARTED_NS, 7)
