"""Fast GPUs are read by one shared thread; one that blocks does not delay the others."""

from __future__ import annotations

import threading
import time

import pytest

from otel_gpu.model import GpuHealth, SourceState
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.source import NvmlSource
from tests.nvml_stage import Stage
from tests.nvml_stub.world import World, WorldGpu

OK, FAILED = GpuHealth.OK, GpuHealth.FAILED
ANY_S = 1e9


def host(count: int) -> tuple[World, list[WorldGpu]]:
    world = World()
    gpus = [world.gpu() for _ in range(count)]
    for gpu in gpus:
        gpu.typical()
    return world, gpus


def names_of_readers(source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread that reads each GPU in one read."""
    names = []
    real = NvmlApi.utilization_ratios

    def noting(api: NvmlApi, handle: Handle) -> tuple[float | None, float | None]:
        names.append(threading.current_thread().name)
        return real(api, handle)

    with monkeypatch.context() as patch:
        patch.setattr(NvmlApi, "utilization_ratios", noting)
        source.read()
    return sorted(names)


def test_fast_gpus_are_read_by_one_thread(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = host(3)
    source = stage.play(world)
    for quick_s, expected in ((ANY_S, ["nvml-0", "nvml-1", "nvml-2"]), (0.0, ["nvml-all"] * 3), (0.0, None)):
        monkeypatch.setattr("otel_gpu.sources.nvml.slot._FAST_S", quick_s)
        stage.advance(1)
        readers = names_of_readers(source, monkeypatch)
        assert readers == [f"otel-gpu-{name}" for name in expected or ["nvml-0", "nvml-1", "nvml-2"]]


def test_a_slow_gpu_is_read_by_its_own_thread(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    world, gpus = host(3)
    world.latency(20, on=gpus[1], function="nvmlDeviceGetMemoryInfo_v2")
    monkeypatch.setattr("otel_gpu.sources.nvml.slot._FAST_S", 0.015)
    source = stage.play(world)
    for _ in range(3):
        source.read()
        stage.advance(1)
    assert "otel-gpu-nvml-1" in names_of_readers(source, monkeypatch)


@pytest.mark.parametrize("hung", [0, 1, 3])
def test_a_gpu_that_hangs_in_the_round_keeps_its_thread_and_delays_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, hung: int
) -> None:
    monkeypatch.setattr("otel_gpu.sources.nvml.slot._FAST_S", ANY_S)
    world, gpus = host(4)
    world.hang(on=gpus[hung], function="nvmlDeviceGetMemoryInfo_v2", from_us=1_000_000, until_us=100_000_000)
    source = stage.play(world, deadline_s=2.0)
    assert source.read().state is SourceState.OK
    stage.advance(2)
    asked = stage.calls("nvmlDeviceGetMemoryInfo_v2")
    expected = [FAILED if index == hung else OK for index in range(4)]
    for attempt in range(3):
        read = source.read()
        assert [gpu.health for gpu in read.gpus] == expected
        # Nothing is queued behind the call that has not returned.
        assert stage.calls("nvmlDeviceGetMemoryInfo_v2") - asked == 4 + 3 * attempt
        stage.advance(1)
    stage.advance(200)
    deadline_s = time.monotonic() + 20
    while source.read().state is not SourceState.OK:
        assert time.monotonic() < deadline_s, "the GPU answers again, and stays out"
        stage.advance(5)
        time.sleep(0.02)


def test_close_waits_only_for_the_gpu_that_hangs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.sources.nvml.slot._FAST_S", ANY_S)
    world, gpus = host(2)
    world.hang(on=gpus[1], function="nvmlDeviceGetMemoryInfo_v2", from_us=1_000_000, until_us=100_000_000)
    source = stage.play(world, deadline_s=0.2)
    source.read()
    stage.advance(2)
    source.read()
    source.close()
    assert source.holds()
    stage.advance(200)
    deadline_s = time.monotonic() + 20
    while source.holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
        source.close()
