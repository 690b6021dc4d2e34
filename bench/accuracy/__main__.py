"""``python -m bench.accuracy``: play the worlds, print the table, fail if a target is missed."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.accuracy import table
from bench.accuracy.ours import BenchError
from bench.accuracy.results import collect
from bench.accuracy.run import FAMILIES, plan, play_all
from bench.accuracy.targets import CONSERVATION, Verdict, judge
from bench.accuracy.worlds import HOLDOUT, TUNE

_QUICK = 5
_FIGURES = re.compile(r"(<!-- made: figures -->\n\n).*(\n\n<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 if every target is reached, 1 if not (or the agent's answers cannot be scored), 2 for bad usage."""
    options = _parser().parse_args(arguments)
    names = options.family or list(FAMILIES)
    seeds = TUNE if options.set == "tune" else HOLDOUT
    jobs = plan([FAMILIES[name] for name in names], seeds, count=options.seeds, divide=_QUICK if options.quick else 1)
    try:
        results = collect(play_all(jobs, options.workers))
    except BenchError as error:
        sys.stderr.write(f"accuracy: {error}\n")
        return 1
    verdicts = judge(results)
    parts = table.sections(results, verdicts, names)
    for line in table.as_markdown(parts) if options.markdown else table.as_text(parts):
        print(line)
    if options.json is not None:
        document = {"set": options.set, **results.to_json(), "targets": [_plain(verdict) for verdict in verdicts]}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    failed = [verdict for verdict in verdicts if not verdict.passed]
    reached = f"{len(verdicts) - len(failed)} of {len(verdicts)} targets reached"
    print(reached)
    is_current = _page_is_current(options, "\n".join((*table.as_markdown(parts), "", reached)))
    for verdict in failed:
        print(f"FAIL {verdict.target.section}, {verdict.target.row}: {verdict}")
    gating = [verdict for verdict in failed if not options.quick or verdict.target.section == CONSERVATION]
    return 1 if (gating and options.gate) or not is_current else 0


def _page_is_current(options: argparse.Namespace, figures: str) -> bool:
    """Whether the page has these figures; with ``--write``, write them. Without a page: true."""
    if options.page is None:
        return True
    text = options.page.read_text(encoding="utf-8")
    updated = _FIGURES.sub(lambda found: f"{found[1]}{figures}{found[2]}", text)
    if options.write:
        options.page.write_text(updated, encoding="utf-8")
    elif updated != text:
        print(f"{options.page} has other figures: python -m bench.accuracy --page {options.page} --write")
        return False
    return True


def _plain(verdict: Verdict) -> dict[str, object]:
    target = verdict.target
    return {
        "section": target.section,
        "row": target.row,
        "measure": target.measure.value,
        "limit": target.limit,
        "value": verdict.value,
        "passed": verdict.passed,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a fifth of the seeds: too few for targets, so only conservation can fail",
    )
    parser.add_argument("--seeds", type=_seed_count, metavar="N", help="this many seeds of every family")
    parser.add_argument("--family", action="append", choices=FAMILIES, metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--set", choices=("holdout", "tune"), default="holdout", help="which seeds (holdout)")
    parser.add_argument("--no-gate", dest="gate", action="store_false", help="exit with 0 even if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--page", type=Path, metavar="FILE", help="fail if this page has other figures")
    parser.add_argument("--write", action="store_true", help="write the figures to the page instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="number of processes")
    return parser


def _seed_count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= len(HOLDOUT):
        raise ValueError(text)
    return count


if __name__ == "__main__":
    sys.exit(main())
