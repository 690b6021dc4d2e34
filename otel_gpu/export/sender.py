"""The interface between the pusher and the exporters: one request, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import MetricsData

UNREACHABLE: Final = "unreachable"
PROTOCOL: Final = "protocol"
TLS: Final = "tls"
"""Kinds of failure in which no receiver answered: no connection, another protocol, no trust."""


@dataclass(frozen=True, slots=True)
class ExportFailure:
    """Why a request, or a part of it, was not accepted. ``kind`` is one of few; ``text`` may vary within a kind."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What became of a request. An accepted request may have a failure too: some of its points were rejected.

    ``try_next`` says of a request that was not accepted whether the receiver may accept the next one: it is there, and
    refused this request only.
    """

    accepted: bool
    failure: ExportFailure | None = None
    try_next: bool = False


ACCEPTED: Final = ExportResult(accepted=True)


def rejected_points(count: int, reason: str) -> ExportFailure | None:
    """The failure of a partial success; ``None`` if no point was rejected."""
    if not count:
        return None
    return ExportFailure("partial", f"{count} points were rejected: {' '.join(reason.split())}".removesuffix(": "))


class Sender(Protocol):
    """Sends requests to one receiver, one at a time."""

    def send(self, data: MetricsData) -> ExportResult:
        """Send a request and wait for its answer, for at most the timeout of the sender."""

    def close(self) -> None:
        """Close connections. A request in progress on another thread ends as soon as its protocol allows."""
