"""The last hour of every GPU's utilisation: what an agent keeps, as far as it was heard, and how that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_gpu.top.plain import Plain, number
from otel_gpu.web.history import SLOTS

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = " "


class Hour:
    """Slots in the order of their time, the newest last. An agent tells all of them first, and then the newest."""

    def __init__(self) -> None:
        self._slots: dict[float, dict[str, float | None]] = {}

    def add(self, history: Plain) -> None:
        """Take in what is told; ValueError and the like, and nothing taken in, if that is no history."""
        times = [number(at) for at in history.items("at")] if history.has("at") else []
        slots: dict[float, dict[str, float | None]] = {at: {} for at in times}
        if times:
            gpus = history.inner("gpus")
            for uuid in gpus.names():
                for at, figures in zip(times, gpus.items(uuid), strict=True):
                    slots[at][uuid] = _mean_utilization(figures)
        self._slots = dict(sorted((self._slots | slots).items())[-SLOTS:])

    def of(self, uuid: str) -> tuple[float | None, ...]:
        """The utilisation (0 to 1) of a GPU by slots; ``None`` where it was not known."""
        return tuple(slot.get(uuid) for slot in self._slots.values())


def _mean_utilization(figures: object) -> float | None:
    """Of the figures of a slot the first is utilisation: its mean, lowest and highest."""
    if figures is None:
        return None
    if not isinstance(figures, list) or not figures:
        raise TypeError("no figures of a slot")
    spread = figures[0]
    if spread is None:
        return None
    if not isinstance(spread, list) or not spread:
        raise TypeError("no mean of a slot")
    return number(spread[0])


def sparkline(ratios: Sequence[float | None], width: int) -> str:
    """An hour in ``width`` cells, now at the right: as high as the mean of its slots, blank where none is known."""
    if not any(ratio is not None for ratio in ratios):
        return ""
    hour = [*[None] * (SLOTS - len(ratios)), *ratios]
    drawn = ""
    for cell in range(width):
        known = [each for each in hour[cell * SLOTS // width : (cell + 1) * SLOTS // width] if each is not None]
        if not known:
            drawn += _NOTHING
            continue
        mean = min(1.0, max(0.0, sum(known) / len(known)))
        drawn += _HEIGHTS[min(len(_HEIGHTS) - 1, int(mean * len(_HEIGHTS)))]
    return drawn
