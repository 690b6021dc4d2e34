"""External programs in tests: their paths, free ports for them, and HTTP servers that they call."""

from __future__ import annotations

import http.client
import random
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import WSGIApplication

import pytest

from otel_gpu.config.values import Address
from tests.web import ask

LOOPBACK: Final = "127.0.0.1"
# For programs that cannot report the port of a listener on port 0. The range is below Linux's ephemeral ports (32768
# and up), so that no outgoing connection takes a free port before the program binds it.
_PORTS: Final = range(20_000, 32_000)


def require(found: Path | str | None, what: str, remedy: str) -> Path:
    """The path of a program; skips the test if there is none, with the remedy as the reason."""
    if found is None:
        pytest.skip(f"needs {what}: {remedy}")
    return Path(found)


def require_program(name: str, remedy: str) -> Path:
    """The path of a program on PATH; skips the test if there is none."""
    return require(shutil.which(name), name, remedy)


def free_addresses(count: int) -> Sequence[Address]:
    """Different loopback addresses with free ports."""
    with ExitStack() as bound:
        addresses: list[Address] = []
        while len(addresses) < count:
            address = Address(LOOPBACK, random.choice(_PORTS))
            listener = bound.enter_context(socket.socket())
            try:
                listener.bind((address.host, address.port))
            except OSError:
                continue
            addresses.append(address)
        return addresses


def responds(address: Address, path: str) -> bool:
    """Whether a server responds there with status 200."""
    try:
        return ask(address, path).status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(application: WSGIApplication) -> Iterator[Address]:
    """Serve an application on a free port."""
    with make_server(LOOPBACK, 0, application, handler_class=_SilentHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Address(LOOPBACK, server.server_port)
        finally:
            server.shutdown()
            thread.join()
