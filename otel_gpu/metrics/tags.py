"""Attributes that are the same from cycle to cycle are the same object, so that exporters make text of them once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeAlias, TypeVar

Attribute: TypeAlias = str | int | bool
Attributes: TypeAlias = Mapping[str, Attribute]
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Tags(dict[str, Attribute]):
    """Attributes, and those that points add to them, put together once. Nobody changes them."""

    __slots__ = ("_more",)

    def __init__(self, attributes: Attributes) -> None:
        super().__init__(attributes)
        self._more: dict[tuple[tuple[str, Attribute], ...], Tags] = {}

    def adding(self, own: Attributes) -> Tags:
        """These and others. There are few to add: states, methods, sources."""
        key = tuple(own.items())
        found = self._more.get(key)
        if found is None:
            found = self._more[key] = Tags({**self, **own})
        return found


class Kept(Generic[Key, Value]):
    """What was made in the last round, or in this one, is made once; the rest is forgotten."""

    def __init__(self) -> None:
        self._before: dict[Key, Value] = {}
        self._now: dict[Key, Value] = {}

    def begin(self) -> None:
        """Another round."""
        self._before, self._now = self._now, {}

    def end(self) -> None:
        """This round is over: what was only made in the last one is forgotten."""
        self._before = {}

    def __len__(self) -> int:
        return len(self._now) + len(self._before)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """What is kept under a key, made if nothing is."""
        found = self._now.get(key)
        if found is None:
            found = self._before.get(key)
            if found is None:
                found = make()
            self._now[key] = found
        return found

    def put(self, key: Key, value: Value) -> None:
        """Keep something else under a key."""
        self._now[key] = value
