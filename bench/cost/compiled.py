"""The bench's programs in C, compiled once per user."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

from bench.cost.errors import CostError


def compiled(source: Path, *options: str) -> Path:
    """The program or library that a C file compiles to. CostError if there is no compiler."""
    digest = sha256(source.read_bytes() + "\0".join(options).encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"otel-gpu-{source.stem}-{os.getuid()}-{digest}"
    if not target.exists():
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise CostError("a C compiler is needed; on Debian: apt install gcc libc6-dev")
        draft = target.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-D_GNU_SOURCE", *options, str(source), "-o", str(draft)]
        subprocess.run(command, check=True)  # noqa: S603 - ours
        draft.rename(target)
    return target
