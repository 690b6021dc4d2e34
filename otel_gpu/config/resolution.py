"""Resolves the configuration: defaults < file < environment < flags. Every value keeps its origin."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from otel_gpu.config.compat import FLAGS, resolve_listeners
from otel_gpu.config.groups import Config, Environment, build_config
from otel_gpu.config.schema import BY_KEY, SETTINGS
from otel_gpu.config.setting import VARIABLE_PREFIX, RawValue, Setting, quoted
from otel_gpu.errors import UsageError

if TYPE_CHECKING:
    from otel_gpu.config.yaml_file import FileValue

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
DEFAULT: Final = "default"
"""The origin of a value that is not configured."""

VARIABLES: Final = frozenset({setting.variable for setting in SETTINGS} | {"OTEL_GPU_CONFIG", "OTEL_GPU_URL"})
"""The agent's own variables: of the settings, of the file and of ``top``."""

_MANY: Final = 8
"""An error does not list more words than this if a command lists them."""

_SIMILAR: Final = 0.7
"""A word is proposed for another from this ratio of ``difflib`` on. The ratio of "nope" and "scope" is 0.67."""

_ENVIRONMENTS: Final[Mapping[str, Collection[Environment]]] = {
    **dict.fromkeys(("docker-host", "docker-tls-verify", "docker-cert-path"), (Environment.AUTO, Environment.DOCKER)),
    "podman-host": (Environment.AUTO, Environment.PODMAN),
    **dict.fromkeys(
        ("cri-socket", "pod-resources-socket", "kubernetes-api"), (Environment.AUTO, Environment.KUBERNETES)
    ),
}
"""The values of ``environment`` with which the settings of a name source are used."""

_RETENTION: Final = (BY_KEY["retention"].default, DEFAULT)


@dataclass(frozen=True, slots=True)
class Value:
    """The text of one value, without secrets, and its origin."""

    key: str
    text: str
    origin: str

    @property
    def where(self) -> str:
        """The start of an error about this value."""
        return BY_KEY[self.key].where(self.origin)

    def is_subject_of(self, error: UsageError) -> bool:
        """Whether an error is about this value."""
        return str(error).startswith(f"{self.where}: ")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, the origin of each value, and ``OTEL_GPU_…`` variables that are not settings."""

    config: Config
    values: tuple[Value, ...]
    unknown_variables: tuple[str, ...]

    def value(self, key: str) -> Value:
        """One value."""
        return next(value for value in self.values if value.key == key)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Every value, valid or not, and the configuration, or the first error. ``parsed`` has valid values by key."""

    values: tuple[Value, ...]
    unknown_variables: tuple[str, ...]
    config: Config | UsageError
    parsed: Mapping[str, Any]

    def loaded(self) -> Loaded:
        """The configuration. UsageError for an invalid value names its origin, the value and what is valid."""
        if isinstance(self.config, UsageError):
            raise self.config
        return Loaded(self.config, self.values, self.unknown_variables)

    def effective(self, environment: Mapping[str, str]) -> tuple[Value, ...]:
        """Every value in force, each in the syntax of its setting; one that is not valid as it was given."""
        return tuple(self._effective(value, environment) for value in self.values)

    def _effective(self, value: Value, environment: Mapping[str, str]) -> Value:
        setting = BY_KEY[value.key]
        if value.key not in self.parsed:
            return value
        parsed = self.parsed[value.key]
        text = "" if parsed is None else setting.shown(setting.type.text(parsed))
        plain = replace(value, text=text or setting.when_empty or "none")
        if isinstance(self.config, UsageError):
            return plain
        if self.config.names.environment not in _ENVIRONMENTS.get(value.key, Environment):
            return Value(value.key, "not used", "environment")
        return _derived(plain, self.config, environment)


