"""Other exporters as configuration: their ports, and the variables and flags that their listeners understand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_gpu.config.values import Address, address, socket_path, whole_number


@dataclass(frozen=True, slots=True)
class Option:
    """A variable or flag of another exporter. It applies to that exporter's listener only.

    ``sets`` is the field of the listener that it sets; ``label`` is the label it adds to every series. ``bare`` marks a
    flag that is true without a value, as in Go.

    ``agent`` is the field of ``Config`` that decides it for all listeners; if that is ``None``, the agent finds the
    value itself, as the exporter does with its ``default``. ``only`` is the one value the agent supports. Any other
    value logs a warning with ``note``.
    """

    name: str
    parse: Callable[[str], Any]
    allowed: str
    sets: str = ""
    label: str = ""
    bare: bool = False
    agent: str = ""
    default: Any = None
    only: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CompatExporter:
    """Another exporter: where it listens, and what configures it.

    ``health`` is the path of its health check, ``max_age_s`` its sampling interval. ``prefix`` begins the name
    of every metric.
    """

    name: str
    port: int
    max_age_s: float
    prefix: str = ""
    health: str | None = None
    variables: tuple[Option, ...] = ()
    flags: tuple[Option, ...] = ()


# ---------------------------------------------------------------------------- values of variables and flags
#
# Each parser raises ValueError and nothing else.

_GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART: Final = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_MAX_S: Final = 86_400.0
_MAX_GO_S: Final = (2**63 - 1) / 1e9

GO_DURATION: Final = "a duration up to 24h, such as 5s or 1m30s"
GO_RETENTION: Final = "a duration such as 5m or 1h30m"
PORT: Final = "a port from 1 to 65535"
LISTEN: Final = ":PORT on the agent's host, or HOST:PORT, with a port from 1 to 65535"


def port(text: str) -> Address:
    """A port of the agent's host."""
    return Address("", whole_number(1, 65535)(text))


def listen(text: str) -> Address:
    """``:9400``, ``host:9400``. Without a host it is the agent's, not every host as in Go."""
    text = text.strip()
    found = port(text[1:]) if text.startswith(":") else address(text)
    if not found.port:
        raise ValueError(text)
    return found


def go_duration_s(text: str) -> float:
    """A Go duration such as ``1m30s``, up to 24 h, in seconds."""
    return _within(go_retention_s(text), text)


def go_retention_s(text: str) -> float:
    """A Go duration of any length, in seconds; 0 is valid."""
    word = text.strip().removeprefix("+")
    parts = re.findall(_GO_PART, word, re.ASCII)
    if word != "0" and (not parts or "".join(number + unit for number, unit in parts) != word):
        raise ValueError(text)
    found_s = sum(float(number) * _GO_UNITS[unit] for number, unit in parts)
    if found_s > _MAX_GO_S:
        raise ValueError(text)
    return found_s


def seconds(text: str) -> float:
    """A number of seconds."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return _within(float(text), text)


def milliseconds(text: str) -> float:
    """A whole number of milliseconds, in seconds."""
    return _within(whole_number(1, 10**9)(text) / 1e3, text)


def _within(found_s: float, text: str) -> float:
    if not 0 < found_s <= _MAX_S:
        raise ValueError(text)
    return found_s


def go_switch(text: str) -> bool:
    """A boolean as Go parses it."""
    word = text.strip()
    if word in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if word in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(text)


def watts(text: str) -> float:
    """A number of watts."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return float(text)


def metric_prefix(text: str) -> str:
    """A prefix of metric names; an underscore is added."""
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text.strip(), re.ASCII):
        raise ValueError(text)
    return f"{text.strip()}_"


def url_path(text: str) -> str:
    """A URL path."""
    if not re.fullmatch(r"/[A-Za-z0-9._~/-]*", text.strip(), re.ASCII):
        raise ValueError(text)
    return text.strip()


def log_level(text: str) -> str:
    """The agent's name for a Go log level; an unknown level is info, as in Go."""
    return {"debug": "debug", "warn": "warning", "error": "error"}.get(text, "info")


def socket(text: str) -> Path:
    """The path of a socket."""
    path = socket_path(text)
    if path is None:
        raise ValueError(text)
    return path


def label_value(text: str) -> str:
    """Any text."""
    return text.strip()


# ---------------------------------------------------------------------------- the exporters

EXPORTERS: Final[Mapping[str, CompatExporter]] = {
    exporter.name: exporter
    for exporter in (
        CompatExporter(
            name="gpu-inference",
            port=9201,
            max_age_s=10,
            variables=(
                Option("EXPORTER_PORT", port, PORT, sets="address"),
                Option("SCRAPE_INTERVAL", seconds, "seconds, up to 86400", sets="max_age_s"),
            ),
        ),
        CompatExporter(
            name="my-gpu-exporter",
            port=9400,
            max_age_s=1,
            prefix="my_gpu_process_",
            health="/health",
            flags=(
                Option("dcgm-update-frequency", go_duration_s, GO_DURATION, sets="max_age_s"),
                Option("process-scan-interval", go_duration_s, GO_DURATION, sets="max_age_s"),
                Option("kubernetes-enabled", go_switch, "true or false", sets="kubernetes", bare=True),
                Option(
                    "pod-resources-socket", socket, "a path", agent="names.pod_resources_socket",
                    default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
                    note="all listeners share one kubelet socket: --pod-resources-socket of the agent",
                ),
                Option(
                    "metric-retention", go_retention_s, GO_RETENTION,
                    sets="retention_s", agent="attribution.retention_s",
                    note="a listener cannot keep processes for longer than the agent: its --retention is the limit",
                ),
                Option("metric-prefix", metric_prefix, "the beginning of a metric name", sets="prefix"),
                Option("listen-address", listen, LISTEN, sets="address"),
                Option("metrics-path", url_path, "a path such as /metrics", sets="path"),
                Option(
                    "log-level", log_level, "debug, info, warn or error", agent="log.level",
                    note="the agent has one log: its --log-level decides",
                ),
                Option(
                    "enable-energy-estimation", go_switch, "true or false", bare=True, only=True,
                    note="the energy of a shared GPU is always divided; how is set by --energy-model",
                ),
                Option(
                    "gpu-idle-power", watts, "watts", only=0.0,
                    note="idle power is observed, not configured; how it is divided is set by --energy-policy",
                ),
            ),
        ),
        CompatExporter(
            name="gpu-idle-exporter",
            port=9835,
            max_age_s=5,
            prefix="gpu_idle_",
            health="/healthz",
            variables=(
                Option("HTTP_PORT", port, PORT, sets="address"),
                Option("POLL_INTERVAL", go_duration_s, GO_DURATION, sets="max_age_s"),
                Option("NODE_NAME", label_value, "any text", label="node"),
                Option("POD_NAME", label_value, "any text", label="pod"),
                Option("POD_NAMESPACE", label_value, "any text", label="namespace"),
            ),
        ),
        CompatExporter(name="container-gpu-exporter", port=9910, max_age_s=3),
        CompatExporter(
            name="dcgm-exporter",
            port=9400,
            max_age_s=30,
            prefix="DCGM_FI_DEV_",
            health="/health",
            variables=(
                Option("DCGM_EXPORTER_LISTEN", listen, LISTEN, sets="address"),
                Option("DCGM_EXPORTER_INTERVAL", milliseconds, "milliseconds, up to 86400000", sets="max_age_s"),
            ),
        ),
    )
}  # fmt: skip
"""By the name used in ``--compat``."""
