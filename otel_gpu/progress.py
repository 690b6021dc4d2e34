"""What takes long says what it is doing: nobody should wonder whether a command hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 2.0
"""What is done within this time needs no words."""

_RAREST_S: Final = 60.0


@contextmanager
def told_if_long(what: str, say: Callable[[str], object], *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Say ``what`` is going on while it does, if that takes longer than ``patience_s`` seconds.

    ``say`` is called on a thread of its own, never after the end, with a text such as ``reading GPUs … 4 s``.
    """
    done = threading.Event()

    def tell() -> None:
        before_s = 0.0
        for moment_s in moments_s(patience_s):
            if done.wait(moment_s - before_s):
                return
            say(f"{what} … {moment_s:.0f} s")
            before_s = moment_s

    thread = threading.Thread(target=tell, name="otel-gpu-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def moments_s(patience_s: float) -> Iterator[float]:
    """When to say so, in seconds since it began: twice as late each time, then every minute. Logs stay short."""
    moment_s = patience_s
    while True:
        yield moment_s
        moment_s += min(moment_s, _RAREST_S)
