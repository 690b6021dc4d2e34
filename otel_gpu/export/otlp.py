"""Senders of OTLP: over HTTP or gRPC, with retries as OTLP requires, or in JSON to standard output."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.bounded_io import one_line
from otel_gpu.config.groups import ExportConfig, Temporality
from otel_gpu.config.groups import Protocol as OtlpProtocol
from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.sender import ACCEPTED, Attempt, ExportFailure, ExportResult, Sender
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection

_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_JITTER: Final = 0.2
"""Pauses between attempts, give or take a fifth. OTLP asks for exponential back-off with jitter.

Not ``sources.backoff``, which exporters may not import: here a server may choose the pause, and the attempts end.
"""

_SHORTEST_S: Final = 0.001


class Transport(Protocol):
    """Takes requests to one receiver."""

    def prepare(self, request: ExportMetricsServiceRequest) -> Callable[[float], Attempt]:
        """Returns a function that makes one attempt to send the request, within the given seconds."""

    def close(self) -> None:
        """Close connections, which ends an attempt in progress if the protocol allows it."""


class OtlpSender:
    """Sends batches. A request with all its retries takes at most ``timeout_s``.

    https://opentelemetry.io/docs/specs/otlp/: the transport knows which failures are retryable.
    """

    def __init__(self, transport: Transport, resources: Resources, timeout_s: float, *, delta: bool) -> None:
        self._transport = transport
        self._resources = resources
        self._timeout_s = timeout_s
        self._delta = delta
        self._closed = threading.Event()

    def send(self, batch: Batch) -> ExportResult:
        """Encode a batch and send it until it is accepted or refused, or its time is over."""
        try:
            attempt = self._transport.prepare(encode(batch, self._resources, delta=self._delta))
        except ValueError as error:
            failure = ExportFailure("encoding", f"a value cannot be encoded: {one_line(str(error))}")
            return ExportResult(accepted=False, failure=failure, try_next=True)
        deadline_s = time.monotonic() + self._timeout_s
        for pause_s in _PAUSES_S:
            result, is_retryable, wait_s = attempt(max(_SHORTEST_S, deadline_s - time.monotonic()))
            if wait_s is None:
                wait_s = pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
            if not is_retryable or time.monotonic() + wait_s >= deadline_s or self._closed.wait(wait_s):
                return result
        return attempt(max(_SHORTEST_S, deadline_s - time.monotonic())).result

    def close(self) -> None:
        """Close connections and end waiting for a retry."""
        self._closed.set()
        self._transport.close()


def open_otlp(config: ExportConfig, resources: Resources, timeout_s: float) -> Sender:
    """A sender as configured. It does not connect yet."""
    return OtlpSender(_transport(config), resources, timeout_s, delta=config.otlp.temporality is Temporality.DELTA)


def probe_otlp(config: ExportConfig, timeout_s: float) -> ExportFailure | None:
    """Send an empty request as the agent would send a full one; ``None`` if it was accepted.

    OTLP requires servers to answer an empty request with success. So name, route, proxy, TLS, headers, path and
    protocol are all tested, and nothing is stored.
    """
    sender = open_otlp(config, Resources({}, {}), timeout_s)
    try:
        return sender.send(Batch(0, ())).failure
    finally:
        sender.close()


def _transport(config: ExportConfig) -> Transport:
    # Imported here: each needs memory that the other does not.
    if config.otlp.protocol is OtlpProtocol.GRPC:
        # gRPC's core prints every failed handshake; the reason also comes with the error.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from otel_gpu.export.otlp_grpc import GrpcTransport  # noqa: PLC0415

        return GrpcTransport(config)
    from otel_gpu.export.otlp_http import HttpTransport  # noqa: PLC0415

    return HttpTransport(config)


# ---------------------------------------------------------------------------- standard output


def to_otlp_json(collection: Collection | Batch, resources: Resources) -> str:
    """One ExportMetricsServiceRequest on one line; empty if there are no points.

    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in camel case, 64-bit integers as text,
    enumerations as numbers.
    """
    request = encode(collection, resources)
    if not request.resource_metrics:
        return ""
    document = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(document, separators=(",", ":")) + "\n"


class ConsoleSender:
    """Prints requests instead of sending them, one line of JSON each."""

    def __init__(self, stream: TextIO, resources: Resources) -> None:
        self._stream = stream
        self._resources = resources

    def send(self, batch: Batch) -> ExportResult:
        """Print one line."""
        line = to_otlp_json(batch, self._resources)
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            failure = ExportFailure("closed", f"standard output cannot be written: {error}")
            return ExportResult(accepted=False, failure=failure)
        return ACCEPTED

    def close(self) -> None:
        """Do nothing: there is no connection."""
