"""An agent that restarts while a GPU is lost reports the GPU under its known name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.metrics.catalogue import METRICS, Kind
from otel_gpu.model import GpuHealth, Report, SourceState
from tests.nvml_stage import Stage
from tests.nvml_stub.world import World
from tests.state_dirs import BOOT, StatefulAgent
from tests.unit.metrics.builders import collected
from tests.unit.sources.watched import (
    BEGINS_S,
    CYCLE_S,
    ENDS_S,
    FAILING,
    HEALTHY,
    POWER_W,
    S,
    Watched,
    counter_mj,
    health,
    nvml,
    of,
    two_gpus,
)

OK, FAILED = GpuHealth.OK, GpuHealth.FAILED
OF_THE_AGENT = {metric.name for metric in METRICS if metric.name.startswith("otel_gpu.")}
SAME, OTHER = BOOT, "99999999-2222-3333-4444-555555555555"


def restarted(stage: Stage, world: World, state: Path, *, boot_id: str, init_deadline_s: float = 30.0) -> Watched:
    """An agent that was stopped when the fault began, and its successor."""
    agent = StatefulAgent(state)
    before = Watched(stage, world, rules=agent)
    assert {health(answer) for answer in before.until(BEGINS_S)} == {(OK, OK)}
    agent.close()
    before.engine.close()
    agent = StatefulAgent(state, boot_id=boot_id)
    after = Watched(stage, world, rules=agent, init_deadline_s=init_deadline_s)
    after.recall(agent.known_gpus)
    after.now_s = before.now_s
    if boot_id == SAME:
        after.totals_mj = before.totals_mj
    return after


def test_a_gpu_that_is_lost_over_a_restart_is_failed_under_its_name_until_it_is_back(
    stage: Stage, tmp_path: Path, lines: list[str]
) -> None:
    world, _, failing = two_gpus()
    world.error(15, on=failing, from_us=BEGINS_S * S, until_us=ENDS_S * S)
    watched = restarted(stage, world, tmp_path / "state", boot_id=SAME)
    del lines[:]
    during = watched.until(ENDS_S)
    for answer in during:
        assert health(answer) == (OK, FAILED)  # with hw.status checked as every answer is
        assert (of(answer, FAILING).identity.index, of(answer, FAILING).identity.name) == (
            1,
            of(answer, HEALTHY).identity.name,
        )
        assert nvml(answer).state is SourceState.DEGRADED
        totals = of(answer, FAILING).totals
        assert totals is not None
        assert totals.total_mj == counter_mj(FAILING, 20) - counter_mj(FAILING, 0)  # as before the restart
    (line,) = [line for line in lines if line.startswith(("GPU ", "nvml "))]
    assert line.startswith("GPU 1 (")
    assert "is failed: GPU is lost" in line
    last = watched.until(300)[-1]
    assert health(last) == (OK, OK)
    assert of(last, FAILING).identity.minor == 1  # complete from its own answer
    totals = of(last, FAILING).totals
    assert totals is not None
    assert totals.total_mj == counter_mj(FAILING, 295) - counter_mj(FAILING, 0)


def test_after_another_boot_no_gpu_is_missed(stage: Stage, tmp_path: Path) -> None:
    world, _, failing = two_gpus()
    world.error(15, on=failing, from_us=BEGINS_S * S)
    watched = restarted(stage, world, tmp_path / "state", boot_id=OTHER)
    answer = watched.cycle()
    assert [gpu.identity.index for gpu in answer.gpus] == [HEALTHY]
    assert "GPU 1: GPU is lost" in (nvml(answer).reason or "")


def test_a_gpu_that_is_not_found_after_a_restart_is_reported_and_then_forgotten(stage: Stage, tmp_path: Path) -> None:
    world, *_ = two_gpus()
    alone = World()
    gpu = alone.gpu()
    gpu.typical()
    gpu.energy_steps(0, 400 * S, POWER_W[HEALTHY], start_mj=counter_mj(HEALTHY, 0), step_us=S)
    watched = restarted(stage, world, tmp_path / "state", boot_id=SAME)
    stage.put(alone)
    answer = watched.cycle()
    assert health(answer) == (OK, FAILED)
    assert "no longer present" in (of(answer, FAILING).reading.reason or "")
    assert len(watched.until(BEGINS_S + 320)[-1].gpus) == 1


def test_a_gpu_that_was_taken_out_long_ago_is_not_missed_again_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    world, *_ = two_gpus()
    alone = World()
    alone.gpu().typical()
    watched = restarted(stage, world, tmp_path / "state", boot_id=SAME)
    stage.put(alone)
    [left] = watched.until(BEGINS_S + 320)[-1].gpus
    agent = watched.rules
    assert isinstance(agent, StatefulAgent)
    assert len(agent.known_gpus) == 2  # the ledger keeps both
    agent.close()
    watched.engine.close()
    assert [gpu.uuid for gpu in StatefulAgent(tmp_path / "state").known_gpus] == [left.identity.uuid]


def exported_counters(answer: Report) -> set[str]:
    """Every counter except the agent's own."""
    found = collected(answer).blocks
    return {each.metric.name for each in found if each.metric.kind is Kind.COUNTER} - OF_THE_AGENT


