"""Dividing whole numbers so that nothing is lost: not in one division, and not over thousands of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import gcd
from typing import Any, Final, NamedTuple, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)

_BITS: Final = 32
SCALE: Final = 1 << _BITS
"""Residues are kept in this fraction of a unit."""
_FRACTION: Final = SCALE - 1


def apportion(
    total: int, weights: Mapping[K, int], residues: Mapping[K, int] | None = None
) -> tuple[dict[K, int], dict[K, int]]:
    """Divide ``total`` by ``weights`` into whole parts that sum to it, and the residues to carry to the next division.

    Largest remainder, ties to the smaller key, whatever the order of the mapping. A residue is what a party is owed
    (or has had too much) in units of 1/SCALE: handed back in, it keeps thousands of small divisions within one unit
    of one large one. Weights below 0 count as 0; if none is above 0, all count alike. A total below 0 is divided as 0.
    """
    keys = sorted(weights)
    owed = [residues.get(key, 0) for key in keys] if residues else [0] * len(keys)
    parts, owed = Weights.of([weights[key] for key in keys]).divide(total, owed)
    return dict(zip(keys, parts, strict=True)), dict(zip(keys, owed, strict=True))


class Weights(NamedTuple):
    """Weights in the order of their keys, made ready to divide by: all 0 or above, and their sum above 0."""

    each: Sequence[int]
    whole: int
    different: Sequence[int]
    """Every weight that there is once, and which of them each one is: many share a GPU alike."""
    which: Sequence[int]

    @classmethod
    def of(cls, given: Sequence[int]) -> Weights:
        """Make them ready."""
        each = [weight if weight > 0 else 0 for weight in given]
        whole = sum(each)
        if not whole:
            each = [1] * len(each)
            whole = len(each)
        shared = gcd(*each) or 1  # what all have in common divides out, and smaller numbers are divided faster
        each, whole = [weight // shared for weight in each], whole // shared
        numbers = {weight: number for number, weight in enumerate(dict.fromkeys(each))}
        return cls(each, whole, list(numbers), [numbers[weight] for weight in each])

    def divide(self, total: int, residues: Sequence[int]) -> tuple[list[int], list[int]]:
        """The parts and the residues to carry, both in the order of the weights: see ``apportion``."""
        each, whole, different, which = self
        total = max(0, total)
        scaled = total << _BITS
        shares = [scaled * weight // whole for weight in different]
        due = [owed + shares[number] for owed, number in zip(residues, which, strict=True)]
        parts = [amount >> _BITS if amount > 0 else 0 for amount in due]
        missing = total - sum(parts)
        left = [amount & _FRACTION if amount > 0 else amount for amount in due]
        if missing == 0:
            return parts, left
        if 0 < missing < len(parts) and 0 not in different:  # mostly: one more to those with the largest remainders
            for place in sorted(range(len(parts)), key=left.__getitem__, reverse=True)[:missing]:
                parts[place] += 1
                left[place] -= SCALE
            return parts, left
        _settle(parts, due, each, missing)
        return parts, [amount - part * SCALE for amount, part in zip(due, parts, strict=True)]


def _settle(parts: list[int], due: Sequence[int], weights: Sequence[int], missing: int) -> None:
    """Hand out (or take back) the units that rounding down left over (or carried residues gave too many of)."""
    if not parts:
        return
    step = 1 if missing > 0 else -1
    while missing != 0:
        # Whoever has no weight now must not be given anything on account of an old residue, except to pay a debt.
        able = [
            (step * (part * SCALE - due[place]), place)
            for place, part in enumerate(parts)
            if (weights[place] > 0 if step > 0 else part > 0)
        ]
        able.sort()
        for _, place in able[: abs(missing)]:
            parts[place] += step
            missing -= step


def whole_weights(amounts: Mapping[K, float]) -> dict[K, int]:
    """Amounts as whole weights in the same proportions, to about one part in 10^12."""
    largest = max(amounts.values(), default=0.0)
    if not largest > 0 or largest == float("inf"):
        return dict.fromkeys(amounts, 0)
    return {key: round(amount / largest * (1 << 40)) if amount > 0 else 0 for key, amount in amounts.items()}
