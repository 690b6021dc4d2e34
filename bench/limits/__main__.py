"""``python -m bench.limits``: measures what one agent holds, and writes docs/limits.md from it (four minutes).

``python -m bench.limits page`` writes the page from the record of the last run.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.limits.measure import measure_events, measure_host
from bench.limits.world import Size
from otel_gpu.version import __version__

PAGE: Final = Path(__file__).parents[2] / "docs/limits.md"
RECORD: Final = Path(__file__).with_name("record.json")
_SECTION: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MB: Final = 1e6


def measure() -> dict[str, Any]:
    """Run everything once."""
    with TemporaryDirectory(prefix="og-") as temporary:
        root = Path(temporary)
        hosts = [
            measure_host(Size(8, 8), root / "small"),
            measure_host(Size(16, 64), root / "large"),
            measure_host(Size(16, 200), root / "full"),
            measure_host(Size(16, 200), root / "prices", with_prices=True),
            measure_host(Size(16, 200), root / "load", slow_clients=250, scrapers=16),
        ]
        events = measure_events(root)
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "otel-gpu": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return {"about": about, "hosts": [asdict(host) for host in hosts], "events": asdict(events)}


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def page(text: str, record: Mapping[str, Any]) -> str:
    """The page with the recorded figures."""
    return _SECTION.sub(lambda found: "\n".join((found[1].rstrip(), *_lines(found[2], record), found[3])), text)


def _lines(section: str, record: Mapping[str, Any]) -> Iterator[str]:
    if section == "hosts":
        yield from _hosts(record)
    if section == "events":
        yield from _events(record["events"])


def _hosts(record: Mapping[str, Any]) -> Iterator[str]:
    about = record["about"]
    yield (
        f"Recorded on {about['date']} at {about['commit']}: otel-gpu {about['otel-gpu']}, Python {about['python']}, "
        f"{about['machine']}, on a machine with two cores."
    )
    yield ""
    yield (
        "| GPUs | processes | clients | series | left out | scrape MB | compressed MB | CPU ms per 5 s | RSS MB "
        "| peak MB |"
    )
    yield "|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    for host in record["hosts"]:
        load = (
            f"{host['slow_clients']} that never read, {host['scrapers']} scrapers" if host["scrapers"] else "1 scraper"
        )
        prices = ", with prices" if host["with_prices"] else ""
        yield (
            f"| {host['gpus']} | {host['processes']:,} | {load}{prices} | {host['series']:,} "
            f"| {host['dropped_series']:,} | {host['scraped_bytes'] / _MB:.1f} | {host['compressed_bytes'] / _MB:.2f} "
            f"| {host['cpu_ms_per_cycle']:,.0f} | {host['memory_bytes'] / _MB:.0f} | {host['peak_bytes'] / _MB:.0f} |"
        )


def _events(events: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{events['events']:,} events of an engine with {events['containers']} containers, sent at once: the agent "
        f"knows the last name after {events['seconds']:.1f} s,"
    )
    yield (
        f"with {events['cpu_s'] * 1e3:.0f} ms of CPU and {events['requests']} requests to the engine. One core follows "
        f"{round(events['events'] / events['cpu_s'], -4):,.0f} events per second."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or only write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("page", nargs="?", choices=("page",), help="write the page from the record")
    if not parser.parse_args(arguments).page:
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
