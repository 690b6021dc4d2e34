"""The OTLP receiver of a soak, which can be up, down, busy or hanging."""

from __future__ import annotations

import threading
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Mood(StrEnum):
    """The state of the receiver."""

    UP = "up"
    DOWN = "down"
    BUSY = "busy"
    HANGING = "hanging"


class Receiver:
    """Reads requests at one address and counts them."""

    def __init__(self) -> None:
        self.mood = Mood.UP
        self.taken = self.refused = self.taken_bytes = 0
        self._awake = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._address = self._server.server_address
        self._thread = self._serve()

    @property
    def url(self) -> str:
        """The URL, which stays the same while it is down."""
        return f"http://127.0.0.1:{self._address[1]}"

    def become(self, mood: Mood) -> None:
        """Change the state. Hanging requests are answered."""
        if mood is self.mood:
            return
        self._awake.set()
        if self.mood is Mood.DOWN:
            self._server = _Server(self._address, self._handler())
            self._thread = self._serve()
        self.mood = mood
        if mood is Mood.HANGING:
            self._awake.clear()
        if mood is Mood.DOWN:
            self.close()

    def close(self) -> None:
        """Stop listening."""
        self._awake.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _serve(self) -> threading.Thread:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="soak-receiver", daemon=True)
        thread.start()
        return thread

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._answer(self)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        size = len(handler.rfile.read(int(handler.headers.get("Content-Length", "0"))))
        if self.mood is Mood.HANGING:
            self._awake.wait(10.0)
        refused = self.mood is not Mood.UP
        self.refused += refused
        self.taken += not refused
        self.taken_bytes += 0 if refused else size
        handler.send_response(503 if refused else 200)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", "0")
        handler.end_headers()


class _Server(HTTPServer):
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections."""
