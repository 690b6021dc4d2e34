"""The standard streams, which may be closed, full, without a reader, or unable to encode a character."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TextIO

from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.view.terminal import Paint


def replace_closed() -> None:
    """Replace a closed stdout or stderr (``>&-``) by /dev/null, so that no socket gets its descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until exit


def write(stream: TextIO, text: str) -> None:
    """Write and flush. Characters that the stream cannot encode are replaced.

    BrokenPipeError if the reader has gone (… | head), Unavailable if writing fails for another reason.
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


def write_stderr(text: str) -> None:
    """Write to stderr if possible. A message that cannot be written stops no command."""
    with contextlib.suppress(OSError, OtelGpuError):
        write(sys.stderr, text)


def discard_unwritten() -> None:
    """Discard what could not be written: Python would otherwise try again at exit, and print an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ---------------------------------------------------------------------------- the terminal


def terminal_size() -> tuple[int, int]:
    """Columns and lines of the terminal."""
    return shutil.get_terminal_size(fallback=(120, 24))


def table_size() -> tuple[int, int]:
    """Columns and lines for a table. A pipe or file has no limit of columns unless COLUMNS sets one."""
    width, height = terminal_size()
    return (width if sys.stdout.isatty() or "COLUMNS" in os.environ else sys.maxsize), height


def stdout_paint() -> Paint:
    """Colours for stdout if it is a terminal that shows them."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paint(enabled=wanted)
