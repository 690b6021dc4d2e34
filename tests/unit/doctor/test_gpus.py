from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.doctor.findings import Finding, Verdict, is_blind
from otel_gpu.doctor.gpus import check_gpus, check_modes, parse_module_version
from otel_gpu.model import GpuHealth, GpuReading, SourceState
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.accounting import GpuAccounting, Mode
from otel_gpu.sources.nvml.inventory import UnidentifiedGpu
from tests.builders import failed_gpu, gpu, gpu_read, listed, memory, mig
from tests.nvml_stage import Stage
from tests.nvml_stub.world import World
from tests.unit.doctor.hosts import complete_gpu

NOWHERE = Path("/nowhere")


def findings(read: GpuRead | None = None, proc_root: Path = NOWHERE) -> dict[str, Finding]:
    """Findings by subject."""
    found = check_gpus(gpu_read(complete_gpu()) if read is None else read, proc_root)
    by_subject = {finding.subject: finding for finding in found}
    assert len(by_subject) == len(found)
    return by_subject


def test_without_nvml_the_verdict_is_blind_with_the_reason() -> None:
    read = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: the driver is not loaded", errors=1)
    nvml = findings(read)["nvml"]
    assert (nvml.verdict, nvml.found) == (Verdict.BLIND, "NVML: the driver is not loaded")
    assert nvml.fix is not None


def test_one_lost_gpu_of_two_is_degraded_and_the_other_is_checked() -> None:
    read = gpu_read(complete_gpu(0), failed_gpu(1), state=SourceState.DEGRADED, reason="GPU 1: GPU is lost")
    found = findings(read)
    assert found["nvml"].verdict is Verdict.DEGRADED
    assert found["nvml"].found == "1 of 2 GPUs answering; GPU 1: GPU is lost"
    assert found["nvml"].fix is not None
    assert "gpu 0" in found
    assert "gpu 1" not in found


def test_a_lost_gpu_without_a_reason_is_degraded() -> None:
    assert findings(gpu_read(complete_gpu(0), failed_gpu(1)))["nvml"].verdict is Verdict.DEGRADED


def test_all_gpus_lost_is_blind() -> None:
    assert findings(gpu_read(failed_gpu(0), failed_gpu(1)))["nvml"].verdict is Verdict.BLIND


def test_a_sleeping_gpu_is_counted_and_is_ok() -> None:
    sleeping = gpu(1, None, health=GpuHealth.ASLEEP, reason="asleep")
    found = findings(gpu_read(complete_gpu(0), sleeping))
    assert found["nvml"].verdict is Verdict.OK
    assert "1 of 2 GPUs answering, 1 asleep and not woken" in found["nvml"].found
    assert "gpu 1" not in found


def test_a_host_whose_gpus_all_sleep_is_ok_and_is_not_woken(tmp_path: Path, stage: Stage) -> None:
    stage.bus.set_gpus(2)
    for index in range(2):
        stage.bus.set_status(index, "suspended")
    initialised = stage.calls("nvmlInitWithFlags")
    read = stage.play(World()).read()
    found = findings(read, with_module(tmp_path / "proc"))
    assert found["nvml"].verdict is Verdict.OK
    assert found["nvml"].found.startswith("2 GPUs asleep and not woken")
    assert not is_blind(list(found.values()))
    assert not is_blind(
        list(findings(read).values())
    )  # a driver that suspends GPUs is loaded, even without its /proc entry
    assert stage.calls("nvmlInitWithFlags") == initialised


# ---------------------------------------------------------------------------- failed before the first read

RESET = "as root: otel-gpu pause; nvidia-smi --gpu-reset -i {}; otel-gpu resume"


def first_check(stage: Stage, world: World) -> Finding:
    """The finding about NVML in the first read of this world."""
    source = stage.play(world)
    return check_gpus(source.read(), NOWHERE, source.unidentified)[0]


@pytest.mark.parametrize(("code", "reason", "fix"), [(15, "GPU is lost", "dmesg | grep -i xid; "), (16, "GPU req", "")])
def test_a_gpu_lost_before_the_first_read_is_counted_and_has_its_command(
    code: int, reason: str, fix: str, stage: Stage
) -> None:
    world = World()
    world.gpu().typical()
    world.error(code, on=world.gpu())
    found = first_check(stage, world)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith(f"1 of 2 GPUs answering; GPU 1: {reason}")
    assert fix + RESET.format(1) in (found.fix or "")


