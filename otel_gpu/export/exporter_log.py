"""What OpenTelemetry's exporters and their clients log, kept instead of printed: they log every attempt, some with a
traceback, and a reason that they tell nobody else.
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
    """Takes over their loggers between ``install`` and ``remove``. What is not about an export goes its usual way."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[int, list[str]] = {}

    def install(self) -> None:
        """Begin to listen."""
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.addHandler(self)

    def remove(self) -> None:
        """Leave the loggers as they were; not while an export that was left to itself may still have its say."""
        if self._heard:
            return
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.propagate = True

    @contextmanager
    def heard(self) -> Iterator[list[str]]:
        """Warnings and errors that are logged on this thread meanwhile, the first of them if there are many."""
        lines: list[str] = []
        self._heard[threading.get_ident()] = lines
        try:
            yield lines
        finally:
            del self._heard[threading.get_ident()]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, or hand it on."""
        lines = self._heard.get(record.thread or 0)
        if lines is None or record.levelno < logging.WARNING:
            logging.getLogger().handle(record)
        elif len(lines) < _MOST_LINES:
            lines.append(" ".join(record.getMessage().split()))
