"""The table of packages in ARCHITECTURE.md agrees with the imports, and names every module."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import grimp

from otel_gpu.cli.commands import COMMANDS

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
EVERYWHERE = {"errors", "version", "bounded_io"}
ALL = {"agent", "cli"}


def test_packages_import_what_the_table_says() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    stated = {package: set(re.findall(r"`(\w+)`", column)) for package, column in rows if package not in ALL}
    graph = grimp.build_graph("otel_gpu")
    imported = defaultdict[str, set[str]](set)
    for module in graph.modules - {"otel_gpu"}:
        package = module.split(".")[1]
        others = (other.split(".") for other in graph.find_modules_directly_imported_by(module))
        imported[package] |= {names[1] for names in others if len(names) > 1} - {package} - EVERYWHERE
    packages = {path.parent.name for path in (PAGE.parent / "otel_gpu").glob("*/__init__.py")}
    assert {package for package, _ in rows} == packages
    assert {package: imported[package] for package in packages - ALL} == stated


def test_every_module_is_named_with_its_package() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Packages")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)/` \|(.*)\|[^|]*\|$", section, re.MULTILINE))
    inside = dict(re.findall(r"^\* `(\w+)/`(.*?)(?=^\*|^$)", section, re.MULTILINE | re.DOTALL))
    commands = {path.stem for path in (PAGE.parent / "otel_gpu/cli").glob("*.py")} & {
        *COMMANDS
    }  # "a module per command"
    unnamed = []
    for path in (PAGE.parent / "otel_gpu").glob("*/**/*.py"):
        package, *rest = path.relative_to(PAGE.parent / "otel_gpu").parts
        text = inside[rest[0]] if package == "sources" and len(rest) > 1 else rows[package]
        is_exempt = (
            path.stem == "__init__" or path.stem.endswith("_pb2") or (package == "cli" and path.stem in commands)
        )
        if not is_exempt and f"`{path.stem}`" not in text:
            unnamed.append(f"{package}/{'/'.join(rest)}")
    assert unnamed == []
