"""The host of ``otel-gpu demo``: four GPUs with every kind of workload."""

from __future__ import annotations

from otel_gpu.model import (
    HOST_WORKLOAD,
    GpuIdentity,
    ProcessKind,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.sim.signals import Bursty, Points, Product, Signal, Steady, Wander, seed_for
from otel_gpu.sources.sim.world import (
    GpuSpec,
    GpuUse,
    GrantSpec,
    JobStream,
    MigSpec,
    ProcessSpec,
    Visibility,
    WorkloadSpec,
    WorldSpec,
    container_id,
    suffix,
    uuid_text,
)

_MIB = 1 << 20
_GIB = 1 << 30
_DAY_S = 86_400.0


def demo_world(seed: int) -> WorldSpec:
    """A host with two A100, an H100 under MIG and an L4. Equal seeds give equal hosts and histories."""
    return WorldSpec(
        seed=seed,
        gpus=(_a100(seed, 0), _a100(seed, 1, stray_bytes=1_792 * _MIB), _h100(seed, 2), _l4(seed, 3)),
        processes=(*_shared_a100(seed), *_training_a100(seed), *_mig_h100(seed), *_desktop_l4(seed)),
        streams=_streams(seed),
        grants=(_sweep(seed),),
        age_s=30.0,
    )


# ---------------------------------------------------------------------------- GPUs


def _identity(seed: int, index: int, name: str, bus: int) -> GpuIdentity:
    return GpuIdentity(
        index=index,
        uuid=f"GPU-{uuid_text(seed_for(seed, f'gpu {index}'))}",
        name=name,
        minor=index,
        pci_bus_id=f"0000:{bus:02x}:00.0",
        serial=f"13240{seed_for(seed, f'serial {index}') % 10**8:08d}",
    )


def _a100(seed: int, index: int, *, stray_bytes: int = 0) -> GpuSpec:
    return GpuSpec(
        identity=_identity(seed, index, "NVIDIA A100-SXM4-80GB", 0x07 + 8 * index),
        memory_total_bytes=81_920 * _MIB,
        memory_reserved_bytes=904 * _MIB,
        static_w=46.0,
        context_w=17.0,
        power_limit_w=400.0,
        power_exponent=0.9,
        noise_ratio=0.03,
        energy_start_mj=7_312_455_108 + 1_000_003 * index,
        stray_bytes=stray_bytes,
    )


def _h100(seed: int, index: int) -> GpuSpec:
    # 2g has 32 SMs and 3g 60 of 132.
    layout = ((2, "3g.40gb", 60, 40_320), (5, "2g.20gb", 32, 20_096), (9, "1g.10gb", 16, 9_984))
    return GpuSpec(
        identity=_identity(seed, index, "NVIDIA H100 80GB HBM3", 0x87),
        memory_total_bytes=81_559 * _MIB,
        memory_reserved_bytes=551 * _MIB,
        static_w=69.0,
        context_w=42.0,
        power_limit_w=700.0,
        sm_count=132,
        power_exponent=0.85,
        noise_ratio=0.03,
        energy_start_mj=2_004_881_930,
        idle_sm_clock_mhz=345,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        celsius_per_w=0.07,
        mig=tuple(
            MigSpec(
                gpu_instance_id=instance,
                compute_instance_id=0,
                uuid=f"MIG-{uuid_text(seed_for(seed, f'mig {instance}'))}",
                profile=profile,
                sm_count=sm_count,
                memory_total_bytes=size_mib * _MIB,
                memory_reserved_bytes=37 * _MIB,
            )
            for instance, profile, sm_count, size_mib in layout
        ),
    )


def _l4(seed: int, index: int) -> GpuSpec:
    return GpuSpec(
        identity=_identity(seed, index, "NVIDIA L4", 0xC1),
        memory_total_bytes=23_034 * _MIB,
        memory_reserved_bytes=371 * _MIB,
        static_w=12.0,
        context_w=5.0,
        power_limit_w=72.0,
        sm_count=58,
        noise_ratio=0.03,
        energy_start_mj=912_044_317,
        max_sm_clock_mhz=2040,
        memory_clock_mhz=6251,
        celsius_per_w=0.5,
        sample_period_us=167_000,
        ring_size=100,
    )


# ---------------------------------------------------------------------------- workloads


def _pod(seed: int, namespace: str, pod: str, container: str, image: str) -> WorkloadSpec:
    own = seed_for(seed, f"{namespace}/{pod}/{container}")
    uid = uuid_text(seed_for(seed, f"{namespace}/{pod}"))
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(own), runtime="containerd", pod_uid=uid)
    return WorkloadSpec(ref, WorkloadNames(container, image, pod, namespace, uid))


def _deployment(seed: int, namespace: str, name: str, image: str) -> WorkloadSpec:
    own = seed_for(seed, name)
    return _pod(seed, namespace, f"{name}-{own % 0xFFFFFFFFF:09x}-{suffix(own)}", name, image)


