"""Figures as the page writes them: the rules of its ``format.js``, so that a test knows what a person must read."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from otel_gpu.model import MethodEnergy

UNKNOWN: Final = "\N{EN DASH}"


def fixed(value: float, digits: int) -> str:
    """As ``toFixed`` does: of two that are as near, the one further from zero; Python's format takes the even one."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def total(values: Sequence[float | None]) -> float | None:
    """The sum of what is known; ``None`` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def size(bytes_: float | None) -> str:
    """Bytes in binary units."""
    if bytes_ is None:
        return UNKNOWN
    return f"{fixed(bytes_ / 2**30, 1)} GiB" if abs(bytes_) >= 2**30 else f"{fixed(bytes_ / 2**20, 0)} MiB"


def percent(ratio: float | None) -> str:
    """A ratio in whole percent."""
    return UNKNOWN if ratio is None else f"{fixed(ratio * 100, 0)} %"


def watts(power_w: float | None) -> str:
    """Power in whole watts."""
    return UNKNOWN if power_w is None else f"{fixed(power_w, 0)} W"


def celsius(temperature_c: float | None) -> str:
    """A temperature in whole degrees."""
    return UNKNOWN if temperature_c is None else f"{fixed(temperature_c, 0)} °C"


def joules(energy_mj: float | None) -> str:
    """Millijoules in the largest unit of joules that leaves a figure before the point."""
    if energy_mj is None:
        return UNKNOWN
    energy_j = energy_mj / 1000
    for unit, length in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if energy_j >= length:
            return f"{fixed(energy_j / length, 0 if energy_j >= 100 * length else 1)} {unit}"
    return f"{fixed(energy_j, 0)} J"


def span(seconds: float | None) -> str:
    """A span of time in its largest unit, of which there are two or more."""
    if seconds is None:
        return UNKNOWN
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{fixed(seconds / length_s, 0)} {unit}"
    return f"{fixed(seconds, 0)} s"


def gpu_span(seconds: float | None, places: int) -> str:
    """Of several places it is GPU time."""
    return span(seconds).replace(" ", " GPU-") if seconds and places > 1 else span(seconds)


def money(amount: float | None, currency: str) -> str:
    """An amount; less than one with four digits."""
    if amount is None:
        return UNKNOWN
    return f"{fixed(amount, 2 if amount == 0 or amount >= 1 else 4)} {currency}"


def signed(text: str, energy: MethodEnergy) -> str:
    """With the sign of how it was found."""
    if energy.inferred_mj:
        return f"~ {text}"
    return f"≈ {text}" if energy.estimated_mj else text
