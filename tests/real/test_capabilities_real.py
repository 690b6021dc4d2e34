"""The agent as an unprivileged user: what each of its two capabilities is needed for."""

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
from tests.nvml_stub.world import World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes device nodes and changes users"),
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
    """A directory that all users may enter."""
    directory = Path(tempfile.mkdtemp(prefix="og-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another user's process that has a GPU open and that NVML does not list."""
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


def agent_environment(place: Path, stub: Path) -> dict[str, str]:
    """The environment of an agent on a GPU with 10 GiB in use, of which NVML lists 2."""
    world = World()
    world.a100({1: 2 * GIB}, used_bytes=10 * GIB)
    variables = world.environment(stub, place)
    (place / "world.txt").chmod(0o644)
    return {**variables, "OTEL_GPU_ENVIRONMENT": "host", "PYTHONPATH": str(REPOSITORY)}


def unprivileged(place: Path, capabilities: tuple[str, ...], *words: str) -> list[str]:
    """The command line of ``otel-gpu`` as the agent's user with these capabilities, on a host with our device nodes."""
    devices = place / "devices"
    devices.write_text("Character devices:\n  1 nvidia\n")
    bound = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount --bind "$0" /proc/devices && exec "$@"',
    ]
    program = [sys.executable, "-m", "tests.real.run_with_capabilities", str(AGENT_UID), ",".join(capabilities)]
    return [*bound, str(devices), *program, *words]


def run_as(place: Path, stub: Path, capabilities: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the agent's user with these capabilities."""
    return subprocess.run(
        unprivileged(place, capabilities, *words),
        env=clean_environment({**agent_environment(place, stub), "OTEL_GPU_CONTROL_SOCKET": "none"}),
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


def test_the_agent_has_the_user_and_capabilities_under_test(place: Path) -> None:
    """The other tests depend on it."""
    show = (
        "from tests.real.run_with_capabilities import drop_privileges\n"
        f"drop_privileges({AGENT_UID}, {list(BOTH)!r})\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    status = dict(re.findall(r"^(\w+):\t(.*)$", done.stdout, re.MULTILINE))
    mask = f"{1 << 19 | 1 << 2:016x}"
    assert status["Uid"].split() == [str(AGENT_UID)] * 4
    assert [status[key] for key in ("CapPrm", "CapEff", "CapBnd")] == [mask] * 3
    assert (status["CapInh"], status["CapAmb"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")


def test_with_both_capabilities_hidden_memory_is_inferred_for_the_process_with_the_gpu_open(
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
def test_without_both_capabilities_listed_memory_is_measured_and_hidden_memory_unattributed(
    place: Path, stub_dir: Path, holder: subprocess.Popen[str], capabilities: tuple[str, ...]
) -> None:
    document = once(place, stub_dir, capabilities)
    [gpu] = document["gpus"]
    assert gpu["memory"]["measured"] == 2 * GIB  # all users may read cgroups, so the workload is known
    assert {process["pid"]: process["memory"] for process in document["processes"]} == {1: 2 * GIB}
    assert gpu["memory"]["inferred"] == 0
    assert gpu["memory"]["unattributed"] == 8 * GIB
    [procfs] = [source for source in document["sources"] if source["name"] == "procfs"]
    assert not procfs["ok"] or procfs["reason"]
    assert "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH" in procfs["reason"]


def test_doctor_names_missing_capabilities(place: Path, stub_dir: Path, holder: subprocess.Popen[str]) -> None:
    without, with_both = (run_as(place, stub_dir, each, "doctor") for each in ((), BOTH))
    assert "CAP_SYS_PTRACE" in without.stdout
    assert "CAP_SYS_PTRACE" not in with_both.stdout


def test_with_both_capabilities_run_serves_saves_state_pauses_and_stops(
    place: Path, stub_dir: Path, holder: subprocess.Popen[str]
) -> None:
    own = place / "own"
    own.mkdir(mode=0o700)
    os.chown(own, AGENT_UID, AGENT_UID)
    places = {"OTEL_GPU_STATE_DIR": str(own / "state"), "OTEL_GPU_CONTROL_SOCKET": str(own / "control.sock")}
    environment = {**agent_environment(place, stub_dir), **places}
    flags = ("--prometheus", "--exporters", "none", "--interval", "1s", "--listen", "127.0.0.1:0")
    with agent_process(
        directory=place, environment=environment, words=unprivileged(place, BOTH, "run", *flags)
    ) as agent:
        hidden = f'gpu_attribution_method="inferred".*}} {8 * GIB}$'
        agent.until(lambda: bool(re.search(hidden, agent.get("/metrics").body, re.MULTILINE)))
        pausing = subprocess.run(
            unprivileged(place, (), "pause"),
            env=clean_environment(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert pausing.stdout.startswith("paused since "), pausing.stderr
        paused = r'^hw_status\{.*hw_state="paused".*\} 1$'
        agent.until(lambda: bool(re.search(paused, agent.get("/metrics").body, re.MULTILINE)))
        code, took_s = agent.end()
        assert (code, took_s < 5) == (0, True)
        assert "Traceback" not in agent.whole_stderr
    saved = own / "state" / "state"
    assert (saved.stat().st_uid, stat.S_IMODE(saved.stat().st_mode)) == (AGENT_UID, 0o600)
    assert str(holder.pid) in saved.read_text(encoding="ascii")
