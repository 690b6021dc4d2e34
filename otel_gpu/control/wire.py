"""One line of JSON there, one line of JSON back, over a Unix socket; both bounded in size and time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

LONGEST_BYTES: Final = 4096
"""More than any request or answer has."""


def send(connection: socket.socket, message: Mapping[str, Any], deadline_s: float) -> None:
    """Write a message, by ``deadline_s`` (``time.monotonic``). OSError if that fails."""
    connection.settimeout(_left_s(deadline_s))
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, deadline_s: float) -> dict[str, Any]:
    """Read a message, all of it by ``deadline_s``. OSError if that fails; ValueError if it is none."""
    line = b""
    while b"\n" not in line:
        connection.settimeout(_left_s(deadline_s))
        part = connection.recv(LONGEST_BYTES + 1 - len(line))
        line += part
        if not part or len(line) > LONGEST_BYTES:
            raise ValueError("no line of JSON" if len(line) <= LONGEST_BYTES else f"more than {LONGEST_BYTES} bytes")
    try:
        message = json.loads(line.partition(b"\n")[0])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - it is what was read that is wrong
    return message


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s
