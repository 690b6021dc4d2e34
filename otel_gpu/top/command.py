"""The command ``otel-gpu top``: keys, cycles and the screen together."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Final, Protocol

from otel_gpu import logs
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import Config
from otel_gpu.export.text import Paint
from otel_gpu.top.board import Board
from otel_gpu.top.keys import Keys
from otel_gpu.top.layout import Canvas
from otel_gpu.top.looking import Looking
from otel_gpu.top.remote import RemoteCycles, agent
from otel_gpu.top.screen import About, draw
from otel_gpu.top.terminal import Terminal, terminal

DONE: Final = 0
URL_VARIABLE: Final = "OTEL_GPU_URL"
"""The URL where no flag gives one; a password in it is not seen by those who list processes."""

_TICK_S: Final = 1.0
_ESCAPE_S: Final = 0.05
"""So soon comes the rest of a sequence that begins like the escape key."""


class Cycles(Protocol):
    """Who puts cycles on a board."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End."""


def top(config: Config, *, url: str | None) -> int:
    """Show this host, or the agent at ``url``, until q, SIGINT or SIGTERM."""
    target = None
    if url is not None:
        target = agent(url, "--url")
    elif os.environ.get(URL_VARIABLE):
        target = agent(os.environ[URL_VARIABLE], URL_VARIABLE)
    drawn_on = terminal(os.environ)
    _log_elsewhere(config)
    clock = SystemClock()
    board = Board(clock)
    about = About(None if target is None else str(target))
    with ExitStack() as after, drawn_on.open():
        paint = Paint(enabled=not os.environ.get("NO_COLOR"))
        drawn_on.draw(draw(Looking(), board.look(), about, Canvas(*drawn_on.size(), paint)))
        board.on_news(drawn_on.wake)
        cycles = _local(config, clock, board) if target is None else RemoteCycles(target, board)
        after.callback(cycles.close)  # when the terminal is as it was: a driver may take its time to let go
        cycles.start()
        _show(drawn_on, board, about, paint, clock)
    return DONE


def _show(drawn_on: Terminal, board: Board, about: About, paint: Paint, clock: Clock) -> None:
    """Draw and take keys until there is an end. What can never be shown is raised."""
    keys, looking, typed_ns = Keys(), Looking(), 0
    while not (drawn_on.ended or looking.wants_to_quit):
        if board.failure is not None:
            raise board.failure
        seen = board.look()
        drawn_on.draw(draw(looking, seen, about, Canvas(*drawn_on.size(), paint)))
        typed = drawn_on.read(_ESCAPE_S if keys.waiting else _TICK_S)
        pressed = keys.feed(typed)
        if typed:
            typed_ns = clock.monotonic_ns()
        elif clock.monotonic_ns() - typed_ns >= _ESCAPE_S * 1e9:
            pressed += keys.flush()
        for key in pressed:
            looking.press(key, seen.cycle)
        if looking.wants_redraw:
            looking.wants_redraw = False
            drawn_on.redraw()


def _local(config: Config, clock: Clock, board: Board) -> Cycles:
    # Here, not above: drivers and clients take longer to load than it takes to say that GPUs are looked at.
    from otel_gpu.agent.resources import host_resources  # noqa: PLC0415
    from otel_gpu.top.local import LocalCycles  # noqa: PLC0415

    given = config.resource_attributes
    resources = host_resources(service_name=config.service, given=given, environment=os.environ)
    return LocalCycles(config, clock, board, resources.shared["host.name"])


def _log_elsewhere(config: Config) -> None:
    """Log to a file or pipe where stderr is one; on the screen that is drawn on there is no place for it."""
    if sys.stderr.isatty():
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes lines of its own
        logging.getLogger().handlers[:] = [logging.NullHandler()]
    else:
        logs.set_up(config.log_level, config.log_format)
