"""Accounting mode, switched through the real nvidia-ml-py on the stub, and by the command as a user sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pynvml
import pytest

from otel_gpu.cli.setup import describe
from otel_gpu.errors import Unavailable
from otel_gpu.sources.nvml.accounting import GpuAccounting, Mode, accounting, is_done
from otel_gpu.sources.nvml.api import NvmlApi
from tests.cli import otel_gpu
from tests.nvml_stub.stage import Stage, handle, open_stage
from tests.nvml_stub.world import World, WorldGpu

NAME = "NVIDIA H100 80GB HBM3"
AS_ROOT = ("docker run --user 0 --cap-add SYS_ADMIN", "capabilities: {add: [SYS_ADMIN]}")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with open_stage(tmp_path, monkeypatch) as opened:
        yield opened


def world_of(gpus: int = 1, *, root: bool = True) -> tuple[World, list[WorldGpu]]:
    """A world of idle GPUs, accounting off and persistence mode on."""
    world = World(root=root)
    made = [world.gpu() for _ in range(gpus)]
    for gpu in made:
        gpu.typical()
    return world, made


def switched(wanted: Mode | None = Mode.ON, *, deadline_s: float = 30.0) -> tuple[GpuAccounting, ...]:
    return accounting(NvmlApi(), deadline_s=deadline_s, wanted=wanted)


# ---------------------------------------------------------------------------- what becomes of a GPU


def test_accounting_is_switched_on_once_and_off_again_on_every_gpu(stage: Stage) -> None:
    stage.play(world_of(2)[0])  # NVML stays initialised, as in a driver that stays loaded
    before = stage.calls("nvmlDeviceSetAccountingMode")
    assert [(gpu.index, gpu.name, gpu.mode, gpu.changed) for gpu in switched()] == [
        (0, NAME, Mode.ON, True),
        (1, NAME, Mode.ON, True),
    ]
    assert [(gpu.mode, gpu.changed) for gpu in switched()] == [(Mode.ON, False)] * 2
    assert stage.calls("nvmlDeviceSetAccountingMode") == before + 2
    assert pynvml.nvmlDeviceGetAccountingMode(handle(1)) == pynvml.NVML_FEATURE_ENABLED
    assert [(gpu.mode, gpu.changed) for gpu in switched(Mode.OFF)] == [(Mode.OFF, True)] * 2
    assert [(gpu.mode, gpu.changed) for gpu in switched(Mode.OFF)] == [(Mode.OFF, False)] * 2


def test_reading_changes_nothing(stage: Stage) -> None:
    stage.play(world_of()[0])
    before = stage.calls("nvmlDeviceSetAccountingMode")
    assert switched(None) == (GpuAccounting(0, NAME, Mode.OFF, persistent=True),)
    assert stage.calls("nvmlDeviceSetAccountingMode") == before


def test_nvml_is_shut_down(stage: Stage) -> None:
    world = world_of()[0]
    stage.play(world)
    pynvml.nvmlShutdown()
    assert switched()[0].changed
    assert stage.library.nvmlShutdown() == pynvml.NVML_ERROR_UNINITIALIZED


def test_without_root_the_reason_names_the_privilege_and_enabled_gpus_are_done(stage: Stage) -> None:
    world, (_, on) = world_of(2, root=False)
    on.accounting_mode(0, enabled=True)
    stage.play(world)
    gpus = switched()
    assert [(gpu.mode, gpu.changed) for gpu in gpus] == [(Mode.OFF, False), (Mode.ON, False)]
    assert gpus[0].reason is not None
    assert all(words in gpus[0].reason for words in AS_ROOT)
    assert not is_done(gpus, Mode.ON)
    assert is_done(gpus[1:], Mode.ON)


def test_mig_mode_and_gpus_without_accounting_are_not_a_failure(stage: Stage) -> None:
    world, (_, partitioned, old) = world_of(3)
    partitioned.mig_mode(0, enabled=True)
    old.unset(0, "accounting_mode")
    stage.play(world)
    gpus = switched()
    assert [gpu.mode for gpu in gpus] == [Mode.ON, Mode.UNSUPPORTED, Mode.UNSUPPORTED]
    assert [gpu.reason for gpu in gpus[1:]] == [
        "not supported in MIG mode, where the driver keeps it off",
        "not supported",
    ]
    assert is_done(gpus, Mode.ON)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetAccountingMode"])
def test_a_failing_gpu_does_not_affect_others(stage: Stage, function: str) -> None:
    world, (lost, _) = world_of(2)
    world.error(pynvml.NVML_ERROR_GPU_IS_LOST, on=lost, function=function)
    stage.play(world)
    gpus = switched()
    assert [gpu.mode for gpu in gpus] == [Mode.UNKNOWN, Mode.ON]
    assert (gpus[0].reason or "").startswith("GPU is lost: it fell off the bus or is inaccessible")
    assert not is_done(gpus, Mode.ON)


def test_a_call_that_hangs_ends_at_the_deadline(stage: Stage) -> None:
    world, (stuck, _) = world_of(2)
    world.hang(on=stuck, function="nvmlDeviceSetAccountingMode", until_us=1_000_000)
    stage.play(world)
    gpus = switched(deadline_s=0.5)
    stage.clock.set_us(2_000_000)  # let the thread go
    assert gpus[0].reason is not None
    assert gpus[0].reason.startswith("no answer within ")
    assert gpus[1].mode is Mode.ON


def test_a_failure_while_switching_leaves_the_mode_as_it_was_with_the_reason(stage: Stage) -> None:
    world, (gpu,) = world_of()
    world.error(pynvml.NVML_ERROR_IN_USE, on=gpu, function="nvmlDeviceSetAccountingMode")
    stage.play(world)
    assert switched() == (GpuAccounting(0, NAME, Mode.OFF, reason="in use", persistent=True),)


def test_a_change_without_effect_is_reported(stage: Stage) -> None:
    class Deaf(NvmlApi):
        def set_accounting(self, handle: object, *, enabled: bool) -> None:
            """Nothing happens."""

    stage.play(world_of()[0])
    (gpu,) = accounting(Deaf(), deadline_s=30.0, wanted=Mode.ON)
    assert (gpu.mode, gpu.changed, gpu.reason) == (Mode.OFF, False, "the driver reported success but did not change it")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda world: world.error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED), "NVML: the NVIDIA driver is not loaded"),
        (lambda _: None, "NVML: no GPU is visible"),
    ],
    ids=["no driver", "no gpu"],
)
def test_without_nvml_or_a_gpu_there_is_nothing_to_switch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[World], None], reason: str
) -> None:
    world = World()
    spoil(world)
    monkeypatch.setenv("NVML_STUB_WORLD", str(world.write(stage.path)))
    with pytest.raises(Unavailable, match=reason):
        switched()


# ---------------------------------------------------------------------------- the lines


def test_a_line_names_the_gpu_and_the_result() -> None:
    gpus = [
        GpuAccounting(9, "A", Mode.ON, changed=True, persistent=True),
        GpuAccounting(10, "Long", Mode.ON, persistent=False),
        GpuAccounting(11, "B\x1b", Mode.OFF, reason="not permitted"),
        GpuAccounting(12, "C", Mode.UNSUPPORTED, reason="not supported", persistent=False),
        GpuAccounting(13, reason="no answer within 30.0 s"),
    ]
    assert describe(gpus, Mode.ON).splitlines() == [
        "GPU 9   A           accounting is on now",
        (
            "GPU 10  Long        accounting was on already; persistence mode is off, so it is lost when the driver "
            "unloads; to keep it, as root: nvidia-smi -i 10 -pm 1"
        ),
        "GPU 11  B\N{REPLACEMENT CHARACTER}          accounting is still off: not permitted",
        "GPU 12  C           accounting not supported",
        "GPU 13  NVIDIA GPU  accounting is unknown: no answer within 30.0 s",
    ]


def test_a_mode_that_is_off_cannot_be_lost() -> None:
    gpus = [GpuAccounting(0, "A", Mode.OFF, changed=True, persistent=False)]
    assert describe(gpus, Mode.OFF) == "GPU 0  A  accounting is off now\n"


# ---------------------------------------------------------------------------- the command


@pytest.fixture
def played(stub_dir: Path, tmp_path: Path) -> Callable[[World], Mapping[str, str]]:
    """The environment of a command on a world."""

    def environment(world: World) -> Mapping[str, str]:
        return {
            "LD_LIBRARY_PATH": str(stub_dir),
            "NVML_STUB_WORLD": str(world.write(tmp_path / "world")),
            "NVML_STUB_CALLS": str(tmp_path / "calls"),
        }

    return environment


def test_the_command_switches_every_gpu_prints_a_line_each_and_starts_nothing_else(
    played: Callable[[World], Mapping[str, str]], tmp_path: Path
) -> None:
    result = otel_gpu("setup", "accounting", environment=played(world_of(2)[0]))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "".join(f"GPU {index}  {NAME}  accounting is on now\n" for index in (0, 1))
    calls = dict(line.split() for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines())
    assert calls["nvmlDeviceSetAccountingMode"] == "2"
    assert not [name for name in calls if name.startswith("nvmlEvent") or "Processes" in name]
    off = otel_gpu("setup", "accounting", "--off", environment=played(world_of(2)[0]))
    assert (off.returncode, off.stdout.count("accounting was off already")) == (0, 2)


def test_the_command_fails_with_the_fix_if_it_is_not_root(played: Callable[[World], Mapping[str, str]]) -> None:
    result = otel_gpu("setup", "accounting", environment=played(world_of(root=False)[0]))
    (line,) = result.stdout.splitlines()
    assert result.returncode == 1
    assert line.startswith(f"GPU 0  {NAME}  accounting is still off: not permitted: run as root")
    assert result.stderr == ""


def test_the_command_without_nvml_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    result = otel_gpu("setup", "accounting", environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert result.stderr.startswith("otel-gpu: NVML: libnvidia-ml.so.1 cannot be loaded: ")


def test_doctor_reports_accounting_with_the_fix_and_switches_nothing(
    played: Callable[[World], Mapping[str, str]], tmp_path: Path
) -> None:
    result = otel_gpu("doctor", "--environment", "host", environment=played(world_of()[0]))
    (line, fix) = result.stdout.partition("accounting  ")[2].splitlines()[:2]
    assert line.split(maxsplit=3)[:3] == ["off", "on", "GPU"]
    assert fix.strip() == "fix: as root: otel-gpu setup accounting, or nvidia-smi -am 1"
    assert "nvmlDeviceSetAccountingMode" not in (tmp_path / "calls").read_text(encoding="utf-8")
