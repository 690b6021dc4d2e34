"""Families of worlds on which attribution is scored, written as specifications with known truth."""

from __future__ import annotations

import pytest

from otel_gpu.sources.sim.host import replay
from otel_gpu.sources.sim.signals import Alternating, Bursty, OnOff, Points, Steady, Wander
from otel_gpu.sources.sim.truth import ProcessTruth
from otel_gpu.sources.sim.world import Visibility, WorldSpec
from tests.unit.sources.sim.builders import GIB, gpu, process, start, use, world


def truths(spec: WorldSpec, at_s: float) -> dict[int, ProcessTruth]:
    return {one.key.pid: one for one in replay(spec, at_s).gpus[0].processes}


def test_alternating_processes_work_one_at_a_time() -> None:
    uses = [use(Alternating(0.8, turn_s=13.9, turn=turn), watts=100.0 * (turn + 1)) for turn in range(2)]
    true = truths(world(*(process(pid + 1, one) for pid, one in enumerate(uses))), 556.0)
    assert [true[pid].busy_s for pid in (1, 2)] == pytest.approx([278.0 * 0.8] * 2, rel=0.01)
    assert true[2].dynamic_mj / true[1].dynamic_mj == pytest.approx(2.0, rel=0.01)


def test_collinear_processes_correlate_and_bursty_ones_do_not() -> None:
    def correlation(seeds: tuple[int, int]) -> float:
        signals = [Bursty(1.0, 0.5, 4.0, seed) for seed in seeds]
        pairs = [tuple(signal.at(t * 0.139) - 0.5 for signal in signals) for t in range(4_000)]
        return sum(a * b for a, b in pairs) / sum(a * a for a, _ in pairs)

    assert correlation((1, 1)) == pytest.approx(1.0)
    assert abs(correlation((1, 2))) < 0.2


def test_on_off_work_with_sublinear_power_draws_more_than_its_share_when_alone() -> None:
    uses = [process(pid, use(OnOff(0.4, 0.5, 3.0, seed=pid), watts=200.0)) for pid in (1, 2)]
    linear, sublinear = (world(*uses, gpus=(gpu(power_exponent=exponent),)) for exponent in (1.0, 0.6))
    for pid in (1, 2):
        plain, dear = truths(linear, 600.0)[pid], truths(sublinear, 600.0)[pid]
        assert plain.busy_s == dear.busy_s
        assert plain.dynamic_mj / plain.busy_s == pytest.approx(200_000.0)
        assert dear.dynamic_mj > 1.15 * plain.dynamic_mj


def test_a_later_process_has_truth_from_its_start_only() -> None:
    true = truths(world(process(1, use(0.5)), process(2, use(0.25), start_s=400.0)), 600.0)
    assert true[2].resident_s == pytest.approx(200.0, abs=0.14)
    assert true[2].busy_s == pytest.approx(50.0, rel=0.01)
    assert true[1].equal_share_s == pytest.approx(400.0 + 100.0, abs=0.14)


def test_contended_phases_and_drifting_watts_under_a_power_cap_still_add_up() -> None:
    uses = [
        process(pid, use(Wander(0.1, 0.9, 20.0, seed=pid), watts=Wander(100.0, 300.0, 120.0, seed=-pid, smooth=True)))
        for pid in range(1, 6)
    ]
    truth = replay(world(*uses, gpus=(gpu(power_limit_w=180.0, noise_ratio=0.02),)), 300.0).gpus[0]
    assert truth.total_pj <= 180_000_000 * 300_000_000
    assert truth.total_pj == truth.static_pj + truth.context_pj + sum(one.dynamic_pj for one in truth.processes)


def test_a_light_process_next_to_a_busy_one_is_idle_only_without_work() -> None:
    true = truths(world(process(1, use(0.9)), process(2, use(0.02)), process(3, use(0.0))), 300.0)
    assert [true[pid].idle_since_s for pid in (1, 2, 3)] == [None, None, 0.0]
    assert true[2].busy_s == pytest.approx(6.0)


@pytest.mark.parametrize("factor", [1.3, None])
def test_hidden_memory_in_staggered_steps_and_ramps_with_and_without_mappings(factor: float | None) -> None:
    ramp = Points(((0.0, 0.0), (20.0, 4.0 * GIB), (40.0, 4.0 * GIB), (40.0, 1.0 * GIB)))
    spec = world(
        process(1, use(memory=Steady(2.0 * GIB), visibility=Visibility.HIDDEN, uvm_factor=factor)),
        process(2, use(memory=ramp, visibility=Visibility.HIDDEN, uvm_factor=factor), start_s=30.0),
        process(3, use(context=False, uvm_factor=factor), start_s=5.0),
    )
    host, clock = start(spec)
    held, mapped = [], []
    for _ in range(4):
        clock.advance(20.0)
        held.append([one.resident_bytes / GIB for one in host.truth().gpus[0].processes])
        mapped.append([one.uvm_mapping_bytes for one in host.process_source().read(()).processes.values()])
        assert host.gpu_source().read().gpus[0].processes == ()
    assert held == [[2.0], [2.0, 2.0], [2.0, 4.0], [2.0, 1.0]]
    if factor is None:
        assert {size for sizes in mapped for size in sizes} == {None}
    else:
        assert mapped[-1] == [int(2 * GIB * factor), 0, int(GIB * factor)], "the open device maps nothing"
