"""The commands: what each does, its flags and settings, its own defaults, an example for its help, how it starts."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_gpu.config import BY_KEY, DEFAULT, SETTINGS, Config, Resolved, Topic, keys, resolve
from otel_gpu.config.values import one_of
from otel_gpu.errors import UsageError

_LOGS: Final = keys(Topic.LOGS)
_SAMPLING: Final = tuple(key for key in keys(Topic.SAMPLING) if key != "scope")
_ENERGY: Final = ("energy-policy", "energy-model")
_THIS_HOST: Final = ("scope", *keys(Topic.NAMES))
_ATTRIBUTION: Final = keys(Topic.ATTRIBUTION)
_EXPORT: Final = keys(Topic.EXPORT, Topic.OTLP, Topic.WEB, Topic.COMPAT)
_SIMULATED: Final = (*_SAMPLING, *_ATTRIBUTION, *_EXPORT, *_LOGS)
_ALL: Final = tuple(BY_KEY)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of one command that is not a setting. ``choices`` or a metavar, else it takes no value.

    A flag with ``agent_variable``, which can be set instead, is the URL of a running agent: a command that is about
    that agent takes no settings of this host except for logs.
    """

    name: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    agent_variable: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return not self.choices and not self.metavar

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``add_argument``."""
        if self.choices:
            default = self.choices[0]
            text = f"{self.help} (default {default})"
            return {"type": self._choice, "default": default, "metavar": "|".join(self.choices), "help": text}
        if self.metavar:
            return {"metavar": self.metavar, "help": self.help}
        return {"action": "store_true", "help": self.help}

    def _choice(self, text: str) -> str:
        if text not in self.choices:
            raise ArgumentTypeError(f"{text!r} is not a valid value; use {one_of(self.choices)}")
        return text


@dataclass(frozen=True, slots=True)
class Argument:
    """The word after a command. ``choices`` has the valid words, each with its meaning."""

    name: str
    help: str
    choices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Command:
    """A command. ``start`` runs it and returns the exit code; ``settings`` are the keys it has flags for.

    ``defaults`` replace the agent's. ``fixed`` settings define the command and cannot be changed. If ``only_own``,
    variables and the file count for its own settings only: settings of other commands must not stop it.
    """

    name: str
    summary: str
    example: str
    start: Callable[[Invocation], int]
    settings: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    argument: Argument | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    only_own: bool = False

    @property
    def flag_names(self) -> frozenset[str]:
        """Its flags on the command line, without those that every command has."""
        return frozenset(f"--{name}" for name in (*(flag.name for flag in self.flags), *self.settings))


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command on the command line. ``words`` are its flags and its argument by name, ``None`` if not given."""

    command: Command
    words: Mapping[str, Any]
    environment: Mapping[str, str]

    def resolved(self) -> Resolved:
        """Its settings, with their errors. UsageError for the flag of a setting that has no effect."""
        command = self.command
        only = command.settings if command.only_own else _ALL
        if (agent := self.agent) is not None:
            only = _LOGS
            given = [each.flag for each in SETTINGS if each.key not in _LOGS and self.words.get(each.key) is not None]
            if given:
                raise UsageError(
                    f"{given[0]} is for this host, but {agent[0]} names a running agent, which has its own settings"
                )
        return resolve(
            {key: text for key in ("config", *BY_KEY) if (text := self.words.get(key)) is not None},
            self.environment,
            defaults=command.defaults,
            fixed=command.fixed,
            command=command.name,
            only=only,
        )

    @property
    def agent(self) -> tuple[str, str] | None:
        """The flag or variable that names a running agent, and its value."""
        for flag in self.command.flags:
            if flag.agent_variable and self.words[flag.name] is not None:
                return f"--{flag.name}", self.words[flag.name]
            if flag.agent_variable and self.environment.get(flag.agent_variable):
                return flag.agent_variable, self.environment[flag.agent_variable]
        return None

    def config(self) -> Config:
        """Its configuration. UsageError if a setting is not valid."""
        return self.resolved().loaded().config

    def config_with_log(self) -> Config:
        """Its configuration, and the log set up as configured. UsageError also for outputs that cannot work."""
        from otel_gpu.cli import logs  # noqa: PLC0415

        loaded = self.resolved().loaded()
        if "exporters" in self.command.settings:
            from otel_gpu.config.checks import check_exports  # noqa: PLC0415

            check_exports(loaded)
        log = loaded.config.log
        logs.set_up(log.level, log.format, chosen=loaded.value("log-format").origin != DEFAULT)
        return loaded.config


# ---------------------------------------------------------------------------- starts
#
# Modules are imported here: --help, --version and a misspelt flag must not wait for drivers and clients.


def _run(call: Invocation) -> int:
    config = call.config_with_log()
    from otel_gpu.cli.run import run  # noqa: PLC0415

    return run(config, view=call.words["view"])


def _demo(call: Invocation) -> int:
    config = call.config_with_log()
    from otel_gpu.cli.run import run  # noqa: PLC0415

    return run(config, view=True, demo=True)


def _once(call: Invocation) -> int:
    config = call.config_with_log()
    from otel_gpu.cli.once import once  # noqa: PLC0415

    return once(config, form=call.words["format"])


