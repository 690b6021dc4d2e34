"""The command ``otel-gpu top``: reads keys and views, draws the screen."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

from otel_gpu.clock import Clock, SystemClock
from otel_gpu.top.latest import LatestView
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import Navigation
from otel_gpu.top.remote import RemoteViews, agent_address
from otel_gpu.top.screen import draw
from otel_gpu.top.terminal import Keys, Terminal, terminal
from otel_gpu.view.terminal import Paint

DONE: Final = 0
URL_VARIABLE: Final = "OTEL_GPU_URL"
"""The URL if no flag gives one. A password in it is not visible in the list of processes."""

_TICK_S: Final = 1.0
_ESCAPE_S: Final = 0.05
"""The rest of a sequence that begins like the escape key arrives within this time."""


class Views(Protocol):
    """A source of views for a ``LatestView``."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End."""


def top(local_views: Callable[[Clock, LatestView], Views], *, url: str | None) -> int:
    """Show the views of this host, or of the agent at ``url``, until q, SIGINT or SIGTERM."""
    target = None
    if url is not None:
        target = agent_address(url, "--url")
    elif os.environ.get(URL_VARIABLE):
        target = agent_address(os.environ[URL_VARIABLE], URL_VARIABLE)
    screen = terminal(os.environ)
    clock = SystemClock()
    latest = LatestView(clock)
    address = None if target is None else str(target)
    with ExitStack() as after, screen.open():
        paint = Paint(enabled=not os.environ.get("NO_COLOR"))
        screen.draw(draw(Navigation(), latest.read(), address, Canvas(*screen.size(), paint)))
        latest.on_change(screen.wake)
        views = local_views(clock, latest) if target is None else RemoteViews(target, latest)
        after.callback(views.close)  # after the terminal is restored: releasing a driver may take time
        views.start()
        _show(screen, latest, address, paint, clock)
    return DONE


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
