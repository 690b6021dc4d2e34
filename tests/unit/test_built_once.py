"""``tools/built-once.sh``: a long build shows progress, and leaves no process behind."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(directory: Path, body: str, *, every_s: int) -> subprocess.CompletedProcess[str]:
    """Build a thing by this body of a function of shell, with a word every so many seconds."""
    script = f"""
        set -eu
        name=thing
        . {ROOT}/tools/built-once.sh
        tell_every_s={every_s}
        build() {{ {body}; }}
        built_once it 'a thing'
    """
    variables = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(directory)}
    return subprocess.run(
        ["sh", "-c", script], env=variables, capture_output=True, encoding="utf-8", timeout=60, check=False
    )


def test_a_long_build_reports_its_time_and_its_last_output(tmp_path: Path) -> None:
    result = build(tmp_path, "echo first; echo compiling; sleep 0.3; : >$1/made", every_s=0)
    said = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (0, "")
    assert said[0] == "thing: building a thing (once; this takes minutes)…"
    assert set(said[1:]) <= {"thing: 0 s: ", "thing: 0 s: first", "thing: 0 s: compiling"}
    assert "thing: 0 s: compiling" in said
    assert (tmp_path / "otel-gpu/it").exists()


@pytest.mark.parametrize(("body", "code"), [(": >$1/made", 0), ("echo no; false", 1)], ids=["built", "failed"])
def test_a_build_leaves_no_process_and_no_directory_behind(tmp_path: Path, body: str, code: int) -> None:
    seconds = 60_000 + tmp_path.stat().st_ino % 30_000  # of no other test
    result = build(tmp_path, body, every_s=seconds)
    assert result.returncode == code
    assert ("the build failed" in result.stderr) == bool(code)
    waiting = f"flock\0-w\0{seconds}\0".encode()
    deadline_s = time.monotonic() + 30
    while any(command(path).startswith(waiting) for path in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert not list((tmp_path / "otel-gpu").glob("build.*"))


def command(path: Path) -> bytes:
    """What a process was started with; nothing if it has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
