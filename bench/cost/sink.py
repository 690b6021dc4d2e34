"""Where the agent pushes to: takes OTLP over HTTP, counts what comes, and says it was taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Sink:
    """Requests and their bytes so far, as they came over the wire."""

    def __init__(self) -> None:
        self.requests = 0
        self.body_bytes = 0
        self.url = ""


@contextmanager
def serving() -> Iterator[Sink]:
    """A sink on a port of its own, on a thread of this process: what it costs is not the agent's."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.requests += 1
            sink.body_bytes += len(body)
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
