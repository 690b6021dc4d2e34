"""OTLP as configured. Everything is passed to OpenTelemetry's exporters by their constructors.

They read variables on their own as well, otherwise than the specification and beside what is passed: a timeout in
seconds, headers of one receiver sent to another, an error for ``none``. So this process forgets those variables.
"""

from __future__ import annotations

import os
from typing import Final

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.sender import Sender
from otel_gpu.settings_export import ExportConfig, Protocol

_THEIRS: Final = ("OTEL_EXPORTER_OTLP_", "OTEL_PYTHON_")


def open_otlp(config: ExportConfig, log: ExporterLog, timeout_s: float) -> Sender:
    """A sender whose requests, with their repetitions, take no longer than ``timeout_s``. Nothing is connected yet."""
    _forget_their_variables()
    # Here, not above: each takes memory that the other does not need.
    if config.otlp_protocol is Protocol.GRPC:
        # Its core prints every failed handshake by itself; what it is about comes with the error.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from otel_gpu.export.otlp_grpc import GrpcSender  # noqa: PLC0415

        return GrpcSender(config, timeout_s, log)
    from otel_gpu.export.otlp_http import HttpSender  # noqa: PLC0415

    return HttpSender(config, timeout_s, log)


def _forget_their_variables() -> None:
    """For good: put back, they would be taken away again for the last export, while other threads read others."""
    for name in [name for name in os.environ if name.startswith(_THEIRS)]:
        del os.environ[name]
