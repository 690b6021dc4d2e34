"""The instruments inside somebody else's service, on the MeterProvider it has."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from opentelemetry.metrics import MeterProvider, get_meter_provider

from otel_gpu.clock import SystemClock
from otel_gpu.config import SETTINGS, load, nearest
from otel_gpu.errors import UsageError
from otel_gpu.host import open_host
from otel_gpu.metrics.instruments import create_instruments
from otel_gpu.sampling import Sampling


class Instrumentation:
    """Samples in the background until closed. After that its instruments observe nothing."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def close(self) -> None:
        """Stop sampling and let go of the driver."""
        self._sampling.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def instrument(meter_provider: MeterProvider | None = None, **settings: str) -> Instrumentation:
    """Create every instrument on a provider (the global one by default) and start sampling this host.

    ``settings`` are the agent's, as text: ``interval="10s"``, ``proc_root="/host/proc"``. Variables and the file that
    ``OTEL_GPU_CONFIG`` names count as they do for the agent; exporters are the provider's affair. ``errors.UsageError``
    for a bad one, ``errors.Unavailable`` without a driver where ``source="nvml"`` needs one at once.
    """
    known = {setting.key.replace("-", "_"): setting.key for setting in SETTINGS}
    for name in settings:
        if name not in known:
            raise UsageError(f"instrument(): there is no setting {name!r}; {nearest(name, known)}")
    config = load({known[name]: text for name, text in settings.items()}, os.environ).config
    clock = SystemClock()
    sampling = Sampling(config, open_host(config, clock), clock)
    create_instruments(meter_provider if meter_provider is not None else get_meter_provider(), sampling.readings.newest)
    sampling.start()
    return Instrumentation(sampling)
