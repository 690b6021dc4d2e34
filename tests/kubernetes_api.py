"""An API server for tests: pods over real TLS, with the faults of real servers.

Kubernetes API concepts: lists in pages, versions, watches with bookmarks, 410 Gone once a version was compacted.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import trustme

from otel_gpu.sources.names.kubernetes.api import ApiServer

NODE = "gpu-node-1"
CREATED = "2024-05-01T10:00:00Z"

Json = dict[str, Any]


def pod(
    name: str,
    *containers: Json,
    uid: str | None = None,
    node: str = NODE,
    namespace: str = "ml",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pod of the API, with many unused fields."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": status["name"], "image": f"spec/{status['name']}:1"} for status in containers],
        },
        "status": {"phase": "Running", "containerStatuses": list(containers)},
    }


def container(container_id: str, name: str = "main", *, runtime: str = "containerd", **more: Any) -> Json:
    """The status of a running container."""
    return {
        "name": name,
        "image": "registry.example/train:2",
        "containerID": f"{runtime}://{container_id}",
        "state": {"running": {"startedAt": CREATED}},
        "lastState": {},
        **more,
    }


def hex_id(number: int) -> str:
    """A container's id."""
    return f"{number:064x}"


@dataclass
class Fault:
    """A fault in place of an answer. ``of`` is the kind of request it applies to: a list, a watch or either."""

    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_s: float = 0.0
    """A delay before the answer; the correct one follows if ``status`` is 200 and there is no body."""
    raw: bytes | None = None
    """Sent in place of HTTP; the connection ends."""
    drips: bytes | None = None
    """Sent in place of HTTP, and then a zero every 20 ms."""
    of: str | None = None


@dataclass(frozen=True)
class Request:
    """A received request."""

    kind: str
    query: Mapping[str, str]
    token: str


