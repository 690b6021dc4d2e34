"""Senders and what they report: the interface between the pusher and the ways to export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from otel_gpu.bounded_io import one_line
from otel_gpu.export.batches import Batch

UNREACHABLE: Final = "unreachable"
PROTOCOL: Final = "protocol"
TLS: Final = "tls"
"""Kinds of failure in which no receiver answered: no connection, another protocol, TLS not trusted."""


@dataclass(frozen=True, slots=True)
class ExportFailure:
    """Why a request, or a part of it, was not accepted. ``kind`` is one of few; ``text`` may vary within a kind."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of a request. An accepted request may have a failure too: some of its points were rejected.

    ``try_next`` says of a request that was not accepted whether the receiver may accept the next one: it is there, and
    refused this request only.
    """

    accepted: bool
    failure: ExportFailure | None = None
    try_next: bool = False


ACCEPTED: Final = ExportResult(accepted=True)


class Attempt(NamedTuple):
    """The result of one attempt to send a request.

    ``is_retryable``: OTLP allows to send the same request again. ``retry_after_s`` is the time to wait before that if
    it is known, as when the receiver asks for it.
    """

    result: ExportResult
    is_retryable: bool = False
    retry_after_s: float | None = None


class Sender(Protocol):
    """Sends batches to one receiver, one at a time."""

    def send(self, batch: Batch) -> ExportResult:
        """Send a batch as one request and wait for the answer, for at most the timeout of the sender."""

    def close(self) -> None:
        """Close connections. A request in progress on another thread ends as soon as its protocol allows."""


def rejected_points(count: int, reason: str) -> ExportFailure | None:
    """The failure of a partial success; ``None`` if no point was rejected."""
    if not count:
        return None
    return ExportFailure("partial", f"{count} points were rejected: {one_line(reason)}".removesuffix(": "))
