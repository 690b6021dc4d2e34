"""The client and the protocol of the control socket: one line of JSON each way, bounded in size and time."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_gpu.bounded_io import Deadline, parse_json
from otel_gpu.errors import Unavailable
from otel_gpu.sources.pause import time_text
from otel_gpu.sources.unix_socket import NO_LISTENER, connect, failure_reason, impostor

MAX_MESSAGE_BYTES: Final = 4096
MAX_PAUSE_S: Final = 7 * 86_400.0

_REQUEST_TIMEOUT_S: Final = 2.0
_RESPONSE_TIMEOUT_S: Final = 15.0
"""The agent may be in the middle of a cycle, and releasing the driver takes time."""

RESUME: Final[Mapping[str, Any]] = {"command": "resume"}


def pause_request(for_s: float | None) -> dict[str, Any]:
    """The request to pause for a duration, or with ``None`` until resumed."""
    return {"command": "pause", "for_s": for_s}


def describe_pause(response: Mapping[str, Any]) -> str:
    """The agent's response to a pause request, as text."""
    since_s, until_s = _unix_time(response.get("since")), _unix_time(response.get("until"))
    if since_s is None:
        return "paused"
    end = "until otel-gpu resume" if until_s is None else f"until {time_text(until_s)}, or otel-gpu resume"
    return f"paused since {time_text(since_s)}, {end}"


def describe_resume(response: Mapping[str, Any]) -> str:
    """The agent's response to a resume request, as text."""
    since_s = _unix_time(response.get("since"))
    return "was not paused" if since_s is None else f"resumed; was paused since {time_text(since_s)}"


def request(paths: Sequence[Path], message: Mapping[str, Any]) -> dict[str, Any]:
    """The response of the first agent that listens at one of these paths. Unavailable if none does, or it refuses.

    A listener that may not be the agent is sent nothing.
    """
    if not paths:
        raise Unavailable("the control socket is turned off (control-socket none)")
    failures: list[str] = []
    for path in paths:
        try:
            connection = connect(path)
        except NO_LISTENER:
            failures.append(f"{path}: no agent listens there")
        except OSError as error:
            failures.append(f"{path}: {failure_reason(error)}")
        else:
            with connection:
                if (found := impostor(connection, path)) is not None:
                    failures.append(f"{path}: {found}; run this as that user")
                    continue
                return _exchange(connection, path, message)
    raise Unavailable(f"no running agent was found: {'; '.join(failures)}; --control-socket sets another path")


def _exchange(connection: socket.socket, path: Path, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        send(connection, message, Deadline(_REQUEST_TIMEOUT_S))
        response = receive(connection, Deadline(_RESPONSE_TIMEOUT_S))
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path}: no valid response from the agent: {error}") from None
    if response.get("ok") is not True:
        reason = response.get("error")
        raise Unavailable(reason if isinstance(reason, str) else f"{path}: the agent refused the request")
    return response


# ---------------------------------------------------------------------------- messages


def send(connection: socket.socket, message: Mapping[str, Any], deadline: Deadline) -> None:
    """Send a message by the deadline. OSError if that fails."""
    connection.settimeout(deadline.left_s())
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, deadline: Deadline) -> dict[str, Any]:
    """Receive a whole message by the deadline. OSError if that fails; ValueError if it is not valid."""
    line = b""
    while b"\n" not in line:
        connection.settimeout(deadline.left_s())
        chunk = connection.recv(MAX_MESSAGE_BYTES + 1 - len(line))
        line += chunk
        if len(line) > MAX_MESSAGE_BYTES:
            raise ValueError(f"longer than {MAX_MESSAGE_BYTES} bytes")
        if not chunk:
            raise ValueError("not a line of JSON")
    message = parse_json(line.partition(b"\n")[0])
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the content is wrong, not its type in Python
    return message


def _unix_time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:  # excludes NaN
        return None
    return float(value)
