"""The client of the control socket: sends a request of ``otel-gpu pause`` or ``resume`` to a running agent."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_gpu.bounded_io import Deadline
from otel_gpu.control import protocol
from otel_gpu.errors import Unavailable

_CONNECT_TIMEOUT_S: Final = 2.0
_RESPONSE_TIMEOUT_S: Final = 15.0
"""The agent may be in the middle of a cycle, and releasing the driver takes time."""


def request(paths: Sequence[Path], message: Mapping[str, Any]) -> dict[str, Any]:
    """The response of the first agent that listens at one of these paths. Unavailable if none does, or it refuses."""
    if not paths:
        raise Unavailable("the control socket is turned off (control-socket none)")
    failures: list[str] = []
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            try:
                connection.connect(os.fspath(path))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                failures.append(f"{path}: no agent listens there")
                continue
            except OSError as error:
                failures.append(f"{path}: {error.strerror or error}")
                continue
            return _exchange(connection, path, message)
    raise Unavailable(f"no running agent was found: {'; '.join(failures)}; --control-socket sets another path")


def _exchange(connection: socket.socket, path: Path, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        protocol.send(connection, message, Deadline(_CONNECT_TIMEOUT_S))
        response = protocol.receive(connection, Deadline(_RESPONSE_TIMEOUT_S))
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path}: no valid response from the agent: {error}") from None
    if response.get("ok") is not True:
        reason = response.get("error")
        raise Unavailable(reason if isinstance(reason, str) else f"{path}: the agent refused the request")
    return response
