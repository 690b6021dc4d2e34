"""otel-gpu: which workload uses the GPU, how much, at what cost, and which only holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_gpu.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from otel_gpu.agent.embed import Instrumentation

__all__ = ["__version__", "instrument"]


def instrument(meter_provider: MeterProvider | None = None, **settings: str) -> Instrumentation:
    """Observe this host's GPUs on an OpenTelemetry ``MeterProvider``, the global one by default; see docs/embedding.md.

    Stops when the result is closed: ``with otel_gpu.instrument(provider): …``. A provider has one at a time.
    """
    from otel_gpu.agent.embed import instrument as start  # noqa: PLC0415 - the command line does not need it

    return start(meter_provider, **settings)
