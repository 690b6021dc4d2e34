"""Settings of exporters. Variables of OpenTelemetry mean what its specification says, whatever its SDK makes of them.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and …/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu import values
from otel_gpu.setting import Found, Setting


class Exporter(StrEnum):
    """Where metrics go."""

    OTLP = "otlp"
    PROMETHEUS = "prometheus"
    CONSOLE = "console"
    NONE = "none"


class Protocol(StrEnum):
    """How OTLP travels."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


class Compression(StrEnum):
    """How requests are compressed."""

    NONE = "none"
    GZIP = "gzip"


class Temporality(StrEnum):
    """What a counter's point tells: all since its start, or what was added since the last one.

    ``lowmemory`` is cumulative for counters that are observed, and all of ours are.
    """

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    LOWMEMORY = "lowmemory"


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """What is exported, where to, and how."""

    exporters: tuple[Exporter, ...]
    prometheus: bool
    export_interval_s: float
    export_timeout_s: float
    otlp_protocol: Protocol
    otlp_endpoint: values.Endpoint | None
    otlp_headers: Mapping[str, str]
    otlp_timeout_s: float
    otlp_compression: Compression
    otlp_certificate: Path | None
    otlp_client_key: Path | None
    otlp_client_certificate: Path | None
    otlp_insecure: bool | None
    otlp_temporality: Temporality
    resource_attributes: Mapping[str, str]
    service_name: str
    process_metrics: bool
    openmetrics_created: bool

    @property
    def serves_prometheus(self) -> bool:
        """Whether there is an endpoint for Prometheus."""
        return self.prometheus or Exporter.PROMETHEUS in self.exporters

    @property
    def pushes(self) -> bool:
        """Whether there is an exporter that tells, and not only one that is asked."""
        return any(exporter is not Exporter.PROMETHEUS for exporter in self.exporters)

    @property
    def service(self) -> str:
        """The agent's ``service.name``."""
        return self.service_name or self.resource_attributes.get("service.name") or "otel-gpu"

    @property
    def otlp_target(self) -> values.Endpoint:
        """Where OTLP goes, with its scheme; without a word from anybody, to this host's Collector.

        gRPC has no path: what stands there, or is added for all signals, is for HTTP.
        """
        is_grpc = self.otlp_protocol is Protocol.GRPC
        endpoint = self.otlp_endpoint or values.Endpoint("http", f"localhost:{4317 if is_grpc else 4318}", "")
        scheme = endpoint.scheme or ("http" if self.otlp_insecure else "https")
        return values.Endpoint(scheme, endpoint.authority, "" if is_grpc else endpoint.path)


def exporters(text: str) -> tuple[Exporter, ...]:
    """Names between commas; ``none`` stands alone, and is empty."""
    chosen = tuple(dict.fromkeys(Exporter(part.strip().lower()) for part in text.split(",")))
    if Exporter.NONE not in chosen:
        return chosen
    if len(chosen) > 1:
        raise ValueError(text)
    return ()


def keys_only(text: str) -> str:
    """``key=value`` pairs without the values, which are secret."""
    return ",".join(f"{part.partition('=')[0].strip()}=…" if "=" in part else "…" for part in text.split(",") if part)


def without_secrets(text: str) -> str:
    """A URL without a user's name and password, and without what it asks for."""
    return re.sub(r"\?.*", "?…", re.sub(r"[^/]*@", "…@", text))


def _milliseconds(longest: int, *names: str) -> Callable[[Mapping[str, str]], Found | None]:
    """The first variable that is set, as a duration: these are whole numbers of milliseconds."""
    allowed = f"a whole number of milliseconds from 100 to {longest}"

    def read(environment: Mapping[str, str]) -> Found | None:
        for name in names:
            text = environment.get(name, "").strip()
            if text:
                return Found(text, name, f"{text}ms" if text.isdigit() else None, allowed)
        return None

    return read


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def _endpoint(environment: Mapping[str, str]) -> Found | None:
    """The endpoint for metrics is used as it is, at the root without a path; the one for all signals is a base."""
    own, base = (environment.get(name, "").strip() for name in _ENDPOINTS)
    if own:
        scheme, separator, rest = own.partition("://")
        at_root = separator and "/" not in rest.rstrip("/")
        return Found(own, _ENDPOINTS[0], f"{scheme}://{rest.rstrip('/')}/." if at_root else None)
    if base:
        return Found(base, _ENDPOINTS[1], f"{base.rstrip('/')}/v1/metrics" if "://" in base else None)
    return None


def _otlp(name: str) -> tuple[str, str]:
    """A variable for metrics, and the one for all signals, which is weaker."""
    return f"OTEL_EXPORTER_OTLP_METRICS_{name}", f"OTEL_EXPORTER_OTLP_{name}"


