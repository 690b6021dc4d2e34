"""OTLP senders as configured. All settings are passed to OpenTelemetry's exporters through their constructors.

The exporters also read environment variables: headers are merged with those passed, a timeout is in seconds, some
values raise errors. The agent's settings follow the specification, so these variables are removed from the process.
"""

from __future__ import annotations

import os
from typing import Final

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.sender import Sender
from otel_gpu.settings_export import ExportConfig, Protocol

_EXPORTER_PREFIXES: Final = ("OTEL_EXPORTER_OTLP_", "OTEL_PYTHON_")


def open_otlp(config: ExportConfig, log: ExporterLog, timeout_s: float) -> Sender:
    """A sender whose requests, with their retries, take at most ``timeout_s``. It does not connect yet."""
    _remove_exporter_variables()
    # Imported here: each needs memory that the other does not.
    if config.otlp_protocol is Protocol.GRPC:
        # gRPC's core prints every failed handshake; the reason also comes with the error.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from otel_gpu.export.otlp_grpc import GrpcSender  # noqa: PLC0415

        return GrpcSender(config, timeout_s, log)
    from otel_gpu.export.otlp_http import HttpSender  # noqa: PLC0415

    return HttpSender(config, timeout_s, log)


def _remove_exporter_variables() -> None:
    """Remove them for good. Restored, they would be removed again for the last export while other threads run."""
    for name in [name for name in os.environ if name.startswith(_EXPORTER_PREFIXES)]:
        del os.environ[name]
