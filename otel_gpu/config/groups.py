"""The configuration as frozen groups: ``config.sampling.interval_s``, ``config.export.otlp.endpoint``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.config.values import Address, ControlSocket, Daemon, Endpoint, StateDir

CONTAINER_LABEL: Final = "container.label."
POD_LABEL: Final = "k8s.pod.label."
"""Prefixes of attribute keys for labels, from OpenTelemetry's semantic conventions."""

DEFAULT_LISTEN: Final = Address("127.0.0.1", 9464)
"""The default address of the agent's endpoint. The port is that of OpenTelemetry's Prometheus exporters."""


# ---------------------------------------------------------------------------- sampling


class SourceChoice(StrEnum):
    """Where GPUs are read from."""

    NVML = "nvml"
    SIM = "sim"
    AUTO = "auto"


class Scope(StrEnum):
    """What the agent reports: the whole node, or its own pod only."""

    NODE = "node"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """What is sampled, and how often."""

    interval_s: float
    deadline_s: float
    source: SourceChoice
    seed: int
    proc_root: Path
    sys_root: Path
    scope: Scope


# ---------------------------------------------------------------------------- attribution and cost


@dataclass(frozen=True, slots=True)
class AttributionConfig:
    """The choices of attribution, and prices."""

    retention_s: float
    energy_policy: EnergyPolicy
    energy_model: EnergyModel
    price_gpu_hour: Mapping[str, float]
    price_kwh: float | None
    currency: str

    @property
    def options(self) -> AttributionOptions:
        """The same as options of the attributor."""
        is_priced = self.price_gpu_hour or self.price_kwh is not None
        return AttributionOptions(
            energy_policy=self.energy_policy,
            energy_model=self.energy_model,
            retention_s=self.retention_s,
            prices=Prices(self.currency, self.price_gpu_hour, self.price_kwh) if is_priced else None,
        )


# ---------------------------------------------------------------------------- workload names


class Environment(StrEnum):
    """What starts workloads on this host, and therefore knows their names."""

    AUTO = "auto"
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    HOST = "host"


class KubernetesApi(StrEnum):
    """Whether the agent asks the Kubernetes API, and not only the node."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """The address of Docker."""

    host: Daemon | None
    tls_verify: bool
    cert_path: Path | None


@dataclass(frozen=True, slots=True)
class NamesConfig:
    """The sources of workload names, and the labels to report."""

    environment: Environment
    docker: DockerConfig
    podman_host: Daemon | None
    cri_socket: Path | None
    pod_resources_socket: Path | None
    kubernetes_api: KubernetesApi
    node_name: str
    container_labels: tuple[str, ...]
    pod_labels: tuple[str, ...]

    @property
    def extra_keys(self) -> tuple[str, ...]:
        """Keys of attributes that only some workloads have: reported labels. Sorted."""
        containers = (f"{CONTAINER_LABEL}{key}" for key in self.container_labels)
        pods = (f"{POD_LABEL}{key}" for key in self.pod_labels)
        return tuple(sorted({*containers, *pods}))


# ---------------------------------------------------------------------------- export


class Exporter(StrEnum):
    """Where metrics are sent."""

    OTLP = "otlp"
    PROMETHEUS = "prometheus"
    CONSOLE = "console"
    NONE = "none"


class Protocol(StrEnum):
    """The protocol of OTLP."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


def local_collector(protocol: Protocol) -> Endpoint:
    """The usual address of a Collector on this host (OTLP, "Default Port")."""
    return Endpoint("http", f"localhost:{4317 if protocol is Protocol.GRPC else 4318}", "")


class Compression(StrEnum):
    """The compression of requests."""

    NONE = "none"
    GZIP = "gzip"


class Temporality(StrEnum):
    """What a point of a counter contains: the total since its start, or the growth since the last point.

    ``lowmemory`` is cumulative for observable counters, and all counters here are observable.
    """

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    LOWMEMORY = "lowmemory"


