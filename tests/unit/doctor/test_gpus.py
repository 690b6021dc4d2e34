from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.doctor.findings import Finding, Verdict, is_blind
from otel_gpu.doctor.gpus import examine_gpus, examine_modes, parse_module_version
from otel_gpu.model import GpuHealth, GpuReading, SourceState
from otel_gpu.setup import GpuAccounting, Mode
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.roll import Nameless
from tests.builders import failed_gpu, gpu, gpu_read, listed, memory, mig
from tests.nvml_stage import Stage
from tests.nvml_stub.world import World
from tests.unit.doctor.hosts import complete

NOWHERE = Path("/nowhere")


def findings(read: GpuRead | None = None, proc_root: Path = NOWHERE) -> dict[str, Finding]:
    """Findings by subject."""
    found = examine_gpus(gpu_read(complete()) if read is None else read, proc_root)
    by_subject = {finding.subject: finding for finding in found}
    assert len(by_subject) == len(found)
    return by_subject


def test_without_nvml_attribution_is_blind_and_the_reason_is_told() -> None:
    read = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: the driver is not loaded", errors=1)
    nvml = findings(read)["nvml"]
    assert (nvml.verdict, nvml.found) == (Verdict.BLIND, "NVML: the driver is not loaded")
    assert nvml.fix is not None


def test_one_lost_gpu_of_two_degrades_and_the_other_is_examined() -> None:
    read = gpu_read(complete(0), failed_gpu(1), state=SourceState.DEGRADED, reason="GPU 1: GPU is lost")
    found = findings(read)
    assert found["nvml"].verdict is Verdict.DEGRADED
    assert found["nvml"].found == "1 of 2 GPUs answering; GPU 1: GPU is lost"
    assert found["nvml"].fix is not None
    assert "gpu 0" in found
    assert "gpu 1" not in found


def test_a_lost_gpu_degrades_even_without_a_reason() -> None:
    assert findings(gpu_read(complete(0), failed_gpu(1)))["nvml"].verdict is Verdict.DEGRADED


def test_all_gpus_lost_is_blindness() -> None:
    assert findings(gpu_read(failed_gpu(0), failed_gpu(1)))["nvml"].verdict is Verdict.BLIND


def test_a_gpu_that_sleeps_is_told_and_is_no_fault() -> None:
    sleeping = gpu(1, None, health=GpuHealth.ASLEEP, reason="asleep")
    found = findings(gpu_read(complete(0), sleeping))
    assert found["nvml"].verdict is Verdict.OK
    assert "1 of 2 GPUs answering, 1 asleep and not woken" in found["nvml"].found
    assert "gpu 1" not in found


def test_gpus_that_all_sleep_are_told_and_are_no_blindness(tmp_path: Path, stage: Stage) -> None:
    stage.bus.set_gpus(2)
    for index in range(2):
        stage.bus.set_status(index, "suspended")
    initialised = stage.calls("nvmlInitWithFlags")
    read = stage.play(World()).read()
    found = findings(read, with_module(tmp_path / "proc"))
    assert found["nvml"].verdict is Verdict.OK
    assert found["nvml"].found.startswith("2 GPUs asleep and not woken")
    assert not is_blind(list(found.values()))
    assert not is_blind(list(findings(read).values()))  # a driver that lets GPUs sleep is loaded, whatever /proc tells
    assert stage.calls("nvmlInitWithFlags") == initialised


# ---------------------------------------------------------------------------- failed before anybody asked

RESET = "as root: otel-gpu pause; nvidia-smi --gpu-reset -i {}; otel-gpu resume"


def at_first_sight(stage: Stage, world: World) -> Finding:
    """What is said of NVML by a doctor who has never seen this host before."""
    source = stage.play(world)
    return examine_gpus(source.read(), NOWHERE, source.nameless)[0]


@pytest.mark.parametrize(("code", "reason", "fix"), [(15, "GPU is lost", "dmesg | grep -i xid; "), (16, "GPU req", "")])
def test_a_gpu_that_was_lost_before_is_counted_and_gets_the_exact_command(
    code: int, reason: str, fix: str, stage: Stage
) -> None:
    world = World()
    world.gpu().typical()
    world.error(code, on=world.gpu())
    found = at_first_sight(stage, world)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith(f"1 of 2 GPUs answering; GPU 1: {reason}")
    assert fix + RESET.format(1) in (found.fix or "")


