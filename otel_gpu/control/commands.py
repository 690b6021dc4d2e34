"""``otel-gpu pause`` and ``otel-gpu resume``: what a running agent is told, and what it said, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_gpu import values
from otel_gpu.control.client import ask
from otel_gpu.control.protocol import LONGEST_S, RESUME, pause_request, paused_text, resumed_text
from otel_gpu.errors import Unavailable, UsageError
from otel_gpu.streams import write

_DONE: Final = 0


def pause_s(text: str) -> float:
    """How long to pause, as it was written. UsageError if it is no such duration."""
    try:
        return values.duration_s(1, LONGEST_S)(text)
    except ValueError:
        raise UsageError(f"--for is {text!r}; allowed is a duration from 1s to 168h, such as 10m") from None


def pause(places: Sequence[Path], *, for_s: float | None) -> int:
    """Have the agent at one of these places let go of the driver. Unavailable if there is none, or it cannot."""
    answer = ask(places, pause_request(for_s))
    held = answer.get("held")
    if held:
        nodes = ", ".join(map(str, held)) if isinstance(held, list) else "the driver"
        raise Unavailable(
            f"not paused yet: the agent still holds {nodes}: a call to the driver has not returned; "
            "the agent is paused once it has, and otel-gpu pause asked again tells"
        )
    write(sys.stdout, f"{paused_text(answer)}\n")
    return _DONE


def resume(places: Sequence[Path]) -> int:
    """Have the agent at one of these places read GPUs again. Unavailable if there is none."""
    write(sys.stdout, f"{resumed_text(ask(places, RESUME))}\n")
    return _DONE
