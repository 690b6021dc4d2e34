from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.config import Value, load
from otel_gpu.config.values import Daemon
from otel_gpu.errors import UsageError
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name


def complaint(flags: dict[str, str], **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(flags, environment)
    return str(caught.value)


# ---------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("text", "url", "socket"),
    [
        ("unix:///run/docker.sock", "unix:///run/docker.sock", Path("/run/docker.sock")),
        ("/run/docker.sock", "unix:///run/docker.sock", Path("/run/docker.sock")),
        ("tcp://10.0.0.1:2375", "tcp://10.0.0.1:2375", None),
        ("http://proxy:2375/", "http://proxy:2375", None),
        ("https://[::1]:2376", "https://[::1]:2376", None),
    ],
)
def test_an_engine_is_a_socket_or_an_address(text: str, url: str, socket: Path | None) -> None:
    assert load({"docker-host": text}, {}).config.names.docker.host == Daemon(url, socket)
    assert load({}, {"CONTAINER_HOST": text}).config.names.podman_host == Daemon(url, socket)


@pytest.mark.parametrize(
    "text",
    [
        "ssh://me@host",
        "npipe:////./pipe/docker_engine",
        "unix://",
        "unix://run/x",
        "fd://",
        "tcp://",
        "docker",
        "tcp://h:x",
    ],
)
def test_an_unsupported_engine_address_is_refused_in_one_line(text: str) -> None:
    message = complaint({}, DOCKER_HOST=text)
    assert message.startswith("DOCKER_HOST: ")
    assert " is not a valid URL; use unix:///run/x.sock, tcp://" in message
    assert len(message.splitlines()) == 1


def test_a_password_in_an_engines_address_is_refused_and_not_shown() -> None:
    assert "secret" not in complaint({"docker-host": "tcp://me:secret@host:1"})


@pytest.mark.parametrize(("text", "verifies"), [("1", True), ("0", True), ("yes please", True), ("", False)])
def test_dockers_own_switch_is_on_for_any_text(text: str, verifies: bool) -> None:
    """As docker(1) has it: any text that is not empty."""
    assert load({}, {"DOCKER_TLS_VERIFY": text}).config.names.docker.tls_verify is verifies


def test_our_switch_takes_precedence_over_dockers() -> None:
    loaded = load({}, {"DOCKER_TLS_VERIFY": "1", "OTEL_GPU_DOCKER_TLS_VERIFY": "off"})
    assert not loaded.config.names.docker.tls_verify
    assert Value("docker-tls-verify", "off", "OTEL_GPU_DOCKER_TLS_VERIFY") in loaded.values


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:///run/x.sock"])
def test_a_runtimes_socket_is_a_path_with_or_without_a_scheme(text: str) -> None:
    loaded = load({}, {"CONTAINER_RUNTIME_ENDPOINT": text})
    assert loaded.config.names.cri_socket == Path("/run/x.sock")


def test_the_nodes_name_is_that_of_the_manifest() -> None:
    assert load({}, {"NODE_NAME": "b"}).config.names.node_name == "b"
    assert load({}, {"NODE_NAME": "b", "K8S_NODE_NAME": "a"}).config.names.node_name == "a"


# ---------------------------------------------------------------------------- labels


def test_labels_are_unique_and_keep_their_order() -> None:
    config = load({"container-labels": " team, app ,,team"}, {}).config
    assert config.names.container_labels == ("team", "app")


@pytest.mark.parametrize("key", ["container-labels", "pod-labels"])
def test_two_keys_of_one_prometheus_label_are_refused(key: str) -> None:
    assert complaint({key: "x,a.b,a-b"}) == (
        f"--{key}: 'x,a.b,a-b' is not a valid list: 'a.b' and 'a-b' are the same label in Prometheus; use one of them"
    )


def test_the_same_label_of_containers_and_of_pods_is_two() -> None:
    config = load({"container-labels": "app", "pod-labels": "app"}, {}).config
    assert config.names.extra_keys(slurm=False) == ("container.label.app", "k8s.pod.label.app")


@pytest.mark.parametrize("text", ["a b", "a\nb", "a\tb", "x" * 318])
def test_an_invalid_label_key_is_refused(text: str) -> None:
    assert "is not a valid list; use label keys" in complaint({"pod-labels": text})


def test_extra_keys_are_sorted_and_unique_in_prometheus() -> None:
    config = load({"container-labels": "z,a/b", "pod-labels": "app.kubernetes.io/name"}, {}).config
    assert config.names.extra_keys(slurm=True) == (
        "container.label.a/b",
        "container.label.z",
        "k8s.pod.label.app.kubernetes.io/name",
        "slurm.job.account",
        "slurm.job.name",
        "slurm.job.partition",
        "slurm.job.user",
    )
    labels = [label_name(key) for key in (*IDENTITY_KEYS, *config.names.extra_keys(slurm=True))]
    assert len(labels) == len(set(labels))
