"""gpu-idle-exporter: who only sits there."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.form import Scene
from otel_gpu.compat.render import render
from otel_gpu.metrics.rows import report_rows
from tests.builders import gpu as reading_of
from tests.unit.compat.told import text, values
from tests.unit.metrics.builders import BUSY, IDLE, UNKNOWN, WORK, answer, device, process, split

NAME = "gpu-idle-exporter"
GPU = device(
    replace(reading_of(power_w=70.5, temperature_c=49, gpu_ratio=0.83), utilization=WORK),
    memory=split(limit=100, reserved=1, measured=60),
)
MODEL = 'gpu="0",model="NVIDIA A100-SXM4-80GB",uuid="GPU-0"'


def test_everything_is_told_in_its_names_and_labels() -> None:
    told = answer(
        GPU,
        processes=[
            process(1, state=IDLE, idle_s=620.5, idle_bytes=40, memory_bytes=40, sm_ratio=0.0),
            process(2, name="vllm", state=BUSY, idle_bytes=0, memory_bytes=20, sm_ratio=0.5),
        ],
    )
    one, two = 'gpu="0",pid="1",process="python3"', 'gpu="0",pid="2",process="vllm"'
    assert [line for line in text(NAME, told).splitlines() if not line.startswith("#")] == [
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
    told = answer(GPU, processes=[process(state=UNKNOWN, idle_s=None, idle_bytes=0, memory_bytes=40)])
    assert values(NAME, "gpu_idle_process_memory_used_bytes", told, "pid") == {"100": 40}
    assert values(NAME, "gpu_idle_process_idle_seconds", told, "pid") == {}
    assert values(NAME, "gpu_idle_process_idle_memory_bytes", told, "pid") == {}
    assert values(NAME, "gpu_idle_process_compute_utilization_percent", told, "pid") == {}


def test_where_nobody_tells_who_works_no_memory_is_called_idle() -> None:
    told = answer(device(memory=split(measured=40)), processes=[process(state=UNKNOWN, memory_bytes=40)])
    assert values(NAME, "gpu_idle_memory_total_bytes", told, "gpu") == {}


def test_a_process_that_ended_is_told_of_no_more() -> None:
    assert "process_" not in "".join(
        line for line in text(NAME, answer(GPU, processes=[process(active=False)])).splitlines() if line[0] != "#"
    )


def test_constant_labels_are_on_every_series() -> None:
    scene = Scene(report_rows(answer(GPU, processes=[process(memory_bytes=1)])))
    labels = (("node", "n1"), ("pod", "p"), ("namespace", "ns"))
    told = render(EXPORTERS[NAME], scene, prefix="gpu_idle_", labels=labels).decode()
    series = [line for line in told.splitlines() if not line.startswith("#")]
    assert len(series) == 7
    assert all(',node="n1",pod="p",namespace="ns"} ' in line for line in series)
