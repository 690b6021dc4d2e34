"""A simulated host that measures the CPU time of the simulation, which is not part of an agent's cost."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from otel_gpu.agent.host import Host
from otel_gpu.model import WorkloadRef
from otel_gpu.sources.base import GpuRead, GpuSource, NameRead, NameSource, ProcessRead, ProcessSource
from otel_gpu.sources.sim.host import SimulatedHost


class MeteredHost:
    """The sources of a simulated host, with the CPU time that simulating it takes."""

    def __init__(self, host: SimulatedHost) -> None:
        self.cpu_s = 0.0
        self.host = Host(
            _MeteredGpus(self, host.gpu_source()),
            _MeteredProcesses(self, host.process_source()),
            (_MeteredNames(self, host.name_source()),),
            "a fleet of simulated hosts",
        )

    @contextmanager
    def metering(self) -> Iterator[None]:
        """Add this thread's CPU time; one thread reads all sources of an agent."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.cpu_s += time.thread_time() - began_s


class _MeteredGpus:
    def __init__(self, meter: MeteredHost, source: GpuSource) -> None:
        self._meter, self._source, self.name = meter, source, source.name

    def read(self) -> GpuRead:
        with self._meter.metering():
            return self._source.read()

    def close(self) -> None:
        self._source.close()


class _MeteredProcesses:
    def __init__(self, meter: MeteredHost, source: ProcessSource) -> None:
        self._meter, self._source, self.name = meter, source, source.name

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        with self._meter.metering():
            return self._source.read(pids, measured)


class _MeteredNames:
    def __init__(self, meter: MeteredHost, source: NameSource) -> None:
        self._meter, self._source, self.name = meter, source, source.name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        with self._meter.metering():
            return self._source.read(workloads)

    def wait(self, timeout_s: float) -> bool:
        return self._source.wait(timeout_s)

    def close(self) -> None:
        self._source.close()
