"""All exporters that push, as configured: started together, ended together within one time."""

from __future__ import annotations

import sys
from collections.abc import Callable

from otel_gpu.clock import Clock
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.metrics_data import Encoder
from otel_gpu.export.otlp import open_otlp
from otel_gpu.export.otlp_wire import WireEncoder
from otel_gpu.export.push import Pusher
from otel_gpu.export.sender import Sender
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.settings_export import ExportConfig, Exporter, Temporality


class Exporting:
    """The pushers. Constructing them connects to nobody."""

    def __init__(
        self,
        config: ExportConfig,
        resources: Resources,
        collect: Callable[[], Collection | None],
        clock: Clock,
        *,
        restored: Callable[[], Collection | None] = lambda: None,
    ) -> None:
        """``restored`` tells what an earlier run had counted, once it is known that counters go on from there."""
        self._config = config
        self._restored = restored
        self._resources = resources
        self._collect = collect
        self._clock = clock
        self._log = ExporterLog()
        self.pushers = tuple(
            self._pusher(exporter) for exporter in config.exporters if exporter is not Exporter.PROMETHEUS
        )

    def start(self) -> None:
        """Begin to push."""
        self._log.install()
        for pusher in self.pushers:
            pusher.start()

    def stop(self, timeout_s: float) -> None:
        """Push once more, all side by side, for no longer than this."""
        for pusher in self.pushers:
            pusher.begin_stop(timeout_s)
        for pusher in self.pushers:
            pusher.finish_stop()
        self._log.remove()

    def _pusher(self, exporter: Exporter) -> Pusher:
        config = self._config
        is_otlp = exporter is Exporter.OTLP
        deltas = Deltas(self._restored) if is_otlp and config.otlp_temporality is Temporality.DELTA else None
        return Pusher(
            str(config.otlp_target) if is_otlp else exporter.value,
            self._open_otlp if is_otlp else self._open_console,
            WireEncoder(self._resources, deltas=deltas) if is_otlp else Encoder(self._resources, largest_bytes=None),
            self._collect,
            interval_s=config.export_interval_s,
            export_timeout_s=config.export_timeout_s,
            request_timeout_s=config.otlp_timeout_s,
            monotonic_s=lambda: self._clock.monotonic_ns() / 1e9,
        )

    def _open_otlp(self, timeout_s: float) -> Sender:
        return open_otlp(self._config, self._log, timeout_s)

    def _open_console(self, _: float) -> Sender:
        from otel_gpu.export.console import ConsoleSender  # noqa: PLC0415 - the SDK's, which nobody else needs

        return ConsoleSender(sys.stdout)
