"""Runs commands. Every failure is one line that the user can act on, and an exit code: 1 failed, 2 bad usage."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from otel_gpu.cli import stdio
from otel_gpu.cli.commands import COMMANDS, SETUPS
from otel_gpu.cli.parser import parse, print_help, setting_flags
from otel_gpu.config import BY_KEY, DEFAULT, SETTINGS, Loaded, LogFormat, LogLevel, Resolved, keys, resolve
from otel_gpu.config.setting import Topic
from otel_gpu.config.values import choice
from otel_gpu.errors import OtelGpuError, UsageError
from otel_gpu.view.terminal import printable

DONE: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2

_LOGS: Final = keys(Topic.LOGS)


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
    if parsed.command == "metrics" or (parsed.command == "setup" and parsed.what is None):
        return _list(parsed)
    resolved = resolve_settings(parsed, environment)
    # Commands are imported here: --help, --version and a misspelt flag must not wait for drivers and clients.
    match parsed.command:
        case "config":
            from otel_gpu.cli.config import config  # noqa: PLC0415

            return config(resolved, environment)
        case "top":
            from otel_gpu.cli.top import top  # noqa: PLC0415

            return top(resolved.loaded().config, url=parsed.url)
        case "pause" | "resume":
            from otel_gpu.cli.pause import pause_or_resume  # noqa: PLC0415

            return pause_or_resume(resolved.loaded().config, environment, parsed)
        case _:
            return _run_with_log(parsed, resolved.loaded())


def _run_with_log(parsed: argparse.Namespace, loaded: Loaded) -> int:
    from otel_gpu.cli import logs  # noqa: PLC0415

    config = loaded.config
    if "exporters" in COMMANDS[parsed.command].settings:
        from otel_gpu.config.checks import check_exports  # noqa: PLC0415

        check_exports(loaded)
    logs.set_up(config.log.level, config.log.format, chosen=loaded.value("log-format").origin != DEFAULT)
    match parsed.command:
        case "doctor":
            from otel_gpu.cli.doctor import doctor  # noqa: PLC0415

            return doctor(config, form=parsed.format)
        case "setup":
            from otel_gpu.cli.setup import setup_accounting  # noqa: PLC0415

            return setup_accounting(config, off=parsed.off)
        case "once":
            from otel_gpu.cli.once import once  # noqa: PLC0415

            return once(config, form=parsed.format)
        case _:
            from otel_gpu.cli.run import run  # noqa: PLC0415

            is_demo = parsed.command == "demo"
            return run(config, view=parsed.view or is_demo, demo=is_demo)


def _list(parsed: argparse.Namespace) -> int:
    """Print what does not depend on the configuration, valid or not: metrics, and what can be set up."""
    if parsed.command == "metrics":
        from otel_gpu.cli.metrics import metrics  # noqa: PLC0415

        return metrics(as_markdown=parsed.format == "markdown")
    if parsed.off:
        raise UsageError(f"--off needs what to switch off: otel-gpu setup {'|'.join(SETUPS)} --off")
    for what, meaning in SETUPS.items():
        stdio.write(sys.stdout, f"{what}  {meaning}\n")
    return DONE


def resolve_settings(parsed: argparse.Namespace, environment: Mapping[str, str]) -> Resolved:
    """The settings of the command on the line."""
    command = COMMANDS[parsed.command]
    only = command.settings if command.only_own else tuple(BY_KEY)
    if command.name == "top" and _is_remote(parsed, environment):
        only = _LOGS
    return resolve(
        setting_flags(parsed),
        environment,
        defaults=command.defaults,
        fixed=command.fixed,
        command=command.name,
        only=only,
    )


def _is_remote(parsed: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether top shows a running agent. Settings of this host are then an error."""
    url = "--url" if parsed.url is not None else "OTEL_GPU_URL" if environment.get("OTEL_GPU_URL") else None
    given = [s.flag for s in SETTINGS if s.key not in _LOGS and vars(parsed).get(s.key) is not None]
    if url is not None and given:
        raise UsageError(f"{given[0]} is for this host, but {url} names a running agent, which has its own settings")
    return url is not None


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
