"""my-gpu-exporter: energy of processes."""

from __future__ import annotations

from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import RenderContext
from otel_gpu.metrics.rows import report_rows
from otel_gpu.model import GpuReading, GpuTotals, WorkloadKind, WorkloadRef
from tests.builders import CONTAINER_ID
from tests.builders import gpu as reading_of
from tests.unit.compat.series import lines, text, values
from tests.unit.metrics.builders import WORK, answer, device, part, process, totals, workload

NAME = "my-gpu-exporter"
LABELS = (
    'pid="100",gpu="0",process_name="python3",pod="vllm-0",namespace="inference",container="vllm",'
    f'pod_uid="pod-uid",container_id="{CONTAINER_ID}"'
)


def metered() -> GpuReading:
    """A GPU with an energy counter and utilisation data."""
    reading = reading_of(energy_mj=9_000)
    return GpuReading(identity=reading.identity, taken_at_ns=0, processes=(), energy_mj=9_000, utilization=WORK)


GPU = device(metered(), totals=GpuTotals(6_000, 2_000, 1_000))


def test_every_series_has_the_exporters_names_and_labels() -> None:
    report = answer(
        GPU,
        workloads=[workload(part())],
        processes=[
            process(
                totals=totals(measured_mj=1_500, estimated_mj=4_000, inferred_mj=500),
                sm_ratio=0.85,
                bandwidth_ratio=0.72,
                memory_bytes=8_589_934_592,
                start_time_s=1_699_564_800.5,
            )
        ],
    )
    assert [line for line in text(NAME, report).splitlines() if not line.startswith("# HELP")] == [
        "# TYPE my_gpu_process_energy_joules counter",
        f"my_gpu_process_energy_joules{{{LABELS}}} 6.0",
        "# TYPE my_gpu_process_energy_joules_total counter",
        f'my_gpu_process_energy_joules_total{{{LABELS},energy_estimated="false"}} 1.5',
        f'my_gpu_process_energy_joules_total{{{LABELS},energy_estimated="true"}} 4.5',
        "# TYPE my_gpu_process_sm_utilization_ratio gauge",
        f"my_gpu_process_sm_utilization_ratio{{{LABELS}}} 0.85",
        "# TYPE my_gpu_process_memory_utilization_ratio gauge",
        f"my_gpu_process_memory_utilization_ratio{{{LABELS}}} 0.72",
        "# TYPE my_gpu_process_memory_used_bytes gauge",
        f"my_gpu_process_memory_used_bytes{{{LABELS}}} 8589934592",
        "# TYPE my_gpu_process_start_time_seconds gauge",
        f"my_gpu_process_start_time_seconds{{{LABELS}}} 1699564800.5",
        "# TYPE my_gpu_process_active gauge",
        f"my_gpu_process_active{{{LABELS}}} 1",
        "# TYPE my_gpu_process_gpu_energy_joules_total counter",
        'my_gpu_process_gpu_energy_joules_total{gpu="0"} 6.0',
        "# TYPE my_gpu_process_gpu_process_count gauge",
        'my_gpu_process_gpu_process_count{gpu="0"} 1',
    ]


def test_both_energy_series_exist_from_the_start() -> None:
    report = answer(GPU, processes=[process(totals=totals())])
    assert values(NAME, "my_gpu_process_energy_joules_total", report, "energy_estimated") == {"false": 0, "true": 0}


def test_an_ended_process_keeps_its_energy_and_uses_nothing() -> None:
    report = answer(
        GPU, processes=[process(active=False, memory_bytes=7, sm_ratio=0.5, totals=totals(measured_mj=2_000))]
    )
    found = {family: values(NAME, f"my_gpu_process_{family}", report, "pid").get("100") for family in FAMILY_NAMES}
    assert found == {
        "energy_joules": 2,
        "sm_utilization_ratio": 0,
        "memory_utilization_ratio": 0,
        "memory_used_bytes": 0,
        "start_time_seconds": None,
        "active": 0,
    }


FAMILY_NAMES = (
    "energy_joules",
    "sm_utilization_ratio",
    "memory_utilization_ratio",
    "memory_used_bytes",
    "start_time_seconds",
    "active",
)


def test_figures_that_the_driver_does_not_report_are_absent() -> None:
    report = answer(device(), processes=[process(memory_bytes=None)])
    labels = 'pid="100",gpu="0",process_name="python3",pod="",namespace="",container="",'
    assert [line for line in text(NAME, report).splitlines() if not line.startswith("#")] == [
        f'my_gpu_process_active{{{labels}pod_uid="pod-uid",container_id="{CONTAINER_ID}"}} 1',
        'my_gpu_process_gpu_process_count{gpu="0"} 1',
    ]


def test_without_kubernetes_the_labels_of_pods_are_empty() -> None:
    report = answer(GPU, workloads=[workload(part())], processes=[process()])
    (line,) = lines(NAME, "my_gpu_process_active", report, kubernetes=False)
    assert 'pod="",namespace="",container="",pod_uid="",container_id="c0ffee' in line


def test_processes_outside_of_containers_have_series_so_that_sums_equal_the_gpu() -> None:
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "x.service")
    report = answer(
        GPU,
        processes=[
            process(1, totals=totals(estimated_mj=4_000)),
            process(2, ref=unit, totals=totals(estimated_mj=2_000)),
        ],
    )
    found = values(NAME, "my_gpu_process_energy_joules", report, "pid")
    assert found == {"1": 4, "2": 2}
    assert values(NAME, "my_gpu_process_gpu_energy_joules_total", report, "gpu") == {"0": sum(found.values())}


def test_the_prefix_is_configurable() -> None:
    context = RenderContext(report_rows(answer(GPU)))
    exposition = render(FAMILIES[NAME], context, prefix="gpu_").decode()
    assert 'gpu_gpu_energy_joules_total{gpu="0"} 6.0' in exposition
    assert "my_gpu" not in exposition
