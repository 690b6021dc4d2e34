"""Settings of other exporters' names: whom the agent stands in for, and what they were told.

Variables and flags of another exporter count where the agent stands in for it. Elsewhere nobody looks at them: an
``HTTP_PORT`` may be there for any program.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_gpu import values
from otel_gpu.compat.listener import Listener
from otel_gpu.errors import UsageError
from otel_gpu.setting import Setting
from otel_gpu.settings_names import NamesConfig

if TYPE_CHECKING:
    from otel_gpu.compat.schema import Exporter, Option
    from otel_gpu.config import Config

_FLAGS: Final = "my-gpu-exporter-flags"
_ITS_FLAGS: Final = "my-gpu-exporter"
"""The exporter whose flags these are; the others have variables."""

NAMES: Final = ("gpu-inference", "my-gpu-exporter", "gpu-idle-exporter", "container-gpu-exporter", "dcgm-exporter")


@dataclass(frozen=True, slots=True)
class CompatConfig(NamesConfig):
    """Whom the agent stands in for. It stands on the settings of names because slots allow for one line of ancestors.

    ``compat`` has what each listener does, once variables and flags have been looked at (``settle_listeners``).
    """

    compat: tuple[Listener, ...]
    my_gpu_exporter_flags: Mapping[str, str]


def listeners(text: str) -> tuple[Listener, ...]:
    """``NAME`` or ``NAME:PORT`` between commas, each once; a port of 0 is the exporter's own. Nothing is nobody."""
    found: dict[str, Listener] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, port = part.partition(":")
        name = name.strip()
        if name in found or not re.fullmatch(r"[a-z0-9-]+", name):
            raise ValueError(text)
        found[name] = Listener(name, values.Address("", values.whole_number(1, 65535)(port) if separator else 0))
    return tuple(found.values())


def flags(text: str) -> dict[str, str]:
    """Flags as Go's package ``flag`` reads them; nothing is none.

    ``-name=value``, ``--name=value``, ``--name value``; alone it is true, for those that are switches; of two the last.
    """
    if not text.strip():
        return {}
    switches = {option.name for option in _exporters()[_ITS_FLAGS].flags if option.bare}
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


COMPAT_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "compat", "compat", "", listeners,
        f"nothing, or NAME or NAME:PORT between commas, each once, with a port from 1 to 65535, of {', '.join(NAMES)}",
        "other exporters whose series are served as well, each on its own port and on the host of --listen, as "
        f"NAME[:PORT][,NAME…]: {', '.join(NAMES)}",
    ),
    Setting(
        _FLAGS, "my_gpu_exporter_flags", "", flags,
        "nothing, or flags as on its own command line, such as --metric-prefix=gpu --kubernetes-enabled",
        "flags of my-gpu-exporter, for where compat has it, such as --my-gpu-exporter-flags='--metric-prefix=gpu'",
    ),
)  # fmt: skip


# ---------------------------------------------------------------------------- what they were told


@dataclass(frozen=True, slots=True)
class Told:
    """What a variable or a flag says, and which it was."""

    option: Option
    text: str
    origin: str


def check_flags(config: Config, where: str) -> None:
    """UsageError where flags are for an exporter that nobody stands in for; ``where`` says where they are, and what."""
    if config.my_gpu_exporter_flags and _ITS_FLAGS not in {listener.exporter for listener in config.compat}:
        raise UsageError(f"{where}; allowed is nothing without {_ITS_FLAGS} in compat: --compat {_ITS_FLAGS}")


def settle_listeners(
    config: Config, environment: Mapping[str, str], where: str
) -> tuple[tuple[Listener, ...], tuple[str, ...]]:
    """What each listener does, and the variables that had a say. UsageError says in one line what is wrong.

    ``where`` says where ``compat`` stands, and what.
    """
    settled: list[Listener] = []
    variables: list[str] = []
    for wanted in config.compat:
        exporter = _exporter(wanted.exporter, where)
        told = list(_told(exporter, config, environment))
        variables += [each.origin for each in told if each.origin in environment]
        settled.append(_settled(wanted, exporter, told, config))
    _refuse_same_port(config, settled, where)
    return tuple(settled), tuple(variables)


