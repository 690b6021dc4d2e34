"""``otel-gpu config``: every effective value and its origin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from otel_gpu.cli.stdio import write
from otel_gpu.config import VARIABLES, Resolved, Value, similar
from otel_gpu.config.checks import check_exports
from otel_gpu.errors import UsageError
from otel_gpu.view.terminal import cells, pad, printable

_DONE: Final = 0


def config(resolved: Resolved, environment: Mapping[str, str]) -> int:
    """Print every effective value and mark those that are not valid, then raise the first error."""
    error = _error(resolved)
    rows = [
        (value.key, printable(value.text), printable(value.origin) + _mark(value, resolved, error))
        for value in resolved.effective(environment)
    ]
    key_width, text_width = (max(cells(row[column]) for row in rows) for column in (0, 1))
    for key, text, origin in rows:
        write(sys.stdout, f"{pad(key, key_width)}  {pad(text, text_width)}  {origin}\n")
    for variable in resolved.unknown_variables:
        close = similar(variable, VARIABLES)
        hint = "" if close is None else f"; did you mean {close}?"
        write(sys.stdout, f"{printable(variable)} is set but is not a setting; it is ignored{hint}\n")
    if error is not None:
        raise error
    return _DONE


def _error(resolved: Resolved) -> UsageError | None:
    try:
        check_exports(resolved.loaded())
    except UsageError as error:
        return error
    return None


def _mark(value: Value, resolved: Resolved, error: UsageError | None) -> str:
    is_invalid = value.key not in resolved.parsed or (error is not None and value.is_subject_of(error))
    return "  <- not valid" if is_invalid else ""