_A_FILE: Final = "nothing, or the path of a file"
_PAIRS: Final = "nothing, or key=value pairs between commas, percent-encoded where needed"

EXPORT_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "exporters", "exporters", "otlp", exporters,
        "otlp, prometheus, console, several of them between commas, or none",
        "where metrics go: otlp, prometheus, console, several of them, or none",
        also_variables=("OTEL_METRICS_EXPORTER",),
    ),
    Setting(
        "prometheus", "prometheus", "off", values.switch,
        "on or off", "serve /metrics for Prometheus, beside other exporters", switch=True,
    ),
    Setting(
        "export-interval", "export_interval_s", "15s", values.duration_s(0.1, 3600),
        "a duration from 100ms to 1h, such as 15s", "time between two exports",
        from_variables=_milliseconds(3_600_000, "OTEL_METRIC_EXPORT_INTERVAL"), reads=("OTEL_METRIC_EXPORT_INTERVAL",),
    ),
    Setting(
        "export-timeout", "export_timeout_s", "30s", values.duration_s(0.1, 3600),
        "a duration from 100ms to 1h, such as 30s", "how long all requests of one export may take together",
        from_variables=_milliseconds(3_600_000, "OTEL_METRIC_EXPORT_TIMEOUT"), reads=("OTEL_METRIC_EXPORT_TIMEOUT",),
    ),
    Setting(
        "otlp-protocol", "otlp_protocol", "http/protobuf", values.choice(Protocol),
        values.one_of(Protocol), "how OTLP travels: http/protobuf or grpc", also_variables=_otlp("PROTOCOL"),
    ),
    Setting(
        "otlp-endpoint", "otlp_endpoint", "", values.endpoint,
        "a URL such as http://localhost:4318 or https://collector:4317, without user name and password",
        "where the Collector is: a path is used as it is, and without one it is /v1/metrics; "
        "if nothing is said, http://localhost:4318, with grpc http://localhost:4317",
        from_variables=_endpoint, reads=_ENDPOINTS, shown=without_secrets,
    ),
    Setting(
        "otlp-headers", "otlp_headers", "", values.headers,
        _PAIRS, "headers of every request, such as api-key=…", also_variables=_otlp("HEADERS"), shown=keys_only,
    ),
    Setting(
        "otlp-timeout", "otlp_timeout_s", "10s", values.duration_s(0.1, 600),
        "a duration from 100ms to 10m, such as 10s", "how long one request may take, with all its repetitions",
        from_variables=_milliseconds(600_000, *_otlp("TIMEOUT")), reads=_otlp("TIMEOUT"),
    ),
    Setting(
        "otlp-compression", "otlp_compression", "none", values.choice(Compression),
        values.one_of(Compression), "how requests are compressed: none or gzip", also_variables=_otlp("COMPRESSION"),
    ),
    Setting(
        "otlp-certificate", "otlp_certificate", "", values.optional_file,
        _A_FILE, "certificates, in PEM, of who may vouch for the Collector; without one, those of this host",
        also_variables=_otlp("CERTIFICATE"),
    ),
    Setting(
        "otlp-client-key", "otlp_client_key", "", values.optional_file,
        _A_FILE, "the agent's own private key, in PEM", also_variables=_otlp("CLIENT_KEY"),
    ),
    Setting(
        "otlp-client-certificate", "otlp_client_certificate", "", values.optional_file,
        _A_FILE, "the agent's own certificate, in PEM", also_variables=_otlp("CLIENT_CERTIFICATE"),
    ),
    Setting(
        "otlp-insecure", "otlp_insecure", "", values.optional_switch,
        "nothing, true or false", "whether a grpc endpoint without http:// or https:// is plain text",
        also_variables=_otlp("INSECURE"), switch=True,
    ),
    Setting(
        "otlp-temporality", "otlp_temporality", "cumulative", values.choice(Temporality),
        values.one_of(Temporality), "what counters tell: all since their start, or with delta what was added",
        also_variables=("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",),
    ),
    Setting(
        "resource-attributes", "resource_attributes", "", values.key_values,
        _PAIRS, "attributes of every Resource, such as deployment.environment.name=prod",
        also_variables=("OTEL_RESOURCE_ATTRIBUTES",),
    ),
    Setting(
        "service-name", "service_name", "", str.strip,
        "nothing, or a name", "service.name of the agent; else that of resource-attributes, else otel-gpu",
        also_variables=("OTEL_SERVICE_NAME",),
    ),
    Setting(
        "process-metrics", "process_metrics", "on", values.switch,
        "on or off", "whether processes have metrics of their own beside their workloads", switch=True,
    ),
    Setting(
        "openmetrics-created", "openmetrics_created", "off", values.switch,
        "on or off",
        "add the start time of counters (_created) to OpenMetrics; Prometheus stores each as one more series",
        switch=True,
    ),
)  # fmt: skip
