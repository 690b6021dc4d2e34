"""How the stub library plays a world: faults, events, clock and file, missing functions, the build itself."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from tests.nvml_stub.build import LIBRARY, BuildError, build, functions
from tests.nvml_stub.stage import Stage, code_of, handle, open_stage, typical
from tests.nvml_stub.world import Listed, World, stub_env

NO_INSTANCE = 0xFFFFFFFF
REPOSITORY = Path(__file__).parents[2]
S = 1_000_000


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with open_stage(tmp_path, monkeypatch) as opened:
        yield opened


def run_child(script: str, env: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---------------------------------------------------------------------------- faults


@pytest.mark.parametrize("code", [1, 3, 6, 9, 13, 15, 16, 18, 999])
def test_an_error_applies_to_its_gpu_function_and_time(stage: Stage, code: int) -> None:
    world, gpu = typical()
    world.gpu().typical()
    world.error(code, on=gpu, function="nvmlDeviceGetPowerUsage", from_us=1, until_us=2)
    stage.play(world)
    first, second = handle(0), handle(1)
    assert pynvml.nvmlDeviceGetPowerUsage(first) == 70_000
    stage.clock.set_us(1)
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, first) == code
    assert pynvml.nvmlDeviceGetPowerUsage(second) == 70_000
    assert pynvml.nvmlDeviceGetUtilizationRates(first).gpu == 0
    stage.clock.set_us(2)
    assert pynvml.nvmlDeviceGetPowerUsage(first) == 70_000


def test_a_lost_gpu_fails_by_index_and_an_error_on_everything_fails_init_but_not_shutdown(stage: Stage) -> None:
    world, gpu = typical()
    world.error(15, on=gpu, from_us=1)
    world.error(9, from_us=2)
    stage.play(world)
    stage.clock.set_us(1)
    assert code_of(handle) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert pynvml.nvmlDeviceGetCount() == 1
    stage.clock.set_us(2)
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED


def test_latency_delays_one_gpu_only(stage: Stage) -> None:
    world, gpu = typical()
    world.gpu().typical()
    world.latency(300, on=gpu, function="nvmlDeviceGetPower*")
    stage.play(world)
    first, second = handle(0), handle(1)
    started, meanwhile = time.monotonic(), 0
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(pynvml.nvmlDeviceGetPowerUsage, first)
        while not slow.done():
            pynvml.nvmlDeviceGetPowerUsage(second)
            meanwhile += 1
    assert time.monotonic() - started >= 0.3
    assert meanwhile > 100


def test_a_hang_ends_at_its_world_time_and_blocks_no_other_gpu_and_no_shutdown(stage: Stage) -> None:
    world, gpu = typical()
    world.gpu().typical()
    world.hang(on=gpu, function="nvmlDeviceGetTotalEnergyConsumption", from_us=1, until_us=5)
    stage.play(world)
    first, second = handle(0), handle(1)
    stage.clock.set_us(1)
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(pynvml.nvmlDeviceGetTotalEnergyConsumption, first)
        try:
            time.sleep(0.05)
            assert pynvml.nvmlDeviceGetTotalEnergyConsumption(second) == 1_000_000
            pynvml.nvmlShutdown()
            assert not hung.done()
        finally:
            stage.clock.set_us(5)
        assert hung.result(timeout=5) == 1_000_000


def test_a_process_with_a_call_that_never_returns_can_exit(tmp_path: Path) -> None:
    world, _ = typical()
    world.hang(function="nvmlDeviceGetPowerUsage")
    script = (
        "import pynvml, threading, time; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "threading.Thread(target=pynvml.nvmlDeviceGetPowerUsage, args=(h,), daemon=True).start()\n"
        "time.sleep(0.1); print(pynvml.nvmlDeviceGetTotalEnergyConsumption(h))"
    )
    env = stub_env(build(), world.write(tmp_path / "world"), calls=tmp_path / "calls")
    assert run_child(script, env) == "1000000\n"
    assert "nvmlDeviceGetPowerUsage 1\n" in (tmp_path / "calls").read_text()


def test_shutdown_and_init_under_load_are_safe(stage: Stage) -> None:
    stage.play(typical()[0])
    h, stop = handle(), threading.Event()

    def hammer() -> set[int]:
        seen = set()
        while not stop.is_set():
            milliwatts = ctypes.c_uint()
            seen.add(int(stage.library.nvmlDeviceGetPowerUsage(h, ctypes.byref(milliwatts))))
        return seen

    with ThreadPoolExecutor(2) as pool:
        hammering = [pool.submit(hammer) for _ in range(2)]
        for _ in range(50):
            pynvml.nvmlShutdown()
            pynvml.nvmlInit()
        stop.set()
        assert set().union(*(each.result() for each in hammering)) <= {0, pynvml.NVML_ERROR_UNINITIALIZED}


# ---------------------------------------------------------------------------- events


def test_an_event_reaches_sets_registered_before_its_time_once(stage: Stage) -> None:
    world, gpu = typical()
    other = world.gpu()
    gpu.xid(1, 31)
    other.xid(3, 43)
    gpu.event(3, "ecc_single", 0)
    gpu.xid(3, 79)
    gpu.xid(3, 48)
    stage.play(world)
    stage.clock.set_us(2)
    xid = pynvml.nvmlEventTypeXidCriticalError
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle()) & xid
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(), xid, events)
    assert code_of(pynvml.nvmlEventSetWait, events, 0) == pynvml.NVML_ERROR_TIMEOUT
    stage.clock.set_us(3)
    received = [pynvml.nvmlEventSetWait(events, 1000) for _ in range(2)]
    assert [(event.eventType, event.eventData) for event in received] == [(xid, 79), (xid, 48)]
    assert pynvml.nvmlDeviceGetIndex(received[0].device) == 0
    assert code_of(pynvml.nvmlEventSetWait, events, 20) == pynvml.NVML_ERROR_TIMEOUT
    assert code_of(pynvml.nvmlDeviceRegisterEvents, handle(), 1 << 40, events) == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlEventSetFree(events)
    assert code_of(pynvml.nvmlEventSetWait, events, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_wait_follows_the_clock_and_blocks_no_other_call(stage: Stage) -> None:
    world, gpu = typical()
    gpu.xid(10, 79)
    stage.play(world)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(), pynvml.nvmlEventTypeXidCriticalError, events)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pynvml.nvmlEventSetWait, events, 20_000)
        assert pynvml.nvmlDeviceGetPowerUsage(handle()) == 70_000
        pynvml.nvmlEventSetFree(pynvml.nvmlEventSetCreate())
        stage.clock.set_us(10)
        assert waiting.result(timeout=5).eventData == 79


# ---------------------------------------------------------------------------- the file, the clock, the library


def test_without_a_clock_file_world_time_is_the_system_clock(tmp_path: Path) -> None:
    world, gpu = typical()
    gpu.xid(300_000, 79)
    gpu.unset(10**15, "power_mw")
    script = (
        "import pynvml, time; before = time.time(); pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "s = pynvml.nvmlEventSetCreate(); pynvml.nvmlDeviceRegisterEvents(h, 8, s)\n"
        "assert pynvml.nvmlEventSetWait(s, 20000).eventData == 79\n"
        "stamp = pynvml.nvmlDeviceGetFieldValues(h, [83])[0].timestamp / 1e6\n"
        "assert before + 0.3 <= stamp <= time.time(), (before, stamp, time.time())"
    )
    run_child(script, stub_env(build(), world.write(tmp_path / "world")))


def test_an_epoch_sets_the_unix_time_of_the_world(stage: Stage) -> None:
    world = World(epoch_us=1_800_000_000 * S)
    world.gpu().typical()
    stage.play(world)
    stage.clock.set_us(7)
    assert pynvml.nvmlDeviceGetFieldValues(handle(), [83])[0].timestamp == 1_800_000_000 * S + 7


def test_the_world_is_read_again_only_after_the_last_shutdown(stage: Stage) -> None:
    stage.play(typical()[0])
    world = World()
    world.gpu("GPU-new")
    world.gpu("GPU-old")
    stage.play(world)
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetUUID(handle(1)) == "GPU-old"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("memery 0 0 1 2 3", "unknown key 'memery'"),
        ("energy_mj 0 1 5", "no gpu record for GPU 1"),
        ("energy_mj 0 0 -5", "'-5' is not a number"),
        ("energy_mj 0 0 18446744073709551616", "is not a number"),
        ("energy_mj 0 0", "energy_mj is missing"),
        ("energy_mj 0 0 1 2", "more than expected"),
        ("memory 0 0 10 5 6", "more than total"),
        ("power_mw 0 0/1 5", "no 'power_mw' for MIG instances"),
        ("compute 0 0 5", "a process is pid:bytes"),
        ("error 0 - * nvmlDeviceGetPowr 3", "no function is called"),
        ("error 5 4 * * 3", "ends before it begins"),
        ("gpu 2 GPU-x y", "out of turn"),
        ("sizing 0 maybe", "'maybe' is not a number"),
    ],
)
def test_a_bad_line_fails_init_with_its_number(
    stage: Stage, capfd: pytest.CaptureFixture[str], line: str, complaint: str
) -> None:
    stage.path.write_text(f"# a comment\ngpu 0 GPU-a a\n\n{line}\nenergy_mj 0 0 1\n")
    stage.monkeypatch.setenv("NVML_STUB_WORLD", str(stage.path))
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_UNKNOWN
    said = capfd.readouterr().err
    assert re.fullmatch(rf"nvml stub: {re.escape(str(stage.path))}:4: .*{re.escape(complaint)}.*\n", said)


def test_a_missing_world_fails_init(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_UNKNOWN
    stage.monkeypatch.setenv("NVML_STUB_WORLD", str(stage.path))
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_UNKNOWN
    first, second = capfd.readouterr().err.splitlines()
    assert "NVML_STUB_WORLD" in first
    assert str(stage.path) in second


def test_every_call_is_counted(stage: Stage) -> None:
    stage.play(typical()[0])
    before = stage.calls("nvmlDeviceGetPowerUsage")
    stage.monkeypatch.setenv("NVML_STUB_CALLS", str(stage.path.with_name("calls")))
    for _ in range(3):
        pynvml.nvmlDeviceGetPowerUsage(handle())
    assert stage.calls("nvmlDeviceGetPowerUsage") == before + 3
    assert stage.calls("nvmlNoSuchFunction") == 0
    pynvml.nvmlShutdown()
    written = dict(line.split() for line in stage.path.with_name("calls").read_text().splitlines())
    assert int(written["nvmlDeviceGetPowerUsage"]) == before + 3


def test_the_library_exports_every_listed_function(stage: Stage) -> None:
    assert [name for name in functions() if not hasattr(stage.library, name)] == []
    assert len(functions()) > 70
    assert not hasattr(stage.library, "world_load")


def test_variants_without_functions_and_with_longer_process_entries(tmp_path: Path) -> None:
    world, gpu = typical()
    gpu.compute(0, [Listed(10, 1000, 3, 4, 55), Listed(11, None)])
    lib_dir = build(without=["nvmlDeviceGetMemoryInfo_v2"], process_info_bytes=32)
    script = (
        "import ctypes, pynvml, struct; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "for ask in (lambda: pynvml.nvmlDeviceGetMemoryInfo(h, version=pynvml.nvmlMemory_v2),\n"
        "            lambda: pynvml.nvmlDeviceGetRunningProcessDetailList(h, pynvml.nvmlProcessDetailList_v1, 0)):\n"
        "    try: ask()\n"
        "    except pynvml.NVMLError_FunctionNotFound as error: print(error.value)\n"
        "pynvml.nvmlDeviceGetMemoryInfo(h); pynvml.nvmlDeviceGetConfComputeMemSizeInfo(h)\n"
        "count, raw = ctypes.c_uint(2), (ctypes.c_char * 64)()\n"
        "assert pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(count), raw) == 0\n"
        "print(*struct.iter_unpack('=I4xQIIQ', raw.raw))"
    )
    said = run_child(script, stub_env(lib_dir, world.write(tmp_path / "world"))).splitlines()
    assert said[:2] == ["13", "13"]
    assert said[2] == f"(10, 1000, 3, 4, 55) (11, {2**64 - 1}, {NO_INSTANCE}, {NO_INSTANCE}, 0)"


def test_concurrent_builds_give_one_library(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(lambda _: build(cache_dir=tmp_path, extra_flags=("-O0",)), range(3)))
    assert len(set(built)) == 1
    assert list(tmp_path.iterdir()) == built[:1]
    assert [path.name for path in built[0].iterdir()] == [LIBRARY]


def test_a_failed_build_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no function nvmlDeviceGetPowr"):
        build(without=["nvmlDeviceGetPowr"])
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match=r"^no C compiler: 'no-such-compiler' is not on PATH.*$"):
        build(cache_dir=tmp_path)
