"""The settings, each declared once. Flags, variables, keys of the file, help and documentation follow from it.

Variables of OpenTelemetry have the meaning of its specification, also where its SDK differs:
https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and …/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.config import values
from otel_gpu.config.compat import FLAGS, flags_text, parse_flags, parse_listeners
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.config.groups import (
    DEFAULT_LISTEN,
    Compression,
    Environment,
    Exporter,
    KubernetesApi,
    LogFormat,
    LogLevel,
    Protocol,
    Scope,
    SourceChoice,
    Temporality,
    local_collector,
)
from otel_gpu.config.setting import RawValue, Setting, Topic, Type, choice, duration

# ---------------------------------------------------------------------------- parsers


def parse_exporters(text: str) -> tuple[Exporter, ...]:
    """Exporters separated by commas; ``none`` stands alone and is empty."""
    chosen = tuple(dict.fromkeys(Exporter(part.strip().lower()) for part in text.split(",")))
    if Exporter.NONE not in chosen:
        return chosen
    if len(chosen) > 1:
        raise ValueError(text)
    return ()


# ---------------------------------------------------------------------------- variables with a syntax of their own


def _milliseconds(longest: int, *names: str) -> Callable[[Mapping[str, str]], RawValue | None]:
    """Read the first variable that is set as a whole number of milliseconds."""
    use = f"a whole number of milliseconds from 100 to {longest}"

    def read(environment: Mapping[str, str]) -> RawValue | None:
        for name in names:
            text = environment.get(name, "").strip()
            if text:
                return RawValue(text, name, f"{text}ms" if text.isdigit() else "", use)
        return None

    return read


def _otlp(name: str) -> tuple[str, str]:
    """A variable for metrics, and the one for all signals, which comes second."""
    return f"OTEL_EXPORTER_OTLP_METRICS_{name}", f"OTEL_EXPORTER_OTLP_{name}"


_OTLP_ENDPOINT: Final = _otlp("ENDPOINT")
_PROMETHEUS: Final = {
    "OTEL_EXPORTER_PROMETHEUS_HOST": "a host name or IP address",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "a port from 0 to 65535",
}
_DOCKER_TLS_VERIFY: Final = "DOCKER_TLS_VERIFY"


def _otlp_endpoint(environment: Mapping[str, str]) -> RawValue | None:
    """The endpoint for metrics is used as it is, at the root if it has no path; the one for all signals is a base."""
    own, base = (environment.get(name, "").strip() for name in _OTLP_ENDPOINT)
    if own:
        scheme, separator, rest = own.partition("://")
        is_root = separator and "/" not in rest.rstrip("/")
        return RawValue(own, _OTLP_ENDPOINT[0], f"{scheme}://{rest.rstrip('/')}/." if is_root else None)
    if base:
        return RawValue(base, _OTLP_ENDPOINT[1], f"{base.rstrip('/')}/v1/metrics" if "://" in base else None)
    return None


def _prometheus_listen(environment: Mapping[str, str]) -> RawValue | None:
    """OpenTelemetry's two variables for the Prometheus endpoint, as one address."""
    host, port = (environment.get(name) for name in _PROMETHEUS)
    if not host and not port:
        return None
    given = {name: use for name, use in _PROMETHEUS.items() if environment.get(name)}
    in_url = f"[{host}]" if host and ":" in host and not host.startswith("[") else host
    address = f"{in_url or DEFAULT_LISTEN.host}:{port or DEFAULT_LISTEN.port}"
    text = address if host and port else host or port or ""
    return RawValue(text, " and ".join(given), address, " and ".join(given.values()))


def _docker_tls_verify(environment: Mapping[str, str]) -> RawValue | None:
    """Docker's own variable: every value means on, "0" and "false" too, as in Docker's command line."""
    text = environment.get(_DOCKER_TLS_VERIFY, "")
    return RawValue(text, _DOCKER_TLS_VERIFY, "on") if text else None


# ---------------------------------------------------------------------------- types