class KubernetesApi:
    """Pods that tests add, change and delete, and the received requests."""

    def __init__(self, directory: Path, *identities: str, host: str = "127.0.0.1") -> None:
        self.authority = trustme.CA()
        self.ca_file = directory / "ca.crt"
        self.token_file = directory / "token"
        self.authority.cert_pem.write_to_path(self.ca_file)
        self.tokens = {"first"}
        self.token_file.write_text("first\n", encoding="ascii")
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.pages_always = False
        """Without a watch cache, lists of version 0 have pages too."""
        self.gone_as_event = False
        self.cut_after_bytes: int | None = None
        """The next event and its connection are cut after this many bytes."""
        self.ended = 0
        """The number of times watches were ended."""

        self._pods: dict[str, Json] = {}
        self._log: list[tuple[int, bytes, str]] = []
        self._version = 1000
        self._compacted = 0
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self.stopping = threading.Event()

        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*(identities or (host,))).configure_cert(self.tls)
        self._server = (_ServerOverIpv6 if ":" in host else _Server)((host, 0), _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def server(self) -> ApiServer:
        """The server's address and files."""
        host, port = self._server.server_address[:2]
        return ApiServer(str(host), int(port), self.ca_file, self.token_file)

    def close(self) -> None:
        """End every connection and every thread."""
        self.stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self.drop_connections()
        self._server.server_close()

    # ------------------------------------------------------------------------ what tests do

    def put(self, *pods: Json) -> None:
        """Add pods, or change them."""
        with self._changed:
            for new in pods:
                uid = new["metadata"]["uid"]
                self._record("MODIFIED" if uid in self._pods else "ADDED", new)
                self._pods[uid] = new
            self._changed.notify_all()

    def delete(self, gone: Json) -> None:
        """Delete a pod."""
        with self._changed:
            self._record("DELETED", self._pods.pop(gone["metadata"]["uid"]))
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Pods of other nodes changed: send a bookmark on the watches."""
        with self._changed:
            self._record("BOOKMARK", {"kind": "Pod", "metadata": {}})
            self._changed.notify_all()

    def say(self, line: bytes) -> None:
        """Send a line on every watch."""
        with self._changed:
            self._version += 1
            self._log.append((self._version, line + b"\n", ""))
            self._changed.notify_all()

    def compact(self) -> None:
        """Drop the history: watches from earlier versions get 410."""
        with self._changed:
            self._version += 1
            self._compacted = self._version

    def end_watches(self) -> None:
        """End the open watches, as a server does at their timeout."""
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def drop_connections(self) -> None:
        """Cut every connection."""
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def received(self, kind: str) -> list[Request]:
        """The requests of a kind: ``list`` or ``watch``."""
        return [request for request in self.requests if request.kind == kind]

    # ------------------------------------------------------------------------ what handlers do

    @contextlib.contextmanager
    def connected(self, connection: socket.socket) -> Iterator[None]:
        """Among the open connections."""
        with self._changed:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(connection)

    def fault(self, kind: str) -> Fault | None:
        """The next fault for a request of this kind."""
        with self._changed:
            for number, fault in enumerate(self.faults):
                if fault.of in (None, kind):
                    return self.faults.pop(number)
        return None

    def page(self, query: Mapping[str, str]) -> tuple[int, Json]:
        """A list, or a page of one."""
        with self._changed:
            version, first = self._version, 0
            if token := query.get("continue"):
                if query.get("resourceVersion", "0") != "0":
                    return 400, status(400, "specifying resource version is not allowed when using continue")
                version, first = json.loads(base64.b64decode(token))
                if version < self._compacted:
                    return 410, status(410, "The provided continue parameter is too old")
            matching = [copy.deepcopy(one) for one in self._pods.values() if _selected(one, query)]
        limit = int(query.get("limit", "0")) or len(matching)
        if query.get("resourceVersion") == "0" and not self.pages_always:
            limit = len(matching)
        metadata: Json = {"resourceVersion": str(version)}
        if first + limit < len(matching):
            metadata["continue"] = base64.b64encode(json.dumps([version, first + limit]).encode()).decode()
        items = matching[first : first + limit]
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    def is_compacted(self, version: int) -> bool:
        """Whether the version has expired."""
        return version < self._compacted

    def events(self, query: Mapping[str, str], ended: int) -> Iterator[bytes]:
        """The events after a version as they happen, until the watches are ended."""
        version = int(query["resourceVersion"])
        node = query["fieldSelector"].removeprefix("spec.nodeName=")
        over = False
        while not over:
            with self._changed:
                over = self.stopping.is_set() or self.ended > ended
                new = [entry for entry in self._log if entry[0] > version]
                if not new and not over:
                    over = not self._changed.wait(timeout=float(query["timeoutSeconds"]))
            for after, line, on in new:
                version = after
                if on in ("", node):
                    yield line

    def _record(self, kind: str, value: Json) -> None:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
        self._log.append((self._version, line, value.get("spec", {}).get("nodeName", "")))


def status(code: int, message: str) -> Json:
    """A failure as a Status."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _selected(value: Json, query: Mapping[str, str]) -> bool:
    selector = query.get("fieldSelector", "")
    return not selector or bool(selector == f"spec.nodeName={value['spec']['nodeName']}")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    api: KubernetesApi

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects or rejects the certificate is not an error."""


class _ServerOverIpv6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.request.settimeout(30)
        self.request = self.server.api.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.request.close()

    def handle(self) -> None:
        with self.server.api.connected(self.request), contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        api = self.server.api
        target = urlsplit(self.path)
        query = dict(parse_qsl(target.query))
        kind = "watch" if query.get("watch") else "list"
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        # Taken before the request is recorded, so that changes by a test come after it.
        accepted, ended = token in api.tokens, api.ended
        api.requests.append(Request(kind, query, token))
        fault = api.fault(kind)
        if fault is not None:
            api.stopping.wait(fault.delay_s)
            if fault.raw is not None:
                self.wfile.write(fault.raw)
                self.close_connection = True
                return
            if fault.drips is not None:
                self.wfile.write(fault.drips)
                while not api.stopping.wait(0.02):
                    self.wfile.write(b"0")
                return
            if fault.status != 200 or fault.body:
                self._answer(fault.status, fault.body, fault.headers)
                return
        if not accepted:
            self._say(401, status(401, "Unauthorized"))
        elif target.path != "/api/v1/pods":
            self._say(404, status(404, "not found"))
        elif kind == "list":
            self._say(*api.page(query))
        elif api.is_compacted(int(query["resourceVersion"])) and not api.gone_as_event:
            self._say(410, status(410, "too old resource version"))
        else:
            self._watch(query, ended)

    def _watch(self, query: Mapping[str, str], ended: int) -> None:
        api = self.server.api
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        if api.is_compacted(int(query["resourceVersion"])):
            gone = {"type": "ERROR", "object": status(410, "too old resource version")}
            self._chunk(json.dumps(gone).encode() + b"\n")
        else:
            for line in api.events(query, ended):
                cut, api.cut_after_bytes = api.cut_after_bytes, None
                if cut is not None:
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line[:cut])
                    return
                self._chunk(line)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, line: bytes) -> None:
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def _say(self, code: int, value: Json) -> None:
        self._answer(code, json.dumps(value).encode(), {})

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True
