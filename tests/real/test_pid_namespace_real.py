"""``otel-gpu`` in a real pid namespace: a pid of another namespace is never attributed to a local process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli import clean_environment, command
from tests.nvml_stub.world import World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare"),
]

GIB = 1 << 30
FIX = "docker run --pid=host, in Kubernetes hostPID: true"
# In the namespace the shell is process 1, and sleep is process 2.
WITH_SECOND_PROCESS = 'sleep 60 & "$@"; code=$?; kill $!; exit $code'


def in_namespace(
    stub_dir: Path, tmp_path: Path, driver_version: str, *arguments: str, own_proc: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command on a driver that lists the pids 1 and 2 with 2 GiB and 1 GiB."""
    world = World(driver_version=driver_version)
    world.a100({1: 2 * GIB, 2: GIB}, used_bytes=10 * GIB)
    unshare = ["unshare", "--pid", "--fork", *(["--mount-proc"] if own_proc else [])]
    result = subprocess.run(
        [*unshare, "sh", "-c", WITH_SECOND_PROCESS, "sh", *command(*arguments)],
        env=clean_environment(world.environment(stub_dir, tmp_path)),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    if "unshare" in result.stderr and "Operation not permitted" in result.stderr:
        pytest.skip(f"not permitted: {result.stderr.strip()}")
    return result


def once(stub_dir: Path, tmp_path: Path, driver_version: str, *, own_proc: bool = True) -> dict[str, Any]:
    result = in_namespace(stub_dir, tmp_path, driver_version, "once", "--format", "json", own_proc=own_proc)
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    procfs = document["sources"][1]
    assert (procfs["name"], procfs["ok"], procfs["blind"]) == ("procfs", False, True)
    assert FIX in procfs["reason"]
    return document


def holders(document: dict[str, Any]) -> list[tuple[int, str | None, int | None]]:
    return sorted((process["pid"], process["name"], process["memory"]) for process in document["processes"])


@pytest.mark.parametrize("driver_version", ["525.147.05", "535.183.01", "560.35.03"])
def test_ambiguous_pids_of_older_drivers_are_measured_and_unidentified(
    stub_dir: Path, tmp_path: Path, driver_version: str
) -> None:
    document = once(stub_dir, tmp_path, driver_version)
    assert holders(document) == [(1, None, 2 * GIB), (2, None, GIB)]
    assert [workload["id"] for workload in document["workloads"]] == ["unidentified"]
    assert document["gpus"][0]["memory"]["measured"] == 3 * GIB


def test_pids_of_a_driver_that_reports_the_callers_namespace_are_matched(stub_dir: Path, tmp_path: Path) -> None:
    assert holders(once(stub_dir, tmp_path, "580.65.06")) == [(1, "sh", 2 * GIB), (2, "sleep", GIB)]


def test_pids_of_the_callers_namespace_are_not_looked_up_in_another_proc(stub_dir: Path, tmp_path: Path) -> None:
    document = once(stub_dir, tmp_path, "580.65.06", own_proc=False)
    assert holders(document) == [(1, None, 2 * GIB), (2, None, GIB)]


def test_doctor_reports_blindness_with_a_fix(stub_dir: Path, tmp_path: Path) -> None:
    result = in_namespace(stub_dir, tmp_path, "580.65.06", "doctor")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    finding = next(number for number, line in enumerate(lines) if line.startswith("blind") and "pid namespace" in line)
    assert lines[finding + 1].strip() == f"fix: {FIX}"
