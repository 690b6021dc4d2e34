"""A colour for each workload, in the bars of its GPUs and beside its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from zlib import crc32

COLOURS: Final = 8
"""The page has so many colours, and ``top`` as many styles."""


class Claimant(NamedTuple):
    """A workload that needs a colour: its key, the GPUs it is on, and since when (Unix time in ns)."""

    key: str
    gpus: Collection[str]
    since_ns: int


class Palette:
    """Assigns colours. A workload keeps its colour; those on one GPU differ as far as there are colours."""

    def __init__(self) -> None:
        self._colours: dict[str, int] = {}

    def update(self, workloads: Sequence[Claimant]) -> dict[str, int]:
        """The colour of each workload by key. A new one gets the colour its key asks for, or one less used on its GPUs.

        Older workloads come first, so that none gives way to a newer one.
        """
        present = {workload.key for workload in workloads}
        self._colours = {key: colour for key, colour in self._colours.items() if key in present}
        uses: dict[str, Counter[int]] = {uuid: Counter() for workload in workloads for uuid in workload.gpus}
        new = [workload for workload in workloads if workload.key not in self._colours]
        for workload in workloads:
            if workload.key in self._colours:
                self._count(workload, uses)
        for workload in sorted(new, key=lambda each: (each.since_ns, each.key)):
            first = crc32(workload.key.encode("utf-8", "replace"))
            choices = [(first + step) % COLOURS for step in range(COLOURS)]
            self._colours[workload.key] = min(
                choices, key=lambda colour: max((uses[uuid][colour] for uuid in workload.gpus), default=0)
            )
            self._count(workload, uses)
        return dict(self._colours)

    def _count(self, workload: Claimant, uses: dict[str, Counter[int]]) -> None:
        for uuid in set(workload.gpus):
            uses[uuid][self._colours[workload.key]] += 1
