"""A host with four GPUs: one with a single pod, one with pods that share it, one with idle pods, and an empty one."""

from __future__ import annotations

from typing import Final

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import GpuIdentity, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.signals import Bursty, Points, Signal, Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, ProcessSpec, WorkloadSpec, WorldSpec

GIB: Final = 1 << 30
FOR_S: Final = 1500
OPTIONS: Final = AttributionOptions(retention_s=120.0)
ALONE, SHARED, HELD, EMPTY = range(4)


def _gpu(index: int) -> GpuSpec:
    identity = GpuIdentity(
        index, f"GPU-{index:08d}-0000-4000-8000-000000000000", "NVIDIA A100", index, f"0000:{index + 0x1A:02x}:00.0"
    )
    return GpuSpec(identity, 80 * GIB, GIB, static_w=50.0, context_w=20.0, power_limit_w=400.0, energy_start_mj=10**9)


def _pod(name: str, number: int, use: GpuUse, start_s: float = -600.0, end_s: float | None = None) -> ProcessSpec:
    uid = f"00000000-0000-4000-8000-{number:012x}"
    ref = WorkloadRef(WorkloadKind.CONTAINER, f"{number:064x}", runtime="containerd", pod_uid=uid)
    names = WorkloadNames(container="main", pod=name, namespace="team-a", pod_uid=uid)
    return ProcessSpec(1000 + number, "python3", WorkloadSpec(ref, names), (use,), start_s, end_s)


def _worked_until(end_s: float) -> Signal:
    """Work until a time of the world, for a process that started 600 s before the world."""
    return Points(((0.0, 0.5), (600.0 + end_s, 0.5), (600.0 + end_s, 0.0)))


WORLD: Final = WorldSpec(
    seed=5,
    gpus=tuple(_gpu(index) for index in (ALONE, SHARED, HELD, EMPTY)),
    processes=(
        _pod("alone", 1, GpuUse(ALONE, Steady(20.0 * GIB), Bursty(0.8, 0.5, 40.0, seed=1), Steady(250.0))),
        _pod("large", 2, GpuUse(SHARED, Steady(30.0 * GIB), Bursty(0.6, 0.6, 30.0, seed=2), Steady(280.0))),
        _pod("small", 3, GpuUse(SHARED, Steady(10.0 * GIB), Bursty(0.3, 0.4, 45.0, seed=3), Steady(200.0))),
        _pod("job", 4, GpuUse(SHARED, Steady(5.0 * GIB), Steady(0.2), Steady(240.0)), start_s=300.0, end_s=700.0),
        _pod("never", 5, GpuUse(HELD, Steady(8.0 * GIB))),
        _pod("long-ago", 6, GpuUse(HELD, Steady(6.0 * GIB), _worked_until(500.0), Steady(150.0))),
        _pod("lately", 7, GpuUse(HELD, Steady(4.0 * GIB), _worked_until(1100.0), Steady(150.0))),
        _pod("light", 8, GpuUse(HELD, Steady(2.0 * GIB), Steady(0.05), Steady(150.0))),
    ),
)
