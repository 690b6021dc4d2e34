"""Stand-ins for a Collector, over HTTP and gRPC, whose answers a test chooses."""

from __future__ import annotations

import gzip
import queue
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import trustme
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # it has no types
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from otel_gpu.config import load
from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp import open_otlp
from otel_gpu.export.sender import ExportResult, Sender
from tests.unit.export.samples import RESOURCES, batch, one_gauge

PROTOBUF = {"content-type": "application/x-protobuf"}


@dataclass(frozen=True)
class Answer:
    """An answer. ``hang`` waits until the stand-in ends, ``close`` closes the connection, ``raw`` is sent as it is.

    ``drip`` follows byte by byte.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    hang: bool = False
    close: bool = False
    raw: bytes | None = None
    drip: bytes = b""


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    path: str
    headers: Mapping[str, str]
    size_bytes: int
    request: ExportMetricsServiceRequest


class HttpCollector:
    """Answers with what ``answer`` returns for the number of a request, and records requests."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[int], Answer] = lambda _: Answer(headers=PROTOBUF)
        self.seen: list[Seen] = []
        self.arrived: queue.Queue[Seen] = queue.Queue()
        self.ended = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def always(self, answer: Answer) -> None:
        """Answer this from now on."""
        self.answer = lambda _: answer

    def close(self) -> None:
        """End."""
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


def _handler(collector: HttpCollector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            plain = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            seen = Seen(
                self.path,
                {key.lower(): value for key, value in self.headers.items()},
                len(plain),
                ExportMetricsServiceRequest.FromString(plain),
            )
            number = len(collector.seen)
            collector.seen.append(seen)
            collector.arrived.put(seen)
            self.reply(collector.answer(number))

        def reply(self, answer: Answer) -> None:
            if answer.hang:
                collector.ended.wait()
            if answer.hang or answer.close or answer.raw is not None:
                self.wfile.write(answer.raw or b"")
                for byte in answer.drip:
                    self.wfile.write(bytes([byte]))
                    collector.ended.wait(0.05)
                self.close_connection = True
                return
            self.send_response(answer.status)
            for key, value in (answer.headers or {}).items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    return Handler


class GrpcCollector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """The same over gRPC; ``refusal`` is a status and what is said of it, ``answer`` what else it answers.

    ``refusals`` is how many requests are refused. ``details`` and ``retry_after_s`` come with a refusal.
    """

    def __init__(self, credentials: Any = None, port: int = 0, host: str = "127.0.0.1") -> None:
        self.refusal: tuple[Any, str] | None = None
        self.refusals = 10**9
        self.details: bytes | None = None
        self.retry_after_s: float | None = None
        self.answer = ExportMetricsServiceResponse()
        self.hang = threading.Event()
        self.hang.set()
        self.seen: list[Seen] = []
        self.arrived: queue.Queue[Seen] = queue.Queue()
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        bind = self.server.add_insecure_port if credentials is None else self.server.add_secure_port
        self.port: int = bind(f"{host}:{port}", *(() if credentials is None else (credentials,)))
        self.host, self.scheme = host, "http" if credentials is None else "https"
        self.server.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.scheme}://{self.host}:{self.port}"

    def Export(self, request: ExportMetricsServiceRequest, context: Any) -> ExportMetricsServiceResponse:  # noqa: N802
        metadata = {key: value for key, value in context.invocation_metadata()}  # noqa: C416
        seen = Seen("", metadata, request.ByteSize(), request)
        self.seen.append(seen)
        self.arrived.put(seen)
        self.hang.wait()
        if self.refusal is not None and len(self.seen) <= self.refusals:
            details = self.details
            if self.retry_after_s is not None:
                status = Status(code=self.refusal[0].value[0], message=self.refusal[1])
                status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=int(self.retry_after_s))))
                details = status.SerializeToString()
            if details is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", details),))
            context.abort(*self.refusal)
        return self.answer

    def close(self) -> None:
        """End."""
        self.hang.set()
        self.server.stop(0).wait()


class BlackHole:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """End."""
        self._socket.close()


def unused_url() -> str:
    """An address without a listener."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def sender(url: str, timeout_s: float = 5.0, /, **flags: str) -> Iterator[Sender]:
    """A sender made from flags, as the agent makes it."""
    words = {key.replace("_", "-"): text for key, text in flags.items()}
    made = open_otlp(load({"otlp-endpoint": url, **words}, {}).config.export, RESOURCES, timeout_s)
    try:
        yield made
    finally:
        made.close()


def data() -> Batch:
    """The smallest batch with a point."""
    return batch(one_gauge())


def sent(url: str, timeout_s: float = 5.0, /, **flags: str) -> ExportResult:
    """The result of one request."""
    with sender(url, timeout_s, **flags) as made:
        return made.send(data())


def failure(result: ExportResult) -> tuple[str, str]:
    """Kind and text of a failure."""
    assert result.failure is not None
    return result.failure.kind, result.failure.text


class Pki:
    """An authority, and certificates of its own in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(directory / "ca.crt")
        self.server = self.ca.issue_cert("127.0.0.1")
        client = self.ca.issue_cert("agent")
        client.cert_chain_pems[0].write_to_path(directory / "client.crt")
        client.private_key_pem.write_to_path(directory / "client.key")
        client.private_key_and_cert_chain_pem.write_to_path(directory / "both.pem")

    def file(self, name: str) -> str:
        """The path of one of them."""
        return str(self.directory / name)

    def context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """An HTTP server's TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.configure_cert(context)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        return context

    def credentials(self, *, mutual: bool = False) -> Any:
        """A gRPC server's TLS."""
        pair = (self.server.private_key_pem.bytes(), self.server.cert_chain_pems[0].bytes())
        authority = self.ca.cert_pem.bytes() if mutual else None
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=mutual)