def test_a_host_whose_only_gpu_is_lost_is_blind_and_the_fix_is_not_about_containers(stage: Stage) -> None:
    world = World()
    world.error(15, on=world.gpu())
    found = first_check(stage, world)
    assert found.verdict is Verdict.BLIND
    assert found.found.startswith("0 of 1 GPU answering; GPU 0: GPU is lost")
    assert RESET.format(0) in (found.fix or "")
    assert "docker" not in (found.fix or "")


def test_a_driver_that_hangs_during_initialisation_has_its_own_fix() -> None:
    reason = "NVML: no answer within 30.0 s"
    found = findings(GpuRead(state=SourceState.UNAVAILABLE, reason=reason, errors=1))["nvml"]
    assert (found.verdict, found.found) == (Verdict.BLIND, reason)
    assert found.fix == "for the cause: dmesg | grep -i -e nvrm -e xid; often only a reboot helps"


def test_gpus_with_the_same_fault_share_a_fix() -> None:
    reasons = ("GPU requires a reset: …", "no answer within 2.0 s: …", "GPU requires a reset: …", "its cable")
    gpus = [UnidentifiedGpu(index, GpuHealth.FAILED, reason) for index, reason in enumerate(reasons)]
    (found, *_) = check_gpus(GpuRead(state=SourceState.UNAVAILABLE, reason="…"), NOWHERE, gpus)
    reset, hung, other = (
        (found.fix or "").partition("; for the cause")[0],
        "often only a reboot helps",
        "nvidia-smi -q -i 3",
    )
    assert reset == RESET.format("0,2")
    assert hung in (found.fix or "")
    assert "GPU 1 is only slow" in (found.fix or "")
    assert (found.fix or "").endswith(other)


def test_a_gpu_that_was_never_awake_is_counted_and_is_ok() -> None:
    read = gpu_read(complete_gpu(0), state=SourceState.DEGRADED, reason="GPU 1: asleep")
    (found, *_) = check_gpus(read, NOWHERE, [UnidentifiedGpu(1, GpuHealth.ASLEEP, "asleep")])
    assert (found.verdict, found.found) == (Verdict.OK, "1 of 2 GPUs answering, 1 asleep and not woken")


# ---------------------------------------------------------------------------- driver


def with_module(
    tmp_path: Path, text: str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\n"
) -> Path:
    """A ``/proc`` with the driver's version file."""
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_host_without_problems_has_no_fixes() -> None:
    found = findings()
    assert list(found) == ["nvml", "driver", "gpu 0"]
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert not any(finding.fix for finding in found.values())
    assert (found["nvml"].found, found["driver"].found) == ("1 of 1 GPU answering", "570.124.06")
    assert found["gpu 0"].found.endswith(": memory, processes, utilisation, power and energy are available")


def test_a_driver_without_a_version_is_degraded_because_counters_restart(tmp_path: Path) -> None:
    silent = replace(gpu_read(complete_gpu()), driver=None)
    found = findings(silent)
    assert found["nvml"].verdict is Verdict.OK
    assert found["driver"].verdict is Verdict.DEGRADED
    assert found["driver"].found == "version unknown: counters start at 0 at every start of the agent"
    assert "(kernel module 570.124.06)" in findings(silent, with_module(tmp_path))["driver"].found


def test_without_nvml_the_driver_finding_says_whether_the_module_is_loaded(tmp_path: Path) -> None:
    nothing = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: driver and library versions differ", errors=1)
    assert findings(nothing, with_module(tmp_path))["driver"] == Finding(
        "driver", Verdict.OK, "kernel module 570.124.06 is loaded"
    )
    missing = findings(nothing)["driver"]
    assert missing.verdict is Verdict.BLIND
    assert "modprobe nvidia" in (missing.fix or "")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:21:16 UTC 2025\n", "570.124.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65  Release Build\n", "580.65"),
        ("GCC version:  gcc version 12.2.0\n", None),
        ("", None),
    ],
)
def test_the_version_is_parsed_for_both_flavours_of_the_module(text: str, version: str | None) -> None:
    assert parse_module_version(text) == version


