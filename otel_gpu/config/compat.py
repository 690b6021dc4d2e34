"""Metrics of other exporters: which are served, and what their own variables and flags set.

Variables and flags of another exporter apply to its listener only. If it has none they are ignored: a variable such as
``HTTP_PORT`` may be meant for any program.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from otel_gpu.config import values
from otel_gpu.config.compat_exporters import EXPORTERS, CompatExporter, Option
from otel_gpu.config.groups import Config, Listener
from otel_gpu.errors import UsageError

FLAGS: Final = "my-gpu-exporter-flags"
"""The setting with the flags of an exporter."""
_EXPORTER_WITH_FLAGS: Final = "my-gpu-exporter"
"""The exporter whose flags these are. The others have variables."""


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """``NAME`` or ``NAME:PORT`` separated by commas, each once. Port 0 is the exporter's usual port."""
    found: dict[str, Listener] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, port = part.partition(":")
        name = name.strip()
        if name in found or not re.fullmatch(r"[a-z0-9-]+", name):
            raise ValueError(text)
        found[name] = Listener(name, values.Address("", values.whole_number(1, 65535)(port) if separator else 0))
    return tuple(found.values())


def parse_flags(text: str) -> dict[str, str]:
    """Flags in the syntax of Go's package ``flag``: ``-name=value``, ``--name=value``, ``--name value``.

    A flag without a value is true if it is a switch. The last of several values counts.
    """
    if not text.strip():
        return {}
    switches = {option.name for option in EXPORTERS[_EXPORTER_WITH_FLAGS].flags if option.bare}
    words = iter(shlex.split(text))
    found: dict[str, str] = {}
    for word in words:
        match = re.fullmatch(r"--?([^-=][^=]*)(?:=(.*))?", word, re.DOTALL)
        if match is None:
            raise ValueError(text)
        name, value = match.groups()
        if value is None:
            value = "true" if name in switches else next(words, "")
        if not value:
            raise ValueError(text)
        found[name] = value
    return found


def flags_text(flags: Mapping[str, str]) -> str:
    """Flags with their values, in the same syntax."""
    return shlex.join(f"--{name}={value}" for name, value in flags.items())


# ---------------------------------------------------------------------------- variables and flags of the exporters


@dataclass(frozen=True, slots=True)
class _OptionValue:
    """An option of an exporter, with its text and origin."""

    option: Option
    text: str
    origin: str


def check_flags(config: Config, where: str) -> None:
    """UsageError for flags of an exporter that is not in ``compat``. ``where`` is the start of the message."""
    exporters = {listener.exporter for listener in config.compat.listeners}
    if config.compat.my_gpu_exporter_flags and _EXPORTER_WITH_FLAGS not in exporters:
        name = _EXPORTER_WITH_FLAGS
        raise UsageError(f"{where} has no effect without {name} in compat; add --compat {name}")


def resolve_listeners(
    config: Config, environment: Mapping[str, str], where: str, flags_where: str
) -> tuple[tuple[Listener, ...], tuple[str, ...]]:
    """The listeners with the options of their exporters, and the variables that were read.

    UsageError if they conflict. ``where`` is the start of messages about ``compat``, ``flags_where`` about its flags.
    """
    resolved: list[Listener] = []
    variables: list[str] = []
    for listener in config.compat.listeners:
        exporter = _exporter(listener.exporter, where)
        given = list(_given(exporter, config, environment, flags_where))
        variables += [each.origin for each in given if each.origin in environment]
        resolved.append(_resolved(listener, exporter, given, config, flags_where))
    _refuse_same_port(config, resolved, where)
    return tuple(resolved), tuple(variables)