@dataclass(frozen=True, slots=True)
class OtlpConfig:
    """The Collector, and how requests are sent to it."""

    protocol: Protocol
    endpoint: Endpoint | None
    headers: Mapping[str, str]
    timeout_s: float
    compression: Compression
    certificate: Path | None
    client_key: Path | None
    client_certificate: Path | None
    insecure: bool | None
    temporality: Temporality

    @property
    def target(self) -> Endpoint:
        """The endpoint in use, with its scheme; without a configured one, the Collector on this host.

        gRPC has no path: a path in the endpoint, or added for all signals, is for HTTP.
        """
        endpoint = self.endpoint or local_collector(self.protocol)
        scheme = endpoint.scheme or ("http" if self.insecure else "https")
        return Endpoint(scheme, endpoint.authority, "" if self.protocol is Protocol.GRPC else endpoint.path)

    @property
    def request_url(self) -> Endpoint:
        """The URL that exports are sent to: the target, with HTTP and without a path at ``/v1/metrics``."""
        target = self.target
        return target if self.protocol is Protocol.GRPC else replace(target, path=target.path or "/v1/metrics")


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """What is exported, where to, and how."""

    exporters: tuple[Exporter, ...]
    prometheus: bool
    interval_s: float
    timeout_s: float
    process_metrics: bool
    openmetrics_created: bool
    resource_attributes: Mapping[str, str]
    service_name: str
    otlp: OtlpConfig

    @property
    def serves_prometheus(self) -> bool:
        """Whether /metrics is served."""
        return self.prometheus or Exporter.PROMETHEUS in self.exporters

    @property
    def pushes(self) -> bool:
        """Whether an exporter pushes metrics."""
        return any(exporter is not Exporter.PROMETHEUS for exporter in self.exporters)

    @property
    def service(self) -> str:
        """The agent's ``service.name``."""
        return self.service_name or self.resource_attributes.get("service.name") or "otel-gpu"


# ---------------------------------------------------------------------------- endpoints, state, logs


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The listener of the page and endpoints, its web configuration file, and further names of this host."""

    listen: Address
    config_file: Path | None
    allowed_hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listener:
    """One exporter on its own port. An ``address`` without a host means the agent's host.

    ``max_age_s`` is the greatest age of a served report. Every name starts with ``prefix``; ``labels`` are on every
    series. Without ``kubernetes`` labels of pods are empty. Ended processes are served for ``retention_s`` if that is
    less than the agent's retention. ``notes`` are warnings about options that only the agent's settings decide.
    """

    exporter: str
    address: Address
    path: str = "/metrics"
    max_age_s: float = 1.0
    prefix: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    kubernetes: bool = True
    retention_s: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.exporter}:{self.address.port}" if self.address.port else self.exporter


@dataclass(frozen=True, slots=True)
class CompatConfig:
    """Other exporters whose metrics are served, with what their own variables and flags set (``config.compat``)."""

    listeners: tuple[Listener, ...]
    my_gpu_exporter_flags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StateConfig:
    """The state directory and the control socket."""

    directory: StateDir
    control_socket: ControlSocket


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    LOGFMT = "logfmt"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the agent logs."""

    level: LogLevel
    format: LogFormat


# ---------------------------------------------------------------------------- all of it


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of the agent, fixed before it starts."""

    sampling: SamplingConfig
    attribution: AttributionConfig
    names: NamesConfig
    export: ExportConfig
    web: WebConfig
    compat: CompatConfig
    state: StateConfig
    log: LogConfig


def build_config(fields: Mapping[str, Any]) -> Config:
    """Compose a configuration from values by dotted field, such as ``export.otlp.endpoint``."""

    def group(name: str) -> dict[str, Any]:
        parts = (field.rpartition(".") for field in fields)
        return {field: fields[f"{name}.{field}"] for parent, _, field in parts if parent == name}

    return Config(
        sampling=SamplingConfig(**group("sampling")),
        attribution=AttributionConfig(**group("attribution")),
        names=NamesConfig(docker=DockerConfig(**group("names.docker")), **group("names")),
        export=ExportConfig(otlp=OtlpConfig(**group("export.otlp")), **group("export")),
        web=WebConfig(**group("web")),
        compat=CompatConfig(**group("compat")),
        state=StateConfig(**group("state")),
        log=LogConfig(**group("log")),
    )
