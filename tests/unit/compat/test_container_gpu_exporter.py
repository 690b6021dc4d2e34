"""container-gpu-exporter: the two exporters of that name, memory per container."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from tests.builders import GIB, MIB
from tests.builders import gpu as reading_of
from tests.unit.compat.series import lines, text, values
from tests.unit.metrics.builders import answer, device, part, process, split, workload

NAME = "container-gpu-exporter"
DOCKER = WorkloadRef(WorkloadKind.CONTAINER, "0123456789abcdef" * 4)
GPU = device(
    replace(
        reading_of(power_w=70.5, gpu_ratio=0.5),
        memory_controller_ratio=0.25,
        power_limit_w=400.0,
    ),
    memory=split(limit=8 * GIB, reserved=0, measured=4 * GIB),
)
ITS_GPU = 'index="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-0"'


def test_every_series_has_the_exporters_names_and_labels() -> None:
    report = answer(
        GPU,
        workloads=[
            workload(part(measured=3 * GIB)),
            workload(part(measured=GIB, inferred_bytes=512 * MIB), ref=DOCKER, names=WorkloadNames(container="ollama")),
            workload(part(measured=1), ref=WorkloadRef(WorkloadKind.SLURM_JOB, "7"), names=None),
        ],
        processes=[
            process(100, memory_bytes=3 * GIB),
            process(200, ref=DOCKER, memory_bytes=GIB),
            process(300, ref=WorkloadRef(WorkloadKind.SLURM_JOB, "7"), memory_bytes=1),
        ],
    )
    docker = 'pid="200",container_id="0123456789ab",container="ollama"'
    assert [line for line in text(NAME, report).splitlines() if not line.startswith("#")] == [
        f'container_gpu_memory_usage{{{ITS_GPU},container_name="vllm"}} 3072.0',
        f'container_gpu_memory_usage{{{ITS_GPU},container_name="ollama"}} 1536.0',
        f"core_utilization{{{ITS_GPU}}} 50.0",
        f"memory_utilization{{{ITS_GPU}}} 25.0",
        f"power_usage{{{ITS_GPU}}} 70.5",
        f"power_limit{{{ITS_GPU}}} 400.0",
        f"memory_usage{{{ITS_GPU}}} 4096.0",
        f"memory_total{{{ITS_GPU}}} 8192.0",
        f"docker_gpu_memory_usage{{{docker}}} 1073741824",
        'pod_gpu_memory_usage{pid="100",pod="vllm-0"} 3221225472',
        'docker_gpu_memory_perc_usage{pid="100",container_id="",container="",pod="vllm-0"} 37.5',
        f'docker_gpu_memory_perc_usage{{{docker},pod=""}} 12.5',
    ]


def test_every_process_of_a_container_has_a_series() -> None:
    report = answer(
        GPU,
        workloads=[workload(part(measured=3), ref=DOCKER, names=WorkloadNames(container="a"))],
        processes=[process(pid, ref=DOCKER, memory_bytes=pid) for pid in (1, 2)],
    )
    assert values(NAME, "docker_gpu_memory_usage", report, "pid") == {"1": 1, "2": 2}


def test_containers_with_equal_names_on_one_gpu_are_summed() -> None:
    names = WorkloadNames(container="eval")
    other = WorkloadRef(WorkloadKind.CONTAINER, "f" * 64)
    workloads = [workload(part(measured=MIB), ref=ref, names=names) for ref in (DOCKER, other)]
    report = answer(GPU, workloads=workloads)
    assert values(NAME, "container_gpu_memory_usage", report, "container_name") == {"eval": 2}


def test_unknown_values_are_absent() -> None:
    report = answer(
        device(),
        workloads=[workload(part(), ref=DOCKER, names=None)],
        processes=[process(ref=DOCKER, memory_bytes=None)],
    )
    assert [line for line in text(NAME, report).splitlines() if not line.startswith("#")] == []


def test_without_the_gpus_memory_there_is_no_percentage() -> None:
    report = answer(device(), processes=[process(ref=DOCKER, memory_bytes=5)])
    assert lines(NAME, "docker_gpu_memory_perc_usage", report) == []
    assert values(NAME, "docker_gpu_memory_usage", report, "pid") == {"100": 5}
