"""``python -m bench.cost.page``: writes the figures in docs/performance.md from the recorded runs of the bench."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.cost.extrapolation import Assumed, sums
from bench.cost.guard import RECORD as COUNTS
from bench.cost.report import as_markdown

PAGE: Final = Path(__file__).parents[2] / "docs/performance.md"
RECORDS: Final = Path(__file__).with_name("records")
_SECTION: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COUNTS: Final = {
    "driver_calls": "driver calls per GPU",
    "files_opened": "files opened",
    "python_calls": "calls of Python functions",
    "sent_bytes": "bytes sent",
    "allocations": "allocations",
    "peak_bytes": "peak of memory over that at the start, bytes",
}


def page(text: str) -> str:
    """The page with the recorded figures."""
    return _SECTION.sub(lambda found: "\n".join((found[1].rstrip(), *_lines(found[2]), found[3])), text)


def _lines(section: str) -> Iterator[str]:
    document = read("now")
    match section:
        case "figures":
            yield from _about(document)
            yield from as_markdown(document)
        case "story":
            yield from _story(read("before"), document)
        case "counts":
            yield from _counts(json.loads(COUNTS.read_text(encoding="utf-8")))
        case "usual":
            yield usual(document)
        case "sums":
            yield from _sums(document)


def read(name: str) -> dict[str, Any]:
    """A recorded run."""
    document: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def _about(document: Mapping[str, Any]) -> Iterator[str]:
    about, options = document["about"], document["options"]
    yield (
        f"Recorded on {about['date']} at {about['commit']}: otel-gpu {about['otel-gpu']}, nvitop-exporter "
        f"{about['nvitop-exporter']}, Python {about['python']}, {about['machine']}; {options['rounds']} turns of "
        f"{options['cycles']} cycles each, on a machine with two cores."
    )
    yield ""


def _story(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    yield "| M | driver calls per GPU | CPU, of nvitop-exporter's | scrape ms | RSS MB | 5 ms a call, of one GPU's |"
    yield "|---|--:|--:|--:|--:|--:|"
    for what, document in (("before", before), ("now", now)):
        ours, other = (
            next(each for each in document["figures"] if (each["tool"], each["world"]) == (tool, "M"))
            for tool in ("otel-gpu", "nvitop-exporter")
        )
        alone_s, together_s = document["pass_s"]
        yield (
            f"| {what} | {ours['driver_calls_per_gpu']:.1f} | {ours['cpu_ms'] / other['cpu_ms']:.2f} "
            f"| {ours['scrape_ms']:.1f} | {ours['rss_mb']:.0f} | {together_s / alone_s:.2f} |"
        )


def _counts(recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield f"| M | {' | '.join(f'a {part}' for part in recorded)} |"
    yield f"|---|{'--:|' * len(recorded)}"
    for name, what in _COUNTS.items():
        cells = (f"{counts[name]:,.10g}" if name in counts else "" for counts in recorded.values())
        yield f"| {what} | {' | '.join(cells)} |"


def usual(document: Mapping[str, Any]) -> str:
    """The cost of M at the default intervals, derived from the run, in which cycles are shorter."""
    assumed = Assumed()
    host = sums(document, assumed)[0]
    return (
        f"At the default intervals, with a cycle and a scrape every {assumed.interval_s:g} s and a push every "
        f"{assumed.export_interval_s:g} s, M takes {percent_of_a_core(document)} of one CPU core "
        f"({host.cpu_cores * 1e3 * assumed.interval_s:.1f} ms in each {assumed.interval_s:g} s)."
    )


def percent_of_a_core(document: Mapping[str, Any]) -> str:
    """The CPU of the agent on M at the default intervals, as on the page and in README.md."""
    return f"{sums(document, Assumed())[0].cpu_cores:.1%}".replace("%", " %")


def _sums(document: Mapping[str, Any]) -> Iterator[str]:
    assumed = Assumed()
    yield (
        f"| cycles of {assumed.interval_s:g} s, exports every {assumed.export_interval_s:g} s | hosts | GPUs "
        "| CPU, cores | memory GB | series | points per s | to Collectors, MB/s |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for each in sums(document, assumed):
        yield (
            f"| {each.what} | {each.hosts:,} | {each.gpus:,} | {each.cpu_cores:.3g} | {each.memory_gb:,.3g} "
            f"| {each.series:,} | {each.points_per_s:,.0f} | {each.received_bytes_per_s / 1e6:,.3g} |"
        )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stderr.write(f"{PAGE.name} is written\n")
