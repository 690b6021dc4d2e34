"""Every fault as it appears, persists and ends: reports, log lines and sums."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from otel_gpu.model import GpuHealth, Report, SourceState
from otel_gpu.sources import pause
from tests.nvml_stage import Stage
from tests.nvml_stub.world import World, WorldGpu
from tests.unit.sources.watched import (
    BEGINS_S,
    CYCLE_S,
    ENDS_S,
    FAILING,
    GIB,
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

OK, DEGRADED, FAILED = GpuHealth.OK, GpuHealth.DEGRADED, GpuHealth.FAILED
ASLEEP, PAUSED = GpuHealth.ASLEEP, GpuHealth.PAUSED


def never(_: Watched) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Row:
    """A fault: how the world has it, and what is reported during it.

    ``asked`` is how many calls the second GPU may get in the 16 cycles of the fault. ``reloaded``: counters are reset.
    """

    name: str
    happens: Callable[[World, WorldGpu], None] = lambda _, __: None
    begins: Callable[[Watched], None] = never
    ends: Callable[[Watched], None] = never
    healths: tuple[GpuHealth, GpuHealth] = (OK, FAILED)
    state: SourceState = SourceState.DEGRADED
    reason: str = ""
    asked: int = 60
    reloaded: bool = False
    deadline_s: float = 30.0
    init_deadline_s: float = 30.0
    logged: tuple[str, str] = field(default=("GPU 1 ", "GPU 1 "))


def fails(code: int, function: str = "*") -> Callable[[World, WorldGpu], None]:
    def happen(world: World, failing: WorldGpu) -> None:
        world.error(code, on=failing, function=function, from_us=BEGINS_S * S, until_us=ENDS_S * S)

    return happen


def all_fail(code: int) -> Callable[[World, WorldGpu], None]:
    def happen(world: World, _: WorldGpu) -> None:
        world.error(code, from_us=BEGINS_S * S, until_us=ENDS_S * S)

    return happen


def hangs(world: World, failing: WorldGpu) -> None:
    world.hang(on=failing, function="nvmlDeviceGetUtilizationRates", from_us=BEGINS_S * S, until_us=ENDS_S * S)


def hangs_while_it_is_loaded(world: World, _: WorldGpu) -> None:
    """The driver is unloaded, and does not respond after it is loaded again."""
    world.error(9, from_us=BEGINS_S * S, until_us=(BEGINS_S + 4) * S)
    world.hang(function="nvmlInitWithFlags", from_us=(BEGINS_S + 4) * S, until_us=ENDS_S * S)


def hangs_while_it_is_released(world: World, _: WorldGpu) -> None:
    """Releasing the driver takes until the end of the fault."""
    world.hang(function="nvmlShutdown", from_us=BEGINS_S * S, until_us=ENDS_S * S)


def falls_asleep(watched: Watched) -> None:
    watched.stage.bus.set_status(FAILING, "suspended")


def wakes(watched: Watched) -> None:
    watched.stage.bus.set_status(FAILING, "active")


def is_paused(watched: Watched) -> None:
    watched.source.pause(None)


def is_resumed(watched: Watched) -> None:
    watched.source.resume()


def is_gone(code: int, reason: str) -> Row:
    """The driver as a whole."""
    return Row(
        f"driver {code}",
        all_fail(code),
        healths=(FAILED, FAILED),
        state=SourceState.UNAVAILABLE,
        reason=reason,
        reloaded=code == 9,
        logged=("nvml is unavailable", "nvml is ok again"),
    )


ROWS = [
    Row("lost", fails(15), reason="lost"),
    Row("reset required", fails(16), reason="otel-gpu pause"),
    Row("power cable", fails(8), reason="power cable"),
    Row("interrupts", fails(11), reason="interrupt"),
    Row("not found", fails(28), reason="no longer present"),
    Row("node of one GPU lost", fails(999), reason="/dev/nvidia"),
    Row("hung", hangs, reason="has not returned", deadline_s=0.3),
    Row(
        "one figure missing",
        fails(999, "nvmlDeviceGetUtilizationRates"),
        healths=(OK, DEGRADED),
        reason="utilization: ",
        asked=10_000,
    ),
    is_gone(1, "not initialised"),
    is_gone(9, "modprobe nvidia"),
    is_gone(18, "restart the agent"),
    is_gone(999, "/dev/nvidia"),
    Row(
        "NVML hangs as it is initialised",
        hangs_while_it_is_loaded,
        healths=(FAILED, FAILED),
        state=SourceState.UNAVAILABLE,
        reason="NVML: ",
        init_deadline_s=0.3,
        logged=("nvml is unavailable", "nvml is ok again"),
    ),
    Row(
        "NVML hangs as it is shut down for a pause",
        hangs_while_it_is_released,
        begins=is_paused,
        ends=is_resumed,
        healths=(FAILED, FAILED),
        state=SourceState.UNAVAILABLE,
        reason="the driver is not released yet",
        asked=0,
        logged=("nvml is unavailable: to be paused at", "nvml is ok again"),
    ),
    Row(
        "asleep",
        begins=falls_asleep,
        ends=wakes,
        healths=(OK, ASLEEP),
        state=SourceState.OK,
        reason="runtime-suspended",
        asked=0,
    ),
    Row(
        "paused",
        begins=is_paused,
        ends=is_resumed,
        healths=(PAUSED, PAUSED),
        state=SourceState.PAUSED,
        reason="paused at ",
        asked=0,
        logged=("nvml is paused at", "nvml is ok again"),
    ),
]


def others(answer: Report) -> set[SourceState]:
    """The states of all sources except NVML."""
    return {source.state for source in answer.sources if source.name != "nvml"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_fault_appears_persists_and_goes_away(
    row: Row, stage: Stage, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "_RELEASE_TIMEOUT_S", 0.1)
    world, *gpus = two_gpus()
    row.happens(world, gpus[FAILING])
    if row.reloaded:
        for index, gpu in enumerate(gpus):
            gpu.energy_steps(ENDS_S * S, 400 * S, POWER_W[index], start_mj=5, step_us=S)
    stage.bus.set_gpus(2)
    watched = Watched(stage, world, deadline_s=row.deadline_s, init_deadline_s=row.init_deadline_s)

    before = watched.until(BEGINS_S)
    assert [health(answer) for answer in before] == [(OK, OK)] * 5
    assert lines == []

    calls, threads = stage.device_calls(FAILING), threading.active_count()
    row.begins(watched)
    during = watched.until(ENDS_S)
    assert len(during) == 16
    for cycle, answer in enumerate(during, start=len(before)):
        assert health(answer) == row.healths
        assert others(answer) == {SourceState.OK}  # the other sources are read in every cycle
        if row.healths[HEALTHY] is OK:
            unharmed = of(answer, HEALTHY)
            assert unharmed.totals is not None
            assert unharmed.totals.total_mj == counter_mj(HEALTHY, cycle * CYCLE_S) - counter_mj(HEALTHY, 0)
            assert unharmed.memory is not None
            assert unharmed.memory.measured_bytes == 2 * GIB
        assert nvml(answer).state is row.state
        assert row.reason in (of(answer, FAILING).reading.reason or "")
    assert stage.device_calls(FAILING) - calls <= row.asked
    assert threading.active_count() <= threads + 2
    assert len(lines) == 1, lines
    assert lines[0].startswith(row.logged[0])
    assert row.reason in lines[0]

    row.ends(watched)
    deadline_s = time.monotonic() + 20
    after = watched.until(300)
    while health(after[-1]) != (OK, OK) and time.monotonic() < deadline_s:  # a hung call returns in its own time
        time.sleep(0.05)
        after.append(watched.cycle())
    last = after[-1]
    assert health(last) == (OK, OK)
    assert nvml(last).state is SourceState.OK
    assert len(lines) == 2, lines
    assert lines[1].startswith(row.logged[1])
    assert lines[1].endswith("is ok again")

    read_s = watched.now_s - CYCLE_S
    for index in (HEALTHY, FAILING):
        totals, counter = of(last, index).totals, of(last, index).reading.energy_mj
        assert totals is not None
        assert counter is not None
        if not row.reloaded:
            assert counter == counter_mj(index, read_s)
            assert totals.total_mj == counter - counter_mj(index, 0)
            continue
        # What a counter had between the last reading and its end, and before the next reading, is unknown.
        base = next(of(answer, index).reading.energy_mj for answer in after if health(answer) == (OK, OK))
        assert base is not None
        assert totals.total_mj == counter_mj(index, 20) - counter_mj(index, 0) + counter - base
