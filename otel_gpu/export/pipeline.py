"""The export pipeline: all exporters that push, as configured."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Final

from otel_gpu.config.groups import ExportConfig, Exporter, Temporality
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.push import Pusher
from otel_gpu.export.sender import Sender
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection

LAST_EXPORT_S: Final = 2.5
"""Time limit for the last exports together, so that the agent ends within 5 s also while a sample is running."""


class ExportPipeline:
    """One pusher per exporter. Constructing it opens no connection."""

    def __init__(
        self,
        config: ExportConfig,
        resources: Resources,
        collect: Callable[[], Collection | None],
        monotonic_s: Callable[[], float],
        *,
        restored: Callable[[], Collection | None] = lambda: None,
    ) -> None:
        """``restored`` returns what an earlier run had counted, once it is known that its counters are continued."""
        self._config = config
        self._restored = restored
        self._resources = resources
        self._collect = collect
        self._monotonic_s = monotonic_s
        self.pushers = tuple(
            self._pusher(exporter) for exporter in config.exporters if exporter is not Exporter.PROMETHEUS
        )

    def start(self) -> None:
        """Start all pushers."""
        for pusher in self.pushers:
            pusher.start()

    def stop(self, timeout_s: float = LAST_EXPORT_S) -> None:
        """Make the last exports, all at the same time, within ``timeout_s``."""
        for pusher in self.pushers:
            pusher.begin_stop(timeout_s)
        for pusher in self.pushers:
            pusher.finish_stop()

    def _pusher(self, exporter: Exporter) -> Pusher:
        config = self._config
        is_otlp = exporter is Exporter.OTLP
        has_deltas = is_otlp and config.otlp.temporality is Temporality.DELTA
        return Pusher(
            str(config.otlp.target) if is_otlp else exporter.value,
            self._open_otlp if is_otlp else self._open_console,
            self._collect,
            self._resources,
            deltas=Deltas(self._restored) if has_deltas else None,
            largest_bytes=LARGEST_REQUEST_BYTES if is_otlp else math.inf,
            interval_s=config.interval_s,
            export_timeout_s=config.timeout_s,
            request_timeout_s=config.otlp.timeout_s,
            monotonic_s=self._monotonic_s,
        )

    # Senders are imported where they are chosen: protobuf and the clients take memory.

    def _open_otlp(self, timeout_s: float) -> Sender:
        from otel_gpu.export.otlp import open_otlp  # noqa: PLC0415

        return open_otlp(self._config, self._resources, timeout_s)

    def _open_console(self, _: float) -> Sender:
        from otel_gpu.export.console import ConsoleSender  # noqa: PLC0415

        return ConsoleSender(sys.stdout, self._resources)
