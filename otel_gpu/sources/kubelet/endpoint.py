"""Where a node's own services listen: a unix socket, looked at before anybody speaks through it."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.sources.kubelet.wire import Wire

if TYPE_CHECKING:
    from otel_gpu.sources.kubelet.channel import Channel

_LONGEST_PATH_BYTES: Final = 107
"""What fits into ``sun_path`` (unix(7)) before its final zero."""


def open_wire(endpoint: str, timeout_s: float, clock: Clock) -> Wire:
    """A wire to whoever listens there; ``Unavailable`` if nobody does. The call on it takes so long at most."""
    path = socket_path(endpoint)
    return Wire(path, connected(path), timeout_s, clock)


def open_channel(endpoint: str, timeout_s: float) -> Channel:
    """A channel to whoever listens there; ``Unavailable`` if nobody does. Every call on it takes so long at most."""
    path = socket_path(endpoint)
    connected(path).close()
    # Here, not above: as long as all is well, nothing of gRPC is needed. Its core prints every failed handshake by
    # itself; what it is about comes with the error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from otel_gpu.sources.kubelet.channel import Channel  # noqa: PLC0415

    return Channel(path, timeout_s)


def socket_path(endpoint: str) -> str:
    """The path of an endpoint that is a path, or a URL as in the kubelet's settings (``unix:///run/x.sock``)."""
    path = endpoint.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path.startswith("/") or "\0" in path:
        raise Unavailable(f"{endpoint!r} is no socket: it must be an absolute path, or unix:// and one")
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise Unavailable(f"{path}: a socket's path has {_LONGEST_PATH_BYTES} bytes at most; mount it at a shorter one")
    return path


def connected(path: str) -> socket.socket:
    """A connection to that path; ``Unavailable`` unless somebody accepts them there: gRPC would not tell why."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        if not stat.S_ISSOCK(mode):
            kind = "a directory: a mount made one where there was no socket" if stat.S_ISDIR(mode) else "a file"
            raise Unavailable(f"{path} is no socket but {kind}")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(0.0)  # connected at once or not at all: EAGAIN, if the queue is full (unix(7))
            connection.connect(path)
        except OSError:
            connection.close()
            raise
    except FileNotFoundError:
        raise Unavailable(f"{path} does not exist; in a container, mount the host's directory there") from None
    except PermissionError:
        raise Unavailable(f"{path}: permission denied; run the agent as root, as it is root's on most nodes") from None
    except ConnectionRefusedError:
        raise Unavailable(f"{path}: nobody listens there any more") from None
    except BlockingIOError:
        raise Unavailable(f"{path}: whoever listens there accepts no connections any more") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from None
    return connection
