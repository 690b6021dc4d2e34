"""A Docker engine's API without an engine: the part that names need, over a unix socket, TCP or TLS.

It counts requests, and can answer with faults, late or never.
"""

from __future__ import annotations

import json
import queue
import re
import socket
import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, NamedTuple

_END: Final = None
"""Ends a stream of events."""


def container_id(number: int) -> str:
    """An id of an engine's form."""
    return f"{number:064x}"


class Bad(NamedTuple):
    """A faulty answer. ``promised`` is more than the bytes sent; ``never`` sends nothing.

    ``drips`` is sent in place of HTTP, and then a zero every 20 ms.
    """

    body: bytes = b""
    status: int = 200
    promised: int | None = None
    never: bool = False
    drips: bytes | None = None


@dataclass
class DockerApi:
    """The engine's containers, the requests received, and faults: ``bad`` is by path, without the version."""

    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    bad: dict[str, Bad] = field(default_factory=dict)
    base_url: str = ""
    chunked: bool = True
    streams: list[queue.Queue[bytes | None]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int, name: str, **changes: Any) -> str:
        """Add a running container without an event; ``changes`` are merged into sections of its document."""
        key = container_id(number)
        document: dict[str, Any] = {
            "Id": key,
            "Name": f"/{name}",
            "State": {"Running": True, "Restarting": False, "StartedAt": "2026-01-02T03:04:05.678901234Z"},
            "Config": {"Image": "vllm:1", "Labels": {}, "Env": []},
            "HostConfig": {"Runtime": "runc", "Privileged": False, "Devices": [], "DeviceRequests": None},
        }
        for section, values in changes.items():
            document[section] = document[section] | values if isinstance(values, Mapping) else values
        self.containers[key] = document
        return key

    def start(self, number: int, name: str, **changes: Any) -> str:
        """Start a container, with an event."""
        key = self.run(number, name, **changes)
        self.happens("start", key)
        return key

    def rename(self, key: str, name: str) -> None:
        """Rename a container, with an event."""
        self.containers[key]["Name"] = f"/{name}"
        self.happens("rename", key)

    def die(self, key: str) -> None:
        """End a container, with an event."""
        self.containers[key]["State"]["Running"] = False
        self.happens("die", key)

    def destroy(self, key: str) -> None:
        """Remove a container, with an event."""
        document = self.containers.pop(key)
        self._say("destroy", key, document)

    def happens(self, action: str, key: str) -> None:
        """Send an event."""
        self._say(action, key, self.containers[key])

    def say(self, line: bytes) -> None:
        """Send bytes on every event stream."""
        for stream in list(self.streams):
            stream.put(line)

    def drop_events(self) -> None:
        """End every stream of events."""
        for stream in list(self.streams):
            stream.put(_END)

    def count(self, path: str) -> int:
        """The number of GET requests for a path; those with ids count as ``/containers/{id}/json``."""
        return self.requests["GET", path]

    def _say(self, action: str, key: str, document: Mapping[str, Any]) -> None:
        attributes = {"image": "vllm:1", "name": str(document["Name"]).removeprefix("/")}
        event = {"Type": "container", "Action": action, "Actor": {"ID": key, "Attributes": attributes}}
        self.say(json.dumps(event).encode() + b"\n")

    def answer(self, path: str) -> tuple[int, Any]:
        """Status and body for a path."""
        if path == "/version":
            return 200, {"ApiVersion": "1.41", "Version": "20.10"}
        if path == "/containers/json":
            return 200, [self._listed(one) for one in self.containers.values() if one["State"]["Running"]]
        inspected = re.fullmatch(r"/containers/([0-9a-f]+)/json", path)
        if inspected is not None and inspected[1] in self.containers:
            return 200, self.containers[inspected[1]]
        return 404, {"message": "page not found"}

    @staticmethod
    def _listed(document: Mapping[str, Any]) -> Mapping[str, Any]:
        up = document.get("Status", "Up 2 years")
        return {"Id": document["Id"], "Names": [document["Name"]], "State": "running", "Status": up}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        api = self.server.api
        path = re.sub(r"\A/v[0-9.]+(?=/)", "", self.path.partition("?")[0])
        api.requests["GET", re.sub(r"/containers/[0-9a-f]{64}/", "/containers/{id}/", path)] += 1
        bad = api.bad.get(path)
        if bad is not None and bad.never:
            api.ended.wait()
        elif bad is not None and bad.drips is not None:
            self.wfile.write(bad.drips)
            while not api.ended.wait(0.02):
                self.wfile.write(b"0")
        elif bad is not None:
            self._send(bad.status, bad.body, bad.promised)
            self.close_connection = True
        elif path == "/events":
            self._send_events(api)
        else:
            status, document = api.answer(path)
            self._send(status, json.dumps(document).encode(), None)

    def _refuse(self) -> None:
        self.server.api.requests[self.command, self.path] += 1
        self._send(403, b"", None)

    do_POST = do_PUT = do_DELETE = do_HEAD = _refuse  # noqa: N815

    def _send(self, status: int, body: bytes, promised: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        self.wfile.write(body)

    def _send_events(self, api: DockerApi) -> None:
        stream: queue.Queue[bytes | None] = queue.Queue()
        self.send_response(200)
        self.send_header(*(("Transfer-Encoding", "chunked") if api.chunked else ("Connection", "close")))
        api.streams.append(stream)  # before the response, so that the client misses no event
        self.end_headers()
        try:
            while (line := stream.get()) is not _END:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line) if api.chunked else line)
            if api.chunked:
                self.wfile.write(b"0\r\n\r\n")
        finally:
            api.streams.remove(stream)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, api: DockerApi, address: str | tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self.api = api
        self.tls = tls
        self.open: set[socket.socket] = set()
        self.address_family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = self.socket.accept()
        self.open.add(connection)
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):  # the client disconnected or rejected the certificate
            if self.tls is not None:
                self.open.discard(request)
                request = self.tls.wrap_socket(request, server_side=True)
                self.open.add(request)
            super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        for connection in {request} & self.open:
            self.open.discard(connection)
        super().shutdown_request(request)

    def cut_off(self) -> None:
        """End every connection, as the kernel does for a killed process."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self.open.clear()


@contextmanager
def serving_docker(
    api: DockerApi, address: Path | tuple[str, int], tls: ssl.SSLContext | None = None
) -> Iterator[DockerApi]:
    """Serve the API there; at the end every connection is cut, as if the engine were killed."""
    if isinstance(address, Path):
        address.unlink(missing_ok=True)
    server = _Server(api, str(address) if isinstance(address, Path) else address, tls)
    api.ended.clear()
    api.base_url = (
        f"unix://{address}" if isinstance(address, Path) else f"tcp://{address[0]}:{server.server_address[1]}"
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.ended.set()
        server.shutdown()
        server.server_close()
        api.drop_events()
        server.cut_off()
        thread.join()
