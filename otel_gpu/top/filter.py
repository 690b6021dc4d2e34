"""What somebody filters by: words, and GPUs by their index. The page has the same rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from otel_gpu.top.cycle import Workload


@dataclass(frozen=True, slots=True)
class Filter:
    """Leaves those on all of these GPUs who have each word in what is known of them, or begin their id with it."""

    gpus: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()

    def matches(self, workload: Workload) -> bool:
        """Whether it is left. An id is random digits: words within it would find anybody."""
        return self.gpus <= workload.gpus and all(
            word in workload.words or workload.id.lower().startswith(word) for word in self.words
        )


def parse_filter(text: str) -> Filter:
    """The filter that was typed: ``gpu 3`` and ``gpu3`` mean the GPU 3 and no other, the rest are words."""
    gpus, words = set(), []
    for found in re.finditer(r"(?<!\S)gpu\s*([0-9]{1,9})(?!\S)|(\S+)", text.lower()):
        if found[1] is not None:
            gpus.add(int(found[1]))
        else:
            words.append(found[2])
    return Filter(frozenset(gpus), tuple(words))
