"""The command line. Every way out is one line a user can act on, and an exit code: 0 done, 1 failed, 2 misused."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NoReturn

from otel_gpu import streams
from otel_gpu.config import DEFAULT, SETTINGS, Config, Loaded, LogFormat, LogLevel, Settled, nearest, settle
from otel_gpu.errors import OtelGpuError, UsageError
from otel_gpu.settings_compat import COMPAT_SETTINGS
from otel_gpu.settings_export import EXPORT_SETTINGS, Exporter
from otel_gpu.settings_names import NAMES_SETTINGS
from otel_gpu.values import choice
from otel_gpu.version import __version__
from otel_gpu.view.terminal import printable

DONE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2

_LOGGING: Final = ("log-level", "log-format")
_READING: Final = ("interval", "deadline", "source", "seed", "proc-root", "sys-root", *_LOGGING)
_LOOKING: Final = (*_READING, "energy-policy", "energy-model")
_PRICES: Final = ("retention", "price-gpu-hour", "price-kwh", "currency")
_SERVING: Final = (*_LOOKING, *_PRICES, "listen", "web-config")
_EXPORTING: Final = (*_SERVING, *(setting.key for setting in (*EXPORT_SETTINGS, *COMPAT_SETTINGS)))
_NAMING: Final = tuple(setting.key for setting in NAMES_SETTINGS)
_OF_THIS_HOST: Final = ("scope", *_NAMING)
_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (*_EXPORTING, "state-dir", "control-socket", *_OF_THIS_HOST),
    "once": (*_LOOKING, *_OF_THIS_HOST),
    "top": (*_LOOKING, *_PRICES, *_OF_THIS_HOST),
    "demo": _EXPORTING,  # names and pods of a simulated host are simulated: a DOCKER_HOST for others must not stop it
    "doctor": (*_EXPORTING, "state-dir", "control-socket", *_OF_THIS_HOST),  # as run: what that would find
    "config": (*_EXPORTING, "state-dir", "control-socket", *_OF_THIS_HOST),
    "metrics": (),
    "setup": ("deadline", "log-level", "log-format"),
    "pause": ("control-socket",),
    "resume": ("control-socket",),
}
_FILES: Final = ("otlp-certificate", "otlp-client-certificate", "otlp-client-key")
_TELLING: Final = ("pause", "resume")
"""Commands to a running agent."""

_SETUPS: Final[Mapping[str, str]] = {
    "accounting": "the driver's books per process, on every GPU, as root: otel-gpu setup accounting [--off]",
}
_OWN_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "once": {"interval": "1s"},
    "top": {"interval": "2s"},
    "demo": {"exporters": "prometheus"},  # it needs no Collector
    "setup": {"deadline": "30s"},  # nobody waits for it, and a driver without persistence mode loads first
}
_FIXED: Final[Mapping[str, Mapping[str, str]]] = {"demo": {"source": "sim"}}
"""Settings that make a command what it is: nothing and nobody changes them."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; the value is the exit code."""
    streams.replace_closed()
    try:
        return _run(arguments, os.environ)
    except UsageError as error:
        return _complain(error, MISUSED, arguments)
    except OtelGpuError as error:
        return _complain(error, FAILED, arguments)
    except BrokenPipeError:  # the reader has gone (… | head), and nobody is left to complain to
        return FAILED
    except Exception as error:
        logging.getLogger(__name__).debug("internal error", exc_info=True)
        text = f"internal error: {type(error).__name__}: {error}; this is a bug, --log-level debug shows where"
        return _complain(text, FAILED, arguments)
    finally:
        streams.settle()


def _complain(message: object, code: int, arguments: Sequence[str]) -> int:
    from otel_gpu import logs  # noqa: PLC0415 - as in _work

    if not logs.is_set_up() and (log_format := _chosen_format(arguments, os.environ)) is not None:
        logs.set_up(LogLevel.INFO, log_format, chosen=True)
    text = printable(" ".join(str(message).split()))
    logs.remark(f"otel-gpu: {text}\n", text, {}, logging.ERROR)
    return code


def _chosen_format(arguments: Sequence[str], environment: Mapping[str, str]) -> LogFormat | None:
    """How whoever reads stderr wants log lines, as far as that shows in what may be wrong in every other way."""
    command = next((word for word in arguments if not word.startswith("-")), None)
    if "log-format" not in _COMMANDS.get(command or "", _LOGGING):
        return None
    named = [_word_after("--config", arguments), environment.get("OTEL_GPU_CONFIG")]
    path = next((Path(name) for name in named if name), None)
    in_file = None
    with contextlib.suppress(OtelGpuError, OSError, ValueError):
        if path is not None and path.is_file():  # a pipe has been read, and would be waited for
            from otel_gpu.configfile import read_config_file  # noqa: PLC0415 - as in config

            in_file = read_config_file(path).get("log-format")
    in_environment = environment.get("OTEL_GPU_LOG_FORMAT")
    for text in (_word_after("--log-format", arguments), in_environment, in_file and in_file.text):
        with contextlib.suppress(ValueError):
            return choice(LogFormat)(text or "")
    return None