def _root(example: str) -> Type:
    return Type(values.absolute_path, "PATH", "path", f"an absolute path, for example {example}")


_SWITCH: Final = Type(values.switch, "on|off", "value", "on or off", text=values.switch_text)
_FILE: Final = Type(values.optional_file, "FILE", "file", "the path of a file")
_NAME: Final = Type(str.strip, "NAME", "name", "a name")
_PAIRS: Final = Type(
    values.key_values,
    "KEY=VALUE,…",
    "list",
    "key=value pairs separated by commas, percent-encoded where needed",
    text=values.key_values_text,
)
_DAEMON: Final = Type(
    values.daemon, "URL", "URL", "unix:///run/x.sock, tcp://host:2376, http://host:2375 or https://host:2376"
)
_SOCKET: Final = Type(
    values.socket_path, "SOCKET", "socket", "the path of a socket, for example unix:///run/x.sock or /run/x.sock"
)
_LABELS: Final = Type(
    values.label_keys,
    "KEY,…",
    "list",
    "label keys separated by commas, for example team,app.kubernetes.io/name",
    text=values.words_text,
)


# ---------------------------------------------------------------------------- the settings

_RULES: Final = AttributionOptions()
"""The rules' own defaults."""

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "interval", "sampling.interval_s", "5s", duration("1s", "1h", example="5s"), Topic.SAMPLING,
        "time between two samples",
    ),
    Setting(
        "deadline", "sampling.deadline_s", "2s", duration("100ms", "1m", example="2s"), Topic.SAMPLING,
        "how long the agent waits for the driver's answer about one GPU",
    ),
    Setting(
        "source", "sampling.source", "nvml", choice(SourceChoice), Topic.SAMPLING,
        "what to sample: nvml, the GPUs of this host; sim, a simulated host; auto, nvml if it finds a GPU, else sim",
    ),
    Setting(
        "seed", "sampling.seed", "1",
        Type(values.whole_number(0, 2**63 - 1), "NUMBER", "whole number", "0 to 9223372036854775807"), Topic.SAMPLING,
        "seed of the simulated host; the same seed gives the same history",
    ),
    Setting(
        "proc-root", "sampling.proc_root", "/proc", _root("/host/proc"), Topic.SAMPLING,
        "where the host's /proc is mounted", also_variables=("HOST_PROC",),
    ),
    Setting(
        "sys-root", "sampling.sys_root", "/sys", _root("/host/sys"), Topic.SAMPLING,
        "where the host's /sys is mounted", also_variables=("HOST_SYS",),
    ),
    Setting(
        "scope", "sampling.scope", "node", choice(Scope), Topic.SAMPLING,
        "what to report: node, all GPUs and workloads of this host; pod, only the agent's own pod, for a sidecar",
    ),
    Setting(
        "retention", "attribution.retention_s", values.duration_text(_RULES.retention_s),
        duration("1s", "24h", example="5m"), Topic.ATTRIBUTION,
        "how long to keep reporting workloads that have ended",
    ),
    Setting(
        "energy-policy", "attribution.energy_policy", _RULES.energy_policy.value, choice(EnergyPolicy),
        Topic.ATTRIBUTION,
        "how to divide the static energy of a GPU, which it uses even without work, among its workloads: resident, "
        "equally; sm, by SM share; memory, by memory; none, to no workload",
    ),
    Setting(
        "energy-model", "attribution.energy_model", _RULES.energy_model.value, choice(EnergyModel),
        Topic.ATTRIBUTION,
        "how to divide the rest, the energy of work: sm, by SM share; learned, by SM share times the learned power of "
        "each process",
    ),
    Setting(
        "price-gpu-hour", "attribution.price_gpu_hour", "",
        Type(
            values.prices, "PRICE|MODEL=PRICE,…", "price",
            "an amount, for example 2.5 for every GPU, or amounts by model, for example A100=2.5,H100=4",
            text=values.prices_text,
        ),
        Topic.ATTRIBUTION, "price of a GPU hour",
    ),
    Setting(
        "price-kwh", "attribution.price_kwh", "",
        Type(values.price, "PRICE", "price", "an amount, for example 0.3", text=values.price_text),
        Topic.ATTRIBUTION, "price of a kilowatt-hour",
    ),
    Setting(
        "currency", "attribution.currency", "USD",
        Type(values.currency, "CODE", "currency", "three capital letters, for example EUR"),
        Topic.ATTRIBUTION, "currency of the prices",
    ),
    Setting(
        "environment", "names.environment", "auto", choice(Environment), Topic.NAMES,
        "where workload names come from: auto, every source found; docker; podman; kubernetes, the node's container "
        "runtime, the kubelet and the API; slurm; host, no source",
    ),
    Setting(
        "docker-host", "names.docker.host", "", _DAEMON, Topic.NAMES, "address of Docker",
        also_variables=("DOCKER_HOST",), shown=values.without_secrets, when_empty="unix:///var/run/docker.sock",
    ),
    Setting(
        "docker-tls-verify", "names.docker.tls_verify", "off", _SWITCH, Topic.NAMES,
        "use TLS to Docker at a tcp:// address, and verify its certificate",
        from_variables=_docker_tls_verify, reads=(_DOCKER_TLS_VERIFY,), is_switch=True,
    ),
    Setting(
        "docker-cert-path", "names.docker.cert_path", "",
        Type(values.optional_directory, "DIRECTORY", "directory", "the path of a directory"), Topic.NAMES,
        "directory with ca.pem, cert.pem and key.pem for TLS to Docker",
        also_variables=("DOCKER_CERT_PATH",), when_empty="~/.docker",
    ),
    Setting(
        "podman-host", "names.podman_host", "", _DAEMON, Topic.NAMES, "address of Podman",
        also_variables=("CONTAINER_HOST",), shown=values.without_secrets,
        when_empty="/run/podman/podman.sock, and podman/podman.sock in $XDG_RUNTIME_DIR and in /run/user/*",
    ),
    Setting(
        "cri-socket", "names.cri_socket", "", _SOCKET, Topic.NAMES,
        "the container runtime's CRI socket",
        also_variables=("CONTAINER_RUNTIME_ENDPOINT",),
        when_empty="the first usual socket that answers",
    ),
    Setting(
        "pod-resources-socket", "names.pod_resources_socket", "", _SOCKET, Topic.NAMES,
        "the kubelet's socket for the devices granted to pods",
        when_empty="the kubelet's socket: standard, k0s or MicroK8s",
    ),
    Setting(
        "kubernetes-api", "names.kubernetes_api", "auto", choice(KubernetesApi), Topic.NAMES,
        "whether to read this node's pods from the Kubernetes API: auto, only in a cluster, if there is no CRI socket "
        "or if pod-labels are set",
    ),
    Setting(
        "node-name", "names.node_name", "", _NAME, Topic.NAMES,
        "this node's name in Kubernetes; without it, the agent does not use the API",
        also_variables=("K8S_NODE_NAME", "NODE_NAME"),
    ),
    Setting(
        "container-labels", "names.container_labels", "", _LABELS, Topic.NAMES,
        "container labels to report, as attributes container.label.KEY",
    ),
    Setting(
        "pod-labels", "names.pod_labels", "", _LABELS, Topic.NAMES,
        "pod labels to report, as attributes k8s.pod.label.KEY",
    ),
    Setting(
        "exporters", "export.exporters", "otlp",
        Type(
            parse_exporters, "NAME,…", "list",
            "otlp, prometheus, console, several of them separated by commas, or none",
            text=lambda exporters: values.words_text(exporters) or "none",
        ),
        Topic.EXPORT, "where to send metrics: otlp, prometheus, console, several of them, or none",
        also_variables=("OTEL_METRICS_EXPORTER",),
    ),
    Setting(
        "prometheus", "export.prometheus", "off", _SWITCH, Topic.EXPORT,
        "serve /metrics for Prometheus in addition to other exporters", is_switch=True,
    ),
    Setting(
        "export-interval", "export.interval_s", "15s", duration("100ms", "1h", example="15s"), Topic.EXPORT,
        "time between two exports",
        from_variables=_milliseconds(3_600_000, "OTEL_METRIC_EXPORT_INTERVAL"), reads=("OTEL_METRIC_EXPORT_INTERVAL",),
    ),
    Setting(
        "export-timeout", "export.timeout_s", "30s", duration("100ms", "1h", example="30s"), Topic.EXPORT,
        "time limit for all requests of one export",
        from_variables=_milliseconds(3_600_000, "OTEL_METRIC_EXPORT_TIMEOUT"), reads=("OTEL_METRIC_EXPORT_TIMEOUT",),
    ),
    Setting(
        "process-metrics", "export.process_metrics", "on", _SWITCH, Topic.EXPORT,
        "export metrics of processes in addition to those of their workloads", is_switch=True,
    ),
    Setting(
        "openmetrics-created", "export.openmetrics_created", "off", _SWITCH, Topic.EXPORT,
        "add the start time of counters (_created) to OpenMetrics; Prometheus stores each as one more series",
        is_switch=True,
    ),
    Setting(
        "resource-attributes", "export.resource_attributes", "", _PAIRS, Topic.EXPORT,
        "attributes of every Resource, for example deployment.environment.name=prod",
        also_variables=("OTEL_RESOURCE_ATTRIBUTES",),
    ),
    Setting(
        "service-name", "export.service_name", "", _NAME, Topic.EXPORT, "service.name of the agent",
        also_variables=("OTEL_SERVICE_NAME",), when_empty="that of resource-attributes, else otel-gpu",
    ),
    Setting(
        "otlp-endpoint", "export.otlp.endpoint", "",
        Type(
            values.endpoint, "URL", "endpoint",
            "a URL such as http://localhost:4318 or https://collector:4317, without user name and password",
        ),
        Topic.OTLP, "URL of the Collector; /v1/metrics is added to a URL without a path",
        from_variables=_otlp_endpoint, reads=_OTLP_ENDPOINT, shown=values.without_secrets,
        when_empty=f"{local_collector(Protocol.HTTP)}, with grpc {local_collector(Protocol.GRPC)}",
    ),
    Setting(
        "otlp-protocol", "export.otlp.protocol", "http/protobuf", choice(Protocol), Topic.OTLP,
        "protocol of OTLP", also_variables=_otlp("PROTOCOL"),
    ),
    Setting(
        "otlp-headers", "export.otlp.headers", "",
        Type(values.headers, "KEY=VALUE,…", "list", _PAIRS.use, text=values.key_values_text), Topic.OTLP,
        "headers of every request, for example api-key=…", also_variables=_otlp("HEADERS"), shown=values.keys_only,
    ),
    Setting(
        "otlp-timeout", "export.otlp.timeout_s", "10s", duration("100ms", "10m", example="10s"), Topic.OTLP,
        "time limit for one request with its retries",
        from_variables=_milliseconds(600_000, *_otlp("TIMEOUT")), reads=_otlp("TIMEOUT"),
    ),
    Setting(
        "otlp-compression", "export.otlp.compression", "none", choice(Compression), Topic.OTLP,
        "compression of requests", also_variables=_otlp("COMPRESSION"),
    ),
    Setting(
        "otlp-temporality", "export.otlp.temporality", "cumulative", choice(Temporality), Topic.OTLP,
        "what counters contain: cumulative, the total since their start; delta, the growth since the last export; "
        "lowmemory equals cumulative",
        also_variables=("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",),
    ),
    Setting(
        "otlp-certificate", "export.otlp.certificate", "", _FILE, Topic.OTLP,
        "certificates, in PEM, of the authorities trusted for the Collector",
        also_variables=_otlp("CERTIFICATE"), when_empty="the authorities of this host",
    ),
    Setting(
        "otlp-client-key", "export.otlp.client_key", "", _FILE, Topic.OTLP,
        "the agent's own private key, in PEM", also_variables=_otlp("CLIENT_KEY"),
    ),
    Setting(
        "otlp-client-certificate", "export.otlp.client_certificate", "", _FILE, Topic.OTLP,
        "the agent's own certificate, in PEM", also_variables=_otlp("CLIENT_CERTIFICATE"),
    ),
    Setting(
        "otlp-insecure", "export.otlp.insecure", "",
        Type(values.optional_switch, "true|false", "value", "true or false", text=lambda given: str(given).lower()),
        Topic.OTLP, "send plain text to a grpc endpoint without http:// or https://",
        also_variables=_otlp("INSECURE"), is_switch=True,
    ),
    Setting(
        "listen", "web.listen", str(DEFAULT_LISTEN),
        Type(
            values.address, "HOST:PORT", "address",
            "HOST:PORT with a port from 0 to 65535, for example 127.0.0.1:9464 or [::1]:9464",
        ),
        Topic.WEB, "address of the page, the JSON API, /healthz, /readyz and, if Prometheus is on, /metrics",
        from_variables=_prometheus_listen, reads=tuple(_PROMETHEUS),
    ),
    Setting(
        "web-config", "web.config_file", "", _FILE, Topic.WEB,
        "web configuration file: TLS, client certificates, passwords",
    ),
    Setting(
        "allowed-hosts", "web.allowed_hosts", "",
        Type(
            values.host_names, "HOST,…", "list",
            "host names or IP addresses without ports, separated by commas, or * for any",
            text=values.words_text,
        ),
        Topic.WEB,
        "further host names that requests to a loopback address may have, such as that of a reverse proxy; *, any",
    ),
    Setting(
        "compat", "compat.listeners", "",
        Type(
            parse_listeners, "NAME[:PORT],…", "list",
            f"NAME or NAME:PORT separated by commas, each once, with a port from 1 to 65535, of "
            f"{', '.join(EXPORTERS)}",
            text=values.words_text,
        ),
        Topic.COMPAT,
        "exporters to emulate, each on its own port at the --listen host: "
        f"{', '.join(EXPORTERS)}",
    ),
    Setting(
        FLAGS, "compat.my_gpu_exporter_flags", "",
        Type(
            parse_flags, "FLAGS", "list of flags",
            "the flags of its command line, for example --metric-prefix=gpu --kubernetes-enabled",
            text=flags_text,
        ),
        Topic.COMPAT, "flags of my-gpu-exporter in compat, for example --my-gpu-exporter-flags='--metric-prefix=gpu'",
    ),
    Setting(
        "state-dir", "state.directory", "auto",
        Type(values.state_dir, "auto|none|PATH", "path", "auto, none, or an absolute path"), Topic.STATE,
        "directory that keeps counters across restarts: auto, $STATE_DIRECTORY, else $XDG_STATE_HOME/otel-gpu, else "
        "~/.local/state/otel-gpu; none, no directory",
    ),
    Setting(
        "control-socket", "state.control_socket", "auto",
        Type(
            values.control_socket, "auto|none|PATH", "path", "auto, none, or an absolute path of at most 107 bytes",
        ),
        Topic.STATE,
        "socket for otel-gpu pause and resume: auto, control.sock in $RUNTIME_DIRECTORY, else in "
        "$XDG_RUNTIME_DIR/otel-gpu, else in /run/otel-gpu",
    ),
    Setting("log-level", "log.level", "info", choice(LogLevel), Topic.LOGS, "lowest level of records to log"),
    Setting("log-format", "log.format", "logfmt", choice(LogFormat), Topic.LOGS, "format of log lines"),
)  # fmt: skip

BY_KEY: Final[Mapping[str, Setting]] = {setting.key: setting for setting in SETTINGS}


def keys(*topics: Topic) -> tuple[str, ...]:
    """The keys of the settings of these topics, in their order."""
    return tuple(setting.key for setting in SETTINGS if setting.topic in topics)
