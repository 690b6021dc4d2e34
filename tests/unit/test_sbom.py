"""The bill of materials that ``make sbom`` writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

from otel_gpu.version import __version__

ROOT: Final = Path(__file__).parents[2]
TOOL: Final = ROOT / "tools/sbom.py"
RUNTIME: Final = (ROOT / "constraints/runtime.txt").read_text(encoding="utf-8")


def make(out: Path, epoch: str | None = "1700000000") -> bytes:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    if epoch is not None:
        environment["SOURCE_DATE_EPOCH"] = epoch
    subprocess.run([sys.executable, TOOL, out], check=True, capture_output=True, env=environment, timeout=60)
    return out.read_bytes()


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make(tmp_path_factory.mktemp("sbom") / "sbom.cdx.json"))
    return found


def test_it_is_cyclonedx_with_what_its_schema_requires(sbom: dict[str, Any]) -> None:
    """https://cyclonedx.org/docs/1.6/json: bomFormat, specVersion; of components, type and name; of hashes, both."""
    assert (sbom["bomFormat"], sbom["specVersion"], sbom["version"]) == ("CycloneDX", "1.6", 1)
    assert uuid.UUID(sbom["serialNumber"].removeprefix("urn:uuid:")).version == 5
    assert sbom["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    own = sbom["metadata"]["component"]
    assert (own["type"], own["name"], own["version"]) == ("application", "otel-gpu", __version__)
    assert own["licenses"] == [{"expression": "Apache-2.0"}]
    for component in sbom["components"]:
        assert component["type"] == "library"
        assert component["purl"] == component["bom-ref"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert component["licenses"], component["name"]
        for licence in component["licenses"]:
            assert set(licence) == {"expression"} or set(licence["license"]) in ({"id"}, {"name"})
        assert component["hashes"]
        for one in component["hashes"]:
            assert one["alg"] == "SHA-256"
            assert re.fullmatch(r"[0-9a-f]{64}", one["content"])


def test_every_package_pinned_for_linux_has_all_its_hashes(sbom: dict[str, Any]) -> None:
    entries = re.split(r"\n(?=\S)", RUNTIME.strip())
    pinned = {
        entry.partition("==")[0]: set(re.findall(r"sha256:([0-9a-f]{64})", entry))
        for entry in entries
        if "sys_platform == 'win32'" not in entry
    }
    assert {one["name"]: {each["content"] for each in one["hashes"]} for one in sbom["components"]} == pinned


def test_the_versions_are_those_that_are_installed(sbom: dict[str, Any]) -> None:
    assert all(metadata.version(one["name"]) == one["version"] for one in sbom["components"])


def test_references_are_unique_and_every_component_is_a_dependency(sbom: dict[str, Any]) -> None:
    own = sbom["metadata"]["component"]["bom-ref"]
    references = [own, *(one["bom-ref"] for one in sbom["components"])]
    assert len(set(references)) == len(references)
    graph = {one["ref"]: one["dependsOn"] for one in sbom["dependencies"]}
    assert set(graph) == set(references)
    reached, waiting = set(), [own]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += graph[one]
    assert reached == set(references)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, undated = (make(tmp_path / name, epoch) for name, epoch in (("a", "1"), ("b", "1"), ("c", None)))
    assert first == again
    assert "timestamp" not in json.loads(undated)["metadata"]


def test_it_names_no_address_to_fetch_anything_from(sbom: dict[str, Any]) -> None:
    assert re.findall(r"https?://[^\"/]+", json.dumps(sbom)) == ["http://cyclonedx.org"]
