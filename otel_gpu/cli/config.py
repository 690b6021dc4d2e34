"""``otel-gpu config``: every effective value and its origin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from otel_gpu.cli.stdio import write
from otel_gpu.config import Resolved
from otel_gpu.config.checks import check_exports
from otel_gpu.view.terminal import cells, pad, printable

_DONE: Final = 0


def config(resolved: Resolved, environment: Mapping[str, str]) -> int:
    """Print every effective value, then raise the first error."""
    rows = [(value.key, printable(value.text), printable(value.origin)) for value in resolved.effective(environment)]
    key_width, text_width = (max(cells(row[column]) for row in rows) for column in (0, 1))
    for key, text, origin in rows:
        write(sys.stdout, f"{pad(key, key_width)}  {pad(text, text_width)}  {origin}\n")
    for variable in resolved.unknown_variables:
        write(sys.stdout, f"{printable(variable)} is set but is not a setting; it is ignored\n")
    check_exports(resolved.loaded())
    return _DONE
