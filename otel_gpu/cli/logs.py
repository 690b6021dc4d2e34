"""Log lines on stderr, in logfmt or JSON: one line per record, whatever text it contains. And messages for people."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO, TypeAlias

from otel_gpu.cli.stdio import write_stderr
from otel_gpu.config import LogFormat, LogLevel

log = logging.getLogger(__name__)

Value: TypeAlias = str | int | float | bool | list[str] | None

CLIENTS: Final = ("urllib3", "requests", "docker", "grpc", "opentelemetry", "asyncio")
"""Libraries whose debug level logs requests with their secrets."""


class _Handler(logging.StreamHandler[TextIO]):
    """Writes records to stderr. ``alone`` if stderr must have nothing but records."""

    def __init__(self, log_format: LogFormat, *, alone: bool) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Json() if log_format is LogFormat.JSON else _Logfmt())
        self.alone = alone


def set_up(level: LogLevel, log_format: LogFormat, *, chosen: bool = False) -> None:
    """Configure logging; for the command line only, because a library leaves logging to its application.

    A record may have ``extra={"fields": {…}}``: values in addition to the message. With a ``chosen`` format, and always
    with JSON, a program reads stderr, so ``notify`` writes records.
    """
    logging.raiseExceptions = False  # a bad log call must not print a traceback
    handler = _Handler(log_format, alone=chosen or log_format is LogFormat.JSON)
    if handler.alone:
        # gRPC's core writes its own lines to stderr. The errors it returns have the same content.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


def is_set_up() -> bool:
    """Whether ``set_up`` was called."""
    return any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers)


def notify(text: str, message: str, fields: Mapping[str, object], level: int = logging.INFO) -> None:
    """Write to stderr: ``text`` for people, a record if a program reads stderr."""
    if any(isinstance(handler, _Handler) and handler.alone for handler in logging.getLogger().handlers):
        log.log(level, "%s", message, extra={"fields": fields})
    else:
        write_stderr(text)


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Value]:
    fields: dict[str, Value] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    about = getattr(record, "fields", None)
    if isinstance(about, Mapping):
        fields |= {str(key): _plain(value) for key, value in about.items() if key not in fields}
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


def _plain(value: object) -> Value:
    """A value that JSON can encode. Numbers that JSON does not have become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if isinstance(value, bool | int | float | None) else str(value)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self))


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record, self).items())


def _quoted(value: Value) -> str:
    """A bare word, or a JSON string: quotes, line ends and control characters cannot forge a second line."""
    if isinstance(value, list):
        value = ",".join(value)
    if not isinstance(value, str):
        return json.dumps(value)
    return (
        value
        if value and value.isascii() and not set(value) & set(" =\"'\\") and value.isprintable()
        else json.dumps(value)
    )
