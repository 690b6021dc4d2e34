"""Laws of the simulated host: its truth adds up and does not depend on when it is read."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuIdentity, ProcessKind, WorkloadKind, WorkloadRef
from otel_gpu.sources.sim.device import MAX_STEPS
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Alternating, Bursty, OnOff, Points, Product, Signal, Steady, Wander
from otel_gpu.sources.sim.truth import PJ_PER_MJ
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, JobStream, ProcessSpec, Visibility, WorkloadSpec, WorldSpec
from tests.depth import DEPTH

GIB = 1 << 30
SEEDS = st.integers(-(2**70), 2**70)
LEVELS = st.floats(-0.5, 1.5)
PERIODS = st.floats(0.05, 100.0)


def signals(scale: float) -> st.SearchStrategy[Signal]:
    levels = LEVELS.map(lambda level: level * scale)
    plain: st.SearchStrategy[Signal] = st.one_of(
        st.builds(Steady, levels),
        st.builds(Bursty, levels, st.floats(0.0, 1.0), PERIODS, SEEDS, levels),
        st.builds(OnOff, levels, st.floats(0.0, 1.0), PERIODS, SEEDS),
        st.builds(Alternating, levels, PERIODS, st.integers(0, 1)),
        st.builds(Wander, levels, levels, PERIODS, SEEDS, st.booleans()),
        st.lists(st.tuples(st.floats(0.0, 40.0), levels), min_size=1, max_size=5).map(
            lambda points: Points(tuple(sorted(points)))
        ),
    )
    return st.one_of(plain, st.builds(Product, plain, st.builds(Steady, st.floats(0.0, 1.0))))


USES = st.builds(
    GpuUse,
    gpu=st.just(0),
    memory=signals(8.0 * GIB),
    work=signals(1.0),
    watts=signals(300.0),
    visibility=st.sampled_from(Visibility),
    kinds=st.sampled_from([(ProcessKind.COMPUTE,), (ProcessKind.GRAPHICS, ProcessKind.COMPUTE)]),
    context=st.booleans(),
    sampled=st.booleans(),
    uvm_factor=st.none() | st.floats(0.0, 4.0),
)


def workload(number: int) -> WorkloadSpec:
    return WorkloadSpec(WorkloadRef(WorkloadKind.CONTAINER, f"{number:064x}"))


@st.composite
def worlds(draw: st.DrawFn) -> WorldSpec:
    gpu = GpuSpec(
        identity=GpuIdentity(0, "GPU-0", "Test GPU", minor=0),
        memory_total_bytes=12 * GIB,
        memory_reserved_bytes=draw(st.sampled_from([0, GIB])),
        static_w=draw(st.floats(0.0, 80.0)),
        context_w=draw(st.floats(0.0, 40.0)),
        power_limit_w=draw(st.floats(30.0, 500.0)),
        power_exponent=draw(st.floats(0.4, 1.0)),
        noise_ratio=draw(st.floats(0.0, 0.5)),
        sample_period_us=draw(st.sampled_from([50_000, 139_000, 167_000])),
        counter_step_us=draw(st.sampled_from([20_000, 100_000])),
        ring_size=draw(st.sampled_from([5, 72])),
    )
    lives = draw(st.lists(st.tuples(st.floats(-50.0, 40.0), st.none() | st.floats(0.1, 60.0)), max_size=6))
    processes = tuple(
        ProcessSpec(
            pid=number + 1,
            name="p",
            workload=workload(draw(st.integers(0, 3))),
            uses=(draw(USES),),
            start_s=start_s,
            end_s=None if length_s is None else start_s + length_s,
        )
        for number, (start_s, length_s) in enumerate(lives)
    )
    template = ProcessSpec(0, "job", workload(9), (draw(USES),))
    stream = JobStream("jobs", 7.0, 1.0, draw(st.floats(1.0, 30.0)), (template,), first_pid=100)
    streams = draw(st.sampled_from([(), (stream,)]))
    return WorldSpec(seed=draw(SEEDS), gpus=(gpu,), processes=processes, streams=streams)


@settings(max_examples=20 * DEPTH, deadline=None)
@given(worlds(), st.lists(st.floats(0.0, 9.0), min_size=1, max_size=12))
def test_the_truth_adds_up_and_the_driver_never_contradicts_it(spec: WorldSpec, steps_s: list[float]) -> None:
    clock = ManualClock()
    host = SimulatedHost(spec, clock)
    source, processes = host.gpu_source(), host.process_source()
    energy_mj = 0
    for step_s in steps_s:
        clock.advance(step_s)
        reading, facts, truth = source.read().gpus[0], processes.read(()).processes, host.truth().gpus[0]
        gpu = spec.gpus[0]
        assert truth.dynamic_pj == truth.retired_pj + sum(one.dynamic_pj for one in truth.processes)
        assert (
            truth.total_pj <= (max(gpu.power_limit_w, gpu.static_w + gpu.context_w) * 1e6 + 1) * host.truth().at_s * 1e6
        )
        assert reading.energy_mj is not None
        assert energy_mj <= reading.energy_mj <= truth.total_pj // PJ_PER_MJ
        energy_mj = reading.energy_mj
        assert reading.memory is not None
        assert reading.memory.used_bytes == truth.used_bytes == sum(one.resident_bytes for one in truth.processes)
        assert reading.memory.free_bytes >= 0
        listed = {one.pid: one.memory_bytes or 0 for one in reading.processes or ()}
        assert sum(listed.values()) <= truth.used_bytes - truth.hidden_bytes
        assert set(listed) <= set(facts)
        assert reading.utilization is not None
        assert sum(row.sm_percent for row in reading.utilization.rows) <= 100
        assert all(0 <= one.busy_s <= one.resident_s + 1e-6 for one in truth.processes)


@settings(max_examples=15 * DEPTH, deadline=None)
@given(worlds(), st.lists(st.floats(0.0, 9.0), min_size=1, max_size=12))
def test_reading_the_history_does_not_change_it(spec: WorldSpec, steps_s: list[float]) -> None:
    often_clock, once_clock = ManualClock(), ManualClock()
    often, once = SimulatedHost(spec, often_clock), SimulatedHost(spec, once_clock)
    for step_s in steps_s:
        often_clock.advance(step_s)
        often.gpu_source().read()
        often.process_source().read(())
    once_clock.advance(often_clock.monotonic_ns() / 1e9)
    assert often_clock.monotonic_ns() == once_clock.monotonic_ns()
    assert often.truth() == once.truth() == once.truth(once.truth().at_s)
    assert often.gpu_source().read() == once.gpu_source().read()
    assert often.process_source().read(()) == once.process_source().read(())


@settings(max_examples=6 * DEPTH, deadline=None)
@given(worlds(), st.floats(3_000.0, 1e8))
def test_any_gap_is_crossed_in_bounded_steps_and_adds_up(spec: WorldSpec, gap_s: float) -> None:
    clock = ManualClock()
    host = SimulatedHost(replace(spec, gpus=(replace(spec.gpus[0], noise_ratio=0.0),)), clock)
    clock.advance(gap_s)
    truth = host.truth().gpus[0]
    assert host.devices[0].steps <= MAX_STEPS
    assert truth.static_pj == round(spec.gpus[0].static_w * 1e6) * (clock.monotonic_ns() // 1000)
    assert truth.dynamic_pj == truth.retired_pj + sum(one.dynamic_pj for one in truth.processes)
