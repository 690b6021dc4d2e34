"""A recorded world, read through the real nvidia-ml-py and a fake /proc, equals the simulated host."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuIdentity, GpuReading, ProcessKind
from otel_gpu.sources.nvml import device
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.sources.sim.signals import Bursty, Points
from otel_gpu.sources.sim.world import Visibility, WorldSpec
from tests.nvml_stage import Stage
from tests.nvml_stub.record import cgroup_path, record, write_proc_tree
from tests.unit.sources.sim.builders import GIB, gpu, mig_gpu, process, use, world


def identified(index: int) -> GpuIdentity:
    return GpuIdentity(index, f"GPU-{index}", "Test GPU", index, f"0000:{0x10 + index:02x}:00.0", f"serial{index}")


def two_gpus() -> WorldSpec:
    """Every kind of visibility, a process that starts, one that ends, and a GPU under MIG."""
    coming = use(Bursty(0.6, 0.5, 2.0, seed=1), memory=Points(((0.0, 0.0), (7.0, 3.0 * GIB))))
    return world(
        process(11, use(0.4, kinds=(ProcessKind.COMPUTE, ProcessKind.GRAPHICS), encoder_ratio=0.3)),
        process(12, use(0.3, visibility=Visibility.HIDDEN)),
        process(13, use(0.1, visibility=Visibility.NO_FIGURE, kinds=(ProcessKind.MPS,)), end_s=9.25),
        process(14, coming, start_s=4.55),
        process(21, use(0.9, gpu=1, gpu_instance_id=1)),
        process(22, use(0.9, gpu=1, gpu_instance_id=2), start_s=6.5),
        gpus=(replace(gpu(0), identity=identified(0)), replace(mig_gpu(1), identity=identified(1))),
    )


def comparable(reading: GpuReading) -> GpuReading:
    """Without the order of rows, which is not significant."""
    if reading.utilization is None:
        return reading
    rows = tuple(sorted(reading.utilization.rows, key=lambda row: row.pid))
    return replace(reading, utilization=replace(reading.utilization, rows=rows))


@pytest.fixture
def asked_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query slow figures in every read, so that all can be compared."""
    for name in ("SLOW_S", "SLOWER_S", "SLOWEST_S"):
        monkeypatch.setattr(device, name, 0.0)


def same_through_nvml(spec: WorldSpec, stage: Stage, steps_s: list[int]) -> None:
    source = stage.play(record(spec, float(sum(steps_s))))
    simulated = SimulatedHost(spec, stage.clock).gpu_source()
    for step_s in steps_s:
        stage.advance(step_s)
        played, direct = source.read(), simulated.read()
        assert played.driver == direct.driver
        for one, other in zip(played.gpus, direct.gpus, strict=True):
            assert comparable(one) == comparable(other)


@pytest.mark.usefixtures("asked_always")
def test_a_recorded_world_reads_the_same_through_nvml(stage: Stage) -> None:
    same_through_nvml(two_gpus(), stage, [1, 3, 1, 1, 4, 2, 7, 1])


@pytest.mark.usefixtures("asked_always")
def test_the_demonstration_host_reads_the_same_through_nvml(stage: Stage) -> None:
    same_through_nvml(replace(demo_world(4), age_s=0.0), stage, [5, 5, 20, 5, 5])


def test_energy_lists_and_rows_are_exact_between_the_seconds(stage: Stage) -> None:
    spec = two_gpus()
    source = stage.play(record(spec, 12.0))
    simulated = SimulatedHost(spec, stage.clock).gpu_source()
    for step_s in (0.3, 4.24, 0.01, 0.15, 4.6, 0.1):
        stage.advance(step_s)
        for played, direct in zip(source.read().gpus, simulated.read().gpus, strict=True):
            assert played.energy_mj == direct.energy_mj
            assert [(one.pid, one.kind) for one in played.processes or ()] == [
                (one.pid, one.kind) for one in direct.processes or ()
            ]
            assert comparable(played).utilization == comparable(direct).utilization


@pytest.mark.parametrize("at_s", [0.0, 100.0])
def test_a_fake_proc_of_the_demonstration_host_reads_the_same(tmp_path: Path, at_s: float) -> None:
    spec = replace(demo_world(4), age_s=0.0)
    write_proc_tree(spec, tmp_path / "proc", 0.0)
    write_proc_tree(spec, tmp_path / "proc", at_s)
    clock = ManualClock()
    host = SimulatedHost(spec, clock)
    clock.advance(at_s)
    expected = host.process_source().read(()).processes
    found = ProcfsSource(tmp_path / "proc", clock, ticks_per_second=100).read(()).processes
    if os.geteuid() != 0:
        found = {pid: one._replace(owner_uid=expected[pid].owner_uid) for pid, one in found.items()}
    assert dict(found) == dict(expected)


def test_mappings_that_cannot_be_read_are_not_in_the_fake_proc(tmp_path: Path) -> None:
    tree = write_proc_tree(world(process(5, use(uvm_factor=None))), tmp_path / "proc", 1.0)
    assert not (tree.root / "5/maps").exists()
    assert cgroup_path(process(5).workload.ref) in (tree.root / "5/cgroup").read_text()
