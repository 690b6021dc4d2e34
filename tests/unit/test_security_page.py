"""SECURITY.md claims what tests show: whatever it points at is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests"
POINTERS = sorted(set(re.findall(r"`((?:unit|e2e|real|property|fuzz)/[^`]*)`", PAGE)))
PROMISES = "Promises"
ATTACKS = ("What a hostile container can do to the agent", "What it can do to figures")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def has_test(pointer: str) -> bool:
    """Whether the target of a pointer is a file with at least one test function."""
    path = TESTS / pointer
    if path.suffix != ".py" or not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))


@pytest.mark.parametrize("pointer", POINTERS)
def test_every_target_of_a_claim_is_a_file_with_a_test(pointer: str) -> None:
    assert has_test(pointer)


@pytest.mark.parametrize("pointer", ["unit/nothing.py", "unit", "fuzz/", "builders.py"])
def test_a_target_without_a_test_is_found(pointer: str) -> None:
    assert not has_test(pointer)


@pytest.mark.parametrize("heading", [PROMISES, *ATTACKS])
def test_every_promise_and_every_answer_to_an_attack_has_a_test(heading: str) -> None:
    found = rows(heading)
    assert len(found) >= 8
    columns = 2 if heading == PROMISES else 3
    for row in found:
        assert len(row) == columns, row
        assert all(row), row
        assert [pointer for pointer in re.findall(r"`([^`]+)`", row[-1]) if has_test(pointer)], row[0]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE):
        assert (ROOT / target).exists(), target


def test_the_privileges_it_names_are_those_of_the_manifests() -> None:
    daemonset = (ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"CAP_([A-Z_]+)", PAGE):
        assert name in daemonset
