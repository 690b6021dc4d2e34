"""Values as people write them: durations, addresses, choices. Each parser raises ValueError and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

E = TypeVar("E", bound=StrEnum)

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def duration_s(shortest_s: float, longest_s: float) -> Callable[[str], float]:
    """A parser of ``500ms``, ``5s``, ``5m``, ``1h`` within bounds; the value is in seconds."""

    def parse(text: str) -> float:
        match = _DURATION.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if not shortest_s <= seconds <= longest_s:
            raise ValueError(text)
        return seconds

    return parse


def whole_number(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of decimal whole numbers within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII):
            raise ValueError(text)
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError(text)
        return number

    return parse


def choice(kinds: type[E]) -> Callable[[str], E]:
    """A parser of one of an enumeration's values."""

    def parse(text: str) -> E:
        return kinds(text.strip().lower())

    return parse


def one_of(kinds: type[StrEnum]) -> str:
    """An enumeration's values, for a message."""
    *first, last = (kind.value for kind in kinds)
    return f"{', '.join(first)} or {last}"


def absolute_path(text: str) -> Path:
    """A path from the root."""
    path = Path(text)
    if not text or "\0" in text or not path.is_absolute():
        raise ValueError(text)
    return path


def address(text: str) -> Address:
    """``host:port``; an IPv6 host in brackets."""
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(text)
    if not separator or not host or any(character.isspace() for character in host):
        raise ValueError(text)
    return Address(host, whole_number(0, 65535)(port))


def price(text: str) -> float | None:
    """An amount of money of 0 or more; nothing is no price."""
    return _amount(text) if text.strip() else None


def prices(text: str) -> dict[str, float]:
    """``2.5`` for every GPU, ``A100=2.5, H100=4`` by words of their names, or both; nothing is no price."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, separator, amount = part.rpartition("=")
        word = word.strip()
        if (separator and not word) or word in found:
            raise ValueError(text)
        found[word] = _amount(amount)
    return found


def currency(text: str) -> str:
    """A currency's code, as ISO 4217 has it."""
    if not re.fullmatch(r"[A-Z]{3}", text.strip()):
        raise ValueError(text)
    return text.strip()


def _amount(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return float(text)
