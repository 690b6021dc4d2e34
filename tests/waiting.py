"""Wait for the effect of another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 20.0


def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return when the condition holds; fail if it does not in time."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never held"
        time.sleep(0.005)
