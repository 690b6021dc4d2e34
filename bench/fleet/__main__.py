"""``python -m bench.fleet``: many agents and two tiers of Collectors, of which a gateway is killed; fails on a loss."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from bench.fleet.errors import FleetError
from bench.fleet.report import as_document, as_text
from bench.fleet.run import Options, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 if nothing was lost, 1 if something was or it could not be run, 2 for bad usage, 130 if interrupted."""
    given = _parser().parse_args(arguments)
    options = Options(
        agents=given.agents,
        processes=given.processes,
        nodes=given.nodes,
        gateways=given.gateways,
        seconds=given.seconds,
        interval_s=given.interval,
        export_interval_s=given.export_interval,
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = run(options, sys.stderr)
    except FleetError as error:
        sys.stderr.write(f"fleet: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("fleet: interrupted; everything has ended\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if given.format == "json":
        print(json.dumps(as_document(result), indent=1))
    else:
        for line in as_text(result):
            print(line)
    return 0 if result.balance.holds else 1


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)

    def add(name: str, default: float, kind: Callable[[str], float], text: str) -> None:
        parser.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} (default {default:g})")

    add("--agents", usual.agents, _count, "simulated hosts, each with an agent")
    add("--processes", usual.processes, _count, "processes that agents share")
    add("--nodes", usual.nodes, _count, "Collectors of the first tier")
    add("--gateways", usual.gateways, _count, "Collectors of the second tier; one of them is killed")
    add("--seconds", usual.seconds, _seconds, "how long all agents push; a gateway is down in the middle third")
    add("--interval", usual.interval_s, _seconds, "seconds between an agent's samples")
    add("--export-interval", usual.export_interval_s, _seconds, "seconds between an agent's exports")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 86_400:
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
