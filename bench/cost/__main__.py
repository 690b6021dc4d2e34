"""``python -m bench.cost``: the agent and nvitop-exporter on the same worlds; fails if a target is missed."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.cost.errors import CostError
from bench.cost.report import as_document, as_markdown
from bench.cost.run import Options, run
from bench.cost.tools import peer_version
from bench.cost.worlds import SIZES
from otel_gpu.version import __version__
from tests.nvml_stub.build import BuildError


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if no target is missed, 1 if one is or it could not be run, 2 for bad usage."""
    given = _parser().parse_args(arguments)
    options = Options(
        worlds=tuple(given.world or SIZES), rounds=given.rounds, cycles=given.cycles, beside_peer=not given.alone
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    began_s = time.monotonic()
    try:
        result = run(options, lambda text: _print_status(f"{time.monotonic() - began_s:4.0f} s  {text}"))
    except (CostError, BuildError) as error:
        _print_status(str(error))
        return 1
    except KeyboardInterrupt:
        _print_status("interrupted; all processes have ended")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    document = as_document(result, _about())
    if given.json is not None:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for line in as_markdown(document):
        print(line)
    missed = [target["what"] for target in document["targets"] if target["reached"] is False]
    for what in missed:
        _print_status(f"missed: {what}")
    return 1 if missed and given.gate else 0


def _about() -> dict[str, str]:
    """The date and machine of a record: times depend on the machine, ratios hardly."""
    git = ("git", "describe", "--always", "--dirty")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - fixed
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
        "otel-gpu": __version__,
        "nvitop-exporter": peer_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _print_status(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--world", action="append", choices=SIZES, help="only this world; repeatable (default: all)")
    parser.add_argument("--rounds", type=_count, default=usual.rounds, metavar="N", help="turns per tool (%(default)s)")
    parser.add_argument(
        "--cycles", type=_count, default=usual.cycles, metavar="N", help="cycles per turn (%(default)s)"
    )
    parser.add_argument("--alone", action="store_true", help="without nvitop-exporter")
    parser.add_argument("--no-gate", dest="gate", action="store_false", help="exit with 0 even if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


if __name__ == "__main__":
    sys.exit(main())