def _word_after(flag: str, arguments: Sequence[str]) -> str | None:
    """What the flag is given as, the last time; the line need not be a good one."""
    found = None
    for word, following in zip_longest(arguments, arguments[1:]):
        name, equals, value = word.partition("=")
        if name == flag:
            found = value if equals else following
    return found


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parsed = _parse(arguments)
    if parsed.command == "metrics" or (parsed.command == "setup" and parsed.what is None):
        return _show(parsed)
    settled = _settle(parsed, environment)
    if parsed.command == "top":
        from otel_gpu.top.command import top  # noqa: PLC0415 - as below

        return top(settled.loaded().config, url=parsed.url)
    if parsed.command in _TELLING:
        return _tell(parsed, settled.loaded().config, environment)
    return _work(parsed, settled)


def _work(parsed: argparse.Namespace, settled: Settled) -> int:
    # Here, not above: --help, --version and a misspelt flag should not wait for the drivers and clients.
    from otel_gpu import commands, logs  # noqa: PLC0415

    if parsed.command == "config":  # what is wrong is looked for in it: it is shown first
        commands.config(settled)
        _check_exports(settled.loaded())
        return DONE
    loaded = settled.loaded()
    if "exporters" in _COMMANDS[parsed.command]:
        _check_exports(loaded)
    chosen = any(value.key == "log-format" and value.origin != DEFAULT for value in loaded.values)
    logs.set_up(loaded.config.log_level, loaded.config.log_format, chosen=chosen)
    match parsed.command:
        case "doctor":
            return commands.doctor(loaded.config, form=parsed.format)
        case "setup":
            return commands.setup_accounting(loaded.config, off=parsed.off)
        case "once":
            return commands.once(loaded.config, form=parsed.format)
        case _:
            demo = parsed.command == "demo"
            return commands.run(loaded.config, view=parsed.view or demo, demo=demo)


def _check_exports(loaded: Loaded) -> None:
    """UsageError for what cannot work, as settings and as files: what is no file might be waited for, for ever."""
    from otel_gpu.settings_check import check_exports  # noqa: PLC0415 - as in _work

    named = [value for value in loaded.values if value.key in _FILES and Exporter.OTLP in loaded.config.exporters]
    for value in named:
        mode = 0
        with contextlib.suppress(OSError):  # one that is not there is told of with the rest
            mode = Path(value.text).stat().st_mode
        if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"{value.origin}: {value.key} is {value.text!r}; allowed is a regular file")
    check_exports(loaded)


def _tell(parsed: argparse.Namespace, config: Config, environment: Mapping[str, str]) -> int:
    """Tell the running agent something; none of what an agent needs itself is needed for that."""
    from otel_gpu.control import commands  # noqa: PLC0415

    places = config.control_socket.client_paths(environment)
    if parsed.command == "resume":
        return commands.resume(places)
    duration = vars(parsed)["for"]
    return commands.pause(places, for_s=None if duration is None else commands.parse_pause_s(duration))


def _show(parsed: argparse.Namespace) -> int:
    """What is the same whatever is configured, and however badly: the catalogue, and what can be set up."""
    if parsed.command == "metrics":
        from otel_gpu import commands  # noqa: PLC0415

        return commands.metrics(as_markdown=parsed.format == "markdown")
    if parsed.off:
        raise UsageError(f"--off needs to know what: otel-gpu setup {'|'.join(_SETUPS)} --off")
    for what, meaning in _SETUPS.items():
        streams.write(sys.stdout, f"{what}  {meaning}\n")
    return DONE


def _settle(parsed: argparse.Namespace, environment: Mapping[str, str]) -> Settled:
    words, command = vars(parsed), parsed.command
    # What is meant for others must stop none of these.
    own = {"demo": _EXPORTING, **{name: _COMMANDS[name] for name in ("setup", *_TELLING)}}
    if command == "top" and _is_elsewhere(parsed, environment):
        own["top"] = _LOGGING
    only = own.get(command, [setting.key for setting in SETTINGS])
    flags = {key: words[key] for key in ("config", *(s.key for s in SETTINGS)) if words.get(key) is not None}
    return settle(
        flags,
        environment,
        defaults=_OWN_DEFAULTS.get(command, {}),
        fixed=_FIXED.get(command, {}),
        command=command,
        only=only,
    )


