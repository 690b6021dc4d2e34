from __future__ import annotations

import threading
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.model import GpuHealth, SourceState
from otel_gpu.sources import pause
from otel_gpu.sources.pause import PausableGpus, Pause, held_nodes
from tests.builders import DRIVER, FakeGpus, gpu, gpu_read
from tests.nvml_stage import Stage
from tests.nvml_stub.stage import typical

SINCE_S = 1_700_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_paused_source_is_closed_and_its_gpus_are_listed_without_figures(clock: ManualClock) -> None:
    source = FakeGpus(gpu_read(gpu(0, energy_mj=5), gpu(1)))
    gpus = PausableGpus(source, clock)
    assert gpus.read().state is SourceState.OK
    paused = gpus.pause(None)
    assert (paused.since_s, paused.until_s, paused.held) == (SINCE_S, None, ())
    assert source.closed
    read = gpus.read()
    assert source.reads == 1
    assert (read.state, read.errors, read.driver) == (SourceState.PAUSED, 0, DRIVER)
    assert read.reason == "paused at 2023-11-14T22:13:20Z until it is resumed"
    assert [(one.identity.index, one.health, one.energy_mj) for one in read.gpus] == [
        (0, GpuHealth.PAUSED, None),
        (1, GpuHealth.PAUSED, None),
    ]
    assert gpus.resume() is not None
    assert gpus.read().gpus[0].energy_mj == 5


def test_a_pause_ends_after_its_duration(clock: ManualClock) -> None:
    gpus = PausableGpus(FakeGpus(gpu_read(gpu())), clock)
    assert gpus.pause(600).until_s == SINCE_S + 600
    clock.advance(599)
    assert gpus.read().state is SourceState.PAUSED
    clock.advance(1)
    assert gpus.read().state is SourceState.OK
    assert gpus.resume() is None


def test_a_stepped_wall_clock_does_not_change_the_duration_of_a_pause(clock: ManualClock) -> None:
    gpus = PausableGpus(FakeGpus(gpu_read(gpu())), clock)
    gpus.pause(60)
    clock.step_wall(3600)
    assert gpus.read().state is SourceState.PAUSED


def test_pausing_again_keeps_the_start_and_changes_the_end(clock: ManualClock) -> None:
    gpus = PausableGpus(FakeGpus(gpu_read(gpu())), clock)
    gpus.pause(60)
    clock.advance(30)
    again = gpus.pause(60)
    assert (again.since_s, again.until_s) == (SINCE_S, SINCE_S + 90)
    assert gpus.pause(None).until_s is None
    clock.advance(1000)
    assert gpus.read().state is SourceState.PAUSED


def test_resuming_without_a_pause_changes_nothing(clock: ManualClock) -> None:
    gpus = PausableGpus(FakeGpus(gpu_read(gpu())), clock)
    assert gpus.resume() is None
    assert gpus.read().state is SourceState.OK


def test_pause_waits_a_limited_time_for_a_read_in_progress(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "_READ_TIMEOUT_S", 0.05)
    begun, proceed = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        proceed.wait(20)

    source = FakeGpus(gpu_read(gpu()), on_read=hang)
    gpus = PausableGpus(source, clock)
    reader = threading.Thread(target=gpus.read)
    reader.start()
    begun.wait(20)
    with pytest.raises(Unavailable, match="has not ended"):
        gpus.pause(None)
    assert not source.closed
    proceed.set()
    reader.join()
    assert gpus.read().state is SourceState.PAUSED  # it counts from the next cycle on
    assert source.closed


def test_device_nodes_that_are_still_open_are_reported(tmp_path: Path, clock: ManualClock) -> None:
    descriptors = tmp_path / "self/fd"
    descriptors.mkdir(parents=True)
    targets = (
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/null",
        "/x/nvidia0",
    )
    for number, target in enumerate(targets):
        (descriptors / str(number)).symlink_to(target)
    held = ("/dev/nvidia-caps/nvidia-cap2", "/dev/nvidia0", "/dev/nvidiactl")
    assert held_nodes(tmp_path) == held
    assert PausableGpus(FakeGpus(), clock, own_proc=tmp_path).pause(None).held == held
    assert held_nodes(tmp_path / "nowhere") == ()


