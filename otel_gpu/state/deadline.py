"""One call against a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from otel_gpu.errors import Unavailable
from otel_gpu.sources.workers import Worker

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call gives; TooLate, and it goes on alone, if it takes longer. OtelGpuError is passed on."""
    worker = Worker("otel-gpu-once")
    try:
        pending = worker.start(call)
    except Unavailable:  # no room for a thread
        return call()
    worker.close()  # it ends with the call
    return pending.result(time.monotonic() + seconds)