def _told(exporter: Exporter, config: Config, environment: Mapping[str, str]) -> Iterator[Told]:
    for option in exporter.variables:
        text = environment.get(option.name)
        if text:
            yield Told(option, text, option.name)
    flags_given = config.my_gpu_exporter_flags if exporter.name == _ITS_FLAGS else {}
    known = {option.name: option for option in exporter.flags}
    for name, text in flags_given.items():
        if name not in known:
            raise UsageError(f"{_FLAGS}: --{name} is no flag of {_ITS_FLAGS}; allowed is --{', --'.join(known)}")
        yield Told(known[name], text, f"{_FLAGS}: --{name}")


def _settled(wanted: Listener, exporter: Exporter, told: Sequence[Told], config: Config) -> Listener:
    fields: dict[str, Any] = {
        "address": values.Address("", exporter.port),
        "max_age_s": exporter.max_age_s,
        "prefix": exporter.prefix,
    }
    labels: list[tuple[str, str]] = []
    ages_s: list[float] = []
    notes: list[str] = []
    for each in told:
        value = _parsed(each)
        if not _can_be_had(each.option, value, config):
            notes.append(f"{each.origin} is {each.text!r}; {each.option.note}")
        elif each.option.label:
            labels.append((each.option.label, value))
        elif each.option.sets == "max_age_s":
            ages_s.append(value)
        elif each.option.sets:
            fields[each.option.sets] = value
    if ages_s:
        fields["max_age_s"] = min(ages_s)
    if wanted.address.port:
        fields["address"] = values.Address(fields["address"].host, wanted.address.port)
    if exporter.health is not None and fields.get("path") == exporter.health:
        raise UsageError(
            f"{_FLAGS}: --metrics-path is {exporter.health!r}; allowed is another: there it answers for its health"
        )
    return replace(wanted, labels=tuple(labels), notes=tuple(notes), **fields)


def _parsed(told: Told) -> Any:
    try:
        return told.option.parse(told.text)
    except ValueError:
        raise UsageError(f"{told.origin} is {told.text!r}; allowed is {told.option.allowed}") from None


def _can_be_had(option: Option, value: Any, config: Config) -> bool:
    """Whether a listener can have this: there is one agent with one log and one memory, whomever it stands in for."""
    if option.only is not None:
        return bool(value == option.only)
    match option.agent:
        case "":
            return True
        case "retention":  # a listener can leave out what the agent still knows
            return bool(value <= config.retention_s)
        case "pod-resources-socket" if config.source == "sim":  # nobody is asked: names are simulated too
            return True
        case key:
            own = getattr(config, key.replace("-", "_"))
            return bool(value == (option.usual if own is None else own))


def _refuse_same_port(config: Config, settled: Sequence[Listener], where: str) -> None:
    taken = [(config.listen, "--listen")] if config.listen.port else []
    for listener in settled:
        place = values.Address(listener.address.host or config.listen.host, listener.address.port)
        for other, name in taken:
            if _meet(place, other):
                raise UsageError(
                    f"{where}; {name} and {listener.exporter} would both listen on port {place.port}"
                    f"{_why_they_meet(place.host, other.host)}; "
                    f"allowed is a port for each, such as {listener.exporter}:{_next_port(place.port)}"
                )
        taken.append((place, listener.exporter))


def _meet(one: values.Address, other: values.Address) -> bool:
    """Whether two cannot both listen. On Linux :: is every address of IPv4 as well (net.ipv6.bindv6only is 0)."""
    hosts = {one.host, other.host}
    if one.port != other.port or len(hosts) == 1:
        return one.port == other.port
    return "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104


def _why_they_meet(*hosts: str) -> str:
    one, other = sorted(hosts, key=lambda host: (host != "::", host != "0.0.0.0"))  # noqa: S104
    return "" if one == other else f" ({one} is every address, {other} too)"


def _next_port(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


def _exporter(name: str, where: str) -> Exporter:
    exporters = _exporters()
    if name not in exporters:
        raise UsageError(f"{where}; allowed is {', '.join(exporters)}, and {name!r} is none of them{_hint(name)}")
    return exporters[name]


def _exporters() -> Mapping[str, Exporter]:
    # Here, not above: it brings the metrics, and few need it before they start.
    from otel_gpu.compat.exporters import EXPORTERS  # noqa: PLC0415

    return EXPORTERS


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, NAMES, n=1)
    return f"; did you mean {close[0]}?" if close else ""