def _derived(value: Value, config: Config, environment: Mapping[str, str]) -> Value:
    """The value with what it stands for: the path of ``auto``, the URL of requests, or what other settings decide."""
    state, otlp, origin = config.state, config.export.otlp, value.origin
    match value.key:
        case "state-dir" if state.directory.auto:
            return Value(value.key, str(state.directory.place(environment) or "none"), f"{origin} (auto)")
        case "control-socket" if state.control_socket.auto:
            return Value(value.key, str(state.control_socket.agent_path(environment) or "none"), f"{origin} (auto)")
        case "otlp-endpoint":
            return replace(value, text=str(otlp.request_url))
        case "otlp-insecure":
            is_plain = otlp.target.scheme == "http"
            has_scheme = otlp.endpoint is None or otlp.endpoint.scheme != ""
            is_derived = has_scheme and otlp.insecure is not is_plain
            return Value(value.key, str(is_plain).lower(), "otlp-endpoint" if is_derived else origin)
        case "service-name" if not config.export.service_name:
            is_attribute = "service.name" in config.export.resource_attributes
            return Value(value.key, config.export.service, "resource-attributes" if is_attribute else origin)
        case _:
            return value


def load(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    defaults: Mapping[str, str] = _NONE,
    fixed: Mapping[str, str] = _NONE,
    command: str = "",
    only: Collection[str] = BY_KEY,
) -> Loaded:
    """Resolve every setting. UsageError for an invalid value names its origin, the value and what is valid."""
    return resolve(flags, environment, defaults=defaults, fixed=fixed, command=command, only=only).loaded()


def resolve(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    defaults: Mapping[str, str] = _NONE,
    fixed: Mapping[str, str] = _NONE,
    command: str = "",
    only: Collection[str] = BY_KEY,
) -> Resolved:
    """Find every value, so that it can be shown even if it is invalid.

    ``defaults`` are a command's own defaults. ``fixed`` values override variables and the file, which configure all
    commands; a flag that contradicts one is an error. Settings that are not in ``only`` have their defaults, whatever
    variables and the file contain.
    """
    in_file: Mapping[str, FileValue] = {}
    errors: list[UsageError] = []
    try:
        in_file = _read_file(flags.get("config") or environment.get("OTEL_GPU_CONFIG") or None)
        _refuse_unknown(in_file)
    except UsageError as error:
        errors.append(error)
    found: list[Value] = []
    fields: dict[str, Any] = {}
    for setting in SETTINGS:
        own_default = defaults.get(setting.key)
        given = setting.key in only and (
            _from_command(setting, fixed, flags, command)
            or _from_flags(setting, flags)
            or _from_environment(setting, environment)
            or _from_file(setting, in_file)
        )
        value = given or RawValue(own_default or setting.default, f"default of {command}" if own_default else DEFAULT)
        found.append(Value(setting.key, setting.shown(value.text), value.origin))
        try:
            fields[setting.field] = _parse(setting, value)
        except UsageError as error:
            errors.append(error)
    unknown = _unknown_variables(environment)
    parsed = {setting.key: fields[setting.field] for setting in SETTINGS if setting.field in fields}
    if errors:
        return Resolved(tuple(found), unknown, errors[0], parsed)
    config, found = _with_room_for_exports(build_config(fields), found)
    try:
        config, found = _with_listeners(config, found, environment)
    except UsageError as error:
        return Resolved(tuple(found), unknown, error, parsed)
    return Resolved(
        tuple(found), unknown, config, {key: attrgetter(setting.field)(config) for key, setting in BY_KEY.items()}
    )


def _with_listeners(config: Config, found: list[Value], environment: Mapping[str, str]) -> tuple[Config, list[Value]]:
    """Apply variables and flags of other exporters, and show each with its port."""
    if not config.compat.listeners:
        return config, found
    by_key = {value.key: value for value in found}
    given = by_key["compat"]
    listeners, variables = resolve_listeners(config, environment, given.where, by_key[FLAGS].where)
    shown = Value("compat", ",".join(map(str, listeners)), ", ".join((given.origin, *variables)))
    compat = replace(config.compat, listeners=listeners)
    return replace(config, compat=compat), [shown if each.key == shown.key else each for each in found]