def _docker(seed: int, name: str, image: str) -> WorkloadSpec:
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(seed_for(seed, name)), runtime="docker")
    return WorkloadSpec(ref, WorkloadNames(container=name, image=image))


def _unit(name: str) -> WorkloadSpec:
    return WorkloadSpec(WorkloadRef(WorkloadKind.SYSTEMD_UNIT, name))


def _loaded(bytes_: int, over_s: float) -> Signal:
    """Memory that grows over the first seconds and then stays."""
    return Points(((0.0, 430.0 * _MIB), (over_s, float(bytes_))))


def _shared_a100(seed: int) -> tuple[ProcessSpec, ...]:
    """GPU 0, time-sliced: a language model under a varying load, and an embedding service."""
    requests = Product(
        Bursty(level=1.0, duty=0.55, period_s=9.0, seed=seed_for(seed, "vllm requests"), rest=0.04),
        Wander(low=0.35, high=0.95, knot_s=75.0, seed=seed_for(seed, "vllm load"), smooth=True),
    )
    embeddings = Bursty(level=0.30, duty=0.35, period_s=4.0, seed=seed_for(seed, "embeddings"))
    return (
        ProcessSpec(
            pid=41_207,
            name="vllm",
            workload=_deployment(seed, "inference", "vllm-chat", "vllm/vllm-openai:v0.6.3"),
            uses=(GpuUse(0, Steady(54.0 * _GIB), requests, Steady(290.0), bandwidth_ratio=0.8),),
            start_s=-1.6 * _DAY_S,
            owner_uid=0,
        ),
        ProcessSpec(
            pid=41_990,
            name="text-embeddings",
            workload=_deployment(seed, "inference", "embeddings", "text-embeddings-inference:1.5"),
            uses=(GpuUse(0, Steady(4.7 * _GIB), embeddings, Steady(180.0)),),
            start_s=-1.6 * _DAY_S + 211.0,
            owner_uid=0,
        ),
    )


def _sweep(seed: int) -> GrantSpec:
    """A replica of GPU 0, granted to a pod that does not use it."""
    pod = _pod(seed, "research", "hyperparameter-sweep-0", "sweep", "pytorch/pytorch:2.5.1-cuda12.4")
    return GrantSpec(pod, gpu=0, replicas=4, since_s=-0.2 * _DAY_S)


def _training_a100(seed: int) -> tuple[ProcessSpec, ...]:
    """GPU 1: a trainer with three workers that pause together, and an idle notebook that holds memory.

    Some of its memory belongs to no visible process, as on many real hosts.
    """
    trainer = _pod(seed, "research", "finetune-13b-worker-0", "trainer", "pytorch/pytorch:2.5.1-cuda12.4")
    steps = Points(((0.0, 0.31), (52.0, 0.31), (52.0, 0.0), (60.0, 0.0)), repeat_s=60.0)  # a checkpoint a minute
    workers = tuple(
        ProcessSpec(
            pid=52_310 + rank,
            name="pt_main_thread",
            workload=trainer,
            uses=(GpuUse(1, _loaded(round((13.5 + rank) * _GIB), 40.0), steps, Steady(330.0), bandwidth_ratio=0.6),),
            start_s=-5_400.0,
        )
        for rank in range(3)
    )
    notebook = ProcessSpec(
        pid=33_871,
        name="ipykernel_launc",
        workload=_pod(seed, "research", "jupyter-analysis-0", "notebook", "jupyter/pytorch-notebook:cuda12"),
        uses=(GpuUse(1, Steady(11.2 * _GIB)),),
        start_s=-0.8 * _DAY_S,
    )
    return (*workers, notebook)


def _mig_h100(seed: int) -> tuple[ProcessSpec, ...]:
    """GPU 2 under MIG: a reranker on the large instance, a notebook with occasional work on the middle one."""
    ranking = Bursty(level=0.85, duty=0.6, period_s=12.0, seed=seed_for(seed, "reranker"), rest=0.1)
    cells = Bursty(level=0.9, duty=0.12, period_s=50.0, seed=seed_for(seed, "cells"))
    return (
        ProcessSpec(
            pid=60_418,
            name="tritonserver",
            workload=_deployment(seed, "search", "reranker", "tritonserver:24.10-py3"),
            uses=(GpuUse(2, Steady(22.4 * _GIB), ranking, Steady(520.0), gpu_instance_id=2),),
            start_s=-0.4 * _DAY_S,
            owner_uid=0,
        ),
        ProcessSpec(
            pid=61_002,
            name="python3",
            workload=_pod(seed, "search", "jupyter-eval-0", "notebook", "jupyter/pytorch-notebook:cuda12"),
            uses=(GpuUse(2, Steady(8.9 * _GIB), cells, Steady(460.0), gpu_instance_id=5),),
            start_s=-9_000.0,
        ),
    )


