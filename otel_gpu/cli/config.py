"""``otel-gpu config``: every effective value and its origin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from otel_gpu.cli.stdio import write
from otel_gpu.config import BY_KEY, Config, Resolved, Value
from otel_gpu.config.checks import check_exports
from otel_gpu.errors import UsageError
from otel_gpu.view.terminal import cells, pad, printable

_DONE: Final = 0


def config(resolved: Resolved, environment: Mapping[str, str]) -> int:
    """Print every value, then raise the first error."""
    values = [effective(value, resolved.config, environment) for value in resolved.values]
    rows = [(value.key, printable(value.text), printable(value.origin)) for value in values]
    key_width, text_width = (max(cells(row[column]) for row in rows) for column in (0, 1))
    for key, text, origin in rows:
        write(sys.stdout, f"{pad(key, key_width)}  {pad(text, text_width)}  {origin}\n")
    for variable in resolved.unknown_variables:
        write(sys.stdout, f"{printable(variable)} is set but is not a setting; it is ignored\n")
    check_exports(resolved.loaded())
    return _DONE


def effective(value: Value, config: Config | UsageError, environment: Mapping[str, str]) -> Value:
    """The value in use: the path that ``auto`` stands for, or what replaces an empty value."""
    if isinstance(config, UsageError):
        return value
    state, otlp = config.state, config.export.otlp
    match value.key:
        case "state-dir" if state.directory.auto:
            text = str(state.directory.place(environment) or "none")
        case "control-socket" if state.control_socket.auto:
            text = str(state.control_socket.agent_path(environment) or "none")
        case "otlp-endpoint" if otlp.endpoint is None:
            text = str(otlp.target)
        case "service-name" if not value.text:
            is_attribute = "service.name" in config.export.resource_attributes
            return Value(value.key, config.export.service, "resource-attributes" if is_attribute else value.origin)
        case key if not value.text:
            return Value(key, BY_KEY[key].when_empty or "none", value.origin)
        case _:
            return value
    return Value(value.key, text, f"{value.origin} ({value.text})" if value.text else value.origin)
