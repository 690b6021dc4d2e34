"""Captures what OpenTelemetry's exporters and their clients log.

They log every attempt, some with a traceback. Over gRPC the log is also the only public place that has the reason of a
failure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOGGERS: Final = ("opentelemetry", "urllib3", "requests", "grpc")
_MOST_LINES: Final = 50


class ExporterLog(logging.Handler):
    """Handles their loggers between ``install`` and ``remove``. Records outside of an export are passed on."""

    def __init__(self) -> None:
        super().__init__()
        self._captured: dict[int, list[str]] = {}

    def install(self) -> None:
        """Start to capture."""
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.addHandler(self)

    def remove(self) -> None:
        """Restore the loggers, unless an export that was abandoned may still log."""
        if self._captured:
            return
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.propagate = True

    @contextmanager
    def capture(self) -> Iterator[list[str]]:
        """The first warnings and errors that this thread logs in the meantime, one line each."""
        lines: list[str] = []
        self._captured[threading.get_ident()] = lines
        try:
            yield lines
        finally:
            del self._captured[threading.get_ident()]

    def emit(self, record: logging.LogRecord) -> None:
        """Capture a record, or pass it on."""
        lines = self._captured.get(record.thread or 0)
        if lines is None or record.levelno < logging.WARNING:
            logging.getLogger().handle(record)
        elif len(lines) < _MOST_LINES:
            lines.append(" ".join(record.getMessage().split()))
