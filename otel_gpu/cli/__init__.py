"""The command line. The entry point imports next to nothing, so that Ctrl-C works while modules are being loaded."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as in shells


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    try:
        from otel_gpu.cli import dispatch  # noqa: PLC0415

        return dispatch.main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
