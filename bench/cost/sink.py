"""A receiver of OTLP over HTTP: counts what arrives and answers that all of it was accepted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

_SAME_PUSH_S: Final = 5.0
"""Requests closer together than this belong to one push: a large push is split, and pushes are 15 s apart."""


class Sink:
    """Pushes and their bytes so far, as received. It has one sender at a time."""

    def __init__(self) -> None:
        self.pushes = 0
        self.body_bytes = 0
        self.url = ""
        self._last_s: float | None = None

    def received(self, body_bytes: int, now_s: float) -> None:
        """Count one request."""
        if self._last_s is None or now_s - self._last_s > _SAME_PUSH_S:
            self.pushes += 1
        self._last_s = now_s
        self.body_bytes += body_bytes


@contextmanager
def serving() -> Iterator[Sink]:
    """A sink on a free port, on a thread of this process: its cost is not the agent's."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.received(len(body), time.monotonic())
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sink.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()
