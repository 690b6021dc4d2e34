"""A simulated hour of the soak; ``make soak`` simulates a week."""

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
    """Run the soak in a new process, because it measures the process's memory."""
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


def test_sums_hold_and_memory_is_flat_over_an_hour_of_churn_faults_and_outages(tmp_path: Path) -> None:
    code, summary = soak("--days", "0.05", "--json", str(tmp_path / "soak.json"))
    assert summary["wrong"] == []
    assert code == 0
    assert json.loads((tmp_path / "soak.json").read_text(encoding="utf-8")) == summary
    assert summary["cycles"] >= 100
    assert summary["workloads"] > 50
    assert summary["receiver"]["taken"] > 0
    assert sum(summary["faults"].values()) > 0


def test_a_leak_is_found() -> None:
    code, summary = soak("--days", "0.05", "--leak")
    assert code == 1
    assert any(wrong.startswith("blocks grow: ") for wrong in summary["wrong"])
