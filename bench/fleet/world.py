"""A typical host of a fleet: eight GPUs, a training job, services that share GPUs, notebooks, short jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_gpu.model import GpuIdentity, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.signals import Bursty, Signal, Steady, seed_for
from otel_gpu.sources.sim.world import (
    GpuSpec,
    GpuUse,
    JobStream,
    ProcessSpec,
    WorkloadSpec,
    WorldSpec,
    container_id,
    uuid_text,
)

GPUS: Final = 8
LASTING_WORKLOADS: Final = 10
"""Long-lived processes: a trainer, four services, five notebooks. Jobs of about a minute are in addition."""

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_TRAINER_GPUS: Final = range(4)
_SERVICE_GPUS: Final = (4, 4, 5, 5)
_NOTEBOOK_GPUS: Final = (6, 6, 6, 7, 7)
_JOB_GPU: Final = 7


def host_name(number: int) -> str:
    """The name of a host."""
    return f"gpu-{number:05d}"


def fleet_world(number: int) -> WorldSpec:
    """The host of this number, with its own GPUs, pods and history."""
    return WorldSpec(
        seed=number,
        gpus=tuple(_gpu(number, index) for index in range(GPUS)),
        processes=(*_trainer(number), *_services(number), *_notebooks(number)),
        streams=(_jobs(number),),
        age_s=30.0,
    )


def _gpu(seed: int, index: int) -> GpuSpec:
    return GpuSpec(
        identity=GpuIdentity(
            index=index,
            uuid=f"GPU-{uuid_text(seed_for(seed, f'gpu {index}'))}",
            name="NVIDIA H100 80GB HBM3",
            minor=index,
            pci_bus_id=f"0000:{0x0B + 8 * index:02x}:00.0",
            serial=f"16524{seed_for(seed, f'serial {index}') % 10**8:08d}",
        ),
        memory_total_bytes=81_559 * _MIB,
        memory_reserved_bytes=551 * _MIB,
        static_w=69.0,
        context_w=42.0,
        power_limit_w=700.0,
        sm_count=132,
        noise_ratio=0.03,
        energy_start_mj=2_004_881_930 + 1_000_003 * index,
    )


def _pod(seed: int, namespace: str, pod: str, image: str) -> WorkloadSpec:
    uid = uuid_text(seed_for(seed, f"{namespace}/{pod}"))
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(seed_for(seed, pod)), runtime="containerd", pod_uid=uid)
    return WorkloadSpec(ref, WorkloadNames("main", image, pod, namespace, uid))


def _process(pid: int, name: str, workload: WorkloadSpec, *, gpu: int, gib: float, work: Signal) -> ProcessSpec:
    use = GpuUse(gpu, Steady(gib * _GIB), work, Steady(420.0))
    return ProcessSpec(pid, name, workload, (use,), start_s=-3600.0)


def _trainer(seed: int) -> Iterator[ProcessSpec]:
    pod = _pod(seed, "research", f"pretrain-{seed}", "pytorch/pytorch:2.5.1-cuda12.4")
    for rank in _TRAINER_GPUS:
        yield _process(10_000 + rank, "pt_main_thread", pod, gpu=rank, gib=61.0, work=Steady(0.93))


def _services(seed: int) -> Iterator[ProcessSpec]:
    for place, gpu in enumerate(_SERVICE_GPUS):
        pod = _pod(seed, "inference", f"chat-{seed}-{place}", "vllm/vllm-openai:v0.6.3")
        requests = Bursty(level=0.6, duty=0.5, period_s=9.0, seed=seed_for(seed, f"requests {place}"))
        yield _process(20_000 + place, "vllm", pod, gpu=gpu, gib=33.0, work=requests)


def _notebooks(seed: int) -> Iterator[ProcessSpec]:
    for place, gpu in enumerate(_NOTEBOOK_GPUS):
        pod = _pod(seed, "research", f"jupyter-{seed}-{place}", "jupyter/pytorch-notebook:cuda12")
        cells = Bursty(level=0.8, duty=0.1, period_s=40.0, seed=seed_for(seed, f"cells {place}"))
        yield _process(30_000 + place, "python3", pod, gpu=gpu, gib=9.0, work=cells)


def _jobs(seed: int) -> JobStream:
    pod = _pod(seed, "batch", "captions", "pytorch/pytorch:2.5.1-cuda12.4")
    return JobStream(
        name="captions",
        every_s=60.0,
        shortest_s=30.0,
        longest_s=90.0,
        templates=(_process(0, "python3", pod, gpu=_JOB_GPU, gib=12.0, work=Steady(0.4)),),
        first_pid=70_000,
    )
