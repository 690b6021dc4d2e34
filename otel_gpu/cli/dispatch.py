"""Runs commands. Every failure is one line that the user can act on, and an exit code: 1 failed, 2 bad usage."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from otel_gpu.cli import stdio
from otel_gpu.cli.commands import COMMANDS, Invocation
from otel_gpu.cli.parser import parse, print_help
from otel_gpu.config import LogFormat, LogLevel
from otel_gpu.config.values import choice
from otel_gpu.errors import OtelGpuError, UsageError
from otel_gpu.view.terminal import printable

DONE: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code."""
    stdio.replace_closed()
    try:
        return _run(arguments, os.environ)
    except UsageError as error:
        return _fail(error, BAD_USAGE, arguments)
    except OtelGpuError as error:
        return _fail(error, FAILED, arguments)
    except BrokenPipeError:  # the reader has gone (… | head)
        return FAILED
    except Exception as error:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        text = f"internal error: {type(error).__name__}: {error}; this is a bug, --log-level debug shows where"
        return _fail(text, FAILED, arguments)
    finally:
        stdio.discard_unwritten()


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parsed = parse(arguments)
    if parsed.command is None:
        print_help()
        return DONE
    command = COMMANDS[parsed.command]
    return command.start(Invocation(command, vars(parsed), environment))


# ---------------------------------------------------------------------------- failures


def _fail(message: object, code: int, arguments: Sequence[str]) -> int:
    from otel_gpu.cli import logs  # noqa: PLC0415

    if not logs.is_set_up() and (log_format := _chosen_format(arguments, os.environ)) is not None:
        logs.set_up(LogLevel.INFO, log_format, chosen=True)
    text = printable(" ".join(str(message).split()))
    logs.notify(f"otel-gpu: {text}\n", text, {}, logging.ERROR)
    return code


def _chosen_format(arguments: Sequence[str], environment: Mapping[str, str]) -> LogFormat | None:
    """The log format chosen for stderr, found also if the rest of the command line or configuration is invalid."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    if command in COMMANDS and "log-format" not in COMMANDS[command].settings:
        return None
    named = [_value_of("--config", arguments), environment.get("OTEL_GPU_CONFIG")]
    path = next((Path(name) for name in named if name), None)
    in_file = None
    with contextlib.suppress(OtelGpuError, OSError, ValueError):
        if path is not None and path.is_file():  # a pipe has been read already, and reading it again would block
            from otel_gpu.config.yaml_file import read_config_file  # noqa: PLC0415

            in_file = read_config_file(path).get("log-format")
    in_environment = environment.get("OTEL_GPU_LOG_FORMAT")
    for text in (_value_of("--log-format", arguments), in_environment, in_file and in_file.text):
        with contextlib.suppress(ValueError):
            return choice(LogFormat)(text or "")
    return None


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The last value of a flag on a command line that may be invalid."""
    found = None
    for word, following in zip_longest(arguments, arguments[1:]):
        name, equals, value = word.partition("=")
        if name == flag:
            found = value if equals else following
    return found