def _given(
    exporter: CompatExporter, config: Config, environment: Mapping[str, str], flags_where: str
) -> Iterator[_OptionValue]:
    for option in exporter.variables:
        text = environment.get(option.name)
        if text:
            yield _OptionValue(option, text, option.name)
    flags = config.compat.my_gpu_exporter_flags if exporter.name == _EXPORTER_WITH_FLAGS else {}
    known = {option.name: option for option in exporter.flags}
    for name, text in flags.items():
        if name not in known:
            raise UsageError(f"{flags_where}: {_EXPORTER_WITH_FLAGS} has no flag --{name}; use --{', --'.join(known)}")
        yield _OptionValue(known[name], text, f"{flags_where}: --{name}")


def _resolved(
    listener: Listener, exporter: CompatExporter, given: Sequence[_OptionValue], config: Config, flags_where: str
) -> Listener:
    fields: dict[str, Any] = {
        "address": values.Address("", exporter.port),
        "max_age_s": exporter.max_age_s,
        "prefix": exporter.prefix,
    }
    labels: list[tuple[str, str]] = []
    ages_s: list[float] = []
    notes: list[str] = []
    for each in given:
        value = _parsed(each)
        if not _is_possible(each.option, value, config):
            notes.append(f"{each.origin} is {each.text!r}; {each.option.note}")
        elif each.option.label:
            labels.append((each.option.label, value))
        elif each.option.sets == "max_age_s":
            ages_s.append(value)
        elif each.option.sets:
            fields[each.option.sets] = value
    if ages_s:
        fields["max_age_s"] = min(ages_s)
    if listener.address.port:
        fields["address"] = values.Address(fields["address"].host, listener.address.port)
    if exporter.health is not None and fields.get("path") == exporter.health:
        raise UsageError(
            f"{flags_where}: --metrics-path: {exporter.health!r} is the path of the health check; use another path"
        )
    return replace(listener, labels=tuple(labels), notes=tuple(notes), **fields)


def _parsed(given: _OptionValue) -> Any:
    try:
        return given.option.parse(given.text)
    except ValueError:
        raise UsageError(f"{given.origin}: {given.text!r} is not valid; use {given.option.allowed}") from None


def _is_possible(option: Option, value: Any, config: Config) -> bool:
    """Whether a listener can apply this value. All listeners share the agent's log, sockets and memory."""
    if option.only is not None:
        return bool(value == option.only)
    match option.agent:
        case "":
            return True
        case "attribution.retention_s":  # a listener can leave out what the agent still reports
            return bool(value <= config.attribution.retention_s)
        case "names.pod_resources_socket" if config.sampling.source == "sim":  # names are simulated, no source is asked
            return True
        case field:
            own = attrgetter(field)(config)
            return bool(value == (option.default if own is None else own))


def _refuse_same_port(config: Config, resolved: Sequence[Listener], where: str) -> None:
    listen = config.web.listen
    taken = [(listen, "--listen")] if listen.port else []
    for listener in resolved:
        address = values.Address(listener.address.host or listen.host, listener.address.port)
        for other, name in taken:
            if _is_same_socket(address, other):
                raise UsageError(
                    f"{where}: {name} and {listener.exporter} both listen on port {address.port}"
                    f"{_overlap(address.host, other.host)}; "
                    f"use a port for each, for example {listener.exporter}:{_next_port(address.port)}"
                )
        taken.append((address, listener.exporter))


def _is_same_socket(one: values.Address, other: values.Address) -> bool:
    """Whether only one can listen. On Linux :: includes every IPv4 address (net.ipv6.bindv6only is 0)."""
    hosts = {one.host, other.host}
    if one.port != other.port or len(hosts) == 1:
        return one.port == other.port
    return "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104


def _overlap(*hosts: str) -> str:
    one, other = sorted(hosts, key=lambda host: (host != "::", host != "0.0.0.0"))  # noqa: S104
    return "" if one == other else f" ({one} includes {other})"


def _next_port(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


def _exporter(name: str, where: str) -> CompatExporter:
    if name not in EXPORTERS:
        close = difflib.get_close_matches(name, EXPORTERS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use {values.one_of(EXPORTERS)}"
        raise UsageError(f"{where}: there is no exporter {name!r}; {hint}")
    return EXPORTERS[name]
