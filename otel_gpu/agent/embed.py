"""The instruments inside another service, on its MeterProvider."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self
from weakref import WeakKeyDictionary

from opentelemetry.metrics import MeterProvider, get_meter_provider

from otel_gpu.agent.host import open_host
from otel_gpu.agent.own_process import release_free_memory
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import SystemClock
from otel_gpu.config import SETTINGS, Config, Topic, keys, load, nearest
from otel_gpu.errors import UsageError
from otel_gpu.metrics.instruments import create_instruments
from otel_gpu.metrics.series import Collection
from otel_gpu.state.persistent import open_attributor
from otel_gpu.view.text import simulation_warning

log = logging.getLogger(__name__)

_KEYS: Final = (
    "interval", "deadline", "source", "seed", "proc-root", "sys-root", "scope", "retention", "energy-policy",
    "energy-model", "price-gpu-hour", "price-kwh", "currency", "process-metrics", "state-dir",
    *keys(Topic.NAMES),
)  # fmt: skip
"""Settings of sampling, names and attribution. Exporters, listeners and logs belong to the service."""

_DEFAULTS: Final = {"kubernetes-api": "never"}
"""Defaults that differ from the agent's: the Kubernetes service account belongs to the service."""


class _Instruments:
    """The instruments of a provider. They observe the sampling that is open on it, if any."""

    def __init__(self, *, are_global: bool) -> None:
        self.are_global = are_global
        self.sampling: Sampling | None = None

    def collect(self) -> Collection | None:
        sampling = self.sampling
        return None if sampling is None else sampling.metrics.collect()


_lock: Final = threading.Lock()
_instruments: Final[WeakKeyDictionary[MeterProvider, _Instruments]] = WeakKeyDictionary()
"""One for each provider, for its lifetime: the SDK cannot remove instruments and keeps their first callbacks."""


class Instrumentation:
    """Samples in the background until closed. After that the instruments observe nothing until the next one opens."""

    def __init__(self, sampling: Sampling, instruments: _Instruments) -> None:
        self._sampling = sampling
        self._instruments = instruments

    def close(self) -> None:
        """Stop sampling and release the driver. The provider can then be instrumented again."""
        with _lock:
            if self._instruments.sampling is self._sampling:
                self._instruments.sampling = None
        self._sampling.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def instrument(meter_provider: MeterProvider | None = None, **settings: str) -> Instrumentation:
    """Create every instrument on a provider (the global one by default) and start sampling this host.

    ``settings`` are the agent's for sampling, names and attribution, as text: ``interval="9s"``,
    ``environment="host"``. A setting that is not given comes from its variable, else from the file that
    ``OTEL_GPU_CONFIG`` names. ``errors.UsageError`` if a setting is invalid or the provider is already instrumented.
    Without a driver nothing is raised: it is tried again in every cycle, ``otel_gpu.source.state`` has the state, and
    the log the reason.
    """
    config = _load(settings)
    provider = meter_provider if meter_provider is not None else get_meter_provider()
    if not isinstance(provider, MeterProvider):
        raise UsageError(f"instrument(): a MeterProvider is expected, not {type(provider).__name__}")
    with _lock:
        instruments = _find(provider)
        if instruments is not None and instruments.sampling is not None:
            raise UsageError("instrument(): this provider is already instrumented; close the first")
        clock = SystemClock()
        host = open_host(config, clock)
        if host.simulated_because is not None:
            log.warning("%s", simulation_warning(host.simulated_because))
        # Without the environment, whose state directory is the service's: only a configured directory is used.
        simulated = host.simulated_because is not None
        attributor = open_attributor(
            config.attribution.options,
            config.state.directory,
            clock,
            {},
            simulated=simulated,
            release_memory=release_free_memory,
        )
        sampling = Sampling(config, host, clock, attributor)
        if instruments is None:
            instruments = _Instruments(are_global=provider is get_meter_provider())
            create_instruments(provider, instruments.collect)
            _instruments[provider] = instruments
        sampling.start()
        instruments.sampling = sampling
    return Instrumentation(sampling, instruments)


def _find(provider: MeterProvider) -> _Instruments | None:
    """Its instruments, if any. OpenTelemetry's proxy of the global provider passes its own to the one set later."""
    found = _instruments.get(provider)
    if found is None and provider is get_meter_provider():
        found = next((each for each in _instruments.values() if each.are_global), None)
    return found


def _load(given: Mapping[str, object]) -> Config:
    by_name = {setting.key.replace("-", "_"): setting for setting in SETTINGS}
    allowed = [name for name, setting in by_name.items() if setting.key in _KEYS]
    for name in given:
        if name not in by_name:
            raise UsageError(f"instrument(): there is no setting {name!r}; {nearest(name, allowed)}")
    unused = [name for name in given if name not in allowed]
    if unused:
        raise UsageError(f"instrument(): {', '.join(unused)} would do nothing here; use {', '.join(allowed)}")
    texts: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(value, str):
            raise UsageError(f"instrument(): {name}: {value!r} is not text; use {by_name[name].type.use}")
        texts[by_name[name].key] = value
    return load({}, os.environ, defaults=_DEFAULTS, fixed=texts, command="instrument()", only=_KEYS).config
