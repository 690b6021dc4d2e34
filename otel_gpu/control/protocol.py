"""Pause and resume as requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_gpu.control.server import Handler
from otel_gpu.errors import UsageError
from otel_gpu.sources.pausing import PausableGpus, time_text

LONGEST_S: Final = 7 * 86_400.0


def pause_request(for_s: float | None) -> dict[str, Any]:
    """What asks an agent to pause, for so long or until resumed."""
    return {"command": "pause", "for_s": for_s}


RESUME: Final[Mapping[str, Any]] = {"command": "resume"}


def pause_handlers(gpus: PausableGpus, changed: Callable[[], object]) -> dict[str, Handler]:
    """What the agent does when asked; ``changed`` is called after it."""

    def pause(request: Mapping[str, Any]) -> Mapping[str, Any]:
        paused = gpus.pause(_duration_s(request.get("for_s")))
        changed()
        return {"since": paused.since_s, "until": paused.until_s, "held": list(paused.held)}

    def resume(_: Mapping[str, Any]) -> Mapping[str, Any]:
        ended = gpus.resume()
        changed()
        return {"since": None if ended is None else ended.since_s}

    return {"pause": pause, "resume": resume}


def paused_text(answer: Mapping[str, Any]) -> str:
    """An agent's answer to pause, for people."""
    since, until = _time(answer.get("since")), _time(answer.get("until"))
    if since is None:
        return "paused"
    ends = "until otel-gpu resume" if until is None else f"until {time_text(until)}, or otel-gpu resume"
    return f"paused since {time_text(since)}, {ends}"


def resumed_text(answer: Mapping[str, Any]) -> str:
    """An agent's answer to resume, for people."""
    since = _time(answer.get("since"))
    return "was not paused" if since is None else f"resumed; was paused since {time_text(since)}"


def _duration_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
        raise UsageError(f"for_s is a number of seconds up to {LONGEST_S:.0f}, or null")
    return float(value)


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:  # no NaN either
        return None
    return float(value)


__all__ = ["LONGEST_S", "RESUME", "pause_handlers", "pause_request", "paused_text", "resumed_text"]
