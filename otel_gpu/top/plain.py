"""JSON objects whose values are what they should be, or ValueError: an agent of another version may tell anything."""

from __future__ import annotations

from typing import Final

_MOST: Final = 2.0**63
"""No figure of a GPU is larger, and what is no larger can be added, divided and shown."""


class Plain:
    """An object. What is asked for must be there; ``optional``, ``number`` and ``whole`` may be null."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise TypeError("no object")
        self._value = value

    def get(self, key: str) -> object:
        """Whatever is there."""
        return self._value[key]

    def has(self, key: str) -> bool:
        """Whether anything is there."""
        return key in self._value

    def names(self) -> list[str]:
        """What there is."""
        return [str(key) for key in self._value]

    def inner(self, key: str) -> Plain:
        """An object."""
        return Plain(self.get(key))

    def items(self, key: str) -> list[object]:
        """A list."""
        value = self.get(key)
        if not isinstance(value, list):
            raise TypeError(f"{key} is no list")
        return value

    def each(self, key: str) -> list[Plain]:
        """A list of objects."""
        return [Plain(item) for item in self.items(key)]

    def text(self, key: str) -> str:
        """A text."""
        value = self.get(key)
        if not isinstance(value, str):
            raise TypeError(f"{key} is no text")
        return value

    def optional(self, key: str) -> str | None:
        """A text, or nothing."""
        return None if self.get(key) is None else self.text(key)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise TypeError(f"{key} is neither true nor false")
        return value

    def known(self, key: str) -> float:
        """A number."""
        return number(self.get(key))

    def number(self, key: str) -> float | None:
        """A number, or nothing."""
        return None if self.get(key) is None else self.known(key)

    def whole(self, key: str) -> int | None:
        """A whole number, or nothing."""
        return None if self.get(key) is None else whole_number(self.get(key))


def number(value: object) -> float:
    """A number that is finite, and no larger than figures are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} is no number")
    if not -_MOST <= value <= _MOST:  # nor is NaN
        raise ValueError("a number is too large")
    return value


def whole_number(value: object) -> int:
    """A number without a fraction."""
    found = number(value)
    if found != int(found):
        raise ValueError("a number is not whole")
    return int(found)