def test_the_only_gpu_lost_is_blindness_that_no_container_mends(stage: Stage) -> None:
    world = World()
    world.error(15, on=world.gpu())
    found = at_first_sight(stage, world)
    assert found.verdict is Verdict.BLIND
    assert found.found.startswith("0 of 1 GPU answering; GPU 0: GPU is lost")
    assert RESET.format(0) in (found.fix or "")
    assert "docker" not in (found.fix or "")


def test_a_driver_that_hangs_as_it_is_initialised_is_no_matter_of_containers() -> None:
    reason = "NVML: no answer within 30.0 s"
    found = findings(GpuRead(state=SourceState.UNAVAILABLE, reason=reason, errors=1))["nvml"]
    assert (found.verdict, found.found) == (Verdict.BLIND, reason)
    assert found.fix == "dmesg | grep -i -e nvrm -e xid says why; often only a reboot helps"


def test_gpus_with_the_same_trouble_are_mended_together_and_others_apart() -> None:
    reasons = ("GPU requires a reset: …", "no answer within 2.0 s: …", "GPU requires a reset: …", "its cable")
    gpus = [Nameless(index, GpuHealth.FAILED, reason) for index, reason in enumerate(reasons)]
    (found, *_) = examine_gpus(GpuRead(state=SourceState.UNAVAILABLE, reason="…"), NOWHERE, gpus)
    reset, hung, other = (found.fix or "").partition("; dmesg")[0], "often only a reboot helps", "nvidia-smi -q -i 3"
    assert reset == RESET.format("0,2")
    assert hung in (found.fix or "")
    assert "GPU 1 is only slow" in (found.fix or "")
    assert (found.fix or "").endswith(other)


def test_one_that_has_never_been_seen_awake_is_counted_and_no_fault() -> None:
    read = gpu_read(complete(0), state=SourceState.DEGRADED, reason="GPU 1: asleep")
    (found, *_) = examine_gpus(read, NOWHERE, [Nameless(1, GpuHealth.ASLEEP, "asleep")])
    assert (found.verdict, found.found) == (Verdict.OK, "1 of 2 GPUs answering, 1 asleep and not woken")


# ---------------------------------------------------------------------------- driver


def with_module(
    tmp_path: Path, text: str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\n"
) -> Path:
    """A ``/proc`` in which the driver says what it is."""
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_host_on_which_all_is_well_gets_no_fixes() -> None:
    found = findings()
    assert list(found) == ["nvml", "driver", "gpu 0"]
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert not any(finding.fix for finding in found.values())
    assert (found["nvml"].found, found["driver"].found) == ("1 of 1 GPU answering", "570.124.06")
    assert found["gpu 0"].found.endswith(": memory, processes, utilisation, power and energy are told")


def test_a_driver_that_does_not_tell_its_version_degrades_as_nothing_can_be_gone_on_with(tmp_path: Path) -> None:
    silent = replace(gpu_read(complete()), driver=None)
    found = findings(silent)
    assert found["nvml"].verdict is Verdict.OK
    assert found["driver"].verdict is Verdict.DEGRADED
    assert found["driver"].found == "of unknown version: counters start at 0 with every start of the agent"
    assert "its module is 570.124.06" in findings(silent, with_module(tmp_path))["driver"].found


def test_without_nvml_it_is_told_whether_the_module_is_loaded(tmp_path: Path) -> None:
    nothing = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: driver and library versions differ", errors=1)
    assert findings(nothing, with_module(tmp_path))["driver"] == Finding(
        "driver", Verdict.OK, "the kernel module 570.124.06 is loaded"
    )
    missing = findings(nothing)["driver"]
    assert missing.verdict is Verdict.BLIND
    assert missing.fix is not None
    assert "modprobe nvidia" in missing.fix


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
def test_both_kinds_of_module_tell_their_version(text: str, version: str | None) -> None:
    assert parse_module_version(text) == version


