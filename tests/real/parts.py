"""What tests with real programs share: whether a program is here, where it may listen, and whom it may ask."""

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
# Below Linux's range of ports for outgoing connections and port 0 (32768 and up): what is free there stays free until a
# program that cannot tell which port it was given, as these cannot, has bound it.
_PORTS: Final = range(20_000, 32_000)


def needed(found: Path | str | None, what: str, remedy: str) -> Path:
    """The path of a program; without it the test is skipped, and the reason says how to get it."""
    if found is None:
        pytest.skip(f"needs {what}: {remedy}")
    return Path(found)


def needed_program(name: str, remedy: str) -> Path:
    """The path of a program that is looked for where all programs are."""
    return needed(shutil.which(name), name, remedy)


def free_addresses(count: int) -> Sequence[Address]:
    """Loopback addresses, all different, on which nobody listens."""
    with ExitStack() as held:
        addresses: list[Address] = []
        while len(addresses) < count:
            address = Address(LOOPBACK, random.choice(_PORTS))
            listener = held.enter_context(socket.socket())
            try:
                listener.bind((address.host, address.port))
            except OSError:
                continue
            addresses.append(address)
        return addresses


def answers(address: Address, path: str) -> bool:
    """Whether something there answers 200."""
    try:
        return ask(address, path).status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(application: WSGIApplication) -> Iterator[Address]:
    """An application on a port of its own."""
    with make_server(LOOPBACK, 0, application, handler_class=_Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Address(LOOPBACK, server.server_port)
        finally:
            server.shutdown()
            thread.join()
