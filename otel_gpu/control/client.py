"""The other end of the control socket: what ``otel-gpu pause`` and ``resume`` say to a running agent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_gpu.control import wire
from otel_gpu.errors import Unavailable

_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 15.0
"""An agent may be in the middle of a pass, and the driver takes its time to be let go of."""


def ask(places: Sequence[Path], request: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's answer, of the first that listens at one of these places. Unavailable if none does, or it refuses."""
    if not places:
        raise Unavailable("the control socket is switched off (control-socket none)")
    failures: list[str] = []
    for place in places:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(os.fspath(place))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                failures.append(f"{place}: nobody listens")
                continue
            except OSError as error:
                failures.append(f"{place}: {error.strerror or error}")
                continue
            return _asked(connection, place, request)
    raise Unavailable(f"no running agent was found: {'; '.join(failures)}; --control-socket names another place")


def _asked(connection: socket.socket, place: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        wire.send(connection, request, time.monotonic() + _CONNECT_S)
        answer = wire.receive(connection, time.monotonic() + _ANSWER_S)
    except (OSError, ValueError) as error:
        raise Unavailable(f"{place}: the agent gave no answer: {error}") from None
    if answer.get("ok") is not True:
        reason = answer.get("error")
        raise Unavailable(reason if isinstance(reason, str) else f"{place}: the agent refused")
    return answer
