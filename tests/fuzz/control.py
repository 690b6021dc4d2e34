"""What is kept of a pause, and what an agent answers: neither keeps anybody from starting, or from being told."""

from __future__ import annotations

import json
from typing import Any, Final

from otel_gpu.clock import ManualClock
from otel_gpu.control.pause_file import parse_pause
from otel_gpu.control.protocol import LONGEST_S, paused_text, resumed_text
from tests.fuzz.target import Target, mutated_json

BOOT: Final = "00000000-0000-4000-8000-000000000001"
SINCE_S: Final = 1_700_000_000.0
KEPT: Final[tuple[dict[str, Any], ...]] = (
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": None, "until_ns": None},
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": SINCE_S + 600, "until_ns": 600_000_000_000},
    {"boot_id": BOOT, "since_s": SINCE_S, "until_s": SINCE_S + 600, "until_ns": 10**400},
)
ANSWERS: Final[tuple[dict[str, Any], ...]] = (
    {"since": SINCE_S, "until": None, "held": []},
    {"since": SINCE_S, "until": SINCE_S + 600, "held": ["/dev/nvidia0"]},
    {"since": -(10**400), "until": 10**400},
)


def check_kept(data: bytes) -> str | None:
    """As the file beside the socket: a pause that can be told and ends in time, or a line that says why not."""
    try:
        pause = parse_pause(data, BOOT, ManualClock())
    except ValueError as error:
        return f"ignored in several lines: {error!a}" if "\n" in str(error) else None
    if pause is None:
        return None
    late = pause.until_ns is not None and not 0 < pause.until_ns <= LONGEST_S * 1e9
    return f"paused until {pause.until_ns}" if late else unsaid(str(pause))


def check_answer(data: bytes) -> str | None:
    """As an agent's answer to pause and resume, for people."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None  # the client refuses it
    if not isinstance(answer, dict):
        return None
    return unsaid(paused_text(answer)) or unsaid(resumed_text(answer))


def unsaid(text: str) -> str | None:
    return None if text.isascii() and text.isprintable() else f"it is told as {text!a}"


TARGETS: Final = (
    Target("pause-file", lambda rng: mutated_json(rng, KEPT), check_kept),
    Target("pause-answer", lambda rng: mutated_json(rng, ANSWERS), check_answer),
)
