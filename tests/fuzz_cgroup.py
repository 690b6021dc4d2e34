"""Feeds seeded random lines to the cgroup parser: ``python -m tests.fuzz_cgroup --lines 1000000 --seed 1``.

Half of the lines are mutations of paths that occur in the world, the rest are random bytes as the file system
would give them. A failure prints the text that caused it; the exit code is 1 if there was any.
"""

from __future__ import annotations

import argparse
import random
import sys

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef
from otel_gpu.sources.cgroup import parse_cgroup
from tests.unit.sources.test_cgroup import PATHS

REAL_PATHS = [path for path, _ in PATHS.values()]
SEGMENTS = sorted({segment for path in REAL_PATHS for segment in path.split("/")})
PREFIXES = ["0::", "0::", "1:name=systemd:", "4:memory:", "12:cpu,cpuacct:", "0:", "::", "x:y:"]
ODD = ["\0", "\udcff", "\r", "\x85", "\u2028", ":", "/", "//", "..", "/..", ".", "_", "-", " ", "é", "\\x2d", ".scope"]
PROGRESS_EVERY = 100_000
FAILURES_SHOWN = 10


def random_bytes(rng: random.Random) -> str:
    """Bytes as ``os.fsdecode`` gives them, of all values or only of those that paths are made of."""
    raw = rng.randbytes(rng.randrange(120))
    if rng.random() < 0.5:
        raw = bytes(b"0123456789abcdef/:.-_ps"[byte % 23] for byte in raw)
    return raw.decode("utf-8", "surrogateescape").replace("\n", "")


def mutated_path(rng: random.Random) -> str:
    """A real path, changed in one to three ways, or hardly at all."""
    path = rng.choice(REAL_PATHS)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(path) + 1)
        match rng.randrange(8):
            case 0:
                path = path[:at] + path[at + rng.randrange(4) :]
            case 1:
                path = path[:at] + rng.choice(ODD) + path[at:]
            case 2:
                path = path[:at] + chr(rng.randrange(33, 127)) + path[at + 1 :]
            case 3:
                path = path[:at]
            case 4:
                path = path + "/" + rng.choice(SEGMENTS)
            case 5:
                path = "/.." * rng.randrange(4) + path
            case 6:
                path = path + rng.choice(REAL_PATHS)
            case _:
                path = f"{path}/{rng.choice(('', 'docker/', 'crio-', 'libpod-'))}{rng.getrandbits(256):064x}"
    return path


def random_line(rng: random.Random) -> str:
    """One line, without its end."""
    if rng.random() < 0.5:
        return rng.choice(PREFIXES) + mutated_path(rng)
    return rng.choice(("", "0::", "0::/")) + random_bytes(rng)


def violation(text: str, lines: list[str]) -> str | None:
    """What is wrong with the parser's answer to this text; ``None`` if nothing."""
    try:
        workload = parse_cgroup(text)
        again = parse_cgroup("\n".join([*reversed(lines), *lines]))
    except Exception as error:
        return f"raised {error!r}"
    if workload != again:
        return f"{workload} became {again} with the lines reversed and repeated"
    if workload is None or workload == HOST_WORKLOAD:
        return None
    return _ill_formed(workload, text)


def _ill_formed(workload: WorkloadRef, text: str) -> str | None:
    if workload.kind is WorkloadKind.HOST:
        return f"{workload} is another host"
    if workload.id not in text or (workload.outer_container_id or "") not in text:
        return f"{workload} is not in the text"
    if workload.id == workload.outer_container_id:
        return f"{workload} is around itself"
    if (workload.pod_uid or "") not in text.replace("_", "-"):
        return f"the pod of {workload} is not in the text"
    fields = (workload.id, workload.runtime, workload.pod_uid, workload.slurm_step, workload.outer_container_id)
    if not all(field and field.isascii() and field.isprintable() for field in fields if field is not None):
        return f"{workload} is not printable"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description="random lines through the cgroup parser")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    rng = random.Random(options.seed)
    fed = failures = 0
    results: set[WorkloadRef | None] = set()
    while fed < options.lines:
        lines = [random_line(rng) for _ in range(min(rng.randint(1, 8), options.lines - fed))]
        text = "\n".join(lines)
        if (wrong := violation(text, lines)) is None:
            results.add(parse_cgroup(text))
        else:
            failures += 1
            if failures <= FAILURES_SHOWN:
                sys.stdout.write(f"{wrong}\n  in {text!a}\n")
        before, fed = fed, fed + len(lines)
        if fed // PROGRESS_EVERY > before // PROGRESS_EVERY:
            sys.stderr.write(f"{fed:,} of {options.lines:,} lines\n")
    sys.stdout.write(f"{fed} lines, {len(results)} distinct results, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
