"""The shipped Collector configurations, as far as they can be checked without a Collector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_gpu.config import SETTINGS

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "collector-config"
MANIFEST = ROOT / "tools" / "collector" / "manifest.yaml"
FILES = sorted(DIRECTORY.glob("*.yaml"))
KINDS = ("receivers", "processors", "exporters", "extensions")

# Renamed around v0.148; the old names still work, with a warning.
OLD_NAMES = {
    "processors": {"cumulativetodelta", "k8sattributes", "resourcedetection"},
    "exporters": {"loadbalancing", "otlp", "otlphttp", "prometheusremotewrite"},
}

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def load(file: Path) -> dict[str, Any]:
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def components(document: dict[str, Any], kind: str) -> set[str]:
    """The types of a kind's components, without the names that tell two of one type apart."""
    return {name.partition("/")[0] for name in document.get(kind, {})}


def header(file: Path) -> str:
    """The comment at the top of a file."""
    return file.read_text(encoding="utf-8").partition("\n\n")[0]


def strings(node: object) -> Iterator[str]:
    """Every string in a document, keys included."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from strings(key)
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)


@every_file
def test_flags_named_in_a_file_exist(file: Path) -> None:
    known = {setting.flag for setting in SETTINGS} | {"--web.enable-remote-write-receiver"}  # that one is Prometheus's
    assert set(re.findall(r"--[a-z][a-z.-]*[a-z]", file.read_text(encoding="utf-8"))) <= known


def test_there_are_configurations() -> None:
    assert len(FILES) >= 9


@every_file
def test_a_configuration_starts_with_its_collector_version_and_purpose(file: Path) -> None:
    version = load(MANIFEST)["dist"]["version"].removesuffix(".0")
    assert re.match(rf"# OpenTelemetry Collector v{re.escape(version)} \((core|contrib)(, k8s)?\): \S", header(file))


@every_file
def test_a_configuration_explains_exactly_the_variables_it_reads(file: Path) -> None:
    document = load(file)
    read = {name for text in strings(document) for name in re.findall(r"\$\{env:(\w+)", text)}
    # Two components get their variables in other ways.
    if "env" in document["processors"].get("resource_detection", {}).get("detectors", []):
        read.add("OTEL_RESOURCE_ATTRIBUTES")
    if "k8s_attributes" in document["processors"]:
        read.add(document["processors"]["k8s_attributes"]["filter"]["node_from_env_var"])
    # Names come first in a line; the text about them begins further to the right.
    lines = re.findall(r"^#   ([A-Z0-9_, ]+)", header(file), re.MULTILINE)
    assert {name for line in lines for name in re.findall(r"[A-Z0-9_]{5,}", line[:36])} == read


@every_file
def test_a_default_in_the_text_is_the_default_in_use(file: Path) -> None:
    explained = " ".join(line.removeprefix("#").strip() for line in header(file).splitlines())
    for text in strings(load(file)):
        for _, default in re.findall(r"\$\{env:(\w+):-([^}]+)\}", text):
            shown = "none" if default == "[]" else default
            assert re.search(rf"[(\s]{re.escape(shown)}[),;]", explained), default


@every_file
def test_no_component_has_a_deprecated_name(file: Path) -> None:
    document = load(file)
    for kind, old in OLD_NAMES.items():
        assert not components(document, kind) & old


@every_file
def test_every_component_is_used_and_every_pipeline_starts_with_a_limit_on_memory(file: Path) -> None:
    document = load(file)
    service = document["service"]
    for kind in KINDS[:3]:
        assert {name for pipeline in service["pipelines"].values() for name in pipeline[kind]} == set(document[kind])
    assert set(service["extensions"]) == set(document["extensions"])
    for pipeline in service["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
    assert document["processors"]["memory_limiter"]["check_interval"] == "1s"


@every_file
def test_exports_retried_without_limit_are_queued_on_disk_in_order(file: Path) -> None:
    for exporter in load(file)["exporters"].values():
        queue = exporter.get("sending_queue", {})
        on_disk = queue.get("storage") == "file_storage"
        assert (exporter.get("retry_on_failure", {}).get("max_elapsed_time") == "0s") == on_disk
        assert queue.get("num_consumers", 1) == 1


def test_series_that_differ_only_in_the_workload_stay_apart_on_their_way_to_prometheus() -> None:
    exporters = [
        exporter for file in FILES for name, exporter in load(file)["exporters"].items() if "prometheus" in name
    ]
    assert len(exporters) == 2
    for exporter in exporters:
        assert exporter["resource_to_telemetry_conversion"] == {"enabled": True}


def test_pods_are_found_by_resource_attributes_and_never_by_the_connection() -> None:
    processor = load(DIRECTORY / "kubernetes.yaml")["processors"]["k8s_attributes"]
    sources = [source for rule in processor["pod_association"] for source in rule["sources"]]
    assert sources == [
        {"from": "resource_attribute", "name": "k8s.pod.uid"},
        {"from": "resource_attribute", "name": "container.id"},
    ]
    assert {"k8s.container.name", "container.image.name"} <= set(processor["extract"]["metadata"])


def test_the_readme_has_every_file_in_its_table_and_no_other() -> None:
    readme = (DIRECTORY / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[([\w-]+\.yaml)\]\(\1\) \|", readme, re.MULTILINE) == sorted(
        (file.name for file in FILES), key=readme.index
    )


def test_the_collector_is_built_of_the_components_that_configurations_use() -> None:
    """Components are named by their module's last part, in one word: ``otlp_grpc`` is in ``otlpexporter``."""
    used = {(kind, name) for file in FILES for kind in KINDS for name in components(load(file), kind)}
    modules = {
        (kind, one["gomod"].split()[0].rpartition("/")[2].removesuffix(kind[:-1]))
        for kind in KINDS
        for one in load(MANIFEST)[kind]
    }
    named = {"otlp_grpc": "otlp", "otlp_http": "otlphttp"}
    needed = {(kind, named.get(name, name).replace("_", "")) for kind, name in used}
    # The file exporter is for tests, which read what came out.
    assert modules == needed | {("exporters", "file")}
