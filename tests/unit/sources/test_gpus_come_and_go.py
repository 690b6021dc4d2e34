"""GPUs and instances that come, go, move, sleep, or hang while they are released."""

from __future__ import annotations

import time

from otel_gpu.model import GpuHealth, SourceState
from tests.nvml_stage import Stage
from tests.nvml_stub.world import Listed, World
from tests.unit.sources.watched import (
    BEGINS_S,
    CYCLE_S,
    ENDS_S,
    FAILING,
    GIB,
    HEALTHY,
    POWER_W,
    WORKLOADS,
    S,
    Watched,
    counter_mj,
    health,
    nvml,
    of,
    two_gpus,
)

OK, FAILED = GpuHealth.OK, GpuHealth.FAILED


def mig_world(*, gone_s: int, new_s: int) -> World:
    """One GPU in two instances, of which one is destroyed, and another is created later."""
    world = World()
    gpu = world.gpu()
    gpu.typical()
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=6 * GIB)
    gpu.energy_steps(0, 400 * S, POWER_W[HEALTHY], start_mj=counter_mj(HEALTHY, 0), step_us=S)
    gpu.mig_mode(0, enabled=True)
    gpu.sms(0, 112)
    spans = ((0, None, 100), (0, gone_s * S, 200), (new_s * S, None, 201))
    for slot, (from_us, until_us, pid) in enumerate(spans):
        instance = gpu.mig(from_us, slot, uuid=f"MIG-{pid}", gpu_instance_id=3 + slot, until_us=until_us)
        instance.memory(from_us, total_bytes=10 * GIB, used_bytes=2 * GIB)
        instance.compute(from_us, [Listed(pid, 2 * GIB, gpu_instance_id=3 + slot, compute_instance_id=0)])
    return world


def test_destroyed_and_created_instances_change_nothing_for_the_others(stage: Stage, lines: list[str]) -> None:
    watched = Watched(stage, mig_world(gone_s=BEGINS_S, new_s=ENDS_S))
    instances = [tuple(mig.uuid for mig in of(answer, 0).reading.mig or ()) for answer in watched.until(200)]
    assert instances == [("MIG-100", "MIG-200")] * 5 + [("MIG-100",)] * 16 + [("MIG-100", "MIG-201")] * 19
    last = watched.cycle()
    assert of(last, 0).reading.health is OK
    assert watched.totals_mj[of(last, 0).identity.uuid] == counter_mj(HEALTHY, 200) - counter_mj(HEALTHY, 0)
    kept = next(w for w in last.workloads if w.ref == WORKLOADS[100]).gpus[0]
    assert (kept.mig_uuid, kept.measured_bytes) == ("MIG-100", 2 * GIB)
    assert lines == []


def test_a_gpu_without_mig_again_has_utilization_again(stage: Stage) -> None:
    world, healthy, _ = two_gpus()
    healthy.mig_mode(0, enabled=True)
    healthy.mig_mode(BEGINS_S * S, enabled=False)
    watched = Watched(stage, world)
    divided = watched.until(BEGINS_S)
    assert {of(answer, HEALTHY).reading.utilization for answer in divided} == {None}
    assert of(watched.until(BEGINS_S + 10)[-1], HEALTHY).reading.utilization is not None


