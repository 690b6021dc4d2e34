"""Tones: how states and problems are coloured. The style sheet of the page has the colours of a page."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from otel_gpu.view.terminal import Style


class Tone(StrEnum):
    """How a state or problem is coloured."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    SOFT = "soft"
    NONE = "none"


TONE_STYLES: Final[Mapping[Tone, tuple[Style, ...]]] = {
    Tone.GOOD: (Style.GREEN,),
    Tone.WARN: (Style.YELLOW,),
    Tone.BAD: (Style.RED,),
    Tone.SOFT: (Style.DIM,),
    Tone.NONE: (),
}
"""The colours of a terminal."""
