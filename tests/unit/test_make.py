"""The Makefile where something is missing: a one-line error, and nothing left that breaks the next attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run make in this checkout, with nothing of a make above it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "CC", "VENV"))}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=kept | ({"PATH": path} if path is not None else {}),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """What was said besides make's own last word."""
    assert result.returncode == 2
    said, last = result.stderr.splitlines()
    assert last.startswith("make: *** [")
    return said


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Where an environment is to be set up."""
    return tmp_path / "venv"


def python(directory: Path, body: str) -> Path:
    """A Python that does what ``body``, a shell script, says."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_without_ensurepip_the_package_to_install_is_named_and_no_half_made_environment_stays(
    tmp_path: Path, venv: Path
) -> None:
    lacking = python(tmp_path, f'case "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"')
    said = complaint(make(f"{venv}/.venv", f"VENV={venv}", f"PYTHON={lacking}"))
    assert "apt install python3-venv" in said
    assert not venv.exists()


def test_an_environment_that_was_made_by_half_is_made_again(tmp_path: Path, venv: Path) -> None:
    """Debian's venv leaves ``bin/python`` behind where ensurepip is missing."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch(mode=0o755)
    log = tmp_path / "log"
    recording = python(tmp_path, f'echo "$@" >>{log}')
    assert make(f"{venv}/.venv", f"VENV={venv}", f"PYTHON={recording}").returncode == 0
    assert log.read_text(encoding="utf-8").splitlines()[-1] == f"-m venv {venv}"
    assert "up to date" in make(f"{venv}/.venv", f"VENV={venv}", f"PYTHON={recording}").stdout


def test_an_environment_whose_making_failed_does_not_count_as_made(tmp_path: Path, venv: Path) -> None:
    failing = python(tmp_path, f'case "$2" in venv) mkdir -p {venv}/bin; touch {venv}/bin/python; exit 1;; esac')
    for _ in range(2):
        result = make(f"{venv}/.venv", f"VENV={venv}", f"PYTHON={failing}")
        assert result.returncode == 2
        assert "setting up" in result.stderr


def test_a_python_that_is_too_old_is_reported_with_the_fix(tmp_path: Path, venv: Path) -> None:
    assert "needs Python 3.11" in complaint(
        make(f"{venv}/.venv", f"VENV={venv}", f"PYTHON={python(tmp_path, 'exit 1')}")
    )


def test_tests_without_a_c_compiler_are_one_line_at_once(venv: Path) -> None:
    said = complaint(make("test", f"VENV={venv}", "CC=no-such-compiler"))
    assert "need a C compiler" in said
    assert '"no-such-compiler"' in said
    assert not venv.exists()


def test_an_existing_compiler_gives_no_error(tmp_path: Path) -> None:
    compiler = python(tmp_path, "exit 0")
    assert make("compiler", f"CC={compiler}").stderr == ""


def test_the_first_command_of_a_new_user_needs_no_collector() -> None:
    recipe = make("-n", "run").stdout
    assert "otel-gpu run --source auto --exporters prometheus --view" in recipe
