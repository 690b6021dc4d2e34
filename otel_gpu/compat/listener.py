"""Settings of a listener that serves the series of another exporter."""

from __future__ import annotations

from dataclasses import dataclass

from otel_gpu.values import Address


@dataclass(frozen=True, slots=True)
class Listener:
    """One exporter on its own port. An ``address`` without a host means the agent's host.

    ``max_age_s`` is the greatest age of a served report. Every name starts with ``prefix``; ``labels`` are on every
    series. Without ``kubernetes`` labels of pods are empty. Ended processes are served for ``retention_s`` if that is
    less than the agent's retention. ``notes`` are warnings about options that only the agent's settings decide.
    """

    exporter: str
    address: Address
    path: str = "/metrics"
    max_age_s: float = 1.0
    prefix: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    kubernetes: bool = True
    retention_s: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.exporter}:{self.address.port}"
