"""A hundred thousand processes in one run of the agent: no other program, but too slow for ``make test``."""

from __future__ import annotations

import gc
from collections.abc import Collection as Pids
from dataclasses import replace

import psutil
import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.export.batches import split_by_size
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.series import Collection
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.base import GpuRead, ProcessRead
from tests.builders import MIB, facts, gpu, gpu_read, listed, memory, process_read

pytestmark = pytest.mark.real

PROCESSES = 100_000
PER_CYCLE = 250
PER_CONTAINER = 10
MAX_GROWTH_BYTES = 20 << 20
RESOURCES = Resources({"host.name": "here"}, {"service.name": "otel-gpu"})


class Churn:
    """The driver and /proc of a host on whose GPU all processes are new in every cycle."""

    def __init__(self, clock: ManualClock) -> None:
        self.name = "churn"
        self.started = 0
        self._clock = clock
        self._energy_mj = 0
        self._pids: range = range(0)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def read(self) -> GpuRead:
        first = 1000 + self.started % 30_000  # pids are reused
        self._pids = range(first, first + PER_CYCLE)
        self.started += PER_CYCLE
        self._energy_mj += 900_001
        reading = gpu(0, [listed(pid, MIB) for pid in self._pids], memory=memory(), energy_mj=self._energy_mj)
        return gpu_read(replace(reading, taken_at_ns=self._clock.monotonic_ns(), power_limit_w=400.0))

    def processes(self) -> ProcessRead:
        start_ticks = self.started
        return process_read(
            *(
                facts(
                    pid,
                    WorkloadRef(WorkloadKind.CONTAINER, f"{start_ticks + pid // PER_CONTAINER:064x}"),
                    start_ticks=start_ticks,
                )
                for pid in self._pids
            )
        )


class Processes:
    """The /proc of a churning host."""

    name = "procfs"

    def __init__(self, churn: Churn) -> None:
        self._churn = churn

    def read(self, pids: Pids[int], measured: Pids[int] = ()) -> ProcessRead:
        """All processes."""
        return self._churn.processes()


def test_a_hundred_thousand_processes_cause_no_overflow_no_memory_growth_and_no_falling_counter() -> None:
    clock = ManualClock()
    churn = Churn(clock)
    engine = Engine(gpus=churn, processes=Processes(churn), clock=clock, options=AttributionOptions(retention_s=10))
    account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=lambda: 0.0, memory_bytes=lambda: 0)
    metrics = AgentMetrics(CycleMetrics(lambda: engine.latest, account))
    deltas, renderer = Deltas(), PrometheusRenderer(RESOURCES)
    values: dict[object, tuple[float, int | None]] = {}
    sizes: list[int] = []
    while churn.started < PROCESSES:
        clock.advance(5)
        account.observe(engine.sample())
        collection = metrics.collect()
        assert collection is not None
        values = checked(collection, values)
        if churn.started % (10 * PER_CYCLE) == 0:
            for batch in split_by_size(deltas.growth(collection), RESOURCES):
                assert encode(batch, RESOURCES, delta=True).resource_metrics
                deltas.accept(batch)
            assert b"overflow=" not in renderer.render(collection, Exposition.TEXT)
        if churn.started % (PROCESSES // 20) == 0:
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss)
    assert engine.latest is not None
    assert engine.latest.gpus[0].energy_error_mj == 0
    warm, end = sizes[len(sizes) // 5], max(sizes[-3:])
    assert end - warm <= MAX_GROWTH_BYTES, [size >> 20 for size in sizes]


def checked(
    collection: Collection, before: dict[object, tuple[float, int | None]]
) -> dict[object, tuple[float, int | None]]:
    """The values of counters, after checking that none fell since its start and no point is an overflow."""
    now: dict[object, tuple[float, int | None]] = {}
    for family in collection.blocks:
        for point in family.points:
            assert "otel.metric.overflow" not in point.attributes
            if family.metric.kind is Kind.COUNTER:
                series = (family.metric.name, point.workload, tuple(point.attributes.items()))
                now[series] = (point.value, point.start_ns)
                value, start_ns = before.get(series, (0.0, point.start_ns))
                assert point.value >= value or (point.start_ns or 0) > (start_ns or 0), series
    return now
