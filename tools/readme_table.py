"""Write the table in README.md: the workloads of the simulated host, at a fixed time.

python -m tools.readme_table          write it
python -m tools.readme_table --check  exit 1 if it is stale
"""

from __future__ import annotations

import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.export.table import render
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.version import __version__
from otel_gpu.view.builder import Subject, ViewBuilder

PAGE: Final = Path(__file__).parents[1] / "README.md"
_START_NS: Final = 1_767_261_600_000_000_000  # 2026-01-01 10:00:00 UTC
_HOST: Final = "node-1"
_INTERVAL_S: Final = 1
_WIDTH: Final = 120
_ROWS: Final = 8
"""Workloads in the table; the rest is counted."""
_BLOCK: Final = re.compile(r"(?<=^```\n)[^`\n]*SIMULATED HOST[^`]*(?=^```$)", re.MULTILINE)


def table() -> str:
    """The title and the largest workloads of ``otel-gpu once --source sim``, on a host of that name and width."""
    clock = ManualClock(wall_ns=_START_NS)
    host = SimulatedHost(demo_world(1), clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=AttributionOptions(),
    )
    engine.sample()
    clock.advance(_INTERVAL_S)
    report = engine.sample()
    engine.close()
    view = ViewBuilder(Subject(__version__, _HOST, _INTERVAL_S, "requested with --source sim")).build(report)
    lines = render(report, view, width=_WIDTH).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("WORKLOAD "))
    heading, *rows = takewhile(bool, lines[first:])
    shown = [lines[0], "", heading, *rows[:_ROWS], f"… {len(rows) - _ROWS} more"]
    return "".join(f"{line.rstrip()}\n" for line in shown)


def renewed(page: str) -> str:
    """The page with the current table. Raises ValueError for a page without a table."""
    if _BLOCK.search(page) is None:
        raise ValueError(f"{PAGE.name} has no table of a simulated host")
    return _BLOCK.sub(lambda _: table(), page, count=1)


def main(arguments: list[str]) -> int:
    """Write the page, or check whether it is stale."""
    page = PAGE.read_text(encoding="utf-8")
    if arguments == ["--check"]:
        return int(page != renewed(page))
    PAGE.write_text(renewed(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
