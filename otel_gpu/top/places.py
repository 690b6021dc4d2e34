"""Where a workload is, in words and in order. The page has the same rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_gpu.top.plain import Plain


class Place(NamedTuple):
    """A GPU, or one of its instances, such that places sort as GPUs are numbered: one without a number last."""

    has_no_number: bool
    number: int
    profile: str

    def __str__(self) -> str:
        number = "?" if self.has_no_number else str(self.number)
        return f"{number} {self.profile}" if self.profile else number

    def follows(self, other: Place) -> bool:
        """Whether both are whole GPUs, and this one is the next."""
        return not self.has_no_number and not self.profile and other == (False, self.number - 1, "")


def place_of(beside: Plain) -> Place:
    """That of a part of a workload, or of a process."""
    index = beside.whole("index")
    return Place(index is None, index or 0, beside.optional("profile") or "")


def in_words(places: Sequence[Place]) -> str:
    """All of them, each once; three GPUs or more in a row are written as "0-2"."""
    runs: list[list[Place]] = []
    for place in sorted(set(places)):
        if runs and place.follows(runs[-1][-1]):
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(word for run in runs for word in _words(run))


def _words(run: Sequence[Place]) -> Iterator[str]:
    if len(run) > 2:
        yield f"{run[0]}-{run[-1]}"
    else:
        yield from map(str, run)
