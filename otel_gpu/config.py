"""Settings: defaults < file < environment < flags, one frozen Config, every value with its origin.

A setting is declared once, in ``SETTINGS``; flags, variables, file keys and ``otel-gpu config`` follow from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from otel_gpu import values
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy, Prices
from otel_gpu.control.socket_path import ControlSocket, parse_control_socket
from otel_gpu.errors import UsageError
from otel_gpu.setting import Found, Setting
from otel_gpu.settings_compat import COMPAT_SETTINGS, CompatConfig, settle_listeners
from otel_gpu.settings_export import EXPORT_SETTINGS
from otel_gpu.settings_names import NAMES_SETTINGS
from otel_gpu.settings_state import STATE_SETTING, StateDir

if TYPE_CHECKING:
    from otel_gpu.configfile import FileValue


class Scope(StrEnum):
    """What the agent reports on."""

    NODE = "node"
    POD = "pod"


class SourceChoice(StrEnum):
    """Where GPUs are read from."""

    NVML = "nvml"
    SIM = "sim"
    AUTO = "auto"


class LogFormat(StrEnum):
    """How log lines look."""

    LOGFMT = "logfmt"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Config(CompatConfig):
    """What the agent does, decided before it starts."""

    interval_s: float
    deadline_s: float
    source: SourceChoice
    seed: int
    proc_root: Path
    sys_root: Path
    scope: Scope
    retention_s: float
    energy_policy: EnergyPolicy
    energy_model: EnergyModel
    price_gpu_hour: Mapping[str, float]
    price_kwh: float | None
    currency: str
    listen: values.Address
    web_config: Path | None
    control_socket: ControlSocket
    log_level: LogLevel
    log_format: LogFormat
    state_dir: StateDir

    @property
    def attribution(self) -> AttributionOptions:
        """What is chosen about attribution."""
        priced = self.price_gpu_hour or self.price_kwh is not None
        return AttributionOptions(
            energy_policy=self.energy_policy,
            energy_model=self.energy_model,
            retention_s=self.retention_s,
            prices=Prices(self.currency, self.price_gpu_hour, self.price_kwh) if priced else None,
        )


def _prometheus_listen(environment: Mapping[str, str]) -> Found | None:
    """OpenTelemetry's two variables for the Prometheus endpoint, as one address."""
    host, port = (environment.get(f"OTEL_EXPORTER_PROMETHEUS_{part}") for part in ("HOST", "PORT"))
    if not host and not port:
        return None
    origin = " and ".join(
        f"OTEL_EXPORTER_PROMETHEUS_{part}" for part, value in (("HOST", host), ("PORT", port)) if value
    )
    host = f"[{host}]" if host and ":" in host and not host.startswith("[") else host
    return Found(f"{host or '127.0.0.1'}:{port or '9464'}", origin)


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "interval", "interval_s", "5s", values.duration_s(1, 3600),
        "a duration from 1s to 1h, such as 5s", "time between two samples",
    ),
    Setting(
        "deadline", "deadline_s", "2s", values.duration_s(0.1, 60),
        "a duration from 100ms to 1m, such as 2s", "how long a GPU may take to answer before it goes without figures",
    ),
    Setting(
        "source", "source", "nvml", values.choice(SourceChoice),
        values.one_of(SourceChoice),
        "nvml: this host's GPUs; sim: a simulated host; auto: nvml if it finds a GPU, else sim",
    ),
    Setting(
        "seed", "seed", "1", values.whole_number(0, 2**63 - 1),
        "a whole number from 0 to 9223372036854775807", "which simulated host; the same seed gives the same history",
    ),
    Setting(
        "proc-root", "proc_root", "/proc", values.absolute_path,
        "an absolute path", "where the host's /proc is mounted", also_variables=("HOST_PROC",),
    ),
    Setting(
        "sys-root", "sys_root", "/sys", values.absolute_path,
        "an absolute path", "where the host's /sys is mounted", also_variables=("HOST_SYS",),
    ),
    Setting(
        "scope", "scope", "node", values.choice(Scope), values.one_of(Scope),
        "of whom is told: node, everybody on this host and its GPUs; pod, the agent's own pod only, for a sidecar",
    ),
    Setting(
        "retention", "retention_s", "5m", values.duration_s(1, 86_400),
        "a duration from 1s to 24h, such as 5m", "how long what has ended is still told of",
    ),
    Setting(
        "energy-policy", "energy_policy", "resident", values.choice(EnergyPolicy),
        values.one_of(EnergyPolicy),
        "who pays for power that no work explains: resident, equal among workloads on the GPU; sm, by SM share; "
        "memory, by memory held; none, nobody",
    ),
    Setting(
        "energy-model", "energy_model", "learned", values.choice(EnergyModel),
        values.one_of(EnergyModel),
        "how energy of work divides: sm, by SM share; learned, by SM share times the watts each process draws",
    ),
    Setting(
        "price-gpu-hour", "price_gpu_hour", "", values.prices,
        "nothing, an amount such as 2.5 for every GPU, or amounts by model such as A100=2.5,H100=4",
        "price of an hour of a GPU",
    ),
    Setting(
        "price-kwh", "price_kwh", "", values.price,
        "nothing, or an amount such as 0.3", "price of a kilowatt-hour",
    ),
    Setting(
        "currency", "currency", "USD", values.currency,
        "three capital letters, such as EUR", "currency of the prices",
    ),
    Setting(
        "listen", "listen", "127.0.0.1:9464", values.address,
        "HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9464 or [::1]:9464",
        "address of the page, the JSON, /healthz, /readyz, and /metrics where Prometheus is served",
        from_variables=_prometheus_listen,
        reads=("OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT"),
    ),
    Setting(
        "web-config", "web_config", "", values.optional_file,
        "nothing, or the path of a file", "web configuration file of the listener: TLS, client certificates, passwords",
    ),
    Setting(
        "control-socket", "control_socket", "auto", parse_control_socket,
        "auto, none, or an absolute path of at most 107 bytes",
        "where otel-gpu pause and resume reach the agent; auto: control.sock in $RUNTIME_DIRECTORY, else in "
        "$XDG_RUNTIME_DIR/otel-gpu, else in /run/otel-gpu",
    ),
    Setting(
        "log-level", "log_level", "info", values.choice(LogLevel), values.one_of(LogLevel), "how much is logged",
    ),
    Setting(
        "log-format", "log_format", "logfmt", values.choice(LogFormat), values.one_of(LogFormat), "how log lines look",
    ),
    STATE_SETTING,
    *NAMES_SETTINGS,
    *EXPORT_SETTINGS,
    *COMPAT_SETTINGS,
)  # fmt: skip

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
DEFAULT: Final = "default"
"""The origin of a value that nobody gave."""