def _is_elsewhere(parsed: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether top is to look at a running agent, for which nothing about this host can be chosen."""
    url = "--url" if parsed.url is not None else "OTEL_GPU_URL" if environment.get("OTEL_GPU_URL") else None
    given = [s.flag for s in SETTINGS if s.key not in _LOGGING and vars(parsed).get(s.key) is not None]
    if url is not None and given:
        raise UsageError(f"{given[0]} is about this host, and {url} names a running agent, which has its own")
    return url is not None


# ---------------------------------------------------------------------------- words on the line


class _Parser(argparse.ArgumentParser):
    """Reports misuse as UsageError, in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002
        """Print help or version; argparse's own way ignores that they could not be written."""
        streams.write(sys.stdout, message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="otel-gpu",
        description="Who is using the GPU, how much, and who is only sitting on it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"otel-gpu {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    run = _command(commands, "run", "the agent: sample, attribute, export, serve")
    demo = _command(commands, "demo", "the agent on a simulated host: no GPU needed")
    for command in (run, demo):
        command.add_argument(
            "--view", action="store_true", help="show the table too: kept current on a terminal, once elsewhere"
        )
    once = _command(commands, "once", "one look: two samples, print, exit")
    forms = ("table", "json", "prometheus", "otlp")
    once.add_argument("--format", choices=forms, default="table", help="how to print it (default table)")
    top = _command(commands, "top", "the live view in the terminal: of this host, or of a running agent")
    top.add_argument("--url", help="look at the agent there, such as http://127.0.0.1:9464 (OTEL_GPU_URL)")
    doctor = _command(commands, "doctor", "what works here and what does not, with the fix; exit 1 if blind")
    doctor.add_argument("--format", choices=("text", "json"), default="text", help="how to print it (default text)")
    _command(commands, "config", "the effective configuration and where each value comes from")
    summary = "the catalogue: every metric, with its name in Prometheus"
    metrics = commands.add_parser("metrics", help=summary, description=summary, allow_abbrev=False)
    metrics.add_argument(
        "--format", choices=("table", "markdown"), default="table", help="how to print it (default table)"
    )
    pause = _command(commands, "pause", "have the running agent let go of the driver: for a reset, MIG, an upgrade")
    pause.add_argument("--for", metavar="DURATION", help="resume after this time, such as 10m (default: when told to)")
    _command(commands, "resume", "have the running agent read GPUs again")
    setup = _command(commands, "setup", "what a host needs once, as root; alone it shows what there is")
    setup.add_argument("what", nargs="?", metavar="WHAT", help=f"one of {', '.join(_SETUPS)}")
    setup.add_argument("--off", action="store_true", help="switch it off again")
    return parser


def _command(commands: argparse._SubParsersAction[Any], name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="settings in YAML, each as 'key: value' (OTEL_GPU_CONFIG)")
    for setting in SETTINGS:
        if setting.key in _COMMANDS[name]:
            default = _OWN_DEFAULTS.get(name, {}).get(setting.key, setting.default) or "none"
            help_ = f"{setting.help} (default {default}; {', '.join(setting.variables)})".replace("%", "%%")
            alone: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.switch else {}
            fixed = setting.key in _FIXED.get(name, {})  # accepted where it says the same, not advertised
            parser.add_argument(
                setting.flag,
                metavar="VALUE",
                dest=setting.key,
                help=argparse.SUPPRESS if fixed else help_,
                **alone,
            )
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    _refuse_flags_before_the_command(arguments)
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and first not in _COMMANDS:
        raise UsageError(f"there is no command {first!r}; {nearest(first, _COMMANDS)}")
    parsed, unknown = _parser().parse_known_args(arguments)
    if unknown:
        word = unknown[0].partition("=")[0]
        takes = "one thing to set up, and flags" if parsed.command == "setup" else "flags only"
        hint = nearest(word, _flags(parsed)) if word.startswith("-") else f"{parsed.command} takes {takes}"
        raise UsageError(f"{parsed.command or 'otel-gpu'} does not know {unknown[0]!r}; {hint}")
    if parsed.command is None:
        raise UsageError(f"no command given; use one of {', '.join(_COMMANDS)}, or --help")
    if parsed.command == "setup" and parsed.what not in {None, *_SETUPS}:
        raise UsageError(f"setup does not know {parsed.what!r}; {nearest(parsed.what, _SETUPS)}")
    return parsed


def _refuse_flags_before_the_command(arguments: Sequence[str]) -> None:
    """Show the line as it should be where it begins with a flag that a command has."""
    known = {"--config", "--view", "--format", "--off", "--for", "--url", *(setting.flag for setting in SETTINGS)}
    if not arguments or arguments[0].partition("=")[0] not in known:
        return
    command = next((word for word in arguments if word in _COMMANDS), None)
    rest = list(arguments)
    if command is not None:
        rest.remove(command)
    raise UsageError(f"flags come after the command: otel-gpu {command or 'COMMAND'} {shlex.join(rest)}")


def _flags(parsed: argparse.Namespace) -> list[str]:
    """The flags that the command given has."""
    own = ["version"] if parsed.command is None else [word for word in vars(parsed) if word not in {"command", "what"}]
    return [f"--{word}" for word in (*own, "help")]