# ---------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (replace(complete(), memory=None), "lacks device memory"),
        (replace(complete(), processes=None), "lacks process lists"),
        (replace(complete(), utilization=None), "lacks utilisation per process"),
        (replace(complete(), power_w=None), "lacks power"),
        (replace(complete(), energy_mj=None), "lacks an energy counter"),
        (
            replace(complete(), memory=memory(reserved_gib=None)),
            "lacks the driver's own memory apart from what is used",
        ),
        (replace(complete(), power_w=None, memory=None), "lacks device memory, power"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_figure_the_gpu_does_not_give_is_named(reading: GpuReading, words: str) -> None:
    finding = findings(gpu_read(reading))["gpu 0"]
    assert finding.verdict is Verdict.DEGRADED
    assert words in finding.found
    assert finding.fix


def test_a_partitioned_gpu_is_told_why_it_has_no_utilisation_and_needs_no_lists_of_its_own() -> None:
    reading = replace(complete(), processes=None, utilization=None, mig=(mig("MIG-1", (1, 0), [listed(1)]),))
    finding = findings(gpu_read(reading))["gpu 0"]
    assert "process lists" not in finding.found
    assert finding.found.endswith("lacks utilisation per process; MIG gives no utilisation per process")


# ---------------------------------------------------------------------------- accounting

IN_MIG_MODE = "not supported in MIG mode, where the driver keeps it off"


def accounted(*modes: Mode | str) -> list[Finding]:
    """What is found of GPUs with these modes; a text is why it is not supported."""
    gpus = [
        GpuAccounting(index, "A", mode)
        if isinstance(mode, Mode)
        else GpuAccounting(index, "A", Mode.UNSUPPORTED, reason=mode)
        for index, mode in enumerate(modes)
    ]
    return only("accounting", examine_modes(gpu_read(*(complete(index) for index in range(len(modes)))), gpus))


def only(subject: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_accounting_that_is_on_everywhere_is_well() -> None:
    assert accounted(Mode.ON, Mode.ON) == [Finding("accounting", Verdict.OK, "on for 2 of 2 GPUs")]


def test_accounting_that_is_off_degrades_with_the_exact_fix() -> None:
    (found,) = accounted(Mode.ON, Mode.OFF, Mode.OFF)
    assert found == Finding(
        "accounting",
        Verdict.DEGRADED,
        "on for 1 of 3 GPUs; off on GPU 1, 2: who comes and goes there between two looks is not seen",
        "as root: otel-gpu setup accounting, or nvidia-smi -am 1",
    )
    assert not is_blind([found])


def test_accounting_that_no_gpu_supports_is_unused_with_each_reason_once() -> None:
    assert accounted(IN_MIG_MODE, "not supported", IN_MIG_MODE) == [
        Finding("accounting", Verdict.UNUSED, f"{IN_MIG_MODE}: GPU 0, 2; not supported: GPU 1")
    ]
    (beside,) = accounted(Mode.ON, IN_MIG_MODE)
    assert (beside.verdict, beside.found) == (Verdict.OK, f"on for 1 of 2 GPUs; {IN_MIG_MODE}: GPU 1")


def test_a_gpu_that_answers_and_does_not_tell_its_mode_degrades_and_a_lost_one_is_told_of_elsewhere() -> None:
    silent = [GpuAccounting(index, reason="no answer within 2.0 s") for index in (0, 1)]
    (found,) = only("accounting", examine_modes(gpu_read(complete(0), failed_gpu(1)), silent))
    assert (found.verdict, found.found) == (Verdict.DEGRADED, "no answer within 2.0 s: GPU 0")
    assert found.fix
    assert examine_modes(gpu_read(failed_gpu(0)), silent) == []
    assert only("accounting", examine_modes(gpu_read(complete(0)), ())) == []


# ---------------------------------------------------------------------------- persistence mode


def persistence(*modes: bool | None) -> list[Finding]:
    gpus = (complete(index, persistent=mode) for index, mode in enumerate(modes))
    return only("persistence", examine_modes(gpu_read(*gpus), ()))


def test_persistence_mode_that_is_on_is_well_and_where_there_is_none_it_is_not_missed() -> None:
    assert persistence(True, True) == [Finding("persistence", Verdict.OK, "on for 2 of 2 GPUs")]
    assert persistence(True, None) == [Finding("persistence", Verdict.OK, "on for 1 of 2 GPUs")]
    assert persistence(None) == [Finding("persistence", Verdict.UNUSED, "no GPU here has such a mode")]


def test_persistence_mode_that_is_off_degrades_with_what_is_lost_and_the_exact_fix() -> None:
    (found,) = persistence(True, False, False)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith("off on GPU 1, 2: ")
    assert found.fix == "as root: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
    assert not is_blind([found])
