"""``otel-gpu top``."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

from otel_gpu.cli import logs
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.top import command
from otel_gpu.top.latest import LatestView


def top(config: Config, *, url: str | None) -> int:
    """Show this host, or the agent at ``url``, until q, SIGINT or SIGTERM."""
    _set_up_log(config)
    return command.top(partial(_local_views, config), url=url)


def _local_views(config: Config, clock: Clock, latest: LatestView) -> command.Views:
    # Imported here, so that the first screen does not wait for drivers and clients to load.
    from otel_gpu.agent.local_views import LocalViews  # noqa: PLC0415
    from otel_gpu.agent.resources import host_resources  # noqa: PLC0415

    export = config.export
    resources = host_resources(service_name=export.service, given=export.resource_attributes, environment=os.environ)
    return LocalViews(config, clock, latest, resources.shared["host.name"])


def _set_up_log(config: Config) -> None:
    """Log to stderr if it is a file or pipe. If it is the terminal, which shows the screen, do not log."""
    if sys.stderr.isatty():
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes its own lines
        logging.getLogger().handlers[:] = [logging.NullHandler()]
    else:
        logs.set_up(config.log.level, config.log.format)
