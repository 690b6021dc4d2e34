"""The host of a soak: a simulated host with faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuHealth, GpuIdentity, GpuReading, SourceState, WorkloadRef
from otel_gpu.sources.base import GpuRead, NameRead, ProcessRead
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import WorldSpec

SAMPLE_PERIOD_US: Final = 6_000_000
"""Coarser than a driver's, so that a week passes in minutes; the ring still holds more than a cycle."""

FAULT_EVERY_S: Final = 1800.0
SHORTEST_S, LONGEST_S = 60.0, 900.0


class Kind(StrEnum):
    """A fault of one GPU, or of a source as a whole."""

    LOST = "gpu lost"
    HUNG = "gpu hung"
    ASLEEP = "gpu asleep"
    NO_POWER = "one figure missing"
    RESET = "gpu reset"
    RELOAD = "driver reloaded"
    NAMES = "names unavailable"
    PROC = "proc unavailable"


_OF_ONE_GPU: Final = {
    Kind.LOST: (GpuHealth.FAILED, "GPU is lost"),
    Kind.HUNG: (GpuHealth.FAILED, "no answer within 2.0 s: a call to the driver has not returned"),
    Kind.RESET: (GpuHealth.FAILED, "GPU requires a reset"),
    Kind.ASLEEP: (GpuHealth.ASLEEP, "runtime-suspended"),
}
_NOT_LOADED: Final = "NVML: the NVIDIA driver is not loaded"
_RESETS_COUNTERS: Final = (Kind.RESET, Kind.RELOAD)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, its start and end (monotonic s), and its GPU if it has one."""

    kind: Kind
    begins_s: float
    ends_s: float
    gpu: int


def soak_world(seed: int) -> WorldSpec:
    """The demonstration's host: two A100, an H100 under MIG, an L4 with hidden memory, and jobs that come and go."""
    world = demo_world(seed)
    return replace(world, gpus=tuple(replace(gpu, sample_period_us=SAMPLE_PERIOD_US) for gpu in world.gpus))


class SoakHost:
    """A simulated host with faults, one after the other. It outlives its agents."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.clock = clock
        self.host = SimulatedHost(soak_world(seed), clock)
        self.faults: Counter[str] = Counter()
        self.expected_mj: dict[str, int] = {}
        """The observable advance of each GPU's counter, that is, between two readings."""
        self._dice = random.Random(seed)
        self._last_mj: dict[str, int] = {}
        self._base_mj: dict[str, int] = {}
        self._fault = self._next_fault()

    def fault(self) -> Fault | None:
        """The present fault."""
        now_s = self.clock.monotonic_ns() / 1e9
        if now_s >= self._fault.ends_s:
            self.faults[self._fault.kind] += 1
            if self._fault.kind in _RESETS_COUNTERS:
                self._restart_counters(self._fault)
            self._fault = self._next_fault()
        return self._fault if now_s >= self._fault.begins_s else None

    def delivered(self, read: GpuRead) -> GpuRead:
        """Add the counters of a read that the agent gets to ``expected_mj``."""
        for gpu in read.gpus:
            if gpu.energy_mj is not None:
                uuid = gpu.identity.uuid
                advanced_mj = gpu.energy_mj - self._last_mj.get(uuid, gpu.energy_mj)
                self.expected_mj[uuid] = self.expected_mj.get(uuid, 0) + max(0, advanced_mj)
                self._last_mj[uuid] = gpu.energy_mj
        return read

    def counted(self, gpu: GpuReading) -> GpuReading:
        """A reading with the counter since the last reset."""
        base_mj = self._base_mj.get(gpu.identity.uuid, 0)
        return gpu if gpu.energy_mj is None else replace(gpu, energy_mj=gpu.energy_mj - base_mj)

    def _restart_counters(self, fault: Fault) -> None:
        for gpu in self.host.gpu_source().read().gpus:
            if gpu.energy_mj is not None and (fault.kind is Kind.RELOAD or gpu.identity.index == fault.gpu):
                self._base_mj[gpu.identity.uuid] = gpu.energy_mj

    def _next_fault(self) -> Fault:
        begins_s = self.clock.monotonic_ns() / 1e9 + self._dice.expovariate(1 / FAULT_EVERY_S)
        lasts_s = self._dice.uniform(SHORTEST_S, LONGEST_S)
        kind = self._dice.choice(list(Kind))
        return Fault(kind, begins_s, begins_s + lasts_s, self._dice.randrange(len(self.host.spec.gpus)))