def test_nvml_is_shut_down_with_its_events_and_threads_and_initialised_on_resume(stage: Stage) -> None:
    world, gpu_ = typical()
    gpu_.xid(1_000_000, 79)
    gpus = PausableGpus(stage.play(world), stage.clock)
    gpus.read()
    shutdowns, freed, inits = map(stage.calls, ("nvmlShutdown", "nvmlEventSetFree", "nvmlInitWithFlags"))
    gpus.pause(None)
    assert stage.calls("nvmlShutdown") == shutdowns + 1
    assert stage.calls("nvmlEventSetFree") == freed + 1
    calls = stage.device_calls(0)
    names = {thread.name for thread in threading.enumerate()}
    assert "otel-gpu-xid" not in names
    for _ in range(5):
        stage.advance(5)
        gpus.read()
    assert stage.device_calls(0) == calls
    gpus.resume()
    assert gpus.read().state is SourceState.OK
    assert stage.calls("nvmlInitWithFlags") == inits + 1


def test_gpus_are_paused_only_once_the_driver_is_released(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "_RELEASE_TIMEOUT_S", 0.1)
    world, _ = typical()
    world.hang(function="nvmlShutdown", until_us=60_000_000)
    nvml = stage.play(world)
    gpus = PausableGpus(nvml, stage.clock, holds=nvml.holds)
    gpus.read()
    assert gpus.pause(600).held == ("the driver",)
    read = gpus.read()
    assert (read.state, read.errors) == (SourceState.UNAVAILABLE, 1)
    assert "the driver is not released yet: a call to it has not returned" in (read.reason or "")
    assert [one.health for one in read.gpus] == [GpuHealth.FAILED]
    monkeypatch.setattr(pause, "_RELEASE_TIMEOUT_S", 30)
    stage.advance(120)
    assert gpus.pause(600).held == ()  # pause() waited for the call
    read = gpus.read()
    assert (read.state, read.errors) == (SourceState.PAUSED, 0)
    assert [one.health for one in read.gpus] == [GpuHealth.PAUSED]
    assert not nvml.holds()


def test_an_agent_that_starts_paused_lists_the_gpus_of_an_earlier_run(clock: ManualClock) -> None:
    source = FakeGpus(gpu_read(gpu(0), gpu(1)))
    gpus = PausableGpus(source, clock)
    gpus.recall([gpu(0).identity, gpu(1).identity])
    gpus.pause(None)
    read = gpus.read()
    assert [(one.identity.index, one.health) for one in read.gpus] == [(0, GpuHealth.PAUSED), (1, GpuHealth.PAUSED)]
    assert (read.driver, source.reads) == (None, 0)
    gpus.resume()
    assert [one.health for one in gpus.read().gpus] == [GpuHealth.OK, GpuHealth.OK]


class SavedPauses:
    """Every pause that was saved."""

    def __init__(self, pause: Pause | None = None) -> None:
        self.pauses = [pause]

    def load(self) -> Pause | None:
        return self.pauses[-1]

    def save(self, pause: Pause | None) -> None:
        self.pauses.append(pause)


def test_a_pause_is_saved_until_it_is_over_and_the_next_agent_continues_it(clock: ManualClock) -> None:
    saved = SavedPauses()
    gpus = PausableGpus(FakeGpus(gpu_read(gpu())), clock)
    gpus.use_store(saved)
    gpus.pause(600)
    assert saved.pauses[1:] == [Pause(SINCE_S, SINCE_S + 600, until_ns=600_000_000_000)]
    gpus.close()  # the agent ends

    source = FakeGpus(gpu_read(gpu()))
    successor = PausableGpus(source, clock)
    successor.use_store(saved)
    clock.advance(599)
    assert (successor.read().state, successor.read().gpus, source.reads) == (SourceState.PAUSED, (), 0)
    clock.advance(1)
    assert successor.read().state is SourceState.OK
    assert saved.pauses[2:] == [None]
    successor.resume()
    assert saved.pauses[3:] == []
    successor.pause(None)
    successor.resume()
    assert saved.pauses[3:] == [Pause(SINCE_S + 600, None), None]
