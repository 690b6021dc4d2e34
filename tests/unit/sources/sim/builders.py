"""Small worlds for these tests: a GPU, a process, a host with a manual clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuIdentity, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Signal, Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, MigSpec, ProcessSpec, WorkloadSpec, WorldSpec

GIB = 1 << 30
PERIOD_S = 0.139


def gpu(index: int = 0, **changes: Any) -> GpuSpec:
    """A GPU with 40 W static and 20 W context power, and 16 GiB of which 1 is reserved."""
    spec = GpuSpec(
        identity=GpuIdentity(index, f"GPU-{index}", "Test GPU", minor=index),
        memory_total_bytes=16 * GIB,
        memory_reserved_bytes=GIB,
        static_w=40.0,
        context_w=20.0,
        power_limit_w=1000.0,
    )
    return replace(spec, **changes)


def mig_gpu(index: int = 0) -> GpuSpec:
    """A GPU of 100 SMs with two instances of 60 and 20 SMs, 8 and 4 GiB."""
    instances = tuple(
        MigSpec(
            gpu_instance_id=number,
            compute_instance_id=0,
            uuid=f"MIG-{number}",
            profile=profile,
            sm_count=sm_count,
            memory_total_bytes=size * GIB,
            memory_reserved_bytes=0,
        )
        for number, profile, sm_count, size in ((1, "3g.8gb", 60, 8), (2, "1g.4gb", 20, 4))
    )
    return gpu(index, sm_count=100, mig=instances)


def container(name: str) -> WorkloadSpec:
    """A Docker container; its id follows from its name."""
    container_id = (name.encode().hex() * 64)[:64]
    return WorkloadSpec(WorkloadRef(WorkloadKind.CONTAINER, container_id, "docker"), WorkloadNames(container=name))


def use(
    work: Signal | float = 0.0, watts: Signal | float = 100.0, memory: Signal | float = GIB, **changes: Any
) -> GpuUse:
    """A use of GPU 0; a number is a constant signal."""
    work, watts, memory = (Steady(float(s)) if isinstance(s, int | float) else s for s in (work, watts, memory))
    return replace(GpuUse(gpu=0, memory=memory, work=work, watts=watts), **changes)


def process(
    pid: int, *uses: GpuUse, start_s: float = 0.0, end_s: float | None = None, workload: str | None = None
) -> ProcessSpec:
    """A process, by default in its own container."""
    return ProcessSpec(pid, f"p{pid}", container(workload or f"c{pid}"), uses, start_s, end_s)


def world(*processes: ProcessSpec, gpus: tuple[GpuSpec, ...] = (gpu(),), seed: int = 1) -> WorldSpec:
    """A world of these processes."""
    return WorldSpec(seed=seed, gpus=gpus, processes=processes)


def start(spec: WorldSpec) -> tuple[SimulatedHost, ManualClock]:
    """The world with its own clock."""
    clock = ManualClock()
    return SimulatedHost(spec, clock), clock
