"""``otel-gpu pause`` and ``otel-gpu resume``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_gpu.cli.stdio import write
from otel_gpu.config.values import duration_s
from otel_gpu.control.protocol import MAX_PAUSE_S, RESUME, describe_pause, describe_resume, pause_request, request
from otel_gpu.errors import Unavailable, UsageError

_DONE: Final = 0


def parse_pause_s(text: str) -> float:
    """The duration of a pause in seconds. UsageError if it is not valid."""
    try:
        return duration_s(1, MAX_PAUSE_S)(text)
    except ValueError:
        raise UsageError(f"--for: {text!r} is not a valid duration; use 1s to 168h, for example 10m") from None


def pause(paths: Sequence[Path], *, for_s: float | None) -> int:
    """Make the agent at one of these paths release the driver. Unavailable if there is no agent, or it cannot."""
    response = request(paths, pause_request(for_s))
    held = response.get("held")
    if held:
        nodes = ", ".join(map(str, held)) if isinstance(held, list) else "the driver"
        raise Unavailable(
            f"not paused yet: the agent still holds {nodes} because a driver call has not returned; "
            "the agent is paused as soon as it returns; run otel-gpu pause again to check"
        )
    write(sys.stdout, f"{describe_pause(response)}\n")
    return _DONE


def resume(paths: Sequence[Path]) -> int:
    """Make the agent at one of these paths read GPUs again. Unavailable if there is no agent."""
    write(sys.stdout, f"{describe_resume(request(paths, RESUME))}\n")
    return _DONE
