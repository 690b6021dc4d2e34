"""Parses the command line. Every mistake is a UsageError in one line."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from otel_gpu.cli import stdio
from otel_gpu.cli.commands import COMMANDS, Command
from otel_gpu.config import SETTINGS, Setting, Topic, nearest
from otel_gpu.config.setting import quoted
from otel_gpu.errors import UsageError
from otel_gpu.version import __version__

_ABOUT: Final = "Shows which workloads use the GPUs of this host, how much, and which hold a GPU without using it."
_NOTES: Final = (
    "Every flag is also a key of the configuration file (--config) and a variable: --interval is OTEL_GPU_INTERVAL.\n"
    "The OTEL_ variables of OpenTelemetry apply, too. otel-gpu config shows the effective values."
)
_WIDTH: Final = 32


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_WIDTH)

    def _format_action(self, action: argparse.Action) -> str:
        """Without the line that only names the group of commands."""
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public name for it
            return self._join_parts(self._format_action(command) for command in self._iter_indented_subactions(action))
        return super()._format_action(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Break lines at spaces only: flags, variables and paths can be copied and searched for."""
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError for mistakes."""

    def error(self, message: str) -> NoReturn:
        problem = message.removeprefix("argument ")
        flag, _, why = problem.partition(": ")
        action = self._option_string_actions.get(flag)
        if action is not None and action.metavar is not None and why == "expected one argument":
            word = str(action.metavar)
            problem = f"{flag} needs {'a' if word.isupper() else 'one of'} {word}"
        raise UsageError(f"{problem}; see {self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002
        """Print help or version. argparse's own method ignores write errors."""
        stdio.write(sys.stdout, message)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command, ``None`` for none, and its flags by key."""
    _refuse_flags_before_the_command(arguments)
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and first not in COMMANDS:
        raise UsageError(f"there is no command {quoted(first)}; {nearest(first, COMMANDS)}")
    _refuse_values(arguments, first)
    parsed, unknown = make_parser().parse_known_args(arguments)
    if unknown:
        word = unknown[0].partition("=")[0]
        problem = "there is no flag" if parsed.command is None else f"{parsed.command} does not know"
        raise UsageError(f"{problem} {quoted(unknown[0])}; {_hint(word, parsed)}")
    if parsed.command is not None and (argument := COMMANDS[parsed.command].argument) is not None:
        word = vars(parsed)[argument.name]
        if word not in {None, *argument.choices}:
            raise UsageError(f"{parsed.command} does not know {quoted(word)}; {nearest(word, argument.choices)}")
    return parsed


def print_help() -> None:
    """Print the help of ``otel-gpu`` itself."""
    make_parser().print_help()


def _refuse_flags_before_the_command(arguments: Sequence[str]) -> None:
    """Show the correct order for a command line that starts with a flag of a command."""
    known = {"--config"}.union(*(command.flag_names for command in COMMANDS.values()))
    if not arguments or arguments[0].partition("=")[0] not in known:
        return
    command = next((word for word in arguments if word in COMMANDS), None)
    rest = list(arguments)
    if command is not None:
        rest.remove(command)
    raise UsageError(f"flags come after the command: otel-gpu {command or 'COMMAND'} {shlex.join(rest)}")


def _refuse_values(arguments: Sequence[str], command: str | None) -> None:
    """Refuse values of flags that take none, which argparse calls "ignored explicit argument"."""
    own = ["--version"] if command is None else [f"--{flag.name}" for flag in COMMANDS[command].flags if flag.is_switch]
    for word in arguments:
        flag, equals, _ = word.partition("=")
        if equals and flag in ("-h", "--help", *own):
            raise UsageError(f"{flag} takes no value; use {flag}")


def _hint(word: str, parsed: argparse.Namespace) -> str:
    """What to write instead of a word that the command on the line does not know."""
    command = COMMANDS.get(parsed.command)
    argument = None if command is None else command.argument
    if not word.startswith("-"):
        takes = "flags only" if argument is None else f"one {argument.name.upper()}, and flags"
        return f"{parsed.command} takes {takes}"
    not_flags = {"command", "" if argument is None else argument.name}
    own = ["version"] if command is None else [name for name in vars(parsed) if name not in not_flags]
    others = [each.name for each in COMMANDS.values() if word in each.flag_names]
    if others:
        return f"it is a flag of {', '.join(others)}"
    return nearest(word, [f"--{name}" for name in (*own, "help")], see=f"otel-gpu {parsed.command} --help")


# ---------------------------------------------------------------------------- help


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``otel-gpu`` with all its commands."""
    parser = _Parser(
        prog="otel-gpu",
        usage="otel-gpu COMMAND [FLAGS]",
        description=_ABOUT,
        epilog="Example: otel-gpu demo\n\notel-gpu COMMAND --help shows the flags of a command.",
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="Commands", parser_class=_Parser)
    own = parser.add_argument_group("Flags")
    own.add_argument("-h", "--help", action="help", help="show this help")
    own.add_argument("--version", action="version", version=f"otel-gpu {__version__}", help="show the version")
    for command in COMMANDS.values():
        _add(commands, command)
    return parser


def _add(commands: argparse._SubParsersAction[Any], command: Command) -> None:
    argument = command.argument
    what = "" if argument is None else f" [{argument.name.upper()}]"
    parser: argparse.ArgumentParser = commands.add_parser(
        command.name,
        prog=f"otel-gpu {command.name}",
        usage=f"otel-gpu {command.name}{what} [FLAGS]",
        help=command.summary,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.\n\nExample: {command.example}",
        epilog=_NOTES if command.settings else None,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    own = parser.add_argument_group("Flags")
    own.add_argument("-h", "--help", action="help", help="show this help")
    if argument is not None:
        text = f"{argument.help}: {', '.join(argument.choices)}"
        own.add_argument(argument.name, nargs="?", metavar=argument.name.upper(), help=text)
    for flag in command.flags:
        own.add_argument(f"--{flag.name}", **flag.options)
    if command.settings:
        own.add_argument("--config", metavar="FILE", help="configuration file in YAML (OTEL_GPU_CONFIG)")
    for topic in Topic:
        settings = [setting for setting in SETTINGS if setting.topic is topic and setting.key in command.settings]
        group = parser.add_argument_group(topic.value) if settings else own
        for setting in settings:
            _add_setting(group, setting, command)


def _add_setting(group: argparse._ArgumentGroup, setting: Setting, command: Command) -> None:
    is_fixed = setting.key in command.fixed  # accepted with the same value, not listed
    options: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.is_switch else {}
    group.add_argument(
        setting.flag,
        metavar=setting.type.metavar,
        dest=setting.key,
        help=argparse.SUPPRESS if is_fixed else flag_help(setting, command).replace("%", "%%"),
        **options,
    )


def flag_help(setting: Setting, command: Command) -> str:
    """The help of a flag: what it does, its default, and variables of others that set it."""
    default = command.defaults.get(setting.key, setting.default) or setting.when_empty or "none"
    variables = f"; also {', '.join(setting.variables[1:])}" if setting.variables[1:] else ""
    return f"{setting.help} (default {default}{variables})"
