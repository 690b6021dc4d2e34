"""A simulated hour of the soak; the week is ``make soak``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def soak(*arguments: str) -> tuple[int, dict[str, Any]]:
    """In a process of its own: what others keep in this one is not the agent's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "100 %" in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_an_hour_of_churn_faults_and_outages_add_up_and_stay_flat(tmp_path: Path) -> None:
    code, told = soak("--days", "0.05", "--json", str(tmp_path / "soak.json"))
    assert told["wrong"] == []
    assert code == 0
    assert json.loads((tmp_path / "soak.json").read_text(encoding="utf-8")) == told
    assert told["cycles"] >= 100
    assert told["workloads"] > 50
    assert told["receiver"]["taken"] > 0
    assert sum(told["faults"].values()) > 0


def test_a_leak_is_found() -> None:
    code, told = soak("--days", "0.05", "--leak")
    assert code == 1
    assert any(wrong.startswith("blocks grow: ") for wrong in told["wrong"])