_RETENTION: Final = (_BY_KEY["retention"].default, DEFAULT)


@dataclass(frozen=True, slots=True)
class Value:
    """One effective value as it was written, secrets left out, and where."""

    key: str
    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, where each value came from, and variables that look like ours and are none."""

    config: Config
    values: tuple[Value, ...]
    unknown_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """Every value, good or bad: what they make together, or the first thing that is wrong with them."""

    values: tuple[Value, ...]
    unknown_variables: tuple[str, ...]
    config: Config | UsageError

    def loaded(self) -> Loaded:
        """The configuration. UsageError names the key, the value, its origin and what is allowed."""
        if isinstance(self.config, UsageError):
            raise self.config
        return Loaded(self.config, self.values, self.unknown_variables)


def load(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    defaults: Mapping[str, str] = _NONE,
    fixed: Mapping[str, str] = _NONE,
    command: str = "",
    only: Collection[str] = _BY_KEY,
) -> Loaded:
    """Settle every setting. UsageError names the key, the value, its origin and what is allowed."""
    return settle(flags, environment, defaults=defaults, fixed=fixed, command=command, only=only).loaded()


def settle(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    defaults: Mapping[str, str] = _NONE,
    fixed: Mapping[str, str] = _NONE,
    command: str = "",
    only: Collection[str] = _BY_KEY,
) -> Settled:
    """Find every value, to show it even where it is wrong.

    ``defaults`` are a command's own, where it wants others than the agent's. ``fixed`` is what the command is about:
    it overrides variables and the file, which speak to every command, and a flag that contradicts it is refused.
    ``only`` are the settings that count; all others have their defaults, whatever variables and the file say.
    """
    in_file: Mapping[str, FileValue] = {}
    wrong: list[UsageError] = []
    try:
        in_file = _read_file(flags.get("config") or environment.get("OTEL_GPU_CONFIG") or None)
        _refuse_unknown(in_file)
    except UsageError as error:
        wrong.append(error)
    settled: list[Value] = []
    fields: dict[str, Any] = {}
    for setting in SETTINGS:
        own_default = defaults.get(setting.key)
        given = setting.key in only and (
            _from_command(setting, fixed, flags, command)
            or _from_flags(setting, flags)
            or _from_environment(setting, environment)
            or _from_file(setting, in_file)
        )
        found = given or Found(own_default or setting.default, f"default of {command}" if own_default else DEFAULT)
        settled.append(Value(setting.key, setting.shown(found.text), found.origin))
        try:
            fields[setting.field] = _parse(setting, found)
        except UsageError as error:
            wrong.append(error)
    unknown = _unknown_variables(environment)
    if wrong:
        return Settled(tuple(settled), unknown, wrong[0])
    config, settled = _with_room_for_exports(Config(**fields), settled)
    try:
        config, settled = _with_listeners(config, settled, environment)
    except UsageError as error:
        return Settled(tuple(settled), unknown, error)
    return Settled(tuple(settled), unknown, config)


def _with_listeners(config: Config, settled: list[Value], environment: Mapping[str, str]) -> tuple[Config, list[Value]]:
    """Other exporters as their own variables and flags have them, shown with the ports they come to."""
    if not config.compat:
        return config, settled
    given = next(each for each in settled if each.key == "compat")
    listeners, variables = settle_listeners(config, environment, f"{given.origin}: compat is {given.text!r}")
    shown = Value("compat", ",".join(map(str, listeners)), ", ".join((given.origin, *variables)))
    return replace(config, compat=listeners), [shown if each.key == shown.key else each for each in settled]


def _with_room_for_exports(config: Config, settled: list[Value]) -> tuple[Config, list[Value]]:
    """A retention that nobody chose gives way to the export interval, which somebody did."""
    needed_s = 2 * config.export_interval_s
    if not config.pushes or config.retention_s >= needed_s or Value("retention", *_RETENTION) not in settled:
        return config, settled
    raised = Value("retention", f"{needed_s:g}s", "default, raised for export-interval")
    return replace(config, retention_s=needed_s), [raised if each.key == raised.key else each for each in settled]


def _read_file(path: str | None) -> Mapping[str, FileValue]:
    if path is None:
        return {}
    # Here, not above: most start without a file, and YAML takes longer to import than all of this.
    from otel_gpu.configfile import read_config_file  # noqa: PLC0415

    return read_config_file(Path(path))


def _refuse_unknown(in_file: Mapping[str, FileValue]) -> None:
    for key, value in in_file.items():
        if key not in _BY_KEY:
            raise UsageError(f"{value.origin}: there is no setting {key!r}; {nearest(key, _BY_KEY)}")


def _from_command(setting: Setting, fixed: Mapping[str, str], flags: Mapping[str, str], command: str) -> Found | None:
    text = fixed.get(setting.key)
    if text is None:
        return None
    flag = _from_flags(setting, flags)
    if flag is not None and _parse(setting, flag) != setting.parse(text):
        raise UsageError(f"{setting.flag}: {setting.key} is {flag.text!r}; with {command} it is always {text!r}")
    return Found(text, command)


def _from_flags(setting: Setting, flags: Mapping[str, str]) -> Found | None:
    text = flags.get(setting.key)
    return None if text is None else Found(text, setting.flag)


def _from_environment(setting: Setting, environment: Mapping[str, str]) -> Found | None:
    for variable in (setting.variable, *setting.also_variables):
        text = environment.get(variable)
        if text:  # OpenTelemetry: an empty variable counts as unset
            return Found(text, variable)
    return None if setting.from_variables is None else setting.from_variables(environment)


def _from_file(setting: Setting, in_file: Mapping[str, FileValue]) -> Found | None:
    found = in_file.get(setting.key)
    return None if found is None else Found(found.text, found.origin)


def _parse(setting: Setting, found: Found) -> Any:
    try:
        return setting.parse(found.text if found.meant is None else found.meant)
    except UsageError as error:  # what is wrong takes more words than what is allowed
        raise UsageError(f"{found.origin}: {setting.key} is {setting.shown(found.text)!r}; {error}") from None
    except ValueError:
        raise UsageError(
            f"{found.origin}: {setting.key} is {setting.shown(found.text)!r}; "
            f"allowed is {found.allowed or setting.allowed}"
        ) from None


def _unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    known = {setting.variable for setting in SETTINGS} | {"OTEL_GPU_CONFIG", "OTEL_GPU_URL"}
    return tuple(sorted(name for name in environment if name.startswith("OTEL_GPU_") and name not in known))


def nearest(word: str, known: Iterable[str]) -> str:
    """What was probably meant, or all there is to choose from."""
    candidates = sorted(known)
    close = difflib.get_close_matches(word, candidates, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed are {', '.join(candidates)}"
