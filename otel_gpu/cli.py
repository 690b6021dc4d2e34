"""The way in. It imports next to nothing, so that Ctrl-C is understood while the rest is still being loaded."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the value is the exit code."""
    try:
        from otel_gpu import commandline  # noqa: PLC0415

        return commandline.main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