def _desktop_l4(seed: int) -> tuple[ProcessSpec, ...]:
    """GPU 3 without Kubernetes: Docker, systemd units, a display server, a script; Ollama's memory is hidden."""
    model = Points(((0.0, 0.0), (5.0, 0.0), (9.0, 8.8 * _GIB), (330.0, 8.8 * _GIB), (330.0, 0.0)), repeat_s=420.0)
    loaded = Points(((0.0, 0.0), (9.0, 0.0), (9.0, 1.0), (330.0, 1.0), (330.0, 0.0)), repeat_s=420.0)
    chats = Product(Bursty(level=0.7, duty=0.3, period_s=20.0, seed=seed_for(seed, "chats")), loaded)
    images = Bursty(level=0.8, duty=0.25, period_s=40.0, seed=seed_for(seed, "images"))
    return (
        ProcessSpec(
            pid=2_214,
            name="Xorg",
            workload=_unit("display-manager.service"),
            uses=(
                GpuUse(
                    3,
                    Steady(118.0 * _MIB),
                    Bursty(level=0.03, duty=0.2, period_s=5.0, seed=seed_for(seed, "screen")),
                    Steady(30.0),
                    kinds=(ProcessKind.GRAPHICS,),
                    opens_uvm=False,
                ),
            ),
            start_s=-4.9 * _DAY_S,
            owner_uid=0,
        ),
        ProcessSpec(
            pid=18_530,
            name="ollama",
            workload=_docker(seed, "ollama", "ollama/ollama:0.4.2"),
            uses=(GpuUse(3, model, chats, Steady(62.0), visibility=Visibility.HIDDEN),),
            start_s=-220.0,
            owner_uid=0,
        ),
        ProcessSpec(
            pid=19_077,
            name="python3",
            workload=_docker(seed, "comfyui", "comfyui:cuda12"),
            uses=(GpuUse(3, Steady(6.1 * _GIB), images, Steady(58.0)),),
            start_s=-0.3 * _DAY_S,
        ),
        ProcessSpec(
            pid=1_388,
            name="ffmpeg",
            workload=_unit("camera-transcode.service"),
            uses=(GpuUse(3, Steady(0.4 * _GIB), Steady(0.05), Steady(45.0), encoder_ratio=6.0, decoder_ratio=8.0),),
            start_s=-4.9 * _DAY_S,
            owner_uid=998,
        ),
        ProcessSpec(
            pid=27_645,
            name="python3",
            workload=WorkloadSpec(HOST_WORKLOAD),
            uses=(GpuUse(3, Steady(1.3 * _GIB), visibility=Visibility.NO_FIGURE),),
            start_s=-7_200.0,
        ),
    )


def _streams(seed: int) -> tuple[JobStream, ...]:
    """Short jobs: captions in Kubernetes, simulations from Slurm, evaluations on the small MIG instance."""
    captions = _pod(seed, "batch", "image-captions", "caption", "pytorch/pytorch:2.5.1-cuda12.4")
    evaluation = _pod(seed, "research", "model-eval", "eval", "pytorch/pytorch:2.5.1-cuda12.4")
    simulation = WorkloadSpec(WorkloadRef(WorkloadKind.SLURM_JOB, "184220", slurm_step="0"))
    pushing = Wander(low=0.1, high=0.5, knot_s=6.0, seed=seed_for(seed, "simulation"))
    return (
        JobStream(
            name="captions",
            every_s=80.0,
            shortest_s=35.0,
            longest_s=110.0,
            templates=tuple(
                ProcessSpec(0, "python3", captions, (GpuUse(0, _loaded(size, 6.0), Steady(0.2), Steady(240.0)),))
                for size in (3 * _GIB, 5 * _GIB)
            ),
            first_pid=70_000,
        ),
        JobStream(
            name="simulations",
            every_s=200.0,
            shortest_s=140.0,
            longest_s=380.0,
            templates=(
                ProcessSpec(0, "gmx", simulation, (GpuUse(1, _loaded(2 * _GIB, 3.0), pushing, Steady(370.0)),)),
                ProcessSpec(0, "lmp", simulation, (GpuUse(1, _loaded(6 * _GIB, 9.0), pushing, Steady(250.0)),)),
            ),
            first_pid=80_000,
        ),
        JobStream(
            name="evaluations",
            every_s=150.0,
            shortest_s=60.0,
            longest_s=140.0,
            templates=(
                ProcessSpec(
                    0,
                    "python3",
                    evaluation,
                    (GpuUse(2, _loaded(4 * _GIB, 8.0), Steady(0.6), Steady(480.0), gpu_instance_id=9),),
                ),
            ),
            first_pid=90_000,
        ),
    )
