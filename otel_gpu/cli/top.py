"""``otel-gpu top``: reads keys and views, draws the screen."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Final, Protocol

from otel_gpu.cli import logs
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import Config
from otel_gpu.top.latest import LatestView
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import Navigation
from otel_gpu.top.remote import RemoteViews, agent_address
from otel_gpu.top.screen import draw
from otel_gpu.top.terminal import Keys, Terminal, terminal
from otel_gpu.view.terminal import Paint

_DONE: Final = 0
_TICK_S: Final = 1.0
_ESCAPE_S: Final = 0.05
"""The rest of a sequence that begins like the escape key arrives within this time."""


class Views(Protocol):
    """A source of views for a ``LatestView``."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End."""


def top(config: Config, agent: tuple[str, str] | None) -> int:
    """Show this host until q, SIGINT or SIGTERM; with an ``agent``, its host.

    ``agent`` is the flag or variable that names it, and its URL.
    """
    _set_up_log(config)
    target = None if agent is None else agent_address(agent[1], agent[0])
    screen = terminal(os.environ)
    clock = SystemClock()
    latest = LatestView(clock)
    address = None if target is None else str(target)
    with ExitStack() as after, screen.open():
        paint = Paint(enabled=not os.environ.get("NO_COLOR"))
        screen.draw(draw(Navigation(), latest.read(), address, Canvas(*screen.size(), paint)))
        latest.on_change(screen.wake)
        views = _local_views(config, clock, latest) if target is None else RemoteViews(target, latest)
        after.callback(views.close)  # after the terminal is restored: releasing a driver may take time
        views.start()
        _show(screen, latest, address, paint, clock)
    return _DONE


def _local_views(config: Config, clock: Clock, latest: LatestView) -> Views:
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


def _show(screen: Terminal, latest: LatestView, address: str | None, paint: Paint, clock: Clock) -> None:
    """Draw and handle keys until the end. Raises the failure if there will never be a view."""
    keys, navigation, typed_ns = Keys(), Navigation(), 0
    while not (screen.ended or navigation.wants_to_quit):
        if latest.failure is not None:
            raise latest.failure
        now = latest.read()
        screen.draw(draw(navigation, now, address, Canvas(*screen.size(), paint)))
        typed = screen.read(_ESCAPE_S if keys.waiting else _TICK_S)
        pressed = keys.feed(typed)
        if typed:
            typed_ns = clock.monotonic_ns()
        elif clock.monotonic_ns() - typed_ns >= _ESCAPE_S * 1e9:
            pressed += keys.flush()
        for key in pressed:
            navigation.press(key, now.view)
        if navigation.wants_redraw:
            navigation.wants_redraw = False
            screen.redraw()
