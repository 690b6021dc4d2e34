"""``/proc/<pid>/cgroup``: up to eight lines, half of them paths that occur in the world, changed, half random bytes."""

from __future__ import annotations

import random
from typing import Final

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.fuzz.target import Target
from tests.unit.sources.proc.test_cgroup import PATHS

REAL_PATHS = [path for path, _ in PATHS.values()]
SEGMENTS = sorted({segment for path in REAL_PATHS for segment in path.split("/")})
PREFIXES = ["0::", "0::", "1:name=systemd:", "4:memory:", "12:cpu,cpuacct:", "0:", "::", "x:y:"]
ODD = ["\0", "\udcff", "\r", "\x85", "\u2028", ":", "/", "//", "..", "/..", ".", "_", "-", " ", "é", "\\x2d", ".scope"]


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


def make(rng: random.Random) -> str:
    """A file."""
    return "\n".join(random_line(rng) for _ in range(rng.randint(1, 8)))


def violation(text: str) -> str | None:
    """What is wrong with the parser's answer to this text; ``None`` if nothing."""
    lines = text.split("\n")
    workload = parse_cgroup(text)
    again = parse_cgroup("\n".join([*reversed(lines), *lines]))
    if workload != again:
        return f"{workload} became {again} with the lines reversed and repeated"
    if workload is None or workload == HOST_WORKLOAD:
        return None
    return _ill_formed(workload, text)


def _ill_formed(workload: WorkloadRef, text: str) -> str | None:
    if workload.kind is WorkloadKind.HOST:
        return f"{workload} is another host"
    around = (workload.outer_container_id or "", str(workload.user_uid or ""))
    if not all(part in text for part in (workload.id, *around)):
        return f"{workload} is not in the text"
    if workload.id == workload.outer_container_id:
        return f"{workload} is around itself"
    if (workload.pod_uid or "") not in text.replace("_", "-"):
        return f"the pod of {workload} is not in the text"
    fields = (workload.id, workload.runtime, workload.pod_uid, workload.slurm_step, workload.outer_container_id)
    if not all(field and field.isascii() and field.isprintable() for field in fields if field is not None):
        return f"{workload} is not printable"
    return None


TARGETS: Final = (Target("cgroup", make, violation),)
