"""The saved pause and the responses of the control socket: any content gives a result or a one-line error."""

from __future__ import annotations

import json
from typing import Any, Final

from otel_gpu.clock import ManualClock
from otel_gpu.control.pause_file import parse_pause
from otel_gpu.control.protocol import MAX_PAUSE_S, describe_pause, describe_resume
from tests.fuzz.target import Target, mutated_json

BOOT: Final = "00000000-0000-4000-8000-000000000001"
SINCE_S: Final = 1_700_000_000.0
PAUSES: Final[tuple[dict[str, Any], ...]] = (
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": None, "until_ns": None},
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": SINCE_S + 600, "until_ns": 600_000_000_000},
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": SINCE_S + 600, "until_ns": 10**400},
)
RESPONSES: Final[tuple[dict[str, Any], ...]] = (
    {"since": SINCE_S, "until": None, "held": []},
    {"since": SINCE_S, "until": SINCE_S + 600, "held": ["/dev/nvidia0"]},
    {"since": -(10**400), "until": 10**400},
)


def check_pause(data: bytes) -> str | None:
    """As the saved file: a pause that ends in time and can be printed, or a one-line error."""
    try:
        pause = parse_pause(data, BOOT, ManualClock())
    except ValueError as error:
        return f"an error of several lines: {error!a}" if "\n" in str(error) else None
    if pause is None:
        return None
    late = pause.until_ns is not None and not 0 < pause.until_ns <= MAX_PAUSE_S * 1e9
    return f"paused until {pause.until_ns}" if late else unprintable(str(pause))


def check_response(data: bytes) -> str | None:
    """As an agent's response to pause and resume: one printable line."""
    try:
        response = json.loads(data)
    except (ValueError, RecursionError):
        return None  # the client rejects it
    if not isinstance(response, dict):
        return None
    return unprintable(describe_pause(response)) or unprintable(describe_resume(response))


def unprintable(text: str) -> str | None:
    return None if text.isascii() and text.isprintable() else f"not printable: {text!a}"


TARGETS: Final = (
    Target("pause-file", lambda rng: mutated_json(rng, PAUSES), check_pause),
    Target("pause-answer", lambda rng: mutated_json(rng, RESPONSES), check_response),
)
