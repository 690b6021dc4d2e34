"""The standard streams, which may be closed, full, deserted, or unable to show a character."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

from otel_gpu.errors import OtelGpuError, Unavailable


def replace_closed() -> None:
    """Where the caller closed stdout or stderr (``>&-``), write to nowhere; the next socket must not become it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def write(stream: TextIO, text: str) -> None:
    """Write at once, with what the stream's encoding cannot show replaced rather than fatal.

    BrokenPipeError if the reader has gone (… | head), Unavailable if it cannot be written for another reason.
    """
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "standard error" if stream is sys.stderr else "standard output"
        raise Unavailable(f"cannot write to {name}: {error.strerror or error}") from None


def say(text: str) -> None:
    """Write to stderr if that is possible: no work is given up for a remark that nobody can read."""
    with contextlib.suppress(OSError, OtelGpuError):
        write(sys.stderr, text)


def settle() -> None:
    """Let what could not be written go nowhere: Python would try, and complain, once more when it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
