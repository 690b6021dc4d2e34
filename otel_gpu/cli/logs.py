"""What a command writes to stderr: log lines in logfmt or JSON, and messages for people, such as progress.

A log record is one line, whatever text it contains.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Final, TextIO, TypeAlias

from otel_gpu.cli.stdio import write_stderr
from otel_gpu.config import LogFormat, LogLevel
from otel_gpu.view.text import simulation_warning

log = logging.getLogger(__name__)

Value: TypeAlias = str | int | float | bool | list[str] | None

CLIENTS: Final = ("urllib3", "requests", "docker", "grpc", "opentelemetry", "asyncio")
"""Libraries whose debug level logs requests with their secrets."""

PATIENCE_S: Final = 2.0
"""Faster steps have no message."""

_LONGEST_PAUSE_S: Final = 60.0


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


# ---------------------------------------------------------------------------- notices


def announce_simulation(reason: str | None) -> None:
    """Warn that the host is simulated, and why; ``None`` if it is not."""
    if reason is not None:
        text = simulation_warning(reason)
        notify(f"*** {text} ***\n", text, {"simulated": reason}, logging.WARNING)


def show_progress(step: str) -> AbstractContextManager[None]:
    """Report ``step`` on stderr while it takes long."""
    return report_if_slow(step, lambda text: notify(f"{text}\n", text, {}))


@contextmanager
def report_if_slow(step: str, report: Callable[[str], object], *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Report ``step`` repeatedly if it takes longer than ``patience_s`` seconds.

    ``report`` is called on its own thread, never after the end, with a text such as ``reading GPUs … 4 s``.
    """
    done = threading.Event()

    def run() -> None:
        before_s = 0.0
        for time_s in report_times_s(patience_s):
            if done.wait(time_s - before_s):
                return
            report(f"{step} … {time_s:.0f} s")
            before_s = time_s

    thread = threading.Thread(target=run, name="otel-gpu-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def report_times_s(patience_s: float) -> Iterator[float]:
    """Times of reports in seconds since the start: each twice as late as the last, then every minute."""
    time_s = patience_s
    while True:
        yield time_s
        time_s += min(time_s, _LONGEST_PAUSE_S)
