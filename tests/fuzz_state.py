"""Damages real state directories: ``python -m tests.fuzz_state --inputs 10000 --seed 1``.

Each is flipped, cut, inserted into, swapped, replaced or removed somewhere. Then an agent must start, without an
exception, and either resume the state that there was, or start at 0; and what it writes must be recoverable. Only a
file put back from another moment may lead to the state of that moment, if it is later: a journal whose end is cut off
is detected by the number of its last cycle, which the lock file has. A failure prints the damage; the exit code is 1 if
there was any.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.attributor import Attributor
from otel_gpu.clock import ManualClock
from otel_gpu.model import ProcessFacts, Report, Snapshot
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.state.recovery import LOCK, UntrustedState
from tests.kill_run import world
from tests.state_dirs import OPTIONS, StatefulAgent, attribution, end_threads, recovered

CYCLES: Final = 16
PROGRESS_EVERY: Final = 1_000
STARTED_EVERY: Final = 5
"""For one of this many inputs an agent also starts, which takes longer than recovery."""

FAILURES_SHOWN: Final = 10
FOREIGN: Final = (
    b"",
    b"\n",
    b"{}\n",
    b"[1]\n",
    b"null\n",
    b"\0" * 100,
    b"[" * 5000,
    b'{"format": 99}\n',
    b"\xff\xfe\n",
)

Files = dict[str, bytes]


class Recorder:
    """Records every Snapshot before the rules observe it."""

    def __init__(self) -> None:
        self._attributor = Attributor(OPTIONS)
        self.seen: list[Snapshot] = []

    @property
    def watched_pids(self) -> frozenset[int]:
        """Those of the rules."""
        return self._attributor.watched_pids

    @property
    def held_workloads(self) -> frozenset[object]:
        """Those of the rules."""
        return frozenset(self._attributor.held_workloads)

    @property
    def known_processes(self) -> Mapping[int, ProcessFacts]:
        """None, before the first cycle."""
        return {}

    def observe(self, snapshot: Snapshot) -> Report:
        """Record it."""
        self.seen.append(snapshot)
        return self._attributor.observe(snapshot)


def history() -> list[Snapshot]:
    """Some cycles of a simulated host."""
    clock = ManualClock()
    host = SimulatedHost(world(1), clock)
    rules = Recorder()
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        rules=rules,  # type: ignore[arg-type]  # it passes on what it is given
    )
    for _ in range(CYCLES + 1):
        engine.sample()
        clock.advance(7)
    return rules.seen


@dataclass(frozen=True, slots=True)
class Original:
    """A directory that a killed or stopped agent leaves, and its attribution state."""

    files: Files
    attribution: str


def originals(cycles: list[Snapshot], root: Path) -> list[Original]:
    """One for a kill after each cycle, and one for a clean stop."""
    found: list[Original] = []
    agent = StatefulAgent(root)
    for cycle in cycles[:CYCLES]:
        agent.observe(cycle)
        agent.settle()
        found.append(Original(_read(root), agent.attribution))
    agent.close()
    agent.settle()
    return [*found, replace(found[-1], files=_read(root))]


def _read(root: Path) -> Files:
    return {path.name: path.read_bytes() for path in root.iterdir()}


# ---------------------------------------------------------------------------- damage


def flip(rng: random.Random, content: bytes) -> bytes:
    """One bit."""
    damaged = bytearray(content or b"\0")
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, content: bytes) -> bytes:
    """The end, or something in the middle."""
    start = rng.randrange(len(content) + 1)
    return content[:start] + (content[start + rng.randrange(1, 500) :] if rng.random() < 0.5 else b"")


def insert(rng: random.Random, content: bytes) -> bytes:
    """Random bytes, or a part of itself."""
    at = rng.randrange(len(content) + 1)
    start = rng.randrange(len(content) + 1)
    new = rng.choice((rng.randbytes(rng.randrange(1, 40)), content[start : start + 300], b"\n", b"0", b" "))
    return content[:at] + new + content[at:]


def swap(rng: random.Random, content: bytes) -> bytes:
    """Two lines."""
    lines = content.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


def foreign(rng: random.Random, content: bytes) -> bytes:
    """Replace all of it."""
    return rng.choice((*FOREIGN, rng.randbytes(rng.randrange(200)), content + content))


KINDS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (flip, cut, insert, swap, foreign)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged directory, what was done, and whether its files may be valid files of another moment."""

    files: Files
    done: str
    genuine: bool


def damage(rng: random.Random, files: Files, others: Sequence[Original]) -> Damage:
    """Damage a directory."""
    name = rng.choice(sorted(files.keys() - {LOCK}))
    draw = rng.random()
    if draw < 0.1:
        return Damage({key: files[key] for key in files if key != name}, f"{name} removed", genuine=False)
    if draw < 0.2:
        content = rng.choice([each for key, each in rng.choice(others).files.items() if key != LOCK])
        return Damage(files | {name: content}, f"{name} replaced by a file of another moment", genuine=True)
    kind = rng.choice(KINDS)
    return Damage(files | {name: kind(rng, files[name])}, f"{name}: {kind.__name__}", genuine=False)


# ---------------------------------------------------------------------------- judgement


def violation(
    original: Original, damaged: Damage, root: Path, genuine: Set[str], after: Snapshot, *, start: bool
) -> str | None:
    """What is wrong with recovery, or with a start there; ``None`` if nothing."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o700)
    for name, content in damaged.files.items():
        (root / name).write_bytes(content)
    try:
        found = recovered(root)
    except UntrustedState:
        found = None
    if found is not None and attribution(found.attributor) != original.attribution:
        if not damaged.genuine:
            return "another state was recovered than there was"
        if attribution(found.attributor) not in genuine:
            return "a state was recovered that never was"
    if not start:
        return None
    agent = StatefulAgent(root)
    report = agent.observe(after)
    if found is None and report.epoch_ns != after.wall_ns:
        return "it was not trusted, and yet resumed"
    agent.close()
    agent.settle()
    end_threads()
    again = recovered(root)
    if again is None or attribution(again.attributor) != agent.attribution:
        return "what it wrote cannot be recovered"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description="damage to state directories")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.getLogger("otel_gpu.state").setLevel(logging.CRITICAL)
    rng = random.Random(options.seed)
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        cycles = history()
        undamaged = originals(cycles, Path(directory) / "original")
        genuine = {each.attribution for each in undamaged}
        place = Path(directory) / "state"
        for number in range(options.inputs):
            original = rng.choice(undamaged)
            damaged = damage(rng, original.files, undamaged)
            try:
                start = number % STARTED_EVERY == 0
                wrong = violation(original, damaged, place, genuine, cycles[-1], start=start)
            except Exception as error:
                wrong = f"raised {error!r}"
            if wrong is not None:
                failures += 1
                if failures <= FAILURES_SHOWN:
                    sys.stdout.write(f"{wrong}\n  after {damaged.done} (input {number})\n")
            if number % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                sys.stderr.write(f"{number + 1:,} of {options.inputs:,} inputs\n")
    sys.stdout.write(f"{options.inputs} inputs, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
