"""What a setting is: its name, type, topic, default and help. The settings themselves are declared in ``schema``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from otel_gpu.config import values

VARIABLE_PREFIX: Final = "OTEL_GPU_"
"""The beginning of the agent's own variables."""

_QUOTED: Final = 200
"""Longer texts are cut in errors."""


def quoted(text: str) -> str:
    """A text in quotes for an error, not longer than a line can be read."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


class Topic(StrEnum):
    """The headings under which help and documentation list settings, in this order."""

    SAMPLING = "Sampling"
    ATTRIBUTION = "Attribution and cost"
    NAMES = "Workload names"
    EXPORT = "Export"
    OTLP = "OTLP"
    WEB = "Page and endpoints"
    COMPAT = "Metrics of other exporters"
    STATE = "State and control"
    LOGS = "Logs"


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value. An error reads "'0' is not a valid ``noun``; use ``use``".

    ``parse`` raises ValueError for what is not of the type, or UsageError to explain more. ``unit`` is the unit of the
    parsed value, ``text`` its text in the syntax of the type.
    """

    parse: Callable[[str], Any]
    metavar: str
    noun: str
    use: str
    unit: str = ""
    text: Callable[[Any], str] = str


def duration(shortest: str, longest: str, *, example: str) -> Type:
    """A duration within bounds, parsed to seconds."""
    unbounded = values.duration_s(0.0, float("inf"))
    parse = values.duration_s(unbounded(shortest), unbounded(longest))
    return Type(
        parse,
        "DURATION",
        "duration",
        f"{shortest} to {longest}, for example {example}",
        unit="s",
        text=values.duration_text,
    )


def choice(kinds: type[StrEnum]) -> Type:
    """One of the values of an enumeration."""
    words = [str(kind) for kind in kinds]
    return Type(values.choice(kinds), "|".join(words), "value", values.one_of(words))


@dataclass(frozen=True, slots=True)
class RawValue:
    """The text of a value and its origin.

    ``meaning`` is the same value in the syntax of the setting, and ``use`` what is valid at this origin, where a
    variable of another program has a syntax of its own.
    """

    text: str
    origin: str
    meaning: str | None = None
    use: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Its flag and its variable follow from its key.

    ``field`` is its place in ``Config``. ``also_variables`` are variables of others with the same syntax.
    ``from_variables`` reads variables with another syntax, which ``reads`` lists. ``is_switch`` needs no value as a
    flag. ``shown`` removes secrets from the text. ``when_empty`` says what is used if the value is empty.
    """

    key: str
    field: str
    default: str
    type: Type
    topic: Topic
    help: str
    also_variables: tuple[str, ...] = ()
    from_variables: Callable[[Mapping[str, str]], RawValue | None] | None = None
    reads: tuple[str, ...] = ()
    is_switch: bool = False
    shown: Callable[[str], str] = str
    when_empty: str = ""

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Its variable in the environment."""
        return f"{VARIABLE_PREFIX}{self.key.upper().replace('-', '_')}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable it is read from, by precedence."""
        return (self.variable, *self.also_variables, *self.reads)

    def where(self, origin: str) -> str:
        """The start of an error: the origin, and the key unless the flag or variable there names the setting."""
        is_named = origin == self.flag or any(origin.startswith(variable) for variable in self.variables)
        return origin if is_named else f"{origin}: {self.key}"

    def invalid(self, found: RawValue, problem: str = "") -> str:
        """The error for a value that is not of the type: the ``problem`` with it, or what to use instead."""
        why = f": {problem}" if problem else f"; use {found.use or self.type.use}"
        return f"{self.where(found.origin)}: {quoted(self.shown(found.text))} is not a valid {self.type.noun}{why}"
