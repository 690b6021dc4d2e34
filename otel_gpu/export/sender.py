"""What a pusher hands requests to, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import MetricsData

UNREACHABLE: Final = "unreachable"
PROTOCOL: Final = "protocol"
TLS: Final = "tls"
"""Kinds of trouble of which no receiver tells: nobody answers, somebody who does not speak OTLP, or no trust."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a request was not taken as it should be. ``kind`` is one of few, and told once; ``text`` may vary."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a request: taken or not, and with what trouble.

    ``go_on`` says of one that was not taken whether the next may fare better: the receiver is there, and chooses.
    """

    taken: bool
    trouble: Trouble | None = None
    go_on: bool = False


TAKEN = Delivery(taken=True)


def rejected(points: int, reason: str) -> Trouble | None:
    """A partial success of OTLP: the request was taken, some of its points were not."""
    if not points:
        return None
    return Trouble("partial", f"{points} points were rejected: {' '.join(reason.split())}".removesuffix(": "))


class Sender(Protocol):
    """Takes requests to one receiver, one at a time."""

    def send(self, data: MetricsData | bytes) -> Delivery:
        """Send and wait, no longer than the sender was made for. Bytes are an ExportMetricsServiceRequest."""

    def close(self) -> None:
        """Let go; a request under way on another thread is given up as soon as may be."""
