"""Subcommands and flags of other programs that pages use, listed so that misspelt ones are found.

A correct flag may be missing from the list: look it up before you add it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

AGENT: Final = "otel-gpu"
LEFT_OUT: Final = "…"
FILES: Final = frozenset({"-f", "-k", "-r", "--config"})
"""Flags that name a file or a directory to be read."""


class Misused(Exception):
    """What is wrong with a command, in one line."""


@dataclass(frozen=True, slots=True)
class Form:
    """A subcommand: flags that stand alone, and those that take a value.

    ``inside`` is for subcommands that run a program in a container: the words after the first are its own.
    """

    alone: str = ""
    valued: str = ""
    inside: bool = False


_RUN: Final = Form(
    "--rm --read-only --privileged --no-healthcheck",
    "--user --gpus --pid --cgroupns --uts --cap-drop --cap-add --security-opt --tmpfs --device --group-add "
    "--health-cmd -v -p -e",
    inside=True,
)
_CLUSTER: Final = {
    "apply": Form("", "-k -f"),
    "auth can-i": Form("--all-namespaces", "--as"),
    "create namespace": Form(),
    "describe": Form(),
    "exec": Form("", "-c", inside=True),
    "get": Form("--show-labels", "-o"),
    "label": Form(),
}
PROGRAMS: Final[Mapping[str, Mapping[str, Form]]] = {
    "docker": {
        "build": Form("", "-t -f --build-arg"),
        "run": _RUN,
        "push": Form(),
        "exec": Form(inside=True),
    },
    "docker compose": {"up": Form("--build -d"), "exec": Form(inside=True)},
    "podman": {"run": _RUN},
    "kubectl": _CLUSTER,
    "oc": {**_CLUSTER, "patch": Form("", "--type -p")},
    "helm": {"install": Form("", "--namespace --set")},
    "systemctl": {"daemon-reload": Form(), "enable": Form("--now")},
    "promtool": {"check rules": Form(), "check metrics": Form(), "test rules": Form()},
    "otelcol-contrib": {"": Form("", "--config"), "validate": Form("", "--config")},
    "nvidia-smi": {"": Form("--gpu-reset -q -L", "-i -d -pm -am --accounting-mode --query-gpu --format")},
    "curl": {"": Form("-N", "--unix-socket")},
    "install": {"": Form("-D -d", "-m -o")},
}
_BEFORE: Final[Mapping[str, Form]] = {
    "kubectl": Form("", "-n"),
    "oc": Form("", "-n"),
    "systemctl": Form("--user"),
    "docker compose": Form("", "-f"),
}
"""Flags before the subcommand."""


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed command: its subcommand, the files it reads, its other words, and the command inside a container."""

    subcommand: str
    files: tuple[str, ...]
    words: tuple[str, ...]
    inside: tuple[str, ...]

    @property
    def of_agent(self) -> tuple[str, ...] | None:
        """The agent's arguments inside the container; ``None`` without any, or for another program."""
        if self.subcommand == "run":  # the image's entry point
            image = Path(self.words[0]).name.partition(":")[0] if self.words else ""
            return self.inside if image == AGENT and self.inside else None
        return self.inside[1:] if self.inside[:1] == (AGENT,) else None


def taken_apart(words: Sequence[str]) -> Call:
    """Parse a command. Raises Misused for a subcommand or a flag that is not in the list."""
    program = program_of(words)
    if program is None:
        raise Misused(f"{words[0]} is no program that is in the list")
    forms, rest, files = PROGRAMS[program], list(words[len(program.split()) :]), list[str]()
    if program in _BEFORE:
        _take_flags(_BEFORE[program], rest, files, program)
    fitting = [each for each in forms if rest[: len(each.split())] == each.split()]
    if not fitting:
        raise Misused(f"{program} {' '.join(rest[:1])}: no subcommand that is in the list")
    subcommand = max(fitting, key=len)
    form, rest = forms[subcommand], rest[len(subcommand.split()) :]
    inside: list[str] = []
    if form.inside and "--" in rest:
        rest, inside = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    others: list[str] = []
    while rest:
        _take_flags(form, rest, files, f"{program} {subcommand}".strip())
        others += [rest.pop(0)] if rest else []
        if form.inside and not inside and others and others[-1] != LEFT_OUT:
            rest, inside = [], rest
    return Call(subcommand, tuple(files), tuple(word for word in others if word != LEFT_OUT), tuple(inside))


def program_of(words: Sequence[str]) -> str | None:
    """The program in the list; ``None`` for any other."""
    return next(
        (each for each in sorted(PROGRAMS, reverse=True) if list(words[: len(each.split())]) == each.split()), None
    )


def _take_flags(form: Form, rest: list[str], files: list[str], where: str) -> None:
    """Remove leading flags from ``rest``."""
    while rest and rest[0].startswith("-") and rest[0] != "--":
        flag, given, value = rest.pop(0).partition("=")
        if flag in form.valued.split():
            if not given and not rest:
                raise Misused(f"{where}: {flag} has no value")
            value = value if given else rest.pop(0)
            files += [value] if flag in FILES else []
        elif flag not in form.alone.split() or given:
            raise Misused(f"{where}: {flag} is no flag that is in the list")
