"""The NVML source, through the real nvidia-ml-py, on the stub library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from otel_gpu.model import (
    AccountingRecord,
    DeviceMemory,
    DriverFacts,
    GpuHealth,
    GpuReading,
    ListedProcess,
    ProcessKind,
    SourceState,
    UtilizationRow,
)
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.api import NvmlApi
from tests.nvml_stage import END_US, Stage
from tests.nvml_stub.world import STEPPED_EPOCH_US, Listed, Row, World, WorldGpu

GIB = 1 << 30


def one_gpu() -> tuple[World, WorldGpu]:
    world = World()
    gpu = world.gpu()
    gpu.typical()
    return world, gpu


def only(read: GpuRead) -> GpuReading:
    (reading,) = read.gpus
    return reading


# ---------------------------------------------------------------------------- figures


def test_every_figure_of_a_healthy_gpu_is_read_in_the_agents_units(stage: Stage) -> None:
    world = World(driver_version="550.54.15")
    gpu = world.gpu("GPU-abc", name="NVIDIA A100-SXM4-80GB", minor=3, pci_bus_id="00000000:3B:00.0", serial="1650")
    gpu.typical()
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=10 * GIB)
    gpu.energy_mj(0, 123_456_789)
    gpu.power_mw(0, 251_500)
    gpu.power_limit_mw(0, 400_000, 350_000)
    gpu.temperature_c(0, 61)
    gpu.utilization(0, 87, 33)
    gpu.encoder(0, 12)
    gpu.decoder(0, 7)
    gpu.clocks(0, graphics_mhz=1400, sm_mhz=1410, memory_mhz=1593, video_mhz=1275)
    gpu.ecc(0, corrected=1, uncorrected=2, aggregate_corrected=30, aggregate_uncorrected=4)

    read = stage.play(world).read()

    assert read.state is SourceState.OK
    assert read.reason is None
    assert read.driver == DriverFacts("550.54.15")
    reading = only(read)
    identity = reading.identity
    assert (identity.index, identity.uuid, identity.name) == (0, "GPU-abc", "NVIDIA A100-SXM4-80GB")
    assert (identity.minor, identity.pci_bus_id, identity.serial) == (3, "0000:3b:00.0", "1650")
    assert reading.health is GpuHealth.OK
    assert reading.memory == DeviceMemory(80 * GIB, 10 * GIB, 69 * GIB, GIB)
    assert reading.energy_mj == 123_456_789
    assert reading.power_w == 251.5
    assert reading.power_limit_w == 350.0
    assert reading.temperature_c == 61
    assert (reading.gpu_ratio, reading.memory_controller_ratio) == (0.87, 0.33)
    assert (reading.encoder_ratio, reading.decoder_ratio) == (0.12, 0.07)
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1410, 1593)
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (30, 4)
    assert reading.persistence_mode is True
    assert reading.mig is None
    assert reading.accounting is None
    assert reading.xid_errors == 0


def test_figures_a_device_does_not_support_are_absent_and_not_an_error(stage: Stage) -> None:
    world = World()
    world.gpu("GPU-bare")
    world.error(3, function="nvmlDeviceGetProcessUtilization")

    read = stage.play(world).read()

    assert read.state is SourceState.OK
    bare = only(read)
    assert bare == replace(GpuReading(bare.identity, bare.taken_at_ns), xid_errors=bare.xid_errors)


def test_an_unsupported_figure_is_read_only_once(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.unset(0, "encoder")
    source = stage.play(world)
    before = stage.calls("nvmlDeviceGetEncoderUtilization")
    for _ in range(5):
        assert only(source.read()).encoder_ratio is None
        stage.advance(1)
    assert stage.calls("nvmlDeviceGetEncoderUtilization") - before == 1


def test_a_usual_cycle_makes_eight_calls_per_gpu_and_reads_slow_figures_rarely(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.compute(0, [Listed(pid, GIB) for pid in range(1, 9)])
    for at_us in range(0, 130_000_000, 167_000):
        gpu.sample(at_us, 1 + at_us // 167_000 % 8, 50)
    source = stage.play(world)
    asked = []
    for _ in range(61):
        before = stage.device_calls(0)
        source.read()
        asked.append(stage.device_calls(0) - before)
        stage.advance(1)
    assert min(asked) == 8
    assert sum(asked[1:]) / 60 <= 9
    for _ in range(13):  # the default interval
        stage.advance(5)
        before = stage.device_calls(0)
        source.read()
        asked.append(stage.device_calls(0) - before)
    assert sum(asked[-12:]) / 12 <= 10


@pytest.mark.parametrize("code", [3, 13, 999])
def test_without_field_values_each_figure_has_its_own_call(stage: Stage, code: int) -> None:
    world, gpu = one_gpu()
    gpu.energy_mj(0, 77)
    gpu.power_mw(0, 251_500)
    gpu.power_limit_mw(0, 400_000, 350_000)
    gpu.ecc(0, corrected=1, uncorrected=2, aggregate_corrected=30, aggregate_uncorrected=4)
    world.error(code, function="nvmlDeviceGetFieldValues")
    source = stage.play(world)
    for _ in range(3):
        reading = only(source.read())
        assert (reading.energy_mj, reading.power_w, reading.power_limit_w) == (77, 251.5, 350.0)
        assert (reading.ecc_corrected, reading.ecc_uncorrected) == (30, 4)
        stage.advance(1)
    assert (reading.reason is None) == (code != 999)


def test_slow_figures_are_read_when_due_and_at_once_after_a_failure(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.temperature_c(0, 40)
    gpu.temperature_c(1_000_000, 70)
    gpu.encoder(0, 10)
    gpu.encoder(1_000_000, 90)
    world.error(999, on=gpu, function="nvmlDeviceGetEncoderUtilization", until_us=4_000_000)
    source = stage.play(world)
    first = only(source.read())
    assert (first.temperature_c, first.encoder_ratio) == (40, None)
    stage.advance(5)
    assert (only(source.read()).temperature_c, only(source.read()).encoder_ratio) == (40, 0.9)
    stage.advance(10)
    assert only(source.read()).temperature_c == 70


def test_a_list_that_outgrows_its_buffer_is_complete(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.compute(0, [Listed(1, GIB)])
    gpu.compute(1_000_000, [Listed(pid, GIB) for pid in range(1, 301)])
    gpu.compute(4_000_000, [])
    source = stage.play(world)
    source.read()
    lengths, calls = [], []
    for _ in range(4):
        stage.advance(1)
        before = stage.calls("nvmlDeviceGetComputeRunningProcesses_v3")
        lengths.append(len(only(source.read()).processes or ()))
        calls.append(stage.calls("nvmlDeviceGetComputeRunningProcesses_v3") - before)
    assert lengths == [300, 300, 300, 0]
    assert calls == [2, 1, 1, 1]


def test_accounting_that_is_disabled_and_enabled_is_detected(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.accounting_mode(0, enabled=True)
    gpu.accounting_mode(2_000_000, enabled=False)
    gpu.accounting_mode(40_000_000, enabled=True)
    source = stage.play(world)
    seen = []
    for at_s in range(0, 100, 5):
        seen.append((at_s, only(source.read()).accounting))
        assert only(source.read()).reason is None
        stage.advance(5)
    assert seen[0] == (0, ())
    assert {books for at_s, books in seen if 5 <= at_s < 40} == {None}
    assert seen[-1][1] == ()


def test_identity_is_read_once(stage: Stage) -> None:
    source = stage.play(one_gpu()[0])
    source.read()
    before = {f: stage.calls(f) for f in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex_v2")}
    for _ in range(3):
        stage.advance(1)
        source.read()
    assert {function: stage.calls(function) for function in before} == before


def test_a_device_without_memory_figures_has_processes(stage: Stage) -> None:
    """Unified memory: no device memory, memory per process."""
    world, gpu = one_gpu()
    gpu.unset(0, "memory")
    gpu.compute(0, [Listed(10, 5 * GIB)])
    reading = only(stage.play(world).read())
    assert reading.memory is None
    assert reading.processes == (ListedProcess(10, ProcessKind.COMPUTE, 5 * GIB),)


def test_a_utilisation_over_100_percent_is_absent(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.utilization(0, 255, 40)
    reading = only(stage.play(world).read())
    assert reading.gpu_ratio is None
    assert reading.memory_controller_ratio == 0.4


# ---------------------------------------------------------------------------- processes


def test_all_three_lists_are_read_and_a_pid_may_be_in_several(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.compute(0, [Listed(10, GIB), Listed(11, None)])
    gpu.graphics(0, [Listed(10, 2 * GIB)])
    gpu.mps(0, [Listed(12, 3 * GIB)])
    assert only(stage.play(world).read()).processes == (
        ListedProcess(10, ProcessKind.COMPUTE, GIB),
        ListedProcess(11, ProcessKind.COMPUTE, None),
        ListedProcess(10, ProcessKind.GRAPHICS, 2 * GIB),
        ListedProcess(12, ProcessKind.MPS, 3 * GIB),
    )


def test_empty_lists_are_empty_and_unsupported_lists_are_none(stage: Stage) -> None:
    world = World()
    empty, absent = world.gpu(), world.gpu()
    empty.no_processes(0)
    for key in ("compute", "graphics", "mps"):
        absent.unset(0, key)
    first, second = stage.play(world).read().gpus
    assert first.processes == ()
    assert second.processes is None


# ---------------------------------------------------------------------------- utilisation


def test_the_first_utilisation_window_starts_one_second_before_the_read(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.sample(500_000, 7, 80)  # older than a second when first read at 3 s
    gpu.sample(2_500_000, 7, 40)
    stage.advance(3)
    read = only(stage.play(world).read()).utilization
    assert read is not None
    assert read.since_us == STEPPED_EPOCH_US + 2_000_000
    assert read.rows == (UtilizationRow(7, STEPPED_EPOCH_US + 2_500_000, 40, 0, 0, 0),)


def test_a_utilisation_window_starts_at_the_latest_row_or_a_second_before_the_last_read(stage: Stage) -> None:
    world, gpu = one_gpu()
    for at_us in range(139_000, 20_000_000, 139_000):
        gpu.sample(at_us, 7 if at_us < 6_000_000 else 0, 100)
    source = stage.play(world)
    stage.advance(5)
    first = only(source.read()).utilization
    stage.advance(5)
    second = only(source.read()).utilization  # 7 was last active just before 6 s
    stage.advance(5)
    third = only(source.read()).utilization
    assert first is not None
    assert second is not None
    assert third is not None
    newest = first.rows[0].timestamp_us
    assert second.since_us == newest
    assert third.since_us == STEPPED_EPOCH_US + 9_000_000  # the read at 10 s less 1 s, not the old row at 6 s
    assert second.rows[0].pid == 7
    assert third.rows == ()


def test_no_rows_is_no_work_and_not_supported_is_unknown(stage: Stage) -> None:
    world = World()
    quiet, unsupported = world.gpu(), world.gpu()
    quiet.typical()
    unsupported.typical()
    world.error(3, on=unsupported, function="nvmlDeviceGetProcessUtilization")
    first, second = stage.play(world).read().gpus
    assert first.utilization is not None
    assert first.utilization.rows == ()
    assert second.utilization is None
    assert second.health is GpuHealth.OK


@pytest.mark.parametrize("sizing", ["exact", "success", 100])
def test_every_reply_to_a_sizing_call_is_handled(stage: Stage, sizing: str | int) -> None:
    world, gpu = one_gpu()
    gpu.sizing(sizing)  # type: ignore[arg-type]
    source = stage.play(world)
    quiet = only(source.read()).utilization
    assert quiet is not None
    assert quiet.rows == ()


def test_rows_over_100_percent_are_not_changed(stage: Stage) -> None:
    """Attribution drops and counts them; the source does not hide them."""
    world, gpu = one_gpu()
    gpu.rows(0, [Row(7, 0, 4_000_000_000), Row(8, 0, 55, memory=10, encoder=3, decoder=2)])
    read = only(stage.play(world).read()).utilization
    assert read is not None
    assert [(row.pid, row.sm_percent) for row in read.rows] == [(7, 4_000_000_000), (8, 55)]
    assert (read.rows[1].memory_percent, read.rows[1].encoder_percent, read.rows[1].decoder_percent) == (10, 3, 2)


def test_work_is_seen_at_once_after_the_wall_clock_was_set_back(stage: Stage) -> None:
    """The driver's timestamps follow the wall clock; an earlier one may be hours ahead of it."""
    world = World(epoch_us=STEPPED_EPOCH_US - 3_600_000_000)  # the driver's clock after the step
    gpu = world.gpu()
    gpu.typical()
    for at_us in range(0, 60_000_000, 139_000):
        gpu.sample(at_us, 7, 60)
    source = stage.play(world)
    device_clock_ahead = 3600
    stage.advance(10)
    source.read()  # the agent's clock is an hour ahead of the driver's
    stage.clock.step_wall(-device_clock_ahead)
    seen = []
    for _ in range(3):
        stage.advance(5)
        read = only(source.read()).utilization
        assert read is not None
        assert read.since_us < read.read_at_us
        seen.append([row.sm_percent for row in read.rows])
    assert seen == [[60], [60], [60]]


