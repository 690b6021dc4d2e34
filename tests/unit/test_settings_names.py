from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.config import Value, load
from otel_gpu.errors import UsageError
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name
from otel_gpu.values import Daemon


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
    assert load({"docker-host": text}, {}).config.docker_host == Daemon(url, socket)
    assert load({}, {"CONTAINER_HOST": text}).config.podman_host == Daemon(url, socket)


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
def test_an_engine_that_cannot_be_asked_is_refused_in_one_line_that_names_its_variable(text: str) -> None:
    told = complaint({}, DOCKER_HOST=text)
    assert told.startswith("DOCKER_HOST: docker-host is ")
    assert "allowed is a URL such as unix:///run/x.sock" in told
    assert len(told.splitlines()) == 1


def test_a_password_in_an_engines_address_is_refused_and_not_shown() -> None:
    assert "secret" not in complaint({"docker-host": "tcp://me:secret@host:1"})


@pytest.mark.parametrize(("text", "verifies"), [("1", True), ("0", True), ("yes please", True), ("", False)])
def test_dockers_own_switch_is_on_whatever_stands_there(text: str, verifies: bool) -> None:
    """As docker(1) has it: any text that is not empty."""
    assert load({}, {"DOCKER_TLS_VERIFY": text}).config.docker_tls_verify is verifies


def test_our_own_switch_means_what_it_says_and_beats_dockers() -> None:
    loaded = load({}, {"DOCKER_TLS_VERIFY": "1", "OTEL_GPU_DOCKER_TLS_VERIFY": "off"})
    assert not loaded.config.docker_tls_verify
    assert Value("docker-tls-verify", "off", "OTEL_GPU_DOCKER_TLS_VERIFY") in loaded.values


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:///run/x.sock"])
def test_a_runtimes_socket_is_a_path_with_or_without_a_scheme(text: str) -> None:
    loaded = load({}, {"CONTAINER_RUNTIME_ENDPOINT": text})
    assert loaded.config.cri_socket == Path("/run/x.sock")


def test_the_nodes_name_is_that_of_the_manifest() -> None:
    assert load({}, {"NODE_NAME": "b"}).config.node_name == "b"
    assert load({}, {"NODE_NAME": "b", "K8S_NODE_NAME": "a"}).config.node_name == "a"


# ---------------------------------------------------------------------------- labels


def test_labels_are_told_once_each_in_the_order_given() -> None:
    config = load({"container-labels": " team, app ,,team"}, {}).config
    assert config.container_labels == ("team", "app")


@pytest.mark.parametrize("key", ["container-labels", "pod-labels"])
def test_two_labels_that_prometheus_could_not_tell_apart_are_refused_and_both_named(key: str) -> None:
    assert complaint({key: "x,a.b,a-b"}) == (
        f"--{key}: {key} is 'x,a.b,a-b'; 'a.b' and 'a-b' would be the same label in Prometheus; one of them can be told"
    )


def test_the_same_label_of_containers_and_of_pods_is_two() -> None:
    config = load({"container-labels": "app", "pod-labels": "app"}, {}).config
    assert config.extra_keys(slurm=False) == ("container.label.app", "k8s.pod.label.app")


@pytest.mark.parametrize("text", ["a b", "a\nb", "a\tb", "x" * 318])
def test_what_is_no_key_of_a_label_is_refused(text: str) -> None:
    assert "allowed is nothing, or keys of labels" in complaint({"pod-labels": text})


def test_keys_beyond_the_usual_are_sorted_and_are_no_others_label_in_prometheus() -> None:
    config = load({"container-labels": "z,a/b", "pod-labels": "app.kubernetes.io/name"}, {}).config
    assert config.extra_keys(slurm=True) == (
        "container.label.a/b",
        "container.label.z",
        "k8s.pod.label.app.kubernetes.io/name",
        "slurm.job.account",
        "slurm.job.name",
        "slurm.job.partition",
        "slurm.job.user",
    )
    labels = [label_name(key) for key in (*IDENTITY_KEYS, *config.extra_keys(slurm=True))]
    assert len(labels) == len(set(labels))
