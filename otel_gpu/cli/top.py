"""``otel-gpu top``."""

from __future__ import annotations

import logging
import os
import sys

from otel_gpu.cli import logs
from otel_gpu.config import Config
from otel_gpu.top import command


def top(config: Config, *, url: str | None) -> int:
    """Show this host, or the agent at ``url``, until q, SIGINT or SIGTERM."""
    _log_beside_screen(config)
    return command.top(config, url=url)


def _log_beside_screen(config: Config) -> None:
    """Log to stderr if it is a file or pipe. If it is the terminal, which shows the screen, do not log."""
    if sys.stderr.isatty():
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes its own lines
        logging.getLogger().handlers[:] = [logging.NullHandler()]
    else:
        logs.set_up(config.log.level, config.log.format)
