"""What a setting is. The settings themselves are in ``config`` and ``settings_export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """A value as somebody wrote it, and where.

    ``meant`` is the same as we would write it, and ``allowed`` what may stand there, where these are not a setting's.
    """

    text: str
    origin: str
    meant: str | None = None
    allowed: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its key in the file, from which its flag and variable follow, and what it may be.

    ``from_variables`` finds a value where variables of others have it, written otherwise than ours;
    ``reads`` names all it may read. ``switch`` needs no value as a flag. ``shown`` is the text fit for other eyes.
    """

    key: str
    field: str
    default: str
    parse: Callable[[str], Any]
    allowed: str
    help: str
    also_variables: tuple[str, ...] = ()
    from_variables: Callable[[Mapping[str, str]], Found | None] | None = None
    reads: tuple[str, ...] = ()
    switch: bool = False
    shown: Callable[[str], str] = str

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Its variable in the environment."""
        return f"OTEL_GPU_{self.key.upper().replace('-', '_')}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable it is read from, the strongest first."""
        return (self.variable, *self.also_variables, *self.reads)
