"""Log lines on stderr: logfmt or JSON, one line each, safe whatever they quote."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from otel_gpu.config import LogFormat, LogLevel


def set_up(level: LogLevel, log_format: LogFormat) -> None:
    """Log from now on; for the command line only, since a library leaves logging to its host."""
    logging.raiseExceptions = False  # a bad log call is no reason to print a traceback
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format is LogFormat.JSON else _Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, str]:
    fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self))


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record, self).items())


def _quoted(value: str) -> str:
    """A bare word, or a JSON string: quotes, line ends and control characters cannot forge a second line."""
    return (
        value
        if value and value.isascii() and not set(value) & set(" =\"'\\") and value.isprintable()
        else json.dumps(value)
    )