# ---------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (replace(complete_gpu(), memory=None), "lacks device memory"),
        (replace(complete_gpu(), processes=None), "lacks process lists"),
        (replace(complete_gpu(), utilization=None), "lacks utilisation per process"),
        (replace(complete_gpu(), power_w=None), "lacks power"),
        (replace(complete_gpu(), energy_mj=None), "lacks an energy counter"),
        (replace(complete_gpu(), memory=memory(reserved_gib=None)), "lacks reserved memory"),
        (replace(complete_gpu(), power_w=None, memory=None), "lacks device memory, power"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_figure_is_named(reading: GpuReading, words: str) -> None:
    finding = findings(gpu_read(reading))["gpu 0"]
    assert finding.verdict is Verdict.DEGRADED
    assert words in finding.found
    assert finding.fix


def test_a_mig_gpu_needs_no_process_lists_and_has_the_reason_for_missing_utilisation() -> None:
    reading = replace(complete_gpu(), processes=None, utilization=None, mig=(mig("MIG-1", (1, 0), [listed(1)]),))
    finding = findings(gpu_read(reading))["gpu 0"]
    assert "process lists" not in finding.found
    assert finding.found.endswith("lacks utilisation per process; MIG gives no utilisation per process")


# ---------------------------------------------------------------------------- accounting

IN_MIG_MODE = "not supported in MIG mode, where the driver keeps it off"


def accounted(*modes: Mode | str) -> list[Finding]:
    """Findings for GPUs with these modes; a text is the reason why it is not supported."""
    gpus = [
        GpuAccounting(index, "A", mode)
        if isinstance(mode, Mode)
        else GpuAccounting(index, "A", Mode.UNSUPPORTED, reason=mode)
        for index, mode in enumerate(modes)
    ]
    return only("accounting", check_modes(gpu_read(*(complete_gpu(index) for index in range(len(modes)))), gpus))


def only(subject: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_accounting_that_is_on_everywhere_is_ok() -> None:
    assert accounted(Mode.ON, Mode.ON) == [Finding("accounting", Verdict.OK, "on for 2 of 2 GPUs")]


def test_accounting_that_is_off_is_degraded_with_a_fix() -> None:
    (found,) = accounted(Mode.ON, Mode.OFF, Mode.OFF)
    assert found == Finding(
        "accounting",
        Verdict.DEGRADED,
        "on for 1 of 3 GPUs; off on GPU 1, 2: processes that start and end between two readings are missed",
        "as root: otel-gpu setup accounting, or nvidia-smi -am 1",
    )
    assert not is_blind([found])


def test_accounting_that_no_gpu_supports_is_unused_with_each_reason_once() -> None:
    assert accounted(IN_MIG_MODE, "not supported", IN_MIG_MODE) == [
        Finding("accounting", Verdict.UNUSED, f"{IN_MIG_MODE}: GPU 0, 2; not supported: GPU 1")
    ]
    (mixed,) = accounted(Mode.ON, IN_MIG_MODE)
    assert (mixed.verdict, mixed.found) == (Verdict.OK, f"on for 1 of 2 GPUs; {IN_MIG_MODE}: GPU 1")


def test_an_unknown_accounting_mode_is_degraded_and_a_lost_gpu_is_left_out() -> None:
    silent = [GpuAccounting(index, reason="no answer within 2.0 s") for index in (0, 1)]
    (found,) = only("accounting", check_modes(gpu_read(complete_gpu(0), failed_gpu(1)), silent))
    assert (found.verdict, found.found) == (Verdict.DEGRADED, "no answer within 2.0 s: GPU 0")
    assert found.fix
    assert check_modes(gpu_read(failed_gpu(0)), silent) == []
    assert only("accounting", check_modes(gpu_read(complete_gpu(0)), ())) == []


# ---------------------------------------------------------------------------- persistence mode


def persistence(*modes: bool | None) -> list[Finding]:
    gpus = (complete_gpu(index, persistent=mode) for index, mode in enumerate(modes))
    return only("persistence", check_modes(gpu_read(*gpus), ()))


def test_persistence_mode_is_ok_if_on_and_unused_if_not_supported() -> None:
    assert persistence(True, True) == [Finding("persistence", Verdict.OK, "on for 2 of 2 GPUs")]
    assert persistence(True, None) == [Finding("persistence", Verdict.OK, "on for 1 of 2 GPUs")]
    assert persistence(None) == [Finding("persistence", Verdict.UNUSED, "no GPU here supports it")]


def test_persistence_mode_that_is_off_is_degraded_with_a_fix() -> None:
    (found,) = persistence(True, False, False)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith("off on GPU 1, 2: ")
    assert found.fix == "as root: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
    assert not is_blind([found])
