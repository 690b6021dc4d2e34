"""gpu-idle-exporter: idle processes."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import RenderContext
from otel_gpu.metrics.rows import report_rows
from tests.builders import gpu as reading_of
from tests.unit.compat.series import text, values
from tests.unit.metrics.builders import BUSY, IDLE, UNKNOWN, WORK, answer, device, process, split

NAME = "gpu-idle-exporter"
GPU = device(
    replace(reading_of(power_w=70.5, temperature_c=49, gpu_ratio=0.83), utilization=WORK),
    memory=split(limit=100, reserved=1, measured=60),
)
MODEL = 'gpu="0",model="NVIDIA A100-SXM4-80GB",uuid="GPU-0"'


def test_every_series_has_the_exporters_names_and_labels() -> None:
    report = answer(
        GPU,
        processes=[
            process(1, state=IDLE, idle_s=620.5, idle_bytes=40, memory_bytes=40, sm_ratio=0.0),
            process(2, name="vllm", state=BUSY, idle_bytes=0, memory_bytes=20, sm_ratio=0.5),
        ],
    )
    one, two = 'gpu="0",pid="1",process="python3"', 'gpu="0",pid="2",process="vllm"'
    assert [line for line in text(NAME, report).splitlines() if not line.startswith("#")] == [
        f"gpu_idle_process_compute_utilization_percent{{{one}}} 0.0",
        f"gpu_idle_process_compute_utilization_percent{{{two}}} 50.0",
        f"gpu_idle_process_memory_used_bytes{{{one}}} 40",
        f"gpu_idle_process_memory_used_bytes{{{two}}} 20",
        f"gpu_idle_process_idle_seconds{{{one}}} 620.5",
        f"gpu_idle_process_idle_seconds{{{two}}} 0.0",
        f"gpu_idle_process_idle_memory_bytes{{{one}}} 40",
        f"gpu_idle_process_idle_memory_bytes{{{two}}} 0",
        f"gpu_idle_device_utilization_percent{{{MODEL}}} 83.0",
        f"gpu_idle_device_memory_used_bytes{{{MODEL}}} 60",
        f"gpu_idle_device_memory_total_bytes{{{MODEL}}} 100",
        f"gpu_idle_device_power_watts{{{MODEL}}} 70.5",
        f"gpu_idle_device_temperature_celsius{{{MODEL}}} 49",
        'gpu_idle_memory_total_bytes{gpu="0"} 40',
    ]


def test_unknown_is_not_idle_and_not_zero() -> None:
    report = answer(GPU, processes=[process(state=UNKNOWN, idle_s=None, idle_bytes=0, memory_bytes=40)])
    assert values(NAME, "gpu_idle_process_memory_used_bytes", report, "pid") == {"100": 40}
    assert values(NAME, "gpu_idle_process_idle_seconds", report, "pid") == {}
    assert values(NAME, "gpu_idle_process_idle_memory_bytes", report, "pid") == {}
    assert values(NAME, "gpu_idle_process_compute_utilization_percent", report, "pid") == {}


def test_without_utilisation_data_idle_memory_is_absent() -> None:
    report = answer(device(memory=split(measured=40)), processes=[process(state=UNKNOWN, memory_bytes=40)])
    assert values(NAME, "gpu_idle_memory_total_bytes", report, "gpu") == {}


def test_an_ended_process_has_no_series() -> None:
    assert "process_" not in "".join(
        line for line in text(NAME, answer(GPU, processes=[process(active=False)])).splitlines() if line[0] != "#"
    )


def test_constant_labels_are_on_every_series() -> None:
    context = RenderContext(report_rows(answer(GPU, processes=[process(memory_bytes=1)])))
    labels = (("node", "n1"), ("pod", "p"), ("namespace", "ns"))
    exposition = render(FAMILIES[NAME], context, prefix="gpu_idle_", labels=labels).decode()
    series = [line for line in exposition.splitlines() if not line.startswith("#")]
    assert len(series) == 7
    assert all(',node="n1",pod="p",namespace="ns"} ' in line for line in series)
