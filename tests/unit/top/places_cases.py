"""Where workloads are, and how that is written, on the page as in the terminal."""

from __future__ import annotations

from typing import Final

PLACES: Final[tuple[tuple[list[tuple[int | None, str | None]], str], ...]] = (
    ([(0, None)], "0"),
    ([(1, None), (0, None)], "0, 1"),
    ([(10, None), (2, None)], "2, 10"),
    ([(index, None) for index in (10, 11, 9, 2, 0, 1)], "0-2, 9-11"),
    ([(index, None) for index in range(12)], "0-11"),
    ([(2, "3g.40gb"), (2, "1g.10gb"), (2, "1g.10gb"), (1, None), (3, None)], "1, 2 1g.10gb, 2 3g.40gb, 3"),
    ([(0, None), (1, None), (1, "1g.10gb"), (2, None)], "0, 1, 1 1g.10gb, 2"),
    ([(None, None), (0, None)], "0, ?"),
)
"""Index and profile of each part, and all of them in words."""
