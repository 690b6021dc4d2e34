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


def test_variables_of_other_programs_name_the_engines_the_runtime_and_the_node() -> None:
    variables = {
        "DOCKER_HOST": "/d.sock",
        "CONTAINER_HOST": "tcp://p:1",
        "CONTAINER_RUNTIME_ENDPOINT": "unix:///c.sock",
    }
    names = load({}, variables | {"NODE_NAME": "b"}).config.names
    assert names.docker.host == Daemon("unix:///d.sock", Path("/d.sock"))
    assert (names.podman_host, names.cri_socket, names.node_name) == (Daemon("tcp://p:1"), Path("/c.sock"), "b")
    assert load({}, {"NODE_NAME": "b", "K8S_NODE_NAME": "a"}).config.names.node_name == "a"


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
    assert config.names.extra_keys == ("container.label.app", "k8s.pod.label.app")


@pytest.mark.parametrize("text", ["a b", "a\nb", "a\tb", "x" * 318])
def test_an_invalid_label_key_is_refused(text: str) -> None:
    assert "is not a valid list; use label keys" in complaint({"pod-labels": text})


def test_extra_keys_are_sorted_and_unique_in_prometheus() -> None:
    config = load({"container-labels": "z,a/b", "pod-labels": "app.kubernetes.io/name"}, {}).config
    assert config.names.extra_keys == (
        "container.label.a/b",
        "container.label.z",
        "k8s.pod.label.app.kubernetes.io/name",
    )
    labels = [label_name(key) for key in (*IDENTITY_KEYS, *config.names.extra_keys)]
    assert len(labels) == len(set(labels))