class SoakGpus:
    """The driver of that host."""

    name = "sim"

    def __init__(self, host: SoakHost, known: Sequence[GpuIdentity] = ()) -> None:
        """``known`` are GPUs from an earlier run of the agent."""
        self._host = host
        self._source = host.host.gpu_source()
        self._seen = {gpu.uuid for gpu in known}

    def read(self) -> GpuRead:
        """Every GPU with the present fault. A GPU that has never answered an agent is unknown to it."""
        read = self._read()
        self._seen.update(gpu.identity.uuid for gpu in read.gpus if gpu.answered)
        return replace(read, gpus=tuple(gpu for gpu in read.gpus if gpu.identity.uuid in self._seen))

    def _read(self) -> GpuRead:
        fault = self._host.fault()
        read = self._source.read()
        read = replace(read, gpus=tuple(map(self._host.counted, read.gpus)))
        if fault is None or fault.kind in (Kind.NAMES, Kind.PROC):
            return self._host.delivered(read)
        if fault.kind is Kind.RELOAD:
            gpus = tuple(_silent(gpu, GpuHealth.FAILED, _NOT_LOADED) for gpu in read.gpus)
            return GpuRead(gpus, None, SourceState.UNAVAILABLE, _NOT_LOADED, errors=1)
        gpus = tuple(_with(fault, gpu) if gpu.identity.index == fault.gpu else gpu for gpu in read.gpus)
        reason = next(gpu.reason for gpu in gpus if gpu.identity.index == fault.gpu)
        state = SourceState.OK if fault.kind is Kind.ASLEEP else SourceState.DEGRADED
        return self._host.delivered(GpuRead(gpus, read.driver, state, reason, errors=1, by_gpu=True))

    def close(self) -> None:
        """Do nothing."""


def _with(fault: Fault, gpu: GpuReading) -> GpuReading:
    if fault.kind is Kind.NO_POWER:
        return replace(gpu, health=GpuHealth.DEGRADED, reason="power: unknown error", power_w=None)
    return _silent(gpu, *_OF_ONE_GPU[fault.kind])


def _silent(gpu: GpuReading, health: GpuHealth, reason: str) -> GpuReading:
    return GpuReading(gpu.identity, gpu.taken_at_ns, health=health, reason=reason)


class SoakProcesses:
    """``/proc`` of that host."""

    name = "procfs"

    def __init__(self, host: SoakHost) -> None:
        self._host = host
        self._source = host.host.process_source()

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """Processes, or the fault."""
        fault = self._host.fault()
        if fault is not None and fault.kind is Kind.PROC:
            return ProcessRead(
                state=SourceState.UNAVAILABLE, reason="not a readable procfs", errors=1, all_visible=False
            )
        return self._source.read(pids, measured)


class SoakNames:
    """The name source of that host."""

    name = "names"

    def __init__(self, host: SoakHost) -> None:
        self._host = host
        self._source = host.host.name_source()
        self._last = NameRead()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """Names, or the fault: known names persist, as in every real source."""
        fault = self._host.fault()
        if fault is not None and fault.kind is Kind.NAMES:
            return replace(self._last, state=SourceState.UNAVAILABLE, reason="connection refused", errors=1)
        self._last = self._source.read(workloads)
        return self._last

    def wait(self, timeout_s: float) -> bool:
        """Wait for pending look-ups."""
        return self._source.wait(timeout_s)

    def close(self) -> None:
        """Do nothing."""
