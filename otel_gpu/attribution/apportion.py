"""Dividing whole numbers so that nothing is lost: not in one division, and not over thousands of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)

SCALE: Final = 1 << 32
"""Residues are kept in this fraction of a unit."""


def apportion(
    total: int, weights: Mapping[K, int], residues: Mapping[K, int] | None = None
) -> tuple[dict[K, int], dict[K, int]]:
    """Divide ``total`` by ``weights`` into whole parts that sum to it, and the residues to carry to the next division.

    Largest remainder, ties to the smaller key, whatever the order of the mapping. A residue is what a party is owed
    (or has had too much) in units of 1/SCALE: handed back in, it keeps thousands of small divisions within one unit
    of one large one. Weights below 0 count as 0; if none is above 0, all count alike. A total below 0 is divided as 0.
    """
    if not weights:
        return {}, {}
    keys = sorted(weights)
    positive = {key: max(0, weights[key]) for key in keys}
    whole_weight = sum(positive.values())
    if whole_weight == 0:
        positive, whole_weight = dict.fromkeys(keys, 1), len(keys)
    total = max(0, total)
    carried = residues or {}
    due = {key: carried.get(key, 0) + total * SCALE * positive[key] // whole_weight for key in keys}
    parts = {key: max(0, due[key] // SCALE) for key in keys}
    _settle(parts, due, positive, total - sum(parts.values()))
    return parts, {key: due[key] - parts[key] * SCALE for key in keys}


def _settle(parts: dict[K, int], due: Mapping[K, int], weights: Mapping[K, int], missing: int) -> None:
    """Hand out (or take back) the units that rounding down left over (or carried residues gave too many of)."""
    step = 1 if missing > 0 else -1
    while missing != 0:
        # Whoever has no weight now must not be given anything on account of an old residue, except to pay a debt.
        able = [key for key in parts if (weights[key] > 0 if step > 0 else parts[key] > 0)]
        able.sort(key=lambda key: (step * (parts[key] * SCALE - due[key]), key))
        for key in able[: abs(missing)]:
            parts[key] += step
            missing -= step


def whole_weights(amounts: Mapping[K, float]) -> dict[K, int]:
    """Amounts as whole weights in the same proportions, to about one part in 10^12."""
    largest = max(amounts.values(), default=0.0)
    if not largest > 0 or largest == float("inf"):
        return dict.fromkeys(amounts, 0)
    return {key: max(0, round(amount / largest * (1 << 40))) if amount > 0 else 0 for key, amount in amounts.items()}
