"""What the stub library answers, as the real nvidia-ml-py sees it. Faults and time: tests/nvml_stub/test_play.py."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.nvml_stub.stage import Stage, code_of, handle, open_stage, typical
from tests.nvml_stub.world import STEPPED_EPOCH_US, Listed, Row, World, WorldGpu, WorldMig

NO_INSTANCE = 0xFFFFFFFF
S = 1_000_000


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with open_stage(tmp_path, monkeypatch) as opened:
        yield opened


# ---------------------------------------------------------------------------- figures


def test_memory_v2_excludes_reserved_and_v1_includes_it(stage: Stage) -> None:
    world, gpu = typical()
    gpu.memory(0, total_bytes=1000, reserved_bytes=100, used_bytes=300)
    stage.play(world)
    v2 = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
    v1 = pynvml.nvmlDeviceGetMemoryInfo(handle())
    assert (v2.total, v2.reserved, v2.used, v2.free) == (1000, 100, 300, 600)
    assert (v1.total, v1.used, v1.free) == (1000, 400, 600)
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, handle(), version=2) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_a_value_holds_from_its_time_until_the_next_in_any_order_of_lines(stage: Stage) -> None:
    world = World()
    gpu = world.gpu()
    for at_s, millijoules in ((3, 30), (1, 9), (1, 10), (2, 20)):
        gpu.energy_mj(at_s * S, millijoules)
    gpu.unset(4 * S, "energy_mj")
    stage.play(world)
    seen = []
    for _ in range(3):
        stage.clock.advance_s(1)
        seen.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()))
    assert seen == [10, 20, 30]
    for now_us in (S - 1, 4 * S):
        stage.clock.set_us(now_us)
        assert code_of(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle()) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_energy_steps_follow_the_power(stage: Stage) -> None:
    world, gpu = typical()
    assert gpu.energy_steps(0, S, 250.0, start_mj=7) == 250_007
    stage.play(world)
    stage.clock.set_us(S // 2 + 99_999)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) == 125_007


def test_a_typical_gpu_answers_every_figure(stage: Stage) -> None:
    world, gpu = typical()
    gpu.temperature_c(0, -3)
    gpu.ecc(0, corrected=1, uncorrected=2, aggregate_corrected=3, aggregate_uncorrected=4)
    gpu.power_limit_mw(0, 700_000, 650_000)
    stage.play(world)
    h = handle()
    assert pynvml.nvmlDeviceGetTemperatureV(h, pynvml.NVML_TEMPERATURE_GPU) == -3
    assert pynvml.nvmlDeviceGetPowerUsage(h) == 70_000
    assert pynvml.nvmlDeviceGetPowerManagementLimit(h) == 700_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(h) == 650_000
    assert pynvml.nvmlDeviceGetUtilizationRates(h).gpu == 0
    assert pynvml.nvmlDeviceGetEncoderUtilization(h) == [0, 167_000]
    assert pynvml.nvmlDeviceGetDecoderUtilization(h) == [0, 167_000]
    assert pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM) == 2619
    assert pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM) == 1980
    assert pynvml.nvmlDeviceGetEccMode(h) == [1, 1]
    kinds = [(error, counter) for counter in (0, 1) for error in (0, 1)]
    assert [pynvml.nvmlDeviceGetTotalEccErrors(h, *kind) for kind in kinds] == [1, 2, 3, 4]
    dram, cache = pynvml.NVML_MEMORY_LOCATION_DRAM, pynvml.NVML_MEMORY_LOCATION_L2_CACHE
    assert [pynvml.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, place) for place in (dram, cache)] == [2, 0]
    assert pynvml.nvmlDeviceGetPersistenceMode(h) == 1
    assert pynvml.nvmlDeviceGetPerformanceState(h) == 0
    assert pynvml.nvmlDeviceGetComputeMode(h) == 0
    assert pynvml.nvmlDeviceGetMigMode(h) == [0, 0]
    assert pynvml.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used == 1 << 20


def test_field_values_carry_their_own_outcome_and_unix_time(stage: Stage) -> None:
    world, gpu = typical()
    gpu.power_mw(0, 100, 120)
    gpu.unset(0, "memory_temperature")
    stage.play(world)
    stage.clock.set_us(5)
    energy, average, instant, absent, unknown = pynvml.nvmlDeviceGetFieldValues(handle(), [83, 185, 186, 82, 40])
    assert (energy.value.ullVal, energy.valueType) == (1_000_000, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    assert (average.value.uiVal, instant.value.uiVal) == (100, 120)
    assert (absent.nvmlReturn, unknown.nvmlReturn) == (pynvml.NVML_ERROR_NOT_SUPPORTED,) * 2
    assert energy.timestamp == STEPPED_EPOCH_US + 5


def test_a_device_is_found_by_index_uuid_and_bus_id(stage: Stage) -> None:
    world = World(driver_version="1.2", nvml_version="3.4", cuda_version=12040)
    world.gpu()
    world.gpu("GPU-b", name="A Name  with blanks", minor=5, pci_bus_id="00000001:AF:00.0", serial="77")
    world.process_name(9, "python train.py")
    stage.play(world)
    assert pynvml.nvmlDeviceGetCount() == 2
    for found in (
        handle(1),
        pynvml.nvmlDeviceGetHandleByUUID(b"GPU-b"),
        pynvml.nvmlDeviceGetHandleByPciBusId(b"1:af:0.0"),
    ):
        assert pynvml.nvmlDeviceGetName(found) == "A Name  with blanks"
        assert pynvml.nvmlDeviceGetUUID(found) == "GPU-b"
        assert pynvml.nvmlDeviceGetIndex(found) == 1
        assert pynvml.nvmlDeviceGetMinorNumber(found) == 5
        assert pynvml.nvmlDeviceGetSerial(found) == "77"
        assert pynvml.nvmlDeviceGetPciInfo(found).busId == "00000001:AF:00.0"
        assert pynvml.nvmlDeviceGetCudaComputeCapability(found) == (9, 0)
    assert code_of(handle, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, b"GPU-c") == pynvml.NVML_ERROR_NOT_FOUND
    assert pynvml.nvmlSystemGetDriverVersion() == "1.2"
    assert pynvml.nvmlSystemGetNVMLVersion() == "3.4"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12040
    assert pynvml.nvmlSystemGetProcessName(9) == "python train.py"
    assert code_of(pynvml.nvmlSystemGetProcessName, 8) == pynvml.NVML_ERROR_NOT_FOUND


# ---------------------------------------------------------------------------- processes


def test_each_list_has_its_own_entries_and_the_sentinel_is_none(stage: Stage) -> None:
    world, gpu = typical()
    gpu.compute(S, [Listed(10, 1000), Listed(11, None), Listed(12, 7, 3, 1)])
    gpu.graphics(S, [Listed(10, 50)])
    gpu.mps(2 * S, [Listed(13, 60)])
    gpu.unset(3 * S, "compute")
    stage.play(world)
    h = handle()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(h) == []
    stage.clock.set_us(2 * S)
    for read in (pynvml.nvmlDeviceGetComputeRunningProcesses_v2, pynvml.nvmlDeviceGetComputeRunningProcesses_v3):
        entries = [(p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId) for p in read(h)]
        assert entries == [(10, 1000, NO_INSTANCE, NO_INSTANCE), (11, None, NO_INSTANCE, NO_INSTANCE), (12, 7, 3, 1)]
    assert [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetGraphicsRunningProcesses(h)] == [(10, 50)]
    assert [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(h)] == [(13, 60)]
    details = pynvml.nvmlDeviceGetRunningProcessDetailList(h, pynvml.nvmlProcessDetailList_v1, 1)
    assert [(p.pid, p.usedGpuMemory) for p in details] == [(10, 50)]
    stage.clock.set_us(3 * S)
    assert code_of(pynvml.nvmlDeviceGetComputeRunningProcesses, h) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_too_small_a_buffer_gets_the_needed_count_and_nothing_else(stage: Stage) -> None:
    world, gpu = typical()
    gpu.compute(0, [Listed(pid, 1) for pid in range(1, 4)])
    stage.play(world)
    count, entries = ctypes.c_uint(2), (pynvml.c_nvmlProcessInfo_t * 2)()
    code = stage.library.nvmlDeviceGetComputeRunningProcesses_v3(handle(), ctypes.byref(count), entries)
    assert (code, count.value, entries[0].pid) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 3, 0)


def test_accounting_plays_the_run_and_the_end_of_a_process(stage: Stage) -> None:
    world, gpu = typical()
    gpu.accounting_mode(S, enabled=True)
    gpu.accounting(2 * S, 10, start_us=S, gpu_percent=40, memory_percent=None, max_memory_bytes=99)
    gpu.accounting(3 * S, 10, start_us=S, gpu_percent=50, max_memory_bytes=99, time_ms=1900, running=False)
    gpu.accounting(2 * S, 9, start_us=S, max_memory_bytes=None)
    gpu.forget_accounting(4 * S, 10)
    stage.play(world)
    h = handle()
    assert code_of(pynvml.nvmlDeviceGetAccountingPids, h) == pynvml.NVML_ERROR_NOT_SUPPORTED
    stage.clock.set_us(2 * S)
    assert sorted(pynvml.nvmlDeviceGetAccountingPids(h)) == [9, 10]
    alive = pynvml.nvmlDeviceGetAccountingStats(h, 10)
    assert (alive.gpuUtilization, alive.memoryUtilization, alive.time, alive.isRunning) == (40, 0xFFFFFFFF, 0, 1)
    assert alive.startTime == STEPPED_EPOCH_US + S
    with pytest.raises(TypeError):  # nvidia-ml-py's own trap: it puts None into a C integer
        pynvml.nvmlDeviceGetAccountingStats(h, 9)
    stage.clock.set_us(3 * S)
    ended = pynvml.nvmlDeviceGetAccountingStats(h, 10)
    assert (ended.gpuUtilization, ended.time, ended.isRunning) == (50, 1900, 0)
    stage.clock.set_us(4 * S)
    assert pynvml.nvmlDeviceGetAccountingPids(h) == [9]
    assert code_of(pynvml.nvmlDeviceGetAccountingStats, h, 10) == pynvml.NVML_ERROR_NOT_FOUND


def test_accounting_is_set_by_root_until_the_last_shutdown_and_off_drops_the_records(stage: Stage) -> None:
    world = World(root=True)
    gpu = world.gpu()
    gpu.typical()
    gpu.accounting(0, 9, start_us=0)
    gpu.accounting(2 * S, 10, start_us=2 * S)
    stage.play(world)
    h = handle()
    pynvml.nvmlDeviceSetAccountingMode(h, 1)
    assert (pynvml.nvmlDeviceGetAccountingMode(h), pynvml.nvmlDeviceGetAccountingPids(h)) == (1, [9])
    stage.clock.set_us(S)
    pynvml.nvmlDeviceSetAccountingMode(h, 0)
    assert code_of(pynvml.nvmlDeviceGetAccountingPids, h) == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlDeviceSetAccountingMode(h, 1)
    stage.clock.set_us(3 * S)
    assert pynvml.nvmlDeviceGetAccountingPids(h) == [10]
    assert code_of(pynvml.nvmlDeviceSetAccountingMode, h, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    pynvml.nvmlShutdown()
    stage.play(world)
    assert pynvml.nvmlDeviceGetAccountingMode(handle()) == 0


def test_accounting_is_not_set_by_others_nor_in_mig_mode_where_it_is_always_off(stage: Stage) -> None:
    world = World(root=False)
    plain, partitioned, old = (world.gpu() for _ in range(3))
    plain.typical()
    partitioned.typical()
    partitioned.mig_mode(0, enabled=True)
    partitioned.accounting_mode(0, enabled=True)
    stage.play(world)
    wanted = {
        plain: pynvml.NVML_ERROR_NO_PERMISSION,
        partitioned: pynvml.NVML_ERROR_NOT_SUPPORTED,
        old: pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    assert {gpu: code_of(pynvml.nvmlDeviceSetAccountingMode, handle(gpu.index), 1) for gpu in wanted} == wanted
    assert [pynvml.nvmlDeviceGetAccountingMode(handle(gpu.index)) for gpu in (plain, partitioned)] == [0, 0]


# ---------------------------------------------------------------------------- utilisation


def rows_of(after_us: int = -1) -> list[tuple[int, int, int, int, int, int]]:
    """Rows as (pid, world time, sm, memory, encoder, decoder)."""
    rows = pynvml.nvmlDeviceGetProcessUtilization(handle(), STEPPED_EPOCH_US + after_us)
    return [(r.pid, r.timeStamp - STEPPED_EPOCH_US, r.smUtil, r.memUtil, r.encUtil, r.decUtil) for r in rows]


def sampled() -> tuple[World, WorldGpu]:
    """Samples at 1 to 8: A A 0 B A 0 0 B."""
    world, gpu = typical()
    for at_us, (pid, sm) in enumerate([(1, 100), (1, 50), (0, 0), (2, 80), (1, 100), (0, 0), (0, 0), (2, 90)], start=1):
        gpu.sample(at_us, pid, sm, memory=sm // 2)
    return world, gpu


def test_a_row_is_the_mean_over_all_samples_after_the_time_asked_for(stage: Stage) -> None:
    stage.play(sampled()[0])
    stage.clock.set_us(8)
    assert rows_of() == [(1, 5, 250 // 8, 125 // 8, 0, 0), (2, 8, 170 // 8, 85 // 8, 0, 0)]
    assert rows_of(after_us=4) == [(1, 5, 100 // 4, 50 // 4, 0, 0), (2, 8, 90 // 4, 45 // 4, 0, 0)]
    stage.clock.set_us(5)
    assert rows_of(after_us=2) == [(2, 4, 80 // 3, 40 // 3, 0, 0), (1, 5, 100 // 3, 50 // 3, 0, 0)]
    assert code_of(rows_of, 5) == pynvml.NVML_ERROR_NOT_FOUND


def test_the_ring_forgets_its_oldest_samples(stage: Stage) -> None:
    world, gpu = sampled()
    gpu.ring(4)
    stage.play(world)
    stage.clock.set_us(8)
    assert rows_of() == [(1, 5, 25, 12, 0, 0), (2, 8, 22, 11, 0, 0)]


def test_lines_of_one_time_are_one_sample_with_an_owner_for_each_engine(stage: Stage) -> None:
    world, gpu = typical()
    gpu.ring(2)
    for at_us in (1, 2, 3):
        gpu.sample(at_us, 1, 100)
        gpu.sample(at_us, 2, 0, encoder=60, decoder=20)
    stage.play(world)
    stage.clock.set_us(3)
    assert rows_of() == [(1, 3, 100, 0, 0, 0), (2, 3, 0, 0, 60, 20)]


def test_some_drivers_give_a_row_for_each_sample(stage: Stage) -> None:
    world, gpu = sampled()
    gpu.row_mode("per-sample")
    stage.play(world)
    stage.clock.set_us(5)
    assert rows_of(after_us=1) == [(1, 2, 50, 25, 0, 0), (2, 4, 80, 40, 0, 0), (1, 5, 100, 50, 0, 0)]


def test_the_newer_utilisation_call_gives_the_same_rows(stage: Stage) -> None:
    stage.play(sampled()[0])
    stage.clock.set_us(8)
    rows = pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle(), STEPPED_EPOCH_US + 4)
    assert [
        (r.pid, r.timeStamp - STEPPED_EPOCH_US, r.smUtil, r.memUtil, r.encUtil, r.decUtil) for r in rows
    ] == rows_of(4)


def test_rows_can_be_given_verbatim_stale_or_implausible(stage: Stage) -> None:
    world, gpu = sampled()
    gpu.rows(8, [Row(7, -5 * S, 101, 2, 3, 4), Row(7, 3, 5000)])
    gpu.rows(9, [])
    gpu.unset(10, "rows")
    stage.play(world)
    stage.clock.set_us(8)
    assert rows_of(after_us=7) == [(7, -5 * S, 101, 2, 3, 4), (7, 3, 5000, 0, 0, 0)]
    stage.clock.set_us(9)
    assert code_of(rows_of) == pynvml.NVML_ERROR_NOT_FOUND
    stage.clock.set_us(10)
    assert [row[0] for row in rows_of()] == [1, 2]


def test_sizing_replies_differ_between_drivers(stage: Stage) -> None:
    world, gpu = sampled()
    other = world.gpu()
    other.typical()
    gpu.sizing(100)
    other.sizing("success")
    stage.play(world)
    stage.clock.set_us(8)
    assert len(rows_of()) == 2
    count = ctypes.c_uint(0)
    assert (
        stage.library.nvmlDeviceGetProcessUtilization(handle(), None, ctypes.byref(count), ctypes.c_ulonglong(0)) == 7
    )
    assert count.value == 100
    assert code_of(rows_of, 8) == pynvml.NVML_ERROR_NOT_FOUND
    # The SUCCESS reply is raised as an error whose value is 0.
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, handle(1), 0) == pynvml.NVML_SUCCESS


# ---------------------------------------------------------------------------- MIG


def mig_world() -> tuple[World, WorldGpu, WorldMig]:
    world, gpu = typical()
    gpu.mig_mode(0, enabled=True)
    gpu.mig_slots(7)
    gpu.mig(0, 0, uuid="MIG-a", gpu_instance_id=7)
    third = gpu.mig(0, 2, uuid="MIG-c", gpu_instance_id=9, compute_instance_id=1, sm_count=32, gpu_slices=2)
    third.memory(0, total_bytes=20, reserved_bytes=1, used_bytes=5)
    third.compute(0, [Listed(10, 4, 9, 1)])
    return world, gpu, third


def test_mig_slots_have_holes(stage: Stage) -> None:
    stage.play(mig_world()[0])
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle()) == 7
    found = {}
    for slot in range(7):
        try:
            found[slot] = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), slot))
        except pynvml.NVMLError_NotFound:
            continue
    assert found == {0: "MIG-a", 2: "MIG-c"}


def test_a_mig_device_has_its_own_memory_processes_and_attributes_but_no_power(stage: Stage) -> None:
    stage.play(mig_world()[0])
    mig = pynvml.nvmlDeviceGetHandleByUUID(b"MIG-c")
    assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(handle()).value == 0
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)) == 0
    assert (pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)) == (9, 1)
    attributes = pynvml.nvmlDeviceGetAttributes(mig)
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (32, 2, 9856)
    assert pynvml.nvmlDeviceGetMemoryInfo(mig, version=pynvml.nvmlMemory_v2).used == 5
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [10]
    refused = (
        pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetTotalEnergyConsumption,
        pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    )  # fmt: skip
    assert [code_of(call, mig) for call in refused] == [pynvml.NVML_ERROR_NOT_SUPPORTED] * 4
    for device in (mig, handle()):
        assert code_of(pynvml.nvmlDeviceGetProcessUtilization, device, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert pynvml.nvmlDeviceGetPowerUsage(handle()) == 70_000


def test_a_new_instance_in_a_slot_inherits_nothing_and_the_old_handle_is_refused(stage: Stage) -> None:
    world, gpu = typical()
    gpu.mig_mode(0, enabled=True)
    gpu.mig(0, 0, uuid="MIG-old", gpu_instance_id=1, until_us=S).memory(0, total_bytes=20, used_bytes=5)
    gpu.mig(2 * S, 0, uuid="MIG-new", gpu_instance_id=2)
    stage.play(world)
    old = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0)
    assert pynvml.nvmlDeviceGetMemoryInfo(old).total == 20
    stage.clock.set_us(S)
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(), 0) == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, old) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    stage.clock.set_us(2 * S)
    new = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0)
    assert pynvml.nvmlDeviceGetUUID(new) == "MIG-new"
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, new) == pynvml.NVML_ERROR_NOT_SUPPORTED
