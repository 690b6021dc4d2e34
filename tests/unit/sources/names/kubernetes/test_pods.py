"""Containers of a pod from the JSON of the API."""

from __future__ import annotations

import json

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.kubernetes.pods import Change, Failure, PodInfo, PodPage, parse_event, parse_list, parse_pod
from tests.kubernetes_api import CREATED, Json, container, hex_id, pod

A, B, C, D = (hex_id(number) for number in range(1, 5))
CREATED_S = 1714557600.0


def parsed(value: Json, *labels: str) -> PodInfo:
    found = parse_pod(value, labels)
    assert found is not None
    return found


def only(value: Json, *labels: str) -> WorkloadInfo:
    (known,) = parsed(value, *labels).containers
    return known


def test_a_container_has_its_names_and_those_of_its_pod() -> None:
    known = only(pod("train-0", container(A, "trainer"), uid="u1", labels={"team": "vision", "app": "train"}), "team")

    assert known == WorkloadInfo(
        ref=WorkloadRef(WorkloadKind.CONTAINER, A, runtime="containerd", pod_uid="u1"),
        names=WorkloadNames(
            container="trainer",
            image="registry.example/train:2",
            pod="train-0",
            namespace="ml",
            pod_uid="u1",
            runtime="containerd",
            extra=(("k8s.pod.label.team", "vision"),),
        ),
        running=True,
        since_s=CREATED_S,
    )


@pytest.mark.parametrize("runtime", ["containerd", "docker", "cri-o"])
def test_the_runtime_is_the_scheme_of_the_id(runtime: str) -> None:
    assert only(pod("p", container(A, runtime=runtime))).names.runtime == runtime


def test_init_ephemeral_and_restarted_containers_are_known() -> None:
    restarted = container(
        B, "main", lastState={"terminated": {"containerID": f"containerd://{A}", "startedAt": CREATED, "exitCode": 137}}
    )
    value = pod("p", restarted)
    value["status"]["initContainerStatuses"] = [
        container(C, "init", state={"terminated": {"containerID": f"containerd://{C}", "startedAt": CREATED}})
    ]
    value["status"]["ephemeralContainerStatuses"] = [container(D, "debug")]

    running = {known.ref.id: (known.names.container, known.running) for known in parsed(value).containers}

    assert running == {A: ("main", False), B: ("main", True), C: ("init", False), D: ("debug", True)}
    assert {known.since_s for known in parsed(value).containers} == {CREATED_S}


def test_a_crash_looping_container_does_not_run_and_is_known_once() -> None:
    ended = {"terminated": {"containerID": f"containerd://{A}", "startedAt": CREATED}}
    value = pod("p", container(A, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended))

    assert not only(value).running


def test_a_container_without_an_id_is_skipped_until_it_starts() -> None:
    assert (
        parsed(pod("p", {"name": "main", "state": {"waiting": {}}}, {"name": "b", "containerID": ""})).containers == ()
    )


@pytest.mark.parametrize("container_id", ["containerd://abc", A, f"containerd://{A}\n", f"Containerd://{A}", 7, None])
def test_an_invalid_id_is_skipped(container_id: object) -> None:
    assert parsed(pod("p", {"name": "main", "containerID": container_id})).containers == ()


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("sha256:" + "a" * 64, "spec/main:1"),
        ("", "spec/main:1"),
        (None, "spec/main:1"),
        ("docker.io/library/nginx@sha256:" + "a" * 64, "docker.io/library/nginx@sha256:" + "a" * 64),
    ],
)
def test_an_image_that_is_a_digest_has_the_name_in_the_spec(image: object, name: str) -> None:
    assert only(pod("p", container(A, image=image))).names.image == name


def test_a_digest_is_kept_if_the_spec_has_no_name() -> None:
    value = pod("p", container(A, image="sha256:abc"))
    del value["spec"]

    assert only(value).names.image == "sha256:abc"


def test_the_uid_of_a_static_pod_is_the_hash_of_its_manifest_as_in_cgroups_and_cri() -> None:
    annotations = {"kubernetes.io/config.hash": "ab" * 16, "kubernetes.io/config.mirror": "ab" * 16}
    found = parsed(pod("etcd-node", container(A), uid="mirror", annotations=annotations))
    [known] = found.containers

    assert (known.ref.pod_uid, known.names.pod_uid) == ("ab" * 16, "ab" * 16)
    assert found.uid == "mirror"


