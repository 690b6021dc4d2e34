"""Write the dashboards into the folders of Compose and of the chart, and the Prometheus rules into the chart.

python -m tools.dashboards          write them
python -m tools.dashboards --check  exit 1 if one of them is stale, and name it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.dashboards.fleet import FLEET
from tools.dashboards.grafana import rendered
from tools.dashboards.node import NODE
from tools.dashboards.quality import QUALITY
from tools.dashboards.workload import WORKLOAD

ROOT: Final = Path(__file__).parents[2]
DASHBOARDS: Final = (FLEET, NODE, WORKLOAD, QUALITY)
RULES: Final = Path("deploy/prometheus/rules")
# Helm reads no file outside its chart, so the chart has copies.
CHART: Final = Path("deploy/helm/otel-gpu/files")
COMPOSE: Final = Path("deploy/compose/dashboards")


def made(root: Path) -> Mapping[Path, str]:
    """Every generated file, by its path below the root of the repository."""
    found: dict[Path, str] = {}
    for dashboard in DASHBOARDS:
        text = json.dumps(rendered(dashboard), indent=2, ensure_ascii=False) + "\n"
        for folder in (COMPOSE, CHART / "dashboards"):
            found[folder / f"{dashboard.name}.json"] = text
    for path in sorted((root / RULES).glob("*.yaml")):
        found[CHART / "rules" / path.name] = path.read_text(encoding="utf-8")
    return found


def stale(root: Path) -> list[Path]:
    """Generated files that are out of date, and files that are no longer generated."""
    wanted = made(root)
    there = {path.relative_to(root) for folder in (COMPOSE, CHART) for path in (root / folder).rglob("*.*")}
    extra = {path for path in there - wanted.keys() if path.suffix in (".json", ".yaml")}
    wrong = {path for path, text in wanted.items() if path not in there or (root / path).read_text("utf-8") != text}
    return sorted(wrong | extra)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the files, or report those that are stale."""
    if arguments == ["--check"]:
        found = stale(root)
        sys.stderr.writelines(f"{path} is stale; run: make dashboards\n" for path in found)
        return int(bool(found))
    for path, text in made(root).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