def test_an_added_gpu_is_found_and_a_removed_one_is_reported_and_then_forgotten(stage: Stage, lines: list[str]) -> None:
    alone = World()
    first = alone.gpu()
    first.typical()
    first.energy_steps(0, 500 * S, POWER_W[HEALTHY], start_mj=counter_mj(HEALTHY, 0), step_us=S)
    stage.bus.set_gpus(1)
    watched = Watched(stage, alone)
    assert [len(answer.gpus) for answer in watched.until(BEGINS_S)] == [1] * 5

    both, *_ = two_gpus()
    stage.put(both)
    stage.bus.set_gpus(2)
    inits = stage.calls("nvmlInitWithFlags")
    with_both = watched.until(ENDS_S)
    assert {health(answer) for answer in with_both} == {(OK, OK)}
    assert stage.calls("nvmlInitWithFlags") == inits + 1
    assert len(lines) == 1
    assert lines.pop().endswith("is new")

    stage.put(alone)
    stage.bus.set_gpus(1)
    after = watched.until(ENDS_S + 290)
    assert {health(answer) for answer in after} == {(OK, FAILED)}
    assert "no longer present" in (of(after[0], FAILING).reading.reason or "")
    assert len(watched.until(ENDS_S + 320)[-1].gpus) == 1
    assert len(lines) == 1
    assert "is failed: GPU is no longer present" in lines[0]
    uuid = "GPU-00000000-0000-4000-8000-000000000000"
    assert watched.totals_mj[uuid] == counter_mj(HEALTHY, watched.now_s - CYCLE_S) - counter_mj(HEALTHY, 0)


def test_gpus_that_return_in_another_order_keep_their_counters(stage: Stage) -> None:
    def world(*order: int) -> World:
        made = World()
        for index in order:
            gpu = made.gpu(f"GPU-{index}", pci_bus_id=f"00000000:{0x10 + index:02X}:00.0")
            gpu.typical()
            gpu.energy_steps(0, 400 * S, POWER_W[index], start_mj=counter_mj(index, 0), step_us=S)
        made.error(9, from_us=BEGINS_S * S, until_us=ENDS_S * S)
        return made

    watched = Watched(stage, world(HEALTHY, FAILING))
    watched.until(BEGINS_S)
    stage.put(world(FAILING, HEALTHY))
    last = watched.until(300)[-1]
    assert [gpu.identity.index for gpu in last.gpus] == [0, 1]
    assert [gpu.identity.uuid for gpu in last.gpus] == [f"GPU-{FAILING}", f"GPU-{HEALTHY}"]
    for index in (HEALTHY, FAILING):
        assert watched.totals_mj[f"GPU-{index}"] == counter_mj(index, watched.now_s - CYCLE_S) - counter_mj(index, 0)


def test_gpus_that_sleep_from_the_start_are_not_even_enumerated(stage: Stage, lines: list[str]) -> None:
    world, *_ = two_gpus()
    stage.bus.set_gpus(2)
    for index in (HEALTHY, FAILING):
        stage.bus.set_status(index, "suspended")
    inits, calls = stage.calls("nvmlInitWithFlags"), stage.device_calls(FAILING)
    watched = Watched(stage, world)
    answers = watched.until(20)
    assert {nvml(answer).state for answer in answers} == {SourceState.DEGRADED}, "a sleeping GPU has not failed"
    assert {nvml(answer).errors for answer in answers} == {0}
    assert stage.calls("nvmlInitWithFlags") == inits
    assert lines == [f"nvml is degraded: {nvml(answers[0]).reason}"]
    stage.bus.set_status(HEALTHY, "active")
    woken = watched.until(40)
    assert [gpu.reading.health for gpu in woken[-1].gpus] == [OK]
    assert stage.device_calls(FAILING) == calls
    assert "GPU 1: asleep" in (nvml(woken[-1]).reason or "")  # its identity is not known yet
    stage.bus.set_status(FAILING, "active")
    assert health(watched.until(60)[-1]) == (OK, OK)


def test_nvml_is_released_after_a_hung_call_returns(stage: Stage) -> None:
    world, _, failing = two_gpus()
    world.hang(on=failing, function="nvmlDeviceGetUtilizationRates", from_us=BEGINS_S * S, until_us=ENDS_S * S)
    watched = Watched(stage, world, deadline_s=0.2)
    watched.until(BEGINS_S + 10)
    shutdowns = stage.calls("nvmlShutdown")
    watched.source.pause(None)
    assert stage.calls("nvmlShutdown") == shutdowns  # under a call that has not returned
    watched.until(ENDS_S + 10)
    deadline_s = time.monotonic() + 20
    while stage.calls("nvmlShutdown") == shutdowns:
        assert time.monotonic() < deadline_s, "NVML stays open"
        time.sleep(0.02)
        watched.cycle()
