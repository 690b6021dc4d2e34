"""A simulated host of any size: steady processes, each in a container or pod of its own or shared with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_gpu.model import GpuIdentity, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.signals import Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, ProcessSpec, WorkloadSpec, WorldSpec, container_id, uuid_text

_MIB: Final = 1 << 20
_TOTAL_MIB: Final = 81_559
_RESERVED_MIB: Final = 551
_FIRST_PID: Final = 10_000


@dataclass(frozen=True, slots=True)
class Size:
    """A host. Each GPU has its own pods; ``processes_per_pod`` processes share one."""

    gpus: int
    processes_per_gpu: int
    processes_per_pod: int = 1

    @property
    def processes(self) -> int:
        """Processes on all GPUs."""
        return self.gpus * self.processes_per_gpu


def large_world(size: Size) -> WorldSpec:
    """A host of this size."""
    return WorldSpec(
        seed=1,
        gpus=tuple(_gpu(index) for index in range(size.gpus)),
        processes=tuple(
            _process(size, gpu, place) for gpu in range(size.gpus) for place in range(size.processes_per_gpu)
        ),
        age_s=30.0,
    )


def _gpu(index: int) -> GpuSpec:
    return GpuSpec(
        identity=GpuIdentity(
            index=index,
            uuid=f"GPU-{uuid_text(1000 + index)}",
            name="NVIDIA H100 80GB HBM3",
            minor=index,
            pci_bus_id=f"0000:{0x0B + 8 * index:02x}:00.0",
            serial=f"{1652400000000 + index}",
        ),
        memory_total_bytes=_TOTAL_MIB * _MIB,
        memory_reserved_bytes=_RESERVED_MIB * _MIB,
        static_w=69.0,
        context_w=42.0,
        power_limit_w=700.0,
        sm_count=132,
    )


def _process(size: Size, gpu: int, place: int) -> ProcessSpec:
    number = gpu * size.processes_per_gpu + place
    share = 1 / size.processes_per_gpu
    use = GpuUse(gpu, Steady(0.9 * share * _TOTAL_MIB * _MIB), Steady(0.9 * share), Steady(420.0))
    pod = _pod(gpu, place // size.processes_per_pod)
    return ProcessSpec(_FIRST_PID + number, "python3", pod, (use,), start_s=-3600.0)


def _pod(gpu: int, place: int) -> WorkloadSpec:
    seed = 1_000_000 * (gpu + 1) + place
    uid = uuid_text(seed)
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(seed), runtime="containerd", pod_uid=uid)
    image = "registry.example.com/inference/server:v1.2.3"
    return WorkloadSpec(ref, WorkloadNames("main", image, f"server-{gpu}-{place}", "inference", uid))