def test_a_hash_on_a_pod_that_is_not_a_mirror_is_ignored() -> None:
    known = only(pod("p", container(A), uid="own", annotations={"kubernetes.io/config.hash": "ab" * 16}))

    assert known.ref.pod_uid == "own"


@pytest.mark.parametrize(
    ("started", "since_s"),
    [
        (CREATED, CREATED_S),
        ("2024-05-01T10:00:00.250000Z", CREATED_S + 0.25),
        ("2024-02-30T10:00:00Z", None),
        ("2024-05-01T10:00:00", None),
        ("yesterday", None),
        (None, None),
        (17, None),
    ],
)
def test_the_start_is_unix_time_or_unknown(started: object, since_s: float | None) -> None:
    assert only(pod("p", container(A, state={"running": {"startedAt": started}}))).since_s == since_s


@pytest.mark.parametrize("value", ['say "hi"', "two\nlines", "🦊", "<script>alert(1)</script>", "a" * 128])
def test_a_pod_label_may_have_any_characters(value: str) -> None:
    found = parsed(pod("p", container(A), labels={"x": value}), "x")

    assert found.containers[0].names.extra == (("k8s.pod.label.x", value),)
    assert found.problem is None


def test_a_long_label_is_cut_and_reported() -> None:
    found = parsed(pod("p", container(A), labels={"note": "x" * 10_240}), "note")

    assert found.containers[0].names.extra == (("k8s.pod.label.note", "x" * 125 + "…"),)
    assert found.problem == "pod ml/p: its label note has 10,240 bytes; only the first 125 are exported"


def test_a_lone_surrogate_is_replaced_and_reported_in_one_line() -> None:
    found = parsed(pod("a\nb", container(A), labels={"x": "\ud83e"}), "x")

    assert found.containers[0].names.extra == (("k8s.pod.label.x", "?"),)
    assert (
        found.problem
        == "pod ml/a b: its label x is not valid Unicode; invalid characters are exported as question marks"
    )


def test_only_configured_labels_are_read_in_order() -> None:
    value = pod("p", container(A), labels={"b": "2", "a": "1", "c": "3", "empty": ""})

    assert only(value, "b", "a", "missing", "empty", "*").names.extra == (
        ("k8s.pod.label.a", "1"),
        ("k8s.pod.label.b", "2"),
    )


def test_a_page_of_a_list_has_a_version_and_a_continue_token() -> None:
    value = {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [pod("p"), {}, None]}

    assert parse_list(value) == PodPage((PodInfo("uid-of-p"),), "7", "more")
    assert parse_list({"metadata": {"resourceVersion": "7", "continue": ""}, "items": None}) == PodPage((), "7", None)


@pytest.mark.parametrize("value", [None, [], {}, {"items": []}, {"metadata": {"resourceVersion": "7"}, "items": {}}])
def test_an_invalid_list_is_none(value: object) -> None:
    assert parse_list(value) is None


def event(kind: str, value: Json) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode()


def test_events_are_changes_bookmarks_or_failures() -> None:
    value = pod("p")
    value["metadata"]["resourceVersion"] = "9"

    assert parse_event(event("ADDED", value)) == Change("9", PodInfo("uid-of-p"))
    assert parse_event(event("MODIFIED", value)) == Change("9", PodInfo("uid-of-p"))
    assert parse_event(event("DELETED", value)) == Change("9", PodInfo("uid-of-p"), deleted=True)
    assert parse_event(event("BOOKMARK", {"metadata": {"resourceVersion": "11"}})) == Change("11")
    assert parse_event(event("ERROR", {"code": 410, "message": "too old"})) == Failure(
        "the server ended the watch: too old", expired=True
    )
    assert parse_event(event("ERROR", {"code": 500})) == Failure(
        "the server ended the watch: no reason given", expired=False
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        event("ADDED", pod("no-version")),
        event("RENAMED", {"metadata": {"resourceVersion": "9", "uid": "u"}}),
        event("ADDED", {"metadata": {"resourceVersion": "9"}}),
    ],
)
def test_an_invalid_watch_event_is_none(line: bytes) -> None:
    assert parse_event(line) is None
