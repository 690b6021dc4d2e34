"""The demo host: plausible, reproducible, and bounded in memory and time."""

from __future__ import annotations

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuReading, GpuState, ProcessKind, WorkloadKind
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.sources.sim.world import Roster


def host(seed: int = 1) -> tuple[SimulatedHost, ManualClock]:
    clock = ManualClock()
    return SimulatedHost(demo_world(seed), clock), clock


def check_memory(gpu: GpuReading) -> None:
    assert gpu.memory is not None
    assert gpu.memory.reserved_bytes is not None
    assert gpu.memory.used_bytes + gpu.memory.free_bytes + gpu.memory.reserved_bytes == gpu.memory.total_bytes
    assert gpu.memory.free_bytes >= 0
    assert sum(one.memory_bytes or 0 for one in gpu.processes or ()) <= gpu.memory.used_bytes


def test_equal_seeds_give_equal_hosts() -> None:
    assert demo_world(1) == demo_world(1)
    assert demo_world(1) != demo_world(2)
    one, other = host(3)[0], host(3)[0]
    assert one.gpu_source().read() == other.gpu_source().read()


def test_the_first_read_has_every_kind_of_workload() -> None:
    demo, _ = host()
    read = demo.gpu_source().read()
    facts = demo.process_source().read(()).processes
    kinds = {one.workload.kind for one in facts.values()}
    assert kinds >= {WorkloadKind.CONTAINER, WorkloadKind.SYSTEMD_UNIT, WorkloadKind.HOST, WorkloadKind.SLURM_JOB}
    runtimes = {one.workload.runtime for one in facts.values()}
    assert runtimes >= {"docker", "containerd"}
    names = [known.names for known in demo.name_source().read({}).known.values()]
    assert {name.container for name in names} >= {"vllm-chat", "embeddings", "trainer", "ollama", "comfyui"}
    assert any(gpu.mig for gpu in read.gpus)
    listed = [one for gpu in read.gpus for one in gpu.processes or ()]
    assert any(one.kind is ProcessKind.GRAPHICS for one in listed)
    assert any(one.memory_bytes is None for one in listed)
    assert set(facts) - {one.pid for one in listed}, "a process is hidden"
    assert all(gpu.utilization is None or gpu.utilization.rows for gpu in read.gpus), "a process has worked"


def test_every_state_of_the_legend_occurs() -> None:
    demo, clock = host()
    engine = Engine(
        gpus=demo.gpu_source(),
        processes=demo.process_source(),
        names=[demo.name_source()],
        clock=clock,
        options=AttributionOptions(),
    )
    for _ in range(30):
        answer = engine.sample()
        clock.advance(5.0)
    splits = [gpu.memory for gpu in answer.gpus if gpu.memory is not None]
    assert sum(split.inferred_bytes for split in splits) > 0
    assert [split.unattributed_bytes > 0 for split in splits] == [False, True, False, False]
    places = [(workload.names, gpu) for workload in answer.workloads for gpu in workload.gpus if gpu.active]
    assert {gpu.state for _, gpu in places} == set(GpuState)
    [(names, given)] = [(names, gpu) for names, gpu in places if gpu.state is GpuState.ALLOCATED]
    assert names is not None
    assert (names.container, given.allocation, given.measured_bytes) == ("sweep", 0.25, None)
    assert given.gpu_uuid == demo.spec.gpu(0).identity.uuid


def test_every_gpu_changes_every_minute() -> None:
    demo, clock = host()
    source = demo.gpu_source()
    powers: list[list[float]] = [[] for _ in demo.devices]
    for _ in range(12):
        clock.advance(5.0)
        for gpu, seen in zip(source.read().gpus, powers, strict=True):
            check_memory(gpu)
            seen.append(gpu.power_w or 0.0)
    assert all(max(seen) - min(seen) > 3.0 for seen in powers)


def test_memory_is_never_oversubscribed_in_two_days() -> None:
    """Oversubscription would reduce the memory of a process."""
    spec = demo_world(1)
    roster = Roster(spec)
    for time_s in range(0, 2 * 86_400, 61):
        for gpu in spec.gpus:
            wanted = sum(
                use.memory.at(time_s - process.start_s)
                for process in roster.at(time_s * 1_000_000).processes
                for use in process.uses
                if use.gpu == gpu.identity.index
            )
            assert wanted < gpu.memory_total_bytes - gpu.memory_reserved_bytes - gpu.stray_bytes


def test_pids_are_unique_at_any_time() -> None:
    roster = Roster(demo_world(1))
    for time_s in range(0, 86_400, 47):
        pids = [process.pid for process in roster.at(time_s * 1_000_000).processes]
        assert len(set(pids)) == len(pids)


@pytest.mark.long
@pytest.mark.parametrize("hours", [0.5, 24 * 9])
def test_memory_does_not_grow_with_time(hours: float) -> None:
    demo, clock = host()
    source, processes = demo.gpu_source(), demo.process_source()
    for _ in range(6):
        clock.advance(hours * 600.0)
        for gpu in source.read().gpus:
            check_memory(gpu)
        assert len(processes.read(()).processes) < 25
    truth = demo.truth()
    assert sum(len(gpu.processes) for gpu in truth.gpus) < 50
    assert all(gpu.dynamic_pj == gpu.retired_pj + sum(one.dynamic_pj for one in gpu.processes) for gpu in truth.gpus)
