"""Frozen dataclasses of which a cycle makes hundreds."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import wraps
from typing import Any, TypeVar, cast

T = TypeVar("T")


def quickly_made(cls: type[T]) -> type[T]:
    """Have a frozen dataclass with slots made almost as fast as one that is not frozen; nothing else is different.

    Its own ``__init__`` calls ``object.__setattr__`` for every field. Here it is filled as an unfrozen twin with the
    same slots, and becomes what it is when it is complete: Python lets an object change between classes that are laid
    out alike, and raises where they are not.
    """
    twin = _twin(cls)
    fill: Any = vars(twin)["__init__"]
    become = object.__setattr__

    @wraps(vars(cls)["__init__"])
    def init(self: Any, *values: Any, **named: Any) -> None:
        become(self, "__class__", twin)
        try:
            fill(self, *values, **named)
        finally:
            self.__class__ = cls

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def maker(cls: type[T]) -> type[T]:
    """What makes a frozen dataclass with slots faster still, where it is made by the dozen: called as the class is.

    The twin is made and filled at once, by Python's own way of making an object. It is a function, and no class.
    """
    twin = _twin(cls)

    def make(*values: Any, **named: Any) -> T:
        made: Any = twin(*values, **named)
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    return cast("type[T]", make)


def _twin(cls: type[T]) -> Any:
    """A class with the same slots that is not frozen."""
    told: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    return make_dataclass(f"Unfrozen{cls.__name__}", [_spec(each) for each in told], slots=True, eq=False, repr=False)


def _spec(told: Field[Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
    """A field as it was declared: its name, and what stands where it is not given."""
    return (told.name, Any) if told.default is MISSING else (told.name, Any, field(default=told.default))