@pytest.mark.parametrize("told_together", [True, False])
def test_energy_is_read_before_utilisation_so_that_the_rows_cover_the_energy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, told_together: bool
) -> None:
    order: list[str] = []

    def noting(function: str) -> Callable[..., object]:
        original = getattr(NvmlApi, function)

        def noted(*arguments: object) -> object:
            order.append(function)
            return original(*arguments)

        return noted

    for function in ("fields", "energy_mj", "utilization"):
        monkeypatch.setattr(NvmlApi, function, noting(function))
    world, _ = one_gpu()
    if not told_together:
        world.error(3, function="nvmlDeviceGetFieldValues")
    stage.play(world).read()
    assert order == (["fields", "utilization"] if told_together else ["fields", "energy_mj", "utilization"])


# ---------------------------------------------------------------------------- MIG


def mig_world() -> World:
    world, gpu = one_gpu()
    gpu.mig_mode(0, enabled=True)
    gpu.mig_slots(7)
    first = gpu.mig(0, 0, uuid="MIG-a", gpu_instance_id=1, name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", sm_count=60)
    second = gpu.mig(0, 5, uuid="MIG-b", gpu_instance_id=9, name="NVIDIA H100", gpu_slices=1, memory_mb=9728)
    first.memory(0, total_bytes=40 * GIB, used_bytes=5 * GIB, reserved_bytes=GIB)
    second.memory(0, total_bytes=10 * GIB, used_bytes=GIB)
    first.compute(0, [Listed(20, 4 * GIB, 1, 0)])
    second.no_processes(0)
    gpu.compute(0, [Listed(20, 4 * GIB, 1, 0)])
    return world


def test_mig_instances_are_found_after_unused_indices_with_their_memory_and_processes(stage: Stage) -> None:
    reading = only(stage.play(mig_world()).read())
    assert reading.mig is not None
    first, second = reading.mig
    assert (first.uuid, first.gpu_instance_id, first.compute_instance_id) == ("MIG-a", 1, 0)
    assert (first.profile, first.sm_count) == ("3g.40gb", 60)
    assert first.memory == DeviceMemory(40 * GIB, 5 * GIB, 34 * GIB, GIB)
    assert first.processes == (ListedProcess(20, ProcessKind.COMPUTE, 4 * GIB, 1, 0),)
    assert (second.uuid, second.profile) == ("MIG-b", "1g.10gb")  # from its size, if it is not in the name
    assert second.processes == ()


@pytest.mark.parametrize(
    ("function", "code"),
    [("nvmlDeviceGetUUID", 999), ("nvmlDeviceGetUUID", 2), ("nvmlDeviceGetMemoryInfo_v2", 999)],
)
def test_a_failing_mig_instance_is_reported_and_affects_no_other(stage: Stage, function: str, code: int) -> None:
    world, gpu = one_gpu()
    gpu.mig_mode(0, enabled=True)
    gpu.mig(0, 0, uuid="MIG-healthy", gpu_instance_id=1).memory(0, total_bytes=GIB, used_bytes=0)
    failing = gpu.mig(0, 1, uuid="MIG-failing", gpu_instance_id=2)
    failing.memory(0, total_bytes=GIB, used_bytes=0)
    world.error(code, on=failing, function=function)
    read = stage.play(world).read()
    reading = only(read)
    assert reading.energy_mj is not None
    assert reading.mig is not None
    assert reading.mig[0].memory is not None
    assert [m.uuid for m in reading.mig if m.memory is not None] == ["MIG-healthy"]
    assert read.reason is not None
    assert "mig 1" in read.reason


def test_refused_mig_instances_do_not_affect_the_gpus_figures(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.mig_mode(0, enabled=True)
    gpu.mig(0, 0, uuid="MIG-a", gpu_instance_id=1)
    world.error(4, function="nvmlDeviceGetMigDeviceHandleByIndex")
    reading = only(stage.play(world).read())
    assert reading.memory is not None
    assert reading.mig == ()
    assert reading.health is GpuHealth.DEGRADED


# ---------------------------------------------------------------------------- accounting and events


def test_accounting_reports_each_process_that_ended_since_the_last_read_once(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.accounting_mode(0, enabled=True)
    gpu.accounting(0, 1, start_us=0, time_ms=50, running=False)  # ended before the first read
    gpu.accounting(0, 2, start_us=0)
    gpu.compute(0, [Listed(2, GIB)])
    gpu.compute(2_000_000, [])
    gpu.accounting(2_000_000, 2, start_us=0, time_ms=2000, running=False, gpu_percent=40, max_memory_bytes=GIB)
    gpu.accounting(2_000_000, 3, start_us=1_200_000, time_ms=300, running=False, max_memory_bytes=None)
    source = stage.play(world)
    assert only(source.read()).accounting == ()
    stage.advance(3)
    assert only(source.read()).accounting == (
        AccountingRecord(2, STEPPED_EPOCH_US, 2000, 40, 0, GIB, running=False),
        AccountingRecord(3, STEPPED_EPOCH_US + 1_200_000, 300, 0, 0, None, running=False),
    )
    stage.advance(3)
    assert only(source.read()).accounting == ()


def test_xid_errors_are_counted_per_gpu_and_not_latched(stage: Stage) -> None:
    world = World()
    first, second = world.gpu(), world.gpu()
    first.typical()
    second.typical()
    second.xid(1_000_000, 79)
    second.xid(1_100_000, 48)
    source = stage.play(world)
    source.read()
    stage.advance(2)
    deadline_s = time.monotonic() + 20
    while (counts := [(g.xid_errors, g.last_xid) for g in source.read().gpus]) != [(0, None), (2, 48)]:
        assert time.monotonic() < deadline_s, counts
        time.sleep(0.02)


def test_xid_counts_survive_a_reload_of_the_driver(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.xid(1_000_000, 31)
    world.error(9, from_us=5_000_000, until_us=6_000_000)
    source = stage.play(world)
    source.read()
    stage.advance(2)
    deadline_s = time.monotonic() + 20
    while only(source.read()).xid_errors != 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    stage.advance(3.5)
    assert source.read().state is SourceState.UNAVAILABLE
    stage.advance(60)
    assert only(source.read()).xid_errors == 1


def test_the_xid_of_a_loss_is_reported_while_the_gpu_is_lost(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.xid(1_000_000, 79)
    world.error(15, on=gpu, from_us=1_100_000)
    source = stage.play(world)
    assert only(source.read()).xid_errors == 0
    stage.advance(2)
    deadline_s = time.monotonic() + 20
    while (lost := only(source.read())).xid_errors != 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
        stage.advance(1)
    assert (lost.health, lost.last_xid, lost.memory) == (GpuHealth.FAILED, 79, None)


# ---------------------------------------------------------------------------- faults


@pytest.mark.parametrize("others", [0, 1])
def test_a_failing_gpu_has_an_increasing_back_off(stage: Stage, others: int) -> None:
    world, gpu = one_gpu()
    for _ in range(others):
        world.gpu().typical()
    world.error(15, on=gpu)
    source = stage.play(world)
    before = stage.calls("nvmlDeviceGetHandleByIndex_v2")
    for _ in range(60):
        source.read()
        stage.advance(1)
    assert stage.calls("nvmlDeviceGetHandleByIndex_v2") - before - others <= 7  # at 0, 1, 3, 7, 15, 31 s


def test_an_unidentified_gpu_is_reported_by_its_index(stage: Stage) -> None:
    world = World()
    healthy, failing = world.gpu(), world.gpu()
    healthy.typical()
    world.error(999, on=failing, function="nvmlDeviceGetUUID")
    read = stage.play(world).read()
    assert len(read.gpus) == 1
    assert read.reason is not None
    assert read.reason.startswith("GPU 1: ")


def test_one_reason_is_reported_once_for_all_its_figures(stage: Stage) -> None:
    world, gpu = one_gpu()
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetEncoderUtilization"):
        world.error(999, on=gpu, function=function)
    reason = only(stage.play(world).read()).reason
    assert reason is not None
    assert reason.startswith("utilization, temperature, encoder: ")
    assert reason.count("unknown error") == 1


def test_the_drivers_not_available_value_is_absent(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.power_mw(0, 0xFFFFFFFF)
    gpu.energy_mj(0, 0xFFFFFFFFFFFFFFFF)
    reading = only(stage.play(world).read())
    assert (reading.power_w, reading.energy_mj) == (None, None)


def test_a_failed_compute_list_is_not_an_empty_one(stage: Stage) -> None:
    world, gpu = one_gpu()
    gpu.unset(0, "compute")
    assert only(stage.play(world).read()).processes is None


def test_no_gpu_is_unavailable_with_a_reason(stage: Stage) -> None:
    read = stage.play(World()).read()
    assert read.state is SourceState.UNAVAILABLE
    assert read.reason is not None
    assert "no GPU is visible" in read.reason


# ---------------------------------------------------------------------------- hangs


def test_one_of_four_gpus_hangs_and_the_others_answer_within_the_deadline(stage: Stage) -> None:
    world = World()
    gpus = [world.gpu() for _ in range(4)]
    for gpu in gpus:
        gpu.typical()
    world.hang(on=gpus[2], function="nvmlDeviceGetMemoryInfo_v2", from_us=1_000_000, until_us=100_000_000)
    source = stage.play(world, deadline_s=3.0)
    assert [gpu.health for gpu in source.read().gpus] == [GpuHealth.OK] * 4
    stage.advance(2)
    hanging_calls = stage.calls("nvmlDeviceGetMemoryInfo_v2")
    for attempt in range(2):
        started_s = time.monotonic()
        read = source.read()
        took_s = time.monotonic() - started_s
        assert took_s < 3.0 + 2.0
        assert [gpu.health for gpu in read.gpus] == [GpuHealth.OK, GpuHealth.OK, GpuHealth.FAILED, GpuHealth.OK]
        assert all(gpu.memory is not None for gpu in read.gpus if gpu.health is GpuHealth.OK)
        assert read.state is SourceState.DEGRADED
        assert read.reason is not None
        assert "GPU 2: no answer" in read.reason
        # Three GPUs each time; the fourth had one call, and none is queued behind it.
        assert stage.calls("nvmlDeviceGetMemoryInfo_v2") - hanging_calls == 4 + 3 * attempt
        stage.advance(2)
    assert took_s < 2.0  # the second read does not wait for the GPU that hangs
    stage.advance(200)
    deadline_s = time.monotonic() + 20
    while source.read().state is not SourceState.OK:
        assert time.monotonic() < deadline_s, "the GPU answers again, and stays out"
        stage.advance(5)
        time.sleep(0.02)


@pytest.mark.long
def test_a_gpu_slower_than_the_deadline_has_old_figures_instead_of_none(stage: Stage) -> None:
    world, gpu = one_gpu()
    world.latency(400, on=gpu, function="nvmlDeviceGetUtilizationRates", from_us=1_000_000)
    source = stage.play(world, deadline_s=0.1)
    assert source.read().state is SourceState.OK
    answers = 0
    for _ in range(6):
        stage.advance(2)
        answers += only(source.read()).power_w is not None
        time.sleep(0.6)
    assert answers >= 2


def test_a_gpu_that_takes_seconds_to_initialise_is_waited_for_once(stage: Stage) -> None:
    """Without persistence mode the driver initialises a GPU at the first call."""
    world, gpu = one_gpu()
    world.latency(1_000, on=gpu, function="nvmlDeviceGetUUID")
    assert stage.play(world, deadline_s=0.2).read().state is SourceState.OK


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_hung_gpu_with_a_failing_driver_gets_no_second_call_or_thread(stage: Stage, code: int) -> None:
    world = World()
    failing, hung = world.gpu(), world.gpu()
    failing.typical()
    hung.typical()
    world.hang(on=hung, function="nvmlDeviceGetUtilizationRates", from_us=1_000_000, until_us=END_US)
    world.error(code, on=failing, function="nvmlDeviceGetFieldValues", from_us=1_000_000)
    source = stage.play(world, deadline_s=0.2)
    source.read()
    stage.advance(2)
    source.read()
    ratios, inits = stage.calls("nvmlDeviceGetUtilizationRates"), stage.calls("nvmlInitWithFlags")
    threads = threading.active_count()
    for _ in range(12):
        stage.advance(1)
        source.read()
    assert stage.calls("nvmlDeviceGetUtilizationRates") == ratios
    assert stage.calls("nvmlInitWithFlags") - inits <= 5  # after 1, 2, 4, 8 s
    assert threading.active_count() <= threads + 2


@pytest.mark.long
@pytest.mark.parametrize("function", ["nvmlEventSetFree", "nvmlShutdown", "nvmlEventSetWait_v2"])
def test_close_takes_a_bounded_time_during_a_hang(stage: Stage, function: str) -> None:
    world, _ = one_gpu()
    world.hang(function=function, until_us=END_US)
    source = stage.play(world)
    source.read()
    started_s = time.monotonic()
    source.close()
    assert time.monotonic() - started_s < 1.5 + 2.0


def test_gpus_are_read_concurrently(stage: Stage) -> None:
    """Eight slow GPUs take far less than eight times as long as one."""
    delay_ms = 20

    def took_s(gpus: int) -> float:
        world = World()
        for _ in range(gpus):
            world.gpu().typical()
        world.latency(delay_ms, function="nvmlDeviceGetUtilizationRates")
        world.latency(delay_ms, function="nvmlDeviceGetFieldValues")
        source = stage.play(world)
        source.read()
        best_s = float("inf")
        for _ in range(3):
            stage.advance(1)
            started_s = time.monotonic()
            source.read()
            best_s = min(best_s, time.monotonic() - started_s)
        source.close()
        return best_s

    assert took_s(8) < 4 * took_s(1)
