"""Log lines on stderr: logfmt or JSON, one line each, safe whatever they quote."""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Final, TypeAlias

from otel_gpu.config import LogFormat, LogLevel

Value: TypeAlias = str | int | float | bool | None

CLIENTS: Final = ("urllib3", "requests", "docker", "grpc", "opentelemetry", "asyncio")
"""Libraries that write down, for debugging, whatever they send: a query, and the secret in it."""


def set_up(level: LogLevel, log_format: LogFormat) -> None:
    """Log from now on; for the command line only, since a library leaves logging to its host.

    A record may have ``extra={"fields": {…}}``: what it is about, as values of their own beside the message.
    """
    logging.raiseExceptions = False  # a bad log call is no reason to print a traceback
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format is LogFormat.JSON else _Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Value]:
    fields: dict[str, Value] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    about = getattr(record, "fields", None)
    if isinstance(about, dict):
        fields |= {str(key): _plain(value) for key, value in about.items() if key not in fields}
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


def _plain(value: object) -> Value:
    """A number or a switch as it is, anything else as text; no number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | None) else str(value)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self))


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record, self).items())


def _quoted(value: Value) -> str:
    """A bare word, or a JSON string: quotes, line ends and control characters cannot forge a second line."""
    if not isinstance(value, str):
        return json.dumps(value)
    return (
        value
        if value and value.isascii() and not set(value) & set(" =\"'\\") and value.isprintable()
        else json.dumps(value)
    )