def unloaded(world: World) -> None:
    world.error(9, from_us=BEGINS_S * S, until_us=ENDS_S * S)


def hangs_while_it_is_initialised(world: World) -> None:
    world.hang(function="nvmlInitWithFlags", from_us=BEGINS_S * S, until_us=ENDS_S * S)


def is_released(_: World) -> None:
    pass


def test_gpus_that_all_sleep_when_the_agent_starts_are_reported_by_name(stage: Stage, tmp_path: Path) -> None:
    world, *_ = two_gpus()
    stage.bus.set_gpus(2)
    watched = restarted(stage, world, tmp_path / "state", boot_id=SAME)
    for index in (HEALTHY, FAILING):
        stage.bus.set_status(index, "suspended")
    answer = watched.cycle()
    assert health(answer) == (GpuHealth.ASLEEP, GpuHealth.ASLEEP)
    assert exported_counters(answer) == set()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [(unloaded, FAILED), (hangs_while_it_is_initialised, FAILED), (is_released, GpuHealth.PAUSED)],
)
def test_without_a_driver_gpus_are_reported_by_name_from_the_first_cycle_on_and_counters_wait(
    spoil: Callable[[World], None],
    expected: GpuHealth,
    stage: Stage,
    tmp_path: Path,
    lines: list[str],
) -> None:
    state = SourceState.PAUSED if expected is GpuHealth.PAUSED else SourceState.UNAVAILABLE
    world, *_ = two_gpus()
    spoil(world)
    watched = restarted(stage, world, tmp_path / "state", boot_id=SAME, init_deadline_s=1.0)
    if state is SourceState.PAUSED:
        watched.source.pause(None)
    del lines[:]
    during = watched.until(ENDS_S)
    for answer in during:
        assert health(answer) == (expected, expected)  # with hw.status checked as every answer is
        assert nvml(answer).state is state
        assert (answer.workloads, answer.processes) == ((), ())
        assert exported_counters(answer) == set()  # at 0 they would fall, or accrue from there
    assert [line.split(":")[0].split(" at ")[0] for line in lines] == [f"nvml is {state.value}"]
    watched.source.resume()
    deadline_s = time.monotonic() + 20
    last = watched.until(300)[-1]
    while (
        not of(last, HEALTHY).reading.answered and time.monotonic() < deadline_s
    ):  # a hung call returns in its own time
        time.sleep(0.05)
        last = watched.cycle()
    assert health(last) == (OK, OK)
    for index in (HEALTHY, FAILING):
        totals = of(last, index).totals
        assert totals is not None
        assert totals.total_mj == counter_mj(index, watched.now_s - CYCLE_S) - counter_mj(index, 0)
