"""Where another exporter's series are served, and what that exporter was told about itself."""

from __future__ import annotations

from dataclasses import dataclass

from otel_gpu.values import Address


@dataclass(frozen=True, slots=True)
class Listener:
    """One exporter on a port of its own. An ``address`` without a host is on the agent's.

    ``max_age_s`` is how old a reading may be that is served. ``prefix`` begins every name, ``labels`` are on every
    series. Without ``kubernetes`` nothing is told of pods. What has ended is told of for ``retention_s``, where that is
    less than the agent's. ``notes`` say what it was told that only the agent can be told.
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
