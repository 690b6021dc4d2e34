"""Queries in dashboards, rules and pages, and the metrics and labels that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
DASHBOARDS: Final = ROOT / "deploy/compose/dashboards"
RULES: Final = ROOT / "deploy/prometheus/rules"
COOKBOOK: Final = ROOT / "docs/promql.md"

Json = dict[str, Any]

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_TOKEN: Final = re.compile(
    rf"{_STRING}"
    r"|\[[^\]]*\]"  # a window
    r"|\d[\w.]*"
    r"|\b(?:by|without|on|ignoring|group_left|group_right)\s*\((?P<grouping>[^)]*)\)"
    rf"|\b(?P<name>[a-zA-Z_:][\w:]*)(?![\w:]|\s*(?:(?:by|without)\s*)?\()(?P<braces>\{{(?:[^{{}}\"]|{_STRING})*\}})?"
)
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A query and its place."""

    where: str
    expr: str


def selectors(expr: str) -> list[str]:
    """Every ``name{…}`` of an expression."""
    found = [token for token in _TOKEN.finditer(expr) if token["name"] and token["name"] not in _WORDS]
    return [token["name"] + (token["braces"] or "") for token in found]


def names(expr: str) -> set[str]:
    """Every metric that an expression names."""
    return {selector.partition("{")[0] for selector in selectors(expr)}


def labels(expr: str) -> set[str]:
    """Every label that an expression selects or groups by."""
    grouped = {label.strip() for token in _TOKEN.finditer(expr) for label in (token["grouping"] or "").split(",")}
    matched = {label for one in selectors(expr) for label in re.findall(rf"(\w+)\s*(?:=~|!~|!=|=)\s*{_STRING}", one)}
    return (grouped | matched) - {""}


# ---------------------------------------------------------------------------- dashboards


def dashboards() -> dict[str, Json]:
    """Every dashboard that is shipped, by the name of its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))}


def of_dashboard(name: str, dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    """Its queries, with variables in them."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Asked(f"{name}: {panel['title']}, {target['refId']}", target["expr"])


def filled(text: str, chosen: Mapping[str, str]) -> str:
    """A text with its variables substituted as in Grafana; unknown names stay."""

    def value(found: re.Match[str]) -> str:
        return chosen.get(found[1] or found[2], found[0])

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


def several(values: Sequence[str]) -> str:
    """The regular expression that Grafana substitutes for several selected values."""
    escaped = [re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\\\1", value) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


# ---------------------------------------------------------------------------- rules, pages


def rules() -> list[Json]:
    """Every rule, an alert or one that records."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RULES.glob("*.yaml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Json]:
    """The alerts, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> dict[str, str]:
    """The expressions of recording rules by their metric."""
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def of_page(page: Path = COOKBOOK) -> list[Asked]:
    """The queries of a page."""
    found = re.findall(r"^```promql\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Asked(f"{page.name}, query {number}", text) for number, text in enumerate(found, start=1)]
