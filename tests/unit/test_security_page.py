"""SECURITY.md claims what tests show: whatever it points at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
POINTERS = sorted(set(re.findall(r"`((?:unit|e2e|real|property|fuzz)/[^`]*)`", PAGE)))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("pointer", POINTERS)
def test_every_target_of_a_claim_exists(pointer: str) -> None:
    path = ROOT / "tests" / pointer
    assert path.exists()
    assert path.is_dir() or "def test_" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("heading", ["What a hostile container can do to the agent", "What it can do to figures"])
def test_every_threat_is_answered_and_points_at_what_shows_it(heading: str) -> None:
    found = rows(heading)
    assert len(found) >= 8
    for threat, answer, shown in found:
        assert threat
        assert answer
        assert re.search(r"`[^`]+`|\[[^]]+\]\([^)]+\)", shown), threat


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE):
        assert (ROOT / target).exists(), target


def test_the_privileges_it_names_are_those_of_the_manifests() -> None:
    daemonset = (ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"CAP_([A-Z_]+)", PAGE):
        assert name in daemonset
