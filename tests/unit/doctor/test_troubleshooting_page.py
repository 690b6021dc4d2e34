"""docs/troubleshooting.md has an entry for every subject of the doctor."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from otel_gpu import doctor
from otel_gpu.config import SETTINGS
from otel_gpu.sources.names.candidates import Kind

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/troubleshooting.md").read_text(encoding="utf-8")
FINDING_FUNCTIONS = {"ok", "unused", "degraded", "blind", "Finding", "check_address"}


def subjects() -> set[str]:
    """Every subject in the code; the first word of one with a number or a name."""
    found: set[str] = {str(kind) for kind in Kind}
    for path in Path(doctor.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            first: ast.expr | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in FINDING_FUNCTIONS
                and node.args
            ):
                first = node.args[0]
            elif isinstance(node, ast.Call) and ast.unparse(node).startswith("partial(check_address, "):
                first = node.args[1]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("()").split(",")[0] == "subject":
                first = node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value
            if isinstance(first, ast.JoinedStr):
                first = first.values[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value.strip())
    return found


def test_the_subjects_are_found_in_the_code() -> None:
    assert {"nvml", "gpu", "device files", "otlp", "listen", "compat", "clock", "state", "pod", "docker"} <= subjects()


@pytest.mark.parametrize("subject", sorted(subjects()))
def test_every_subject_has_an_entry(subject: str) -> None:
    assert re.search(rf"^### {re.escape(subject)}$", PAGE, re.MULTILINE)


def test_every_entry_is_a_subject() -> None:
    assert set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE)) == subjects()


def test_links_have_targets() -> None:
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in anchors
        else:
            assert (REPOSITORY / "docs" / target).exists()


def test_every_flag_on_the_page_exists() -> None:
    ours = {setting.flag for setting in SETTINGS} | {"--format"}
    others = {"--gpus", "--pid", "--user", "--cap-add", "--device", "--tmpfs", "--cgroupns", "--unix-socket", "--now"}
    others |= {"--query-gpu", "--all-namespaces", "--as"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= ours | others
