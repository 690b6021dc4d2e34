"""Divide whole numbers by largest remainder, so that nothing is lost in one division or over thousands of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)

_BITS: Final = 32
SCALE: Final = 1 << _BITS
"""Residues are kept in this fraction of a unit."""


def apportion(
    total: int, weights: Mapping[K, int], residues: Mapping[K, int] | None = None
) -> tuple[dict[K, int], dict[K, int]]:
    """Divide ``total`` by ``weights`` into whole parts that sum to it, and the residues to carry to the next division.

    Largest remainder, ties to the smaller key, whatever the order of the mapping. A residue is what a key is owed
    (or has received too much) in units of 1/SCALE: passed back in, it keeps thousands of small divisions within one
    unit of one large one. Weights below 0 count as 0; if none is above 0, all count alike. A total below 0 counts as 0.
    """
    keys = sorted(weights)
    positive = [max(0, weights[key]) for key in keys]
    if not any(positive):
        positive = [1] * len(keys)
    total, whole = max(0, total), sum(positive)
    owed = residues or {}
    due = [owed.get(key, 0) + (total << _BITS) * weight // whole for key, weight in zip(keys, positive, strict=True)]
    parts = [max(0, amount >> _BITS) for amount in due]
    _distribute_remainder(total - sum(parts), parts, due, positive)
    carried = [amount - part * SCALE for amount, part in zip(due, parts, strict=True)]
    return dict(zip(keys, parts, strict=True)), dict(zip(keys, carried, strict=True))


def _distribute_remainder(missing: int, parts: list[int], due: Sequence[int], weights: Sequence[int]) -> None:
    """Hand out the units that rounding down left over, or take back those that carried residues gave too many of."""
    if not parts:
        return
    step = 1 if missing > 0 else -1
    while missing != 0:
        # A key without weight receives nothing for an old residue; it may only pay back.
        eligible = sorted(
            (step * (part * SCALE - due[place]), place)
            for place, part in enumerate(parts)
            if (weights[place] > 0 if step > 0 else part > 0)
        )
        for _, place in eligible[: abs(missing)]:
            parts[place] += step
            missing -= step


def whole_weights(amounts: Mapping[K, float]) -> dict[K, int]:
    """Amounts as whole weights in the same proportions, to about one part in 10^12."""
    largest = max(amounts.values(), default=0.0)
    if not largest > 0 or largest == float("inf"):
        return dict.fromkeys(amounts, 0)
    return {key: round(amount / largest * (1 << 40)) if amount > 0 else 0 for key, amount in amounts.items()}