def _top(call: Invocation) -> int:
    config = call.config()
    from otel_gpu.cli.top import top  # noqa: PLC0415

    return top(config, call.agent)


def _doctor(call: Invocation) -> int:
    config = call.config_with_log()
    from otel_gpu.cli.doctor import doctor  # noqa: PLC0415

    return doctor(config, form=call.words["format"])


def _config(call: Invocation) -> int:
    resolved = call.resolved()
    from otel_gpu.cli.config import config  # noqa: PLC0415

    return config(resolved, call.environment)


def _metrics(call: Invocation) -> int:
    from otel_gpu.cli.metrics import metrics  # noqa: PLC0415

    return metrics(as_markdown=call.words["format"] == "markdown")


def _setup(call: Invocation) -> int:
    if call.words["what"] is None:  # does not depend on the configuration, valid or not
        from otel_gpu.cli.setup import list_setups  # noqa: PLC0415

        return list_setups(_SETUPS, off=call.words["off"])
    config = call.config_with_log()
    from otel_gpu.cli.setup import setup_accounting  # noqa: PLC0415

    return setup_accounting(config, off=call.words["off"])


def _pause(call: Invocation) -> int:
    config = call.config()
    from otel_gpu.cli.pause import parse_pause_s, pause  # noqa: PLC0415

    paths, text = config.state.control_socket.client_paths(call.environment), call.words["for"]
    return pause(paths, for_s=None if text is None else parse_pause_s(text))


def _resume(call: Invocation) -> int:
    config = call.config()
    from otel_gpu.cli.pause import resume  # noqa: PLC0415

    return resume(config.state.control_socket.client_paths(call.environment))


# ---------------------------------------------------------------------------- the table

_SETUPS: Final = {
    "accounting": "the driver's accounting per process, on every GPU, as root: otel-gpu setup accounting [--off]",
}
"""What ``otel-gpu setup`` can set up."""

_VIEW: Final = Flag("view", "also show the table: live in a terminal; printed once if the output is not a terminal")

COMMANDS: Final[Mapping[str, Command]] = {
    command.name: command
    for command in (
        Command(
            "run",
            "run the agent: sample, attribute, export, serve",
            "otel-gpu run --otlp-endpoint http://collector:4318",
            _run,
            _ALL,
            (_VIEW,),
        ),
        Command(
            "once",
            "take two samples, print the result and exit",
            "otel-gpu once --format json",
            _once,
            (*_SAMPLING, *_ENERGY, *_THIS_HOST, *_LOGS),
            (Flag("format", "output format", choices=("table", "json", "prometheus", "otlp")),),
            defaults={"interval": "1s"},
        ),
        Command(
            "top",
            "show GPUs and workloads live in the terminal, of this host or of a running agent",
            "otel-gpu top --url http://127.0.0.1:9464",
            _top,
            (*_SAMPLING, *_ATTRIBUTION, *_THIS_HOST, *_LOGS),
            # A password in a variable is not visible in the list of processes.
            (Flag("url", "URL of the agent to show (OTEL_GPU_URL)", metavar="URL", agent_variable="OTEL_GPU_URL"),),
            defaults={"interval": "2s"},
        ),
        Command(
            "demo",
            "run the agent on a simulated host; needs no GPU",
            "otel-gpu demo --listen 127.0.0.1:9465",
            _demo,
            _SIMULATED,  # without sources of names: a DOCKER_HOST for other programs must not stop the demo
            (_VIEW,),
            defaults={"exporters": "prometheus"},  # the demo needs no Collector
            fixed={"source": "sim"},
            only_own=True,
        ),
        Command(
            "doctor",
            "check what works on this host and how to fix what does not; exit code 1 if nothing can be attributed",
            "otel-gpu doctor --format json",
            _doctor,
            _ALL,  # as run: it finds what run would find
            (Flag("format", "output format", choices=("text", "json")),),
        ),
        Command(
            "config",
            "show the effective configuration of run and the origin of each value",
            "otel-gpu config --config /etc/otel-gpu/config.yaml",
            _config,
            _ALL,
        ),
        Command(
            "metrics",
            "list every metric with its name in Prometheus",
            "otel-gpu metrics --format markdown",
            _metrics,
            (),
            (Flag("format", "output format", choices=("table", "markdown")),),
        ),
        Command(
            "setup",
            "set up this host once, as root; without arguments, list what can be set up",
            "sudo otel-gpu setup accounting",
            _setup,
            ("deadline", *_LOGS),
            (Flag("off", "switch it off again"),),
            Argument("what", "what to set up", _SETUPS),
            defaults={"deadline": "30s"},  # without persistence mode the driver has to load first
            only_own=True,
        ),
        Command(
            "pause",
            "make the running agent release the driver, for a GPU reset, a change of MIG mode or a driver upgrade",
            "otel-gpu pause --for 10m",
            _pause,
            ("control-socket",),
            (Flag("for", "resume after this time (default until otel-gpu resume)", metavar="DURATION"),),
            only_own=True,
        ),
        Command(
            "resume",
            "make the running agent read the GPUs again",
            "otel-gpu resume",
            _resume,
            ("control-socket",),
            only_own=True,
        ),
    )
}
