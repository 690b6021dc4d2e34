"""Figures scored from the agent's reports. A missing figure is never 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.accuracy import ours
from bench.accuracy.ours import BenchError, Conservation
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuState, Report
from otel_gpu.sources.sim.host import SimulatedHost
from tests.unit.bench.standin import StandIn, totals
from tests.unit.sources.sim.builders import gpu, process, start, use, world


def begin() -> tuple[StandIn, ManualClock]:
    host, clock = start(world(process(1, use(0.5)), process(2, use(0.0)), gpus=(gpu(power_limit_w=200.0),)))
    return StandIn(host, clock, ours.SM), clock


def answers(count: int) -> list[Report]:
    agent, clock = begin()
    made = []
    for _ in range(count):
        made.append(agent.sample())
        clock.advance(5.0)
    return made


def without_totals(answer: Report) -> Report:
    workload = answer.workloads[0]
    bare = workload._replace(gpus=(workload.gpus[0]._replace(totals=None, state=None),))
    return replace(answer, workloads=(bare, *answer.workloads[1:]))


def test_an_answer_without_totals_or_state_is_refused() -> None:
    bare = without_totals(answers(1)[0])
    with pytest.raises(BenchError, match="no totals of a workload"):
        ours.energy_mj(bare)
    with pytest.raises(BenchError, match="no totals of a workload"):
        ours.busy_s(bare)
    with pytest.raises(BenchError, match="no state of a workload"):
        ours.states(bare)
    with pytest.raises(BenchError, match="no totals of a workload"):
        Conservation().check(bare)


def test_an_answer_without_a_basis_or_a_gpu_is_refused() -> None:
    answer = answers(1)[0]
    with pytest.raises(BenchError, match="no energy basis"):
        ours.standing_w(replace(answer, gpus=(answer.gpus[0]._replace(basis=None),)))
    with pytest.raises(BenchError, match="has 0 GPUs"):
        ours.standing_w(replace(answer, gpus=()))


def test_a_workload_that_occurs_twice_on_a_gpu_is_refused() -> None:
    answer = answers(1)[0]
    with pytest.raises(BenchError, match="twice"):
        ours.energy_mj(replace(answer, workloads=(*answer.workloads, answer.workloads[0])))


def test_figures_are_taken_by_workload() -> None:
    agent, clock = begin()
    for _ in range(4):
        answer = agent.sample()
        clock.advance(5.0)
    busy, still = (one.workload.ref.id for one in agent.host.spec.processes)
    assert ours.busy_s(answer)[busy] == pytest.approx(7.5)
    assert ours.energy_mj(answer)[busy] > ours.energy_mj(answer)[still] > 0
    assert ours.states(answer) == {busy: GpuState.BUSY, still: GpuState.IDLE}
    assert ours.inferred_bytes(answer) == {busy: 0, still: 0}


def test_an_agent_whose_sums_add_up_has_no_conservation_error() -> None:
    check = Conservation()
    for answer in answers(10):
        check.check(answer)
    assert (check.memory_bytes, check.energy_mj) == (0, 0)


def test_one_millijoule_too_many_is_found_wherever_it_is() -> None:
    good = answers(4)
    workload, process_ = good[-1].workloads[0], good[-1].processes[0]
    part = workload.gpus[0]
    assert part.totals is not None
    one_more = totals((part.totals.energy.total_mj or 0) + 1)
    device = good[-1].gpus[0]
    assert device.totals is not None
    assert device.energy is not None
    wrong = (
        replace(
            good[-1],
            workloads=(workload._replace(gpus=(part._replace(totals=one_more),)), *good[-1].workloads[1:]),
        ),
        replace(good[-1], processes=(process_._replace(totals=one_more), *good[-1].processes[1:])),
        replace(good[-1], gpus=(device._replace(totals=device.totals._replace(idle_mj=device.totals.idle_mj + 1)),)),
        replace(good[-1], gpus=(device._replace(energy=device.energy._replace(unattributed_mj=1)),)),
    )
    for last in wrong:
        check = Conservation()
        for answer in (*good[:-1], last):
            check.check(answer)
        assert check.energy_mj == 1


def test_one_byte_too_many_is_found_wherever_it_is() -> None:
    good = answers(1)[0]
    workload, device = good.workloads[0], good.gpus[0]
    assert device.memory is not None
    more = workload.gpus[0]._replace(inferred_bytes=1)
    for wrong in (
        replace(good, workloads=(workload._replace(gpus=(more,)), *good.workloads[1:])),
        replace(good, gpus=(device._replace(memory=device.memory._replace(free_bytes=device.memory.free_bytes - 1)),)),
    ):
        check = Conservation()
        check.check(wrong)
        assert check.memory_bytes == 1


def test_energy_of_a_forgotten_workload_still_counts() -> None:
    good = answers(3)
    gone = replace(good[-1], workloads=good[-1].workloads[1:], processes=good[-1].processes[1:])
    check = Conservation()
    for answer in (*good, gone):
        check.check(answer)
    assert check.energy_mj == 0


@pytest.mark.parametrize("model", ours.MODELS)
def test_the_agent_starts_on_a_host_and_answers_for_its_gpu(model: str) -> None:
    host, clock = start(world(process(1, use(0.5))))
    agent = ours.start(host, clock, model)
    assert isinstance(host, SimulatedHost)
    assert len(agent.sample().gpus) == 1