def _with_room_for_exports(config: Config, found: list[Value]) -> tuple[Config, list[Value]]:
    """Raise the default retention to two export intervals, so that final values are exported."""
    needed_s = 2 * config.export.interval_s
    is_enough = not config.export.pushes or config.attribution.retention_s >= needed_s
    if is_enough or Value("retention", *_RETENTION) not in found:
        return config, found
    raised = Value("retention", f"{needed_s:g}s", "default, raised for export-interval")
    attribution = replace(config.attribution, retention_s=needed_s)
    return replace(config, attribution=attribution), [raised if each.key == raised.key else each for each in found]


def _read_file(path: str | None) -> Mapping[str, FileValue]:
    if path is None:
        return {}
    # Imported here: most commands start without a file, and importing YAML takes longer than all of this.
    from otel_gpu.config.yaml_file import read_config_file  # noqa: PLC0415

    return read_config_file(Path(path))


def _refuse_unknown(in_file: Mapping[str, FileValue]) -> None:
    for key, value in in_file.items():
        if key not in BY_KEY:
            raise UsageError(
                f"{value.origin}: there is no setting {quoted(key)}; {nearest(key, BY_KEY, see='otel-gpu config')}"
            )


def _from_command(
    setting: Setting, fixed: Mapping[str, str], flags: Mapping[str, str], command: str
) -> RawValue | None:
    text = fixed.get(setting.key)
    if text is None:
        return None
    flag = _from_flags(setting, flags)
    if flag is not None and _parse(setting, flag) != setting.type.parse(text):
        raise UsageError(f"{setting.flag}: {flag.text!r} is not possible; {command} always uses {text!r}")
    return RawValue(text, command)


def _from_flags(setting: Setting, flags: Mapping[str, str]) -> RawValue | None:
    text = flags.get(setting.key)
    return None if text is None else RawValue(text, setting.flag)


def _from_environment(setting: Setting, environment: Mapping[str, str]) -> RawValue | None:
    for variable in (setting.variable, *setting.also_variables):
        text = environment.get(variable)
        if text:  # OpenTelemetry: an empty variable counts as unset
            return RawValue(text, variable)
    return None if setting.from_variables is None else setting.from_variables(environment)


def _from_file(setting: Setting, in_file: Mapping[str, FileValue]) -> RawValue | None:
    found = in_file.get(setting.key)
    return None if found is None else RawValue(found.text, found.origin)


def _parse(setting: Setting, found: RawValue) -> Any:
    try:
        return setting.type.parse(found.text if found.meaning is None else found.meaning)
    except UsageError as error:  # the parser explains more than the type does
        raise UsageError(setting.invalid(found, str(error))) from None
    except ValueError:
        raise UsageError(setting.invalid(found)) from None


def _unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in environment if name.startswith(VARIABLE_PREFIX) and name not in VARIABLES))


def nearest(word: str, known: Iterable[str], see: str = "") -> str:
    """A hint for a misspelt word: the nearest known word, or all of them, or if they are many, what lists them."""
    words = sorted(known)
    close = similar(word, words)
    if close is not None:
        return f"did you mean {close}?"
    if see and len(words) > _MANY:
        return f"see {see}"
    return f"use {'one of ' if len(words) > 1 else ''}{', '.join(words)}"


def similar(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one is nearest to; ``None`` if all differ too much. Leading dashes do not count.

    The prefix of all variables does not count either: it would make any two of them similar.
    """

    def plain(text: str) -> str:
        return text.lstrip("-").removeprefix(VARIABLE_PREFIX)

    by_name = {plain(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(plain(word), by_name, n=1, cutoff=_SIMILAR)
    return by_name[close[0]] if close else None
