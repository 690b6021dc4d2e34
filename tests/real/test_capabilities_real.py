"""The whole agent as an unprivileged user: what its two capabilities are for, and what is lost without each."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent_process import agent_process
from tests.cli import clean_environment
from tests.nvml_stub.world import Listed, World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes device nodes, and becomes somebody else"),
]

GIB: Final = 1 << 30
REPOSITORY: Final = Path(__file__).parents[2]
AGENT_UID, HOLDER_UID = 65_532, 65_533
BOTH: Final = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
HOLDER: Final = (
    "import mmap, os, sys\n"
    "uid = int(sys.argv.pop(1))\n"
    "os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)\n"
    "gpu, uvm = (os.open(path, os.O_RDWR) for path in sys.argv[1:])\n"
    "held = mmap.mmap(uvm, 1 << 30, mmap.MAP_PRIVATE)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter."""
    directory = Path(tempfile.mkdtemp(prefix="og-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Somebody else's process that has a GPU open, and whom NVML does not list."""
    devices = place / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidia-uvm"):
        os.mknod(devices / name, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        (devices / name).chmod(0o666)
    command = [sys.executable, "-c", HOLDER, str(HOLDER_UID), str(devices / "nvidia0"), str(devices / "nvidia-uvm")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def world_of_two(place: Path, stub: Path) -> dict[str, str]:
    """The environment of a GPU where NVML lists one of two processes."""
    world = World()
    gpu = world.gpu("GPU-one", name="NVIDIA A100-SXM4-80GB")
    gpu.typical()
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=10 * GIB)
    gpu.compute(0, [Listed(1, 2 * GIB)])
    file = world.write(place / "world.txt")
    file.chmod(0o644)
    return {
        "LD_LIBRARY_PATH": str(stub),
        "NVML_STUB_WORLD": str(file),
        "OTEL_GPU_ENVIRONMENT": "host",
        "PYTHONPATH": str(REPOSITORY),
    }


def lowered(capabilities: tuple[str, ...], *words: str) -> list[str]:
    return [sys.executable, "-m", "tests.real.lowered", str(AGENT_UID), ",".join(capabilities), *words]


def run_as(place: Path, stub: Path, capabilities: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """A command by the agent's user with these capabilities, on such a GPU."""
    return subprocess.run(
        lowered(capabilities, *words),
        env=clean_environment({**world_of_two(place, stub), "OTEL_GPU_CONTROL_SOCKET": "none"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=REPOSITORY,
    )


def once(place: Path, stub: Path, capabilities: tuple[str, ...]) -> dict[str, Any]:
    done = run_as(place, stub, capabilities, "once", "--format", "json", "--interval", "1s")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_it_is_the_user_and_the_capabilities_that_it_is_said_to_be(place: Path) -> None:
    """Else the tests below prove nothing."""
    show = (
        "from tests.real.lowered import lower\n"
        f"lower({AGENT_UID}, {list(BOTH)!r})\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    status = dict(re.findall(r"^(\w+):\t(.*)$", done.stdout, re.MULTILINE))
    mask = f"{1 << 19 | 1 << 2:016x}"
    assert status["Uid"].split() == [str(AGENT_UID)] * 4
    assert [status[key] for key in ("CapPrm", "CapEff", "CapBnd")] == [mask] * 3
    assert (status["CapInh"], status["CapAmb"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")


def test_with_both_whoever_has_a_gpu_open_is_found_and_holds_what_nvml_does_not_list(
    place: Path, stub_dir: Path, holder: subprocess.Popen[str]
) -> None:
    document = once(place, stub_dir, BOTH)
    [gpu] = document["gpus"]
    assert gpu["memory"]["measured"] == 2 * GIB
    assert gpu["memory"]["inferred"] == 8 * GIB
    assert gpu["memory"]["unattributed"] == 0
    assert holder.pid in {process["pid"] for process in document["processes"]}
    [procfs] = [source for source in document["sources"] if source["name"] == "procfs"]
    assert "not readable" not in (procfs["reason"] or "")


@pytest.mark.parametrize("capabilities", [(), BOTH[:1], BOTH[1:]], ids=["neither", *BOTH])
def test_without_either_what_nvml_lists_stays_and_what_it_hides_is_nobodys(
    place: Path, stub_dir: Path, holder: subprocess.Popen[str], capabilities: tuple[str, ...]
) -> None:
    document = once(place, stub_dir, capabilities)
    [gpu] = document["gpus"]
    assert gpu["memory"]["measured"] == 2 * GIB  # whose it is, cgroups tell, which everybody may read
    assert {process["pid"]: process["memory"] for process in document["processes"]} == {1: 2 * GIB}
    assert gpu["memory"]["inferred"] == 0
    assert gpu["memory"]["unattributed"] == 8 * GIB
    [procfs] = [source for source in document["sources"] if source["name"] == "procfs"]
    assert not procfs["ok"] or procfs["reason"]
    assert "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH" in procfs["reason"]


def test_doctor_names_missing_capabilities(place: Path, stub_dir: Path, holder: subprocess.Popen[str]) -> None:
    missing, there = (run_as(place, stub_dir, each, "doctor") for each in ((), BOTH))
    assert "CAP_SYS_PTRACE" in missing.stdout
    assert "CAP_SYS_PTRACE" not in there.stdout


def test_run_listens_keeps_counters_is_paused_and_ends_in_order_with_no_more_than_that(
    place: Path, stub_dir: Path, holder: subprocess.Popen[str]
) -> None:
    own = place / "own"
    own.mkdir(mode=0o700)
    os.chown(own, AGENT_UID, AGENT_UID)
    places = {"OTEL_GPU_STATE_DIR": str(own / "state"), "OTEL_GPU_CONTROL_SOCKET": str(own / "control.sock")}
    environment = {**world_of_two(place, stub_dir), **places}
    words = lowered(BOTH, "run", "--prometheus", "--exporters", "none", "--interval", "1s", "--listen", "127.0.0.1:0")
    with agent_process(directory=place, environment=environment, words=words) as agent:
        hidden = f'gpu_attribution_method="inferred".*}} {8 * GIB}$'
        agent.until(lambda: bool(re.search(hidden, agent.get("/metrics").body, re.MULTILINE)))
        asked = subprocess.run(
            lowered((), "pause"), env=clean_environment(environment), capture_output=True, text=True, check=False
        )
        assert asked.stdout.startswith("paused since "), asked.stderr
        paused = r'^hw_status\{.*hw_state="paused".*\} 1$'
        agent.until(lambda: bool(re.search(paused, agent.get("/metrics").body, re.MULTILINE)))
        code, took_s = agent.end()
        assert (code, took_s < 5) == (0, True)
        assert "Traceback" not in agent.whole_stderr
    kept = own / "state" / "state"
    assert (kept.stat().st_uid, stat.S_IMODE(kept.stat().st_mode)) == (AGENT_UID, 0o600)
    assert str(holder.pid) in kept.read_text(encoding="ascii")
