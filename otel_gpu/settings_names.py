"""Settings of names: where containers, pods and jobs are told by what people call them, and what of it is told on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu import values
from otel_gpu.errors import UsageError
from otel_gpu.setting import Found, Setting
from otel_gpu.settings_export import ExportConfig, without_secrets


class Environment(StrEnum):
    """Who starts workloads here, and so knows their names."""

    AUTO = "auto"
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    HOST = "host"


class KubernetesApi(StrEnum):
    """Whether the cluster is asked too, and not its node alone."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


CONTAINER_LABEL: Final = "container.label."
POD_LABEL: Final = "k8s.pod.label."
"""What stands before the key of a label in the key of its attribute, as OpenTelemetry's conventions have it."""

_LONGEST_KEY: Final = 253 + 1 + 63
"""Kubernetes: a prefix, a slash, a name. Docker has no limit."""

_JOB_KEYS: Final = ("slurm.job.account", "slurm.job.name", "slurm.job.partition", "slurm.job.user")


@dataclass(frozen=True, slots=True)
class NamesConfig(ExportConfig):
    """Who is asked for names. It stands on the settings of exporters because slots allow for one line of ancestors."""

    environment: Environment
    docker_host: values.Daemon | None
    docker_tls_verify: bool
    docker_cert_path: Path | None
    podman_host: values.Daemon | None
    cri_socket: Path | None
    pod_resources_socket: Path | None
    kubernetes_api: KubernetesApi
    node_name: str
    container_labels: tuple[str, ...]
    pod_labels: tuple[str, ...]

    def extra_keys(self, *, slurm: bool) -> tuple[str, ...]:
        """Attributes beyond the usual ones that a workload may have, sorted: labels that are told, a job's owner."""
        containers = (f"{CONTAINER_LABEL}{key}" for key in self.container_labels)
        pods = (f"{POD_LABEL}{key}" for key in self.pod_labels)
        return tuple(sorted({*containers, *pods, *(_JOB_KEYS if slurm else ())}))


def label_keys(text: str) -> tuple[str, ...]:
    """Keys between commas, each once; nothing is none. UsageError for two that Prometheus could not tell apart."""
    keys = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not keys:
        return ()
    # Here, not above: it brings the whole catalogue of metrics, and few need it before they start.
    from otel_gpu.metrics.names import label_name  # noqa: PLC0415

    by_label: dict[str, str] = {}
    for key in keys:
        if len(key) > _LONGEST_KEY or not key.isprintable() or " " in key:
            raise ValueError(text)
        other = by_label.setdefault(label_name(key), key)
        if other != key:
            raise UsageError(f"{other!r} and {key!r} would be the same label in Prometheus; one of them can be told")
    return keys


def _docker_tls_verify(environment: Mapping[str, str]) -> Found | None:
    """Docker's own variable: whatever stands there means on, "0" and "false" alike, as its command line has it."""
    text = environment.get(_DOCKER_TLS_VERIFY, "")
    return Found(text, _DOCKER_TLS_VERIFY, "on") if text else None


_DOCKER_TLS_VERIFY: Final = "DOCKER_TLS_VERIFY"
_A_DAEMON: Final = "a URL such as unix:///run/x.sock, tcp://host:2376, http://host:2375 or https://host:2376"
_A_SOCKET: Final = "nothing, or the path of a socket, such as unix:///run/x.sock or /run/x.sock"
_LABELS: Final = "nothing, or keys of labels between commas, such as team,app.kubernetes.io/name"

NAMES_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "environment", "environment", "auto", values.choice(Environment), values.one_of(Environment),
        "who is asked what workloads are called: auto, everybody who is there; docker; podman; kubernetes, the node's "
        "container runtime, the kubelet and the API; slurm, the jobs themselves; host, nobody",
    ),
    Setting(
        "docker-host", "docker_host", "", values.daemon,
        _A_DAEMON, "where Docker is; if nothing is said, unix:///var/run/docker.sock",
        also_variables=("DOCKER_HOST",), shown=without_secrets,
    ),
    Setting(
        "docker-tls-verify", "docker_tls_verify", "off", values.switch,
        "on or off", "TLS to Docker at a tcp:// address, and it must prove who it is",
        from_variables=_docker_tls_verify, reads=(_DOCKER_TLS_VERIFY,), switch=True,
    ),
    Setting(
        "docker-cert-path", "docker_cert_path", "", values.optional_directory,
        "nothing, or the path of a directory",
        "where ca.pem, cert.pem and key.pem are for TLS to Docker; if nothing is said, ~/.docker",
        also_variables=("DOCKER_CERT_PATH",),
    ),
    Setting(
        "podman-host", "podman_host", "", values.daemon,
        _A_DAEMON,
        "where Podman is; if nothing is said, /run/podman/podman.sock and those of users that can be reached",
        also_variables=("CONTAINER_HOST",), shown=without_secrets,
    ),
    Setting(
        "cri-socket", "cri_socket", "", values.socket_path,
        _A_SOCKET, "the container runtime's socket for the kubelet (CRI); if nothing is said, the usual one of "
        "k3s, k0s, MicroK8s, CRI-O, cri-dockerd or containerd, the first that somebody listens at",
        also_variables=("CONTAINER_RUNTIME_ENDPOINT",),
    ),
    Setting(
        "pod-resources-socket", "pod_resources_socket", "", values.socket_path,
        _A_SOCKET, "the kubelet's socket that tells who was given which device; if nothing is said, "
        "/var/lib/kubelet/pod-resources/kubelet.sock, or where k0s and MicroK8s have it",
    ),
    Setting(
        "kubernetes-api", "kubernetes_api", "auto", values.choice(KubernetesApi), values.one_of(KubernetesApi),
        "whether the cluster is asked for this node's pods: auto, in a cluster if there is no CRI socket or pod-labels "
        "are wanted",
    ),
    Setting(
        "node-name", "node_name", "", str.strip,
        "nothing, or a name", "this node's name in Kubernetes, without which the API is not asked",
        also_variables=("K8S_NODE_NAME", "NODE_NAME"),
    ),
    Setting(
        "container-labels", "container_labels", "", label_keys,
        _LABELS, "labels of containers that are told, as attributes container.label.KEY",
    ),
    Setting(
        "pod-labels", "pod_labels", "", label_keys,
        _LABELS, "labels of pods that are told, as attributes k8s.pod.label.KEY",
    ),
)  # fmt: skip
