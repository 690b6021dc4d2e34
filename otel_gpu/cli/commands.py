"""The commands: what each does, its settings, its own defaults and an example for its help."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_gpu.config import BY_KEY, Topic, keys
from otel_gpu.config.values import one_of

_LOGS: Final = keys(Topic.LOGS)
_SAMPLING: Final = tuple(key for key in keys(Topic.SAMPLING) if key != "scope")
_ENERGY: Final = ("energy-policy", "energy-model")
_THIS_HOST: Final = ("scope", *keys(Topic.NAMES))
_ATTRIBUTION: Final = keys(Topic.ATTRIBUTION)
_EXPORT: Final = keys(Topic.EXPORT, Topic.OTLP, Topic.WEB, Topic.COMPAT)
_SIMULATED: Final = (*_SAMPLING, *_ATTRIBUTION, *_EXPORT, *_LOGS)
_ALL: Final = tuple(BY_KEY)

SETUPS: Final[Mapping[str, str]] = {
    "accounting": "the driver's accounting per process, on every GPU, as root: otel-gpu setup accounting [--off]",
}
"""What ``otel-gpu setup`` can set up."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of one command that is not a setting. ``choices`` or a metavar, else it takes no value."""

    name: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()

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
class Command:
    """A command. ``settings`` are the keys it has flags for.

    ``defaults`` replace the agent's. ``fixed`` settings define the command and cannot be changed. If ``only_own``,
    variables and the file count for its own settings only: those of other commands must not stop it.
    """

    name: str
    summary: str
    example: str
    settings: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    only_own: bool = False

    @property
    def flag_names(self) -> frozenset[str]:
        """Its flags on the command line, without those that every command has."""
        return frozenset(f"--{name}" for name in (*(flag.name for flag in self.flags), *self.settings))


_VIEW: Final = Flag("view", "also show the table: live in a terminal; printed once if the output is not a terminal")

COMMANDS: Final[Mapping[str, Command]] = {
    command.name: command
    for command in (
        Command(
            "run",
            "run the agent: sample, attribute, export, serve",
            "otel-gpu run --otlp-endpoint http://collector:4318",
            _ALL,
            (_VIEW,),
        ),
        Command(
            "once",
            "take two samples, print the result and exit",
            "otel-gpu once --format json",
            (*_SAMPLING, *_ENERGY, *_THIS_HOST, *_LOGS),
            (Flag("format", "output format", choices=("table", "json", "prometheus", "otlp")),),
            defaults={"interval": "1s"},
        ),
        Command(
            "top",
            "show GPUs and workloads live in the terminal, of this host or of a running agent",
            "otel-gpu top --url http://127.0.0.1:9464",
            (*_SAMPLING, *_ATTRIBUTION, *_THIS_HOST, *_LOGS),
            (Flag("url", "URL of the agent to show (OTEL_GPU_URL)", metavar="URL"),),
            defaults={"interval": "2s"},
        ),
        Command(
            "demo",
            "run the agent on a simulated host; needs no GPU",
            "otel-gpu demo --listen 127.0.0.1:9465",
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
            _ALL,  # as run: it finds what run would find
            (Flag("format", "output format", choices=("text", "json")),),
        ),
        Command(
            "config",
            "show the effective configuration and the origin of each value",
            "otel-gpu config --config /etc/otel-gpu/config.yaml",
            _ALL,
        ),
        Command(
            "metrics",
            "list every metric with its name in Prometheus",
            "otel-gpu metrics --format markdown",
            (),
            (Flag("format", "output format", choices=("table", "markdown")),),
        ),
        Command(
            "setup",
            "set up this host once, as root; without arguments, list what can be set up",
            "sudo otel-gpu setup accounting",
            ("deadline", *_LOGS),
            (Flag("off", "switch it off again"),),
            defaults={"deadline": "30s"},  # without persistence mode the driver has to load first
            only_own=True,
        ),
        Command(
            "pause",
            "make the running agent release the driver, for a GPU reset, a change of MIG mode or a driver upgrade",
            "otel-gpu pause --for 10m",
            ("control-socket",),
            (Flag("for", "resume after this time (default until otel-gpu resume)", metavar="DURATION"),),
            only_own=True,
        ),
        Command(
            "resume",
            "make the running agent read the GPUs again",
            "otel-gpu resume",
            ("control-socket",),
            only_own=True,
        ),
    )
}
