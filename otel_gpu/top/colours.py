"""A colour for each workload, in the bars of its GPUs and in its name: the one that its key asks for, if it is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from otel_gpu.export.text import Style
from otel_gpu.top.cycle import Workload

_COLOURS: Final = (Style.GREEN, Style.BLUE, Style.MAGENTA, Style.CYAN, Style.YELLOW)
"""Without red, in which what nobody explains is drawn."""


class Colours:
    """Who is there keeps its colour; those on one GPU have different ones as far as there are colours."""

    def __init__(self) -> None:
        self._of: dict[str, Style] = {}

    def update(self, workloads: Sequence[Workload]) -> None:
        """Those who went give back their colours, and who is new gets one."""
        here = {workload.key for workload in workloads}
        self._of = {key: colour for key, colour in self._of.items() if key in here}
        for newcomer in sorted((each for each in workloads if each.key not in self._of), key=lambda each: each.key):
            beside = Counter(
                self._of[each.key] for each in workloads if each.key in self._of and each.gpus & newcomer.gpus
            )
            first = crc32(newcomer.key.encode()) % len(_COLOURS)
            wishes = _COLOURS[first:] + _COLOURS[:first]
            self._of[newcomer.key] = min(wishes, key=lambda colour: beside[colour])

    def of(self, key: str) -> tuple[Style, ...]:
        """The style of a workload; none of who is not there."""
        colour = self._of.get(key)
        return () if colour is None else (colour,)
