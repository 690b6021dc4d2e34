"""``python -m tests.fuzz --inputs N --seed S [--only NAME]``: N inputs each. Exit code 1 if any failed.

An input follows from target, seed and number alone, so that one that failed can be reproduced alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from tests.fuzz import cgroup, control, docker, http, kubelet, kubernetes, proc, settings
from tests.fuzz.target import Target

TARGETS: Final[tuple[Target[Any], ...]] = (
    *cgroup.TARGETS,
    *proc.TARGETS,
    *docker.TARGETS,
    *kubelet.TARGETS,
    *kubernetes.TARGETS,
    *settings.TARGETS,
    *http.TARGETS,
    *control.TARGETS,
)
STATE: Final = "state"
"""Files of a state directory: whole directories, so that they have a driver of their own."""

PROGRESS_EVERY_S: Final = 2.0
FAILURES_SHOWN: Final = 10


def generator(seed: int, number: int) -> random.Random:
    """The random generator of one input."""
    return random.Random((seed << 64) + number)


def failure(target: Target[Any], made: Any) -> str | None:
    """The violation of an input; ``None`` without one."""
    try:
        return target.violation(made)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {error!r} at {where.filename.rpartition('/')[2]}:{where.lineno}"


def fuzz(target: Target[Any], seed: int, numbers: range, say: Callable[[str], object]) -> int:
    """Feed these inputs to a target, with progress every few seconds; returns the number of failures."""
    failures = 0
    said_s = time.monotonic()
    for number in numbers:
        made = target.make(generator(seed, number))
        if (wrong := failure(target, made)) is not None:
            failures += 1
            if failures <= FAILURES_SHOWN:
                replay = f"python -m tests.fuzz --only {target.name} --seed {seed} --from {number} --inputs 1"
                say(f"{target.name}: {wrong}\n  input  {made!a}\n  again  {replay}\n")
        if time.monotonic() - said_s >= PROGRESS_EVERY_S:
            said_s = time.monotonic()
            sys.stderr.write(f"{target.name}: {number - numbers.start + 1:,} of {len(numbers):,} inputs\n")
    say(f"{target.name}: {len(numbers):,} inputs, {failures} failures\n")
    return failures


def fuzz_state(inputs: int, seed: int) -> int:
    """Feed damaged state directories to their reader; 1 if any input failed."""
    if importlib.util.find_spec("tests.fuzz_state") is None:
        return 0
    driver: Any = importlib.import_module("tests.fuzz_state")
    code: int = driver.main(["--inputs", str(inputs), "--seed", str(seed)])
    return 1 if code else 0


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def count(text: str) -> int:
    """How many inputs; none at all would find nothing wrong with anything."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of inputs; allowed are whole numbers from 1 on")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    names = [target.name for target in TARGETS]
    parser = _Parser(prog="python -m tests.fuzz", description="random inputs through every parser")
    parser.add_argument("--inputs", type=count, default=10_000, help="inputs to each target (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="which inputs (default 1)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the number of the first (default 0)")
    parser.add_argument("--only", choices=[*names, STATE], help="one target alone")
    options = parser.parse_args(arguments)
    numbers = range(options.first, options.first + options.inputs)
    failures = sum(
        fuzz(target, options.seed, numbers, sys.stdout.write)
        for target in TARGETS
        if options.only in (None, target.name)
    )
    if options.only in (None, STATE):
        failures += fuzz_state(options.inputs, options.seed)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
