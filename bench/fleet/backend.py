"""A backend that counts the points of each series and time in OTLP requests over HTTP, and stores no values.

It records the series of each export, to distinguish a point that arrives twice (after a lost answer or a killed
Collector) from a missing one.
"""

from __future__ import annotations

import gzip
import math
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint, ResourceMetrics

from bench.fleet.child import Child, child
from bench.fleet.ledger import Received
from otel_gpu.config.values import Address

LOOPBACK: Final = "127.0.0.1"
PATH: Final = "/v1/metrics"

Attributes: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Totals:
    """Received amounts. ``late_points`` arrived after a newer point of their series; ``wire_bytes`` are compressed."""

    requests: int = 0
    points: int = 0
    twice_points: int = 0
    late_points: int = 0
    wire_bytes: int = 0
    body_bytes: int = 0

    @property
    def distinct_points(self) -> int:
        """Each series once at each time."""
        return self.points - self.twice_points


@dataclass(slots=True)
class _Series:
    number: int
    counter: str | None
    newest_ns: int = 0
    newest_value: float = 0.0


@dataclass(slots=True)
class _Host:
    """The series of a host, and for each time a bit set of the series received."""

    series: dict[int, _Series] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def received(self) -> Received:
        last_ns = max(self.seen, default=0)
        values: dict[str, list[float]] = {}
        for series in self.series.values():
            if series.counter is not None and series.newest_ns == last_ns:
                values.setdefault(series.counter, []).append(series.newest_value)
        points = {time_ns: bits.bit_count() for time_ns, bits in self.seen.items()}
        return Received(points, {name: math.fsum(of) for name, of in values.items()})


class ReceivedPoints:
    """Points received, by host and time."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._hosts: dict[str, _Host] = {}
        self._lock = threading.Lock()

    def add(self, body: bytes, wire_bytes: int) -> None:
        """Count one request. Raises DecodeError for an invalid one."""
        request = ExportMetricsServiceRequest.FromString(body)
        with self._lock:
            self.totals.requests += 1
            self.totals.wire_bytes += wire_bytes
            self.totals.body_bytes += len(body)
            for resource in request.resource_metrics:
                self._take_resource(resource)

    def by_host(self) -> Mapping[str, Received]:
        """Received points of every host."""
        with self._lock:
            return {name: host.received() for name, host in self._hosts.items()}

    def _take_resource(self, resource: ResourceMetrics) -> None:
        attributes = _attributes(resource.resource.attributes)
        name = next((one.value.string_value for one in resource.resource.attributes if one.key == "host.name"), "")
        host = self._hosts.setdefault(name, _Host())
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points:
                    self._take_point(host, attributes, metric, point)

    def _take_point(self, host: _Host, resource: Attributes, metric: Metric, point: NumberDataPoint) -> None:
        # A 64-bit hash: collisions among the few hundred series of a host are negligible.
        key = hash((resource, metric.name, _attributes(point.attributes)))
        series = host.series.get(key)
        if series is None:
            counter = metric.name if metric.HasField("sum") and metric.sum.is_monotonic else None
            series = host.series[key] = _Series(len(host.series), counter)
        time_ns = point.time_unix_nano
        bit = 1 << series.number
        seen = host.seen.get(time_ns, 0)
        self.totals.points += 1
        if seen & bit:
            self.totals.twice_points += 1
            return
        host.seen[time_ns] = seen | bit
        if time_ns < series.newest_ns:
            self.totals.late_points += 1
            return
        series.newest_ns = time_ns
        series.newest_value = point.as_double if point.HasField("as_double") else point.as_int


def _attributes(attributes: Iterable[KeyValue]) -> Attributes:
    return tuple(sorted((one.key, one.value.SerializeToString()) for one in attributes))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, received: ReceivedPoints) -> None:
        self.received = received
        super().__init__((LOOPBACK, 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore OSErrors: a killed sender repeats requests without an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as the base class passes it


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        """Accept an OTLP request. An empty body is a response without partial success."""
        length = int(self.headers.get("Content-Length", 0))
        body = wire = self.rfile.read(length)
        if len(wire) < length:
            raise ConnectionResetError(f"{len(wire)} of {length} bytes")
        status = HTTPStatus.OK if self.path == PATH else HTTPStatus.NOT_FOUND
        try:
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(wire)
            if status is HTTPStatus.OK:
                self.server.received.add(body, len(wire))
        except (DecodeError, OSError, EOFError, zlib.error):
            status = HTTPStatus.BAD_REQUEST
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


# ---------------------------------------------------------------------------- in a process of its own


class Backend:
    """The address and the contents of a backend process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.address = Address(LOOPBACK, child.receive(int))

    def totals(self) -> Totals:
        """Received amounts so far."""
        self._child.send("totals")
        return self._child.receive(Totals)

    def received(self) -> Mapping[str, Received]:
        """Received points of every host."""
        self._child.send("received")
        found: dict[str, Received] = self._child.receive(dict)
        return found


@contextmanager
def backend() -> Iterator[Backend]:
    """A backend in a process of its own, so that its CPU time is not measured with others."""
    with child("backend", _serve) as one:
        yield Backend(one)


def _serve(connection: Connection) -> None:
    received = ReceivedPoints()
    with _Server(received) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            connection.send(server.server_port)
            while True:
                connection.send(received.totals if connection.recv() == "totals" else received.by_host())
        finally:
            server.shutdown()
            thread.join()
