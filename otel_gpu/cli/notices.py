"""Notices on stderr: the progress of slow steps, and that a host is simulated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from otel_gpu.cli.logs import notify

PATIENCE_S: Final = 2.0
"""Faster steps have no message."""

_LONGEST_PAUSE_S: Final = 60.0


def announce_simulation(reason: str | None) -> None:
    """Warn that the host is simulated, and why; ``None`` if it is not."""
    if reason is not None:
        text = f"SIMULATED HOST, no figure is of a real GPU: {reason}"
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
