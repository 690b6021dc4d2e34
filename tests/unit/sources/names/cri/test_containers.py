"""Containers from a runtime's list."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.cri.containers import NO_CONTAINERS, Containers, parse_containers, parse_runtime
from otel_gpu.sources.names.cri.proto.cri_pb2 import Container, Label, ListContainersResponse, VersionResponse
from tests.kubelet_servers import EXITED, RUNNING, container, container_id, listing, pod_uid

many = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def parsed(*containers: Container, before: Containers = NO_CONTAINERS, labels: tuple[str, ...] = ()) -> Containers:
    return parse_containers(listing(containers), before, runtime="containerd", labels=labels)


def only(found: Containers) -> WorkloadInfo:
    [known] = found.known.values()
    return known


def test_a_container_of_a_pod_has_the_names_in_the_kubelets_labels() -> None:
    found = parsed(container(7, pod="train-0", namespace="team-a", name="worker"))
    assert found.known == {
        container_id(7): WorkloadInfo(
            ref=WorkloadRef(WorkloadKind.CONTAINER, container_id(7), runtime="containerd", pod_uid=pod_uid(7)),
            names=WorkloadNames(
                container="worker",
                image="registry.example/train:1",
                pod="train-0",
                namespace="team-a",
                pod_uid=pod_uid(7),
                runtime="containerd",
            ),
            running=True,
            since_s=1_700_000_000.000000007,
        )
    }
    assert not found.problems


def test_a_container_outside_of_a_pod_has_its_own_name() -> None:
    names = only(parsed(container(1, pod=None, name="crictl-made"))).names
    assert (names.container, names.pod, names.namespace, names.pod_uid) == ("crictl-made", None, None, None)


@pytest.mark.parametrize(("state", "running"), [(0, False), (RUNNING, True), (EXITED, False), (3, False), (99, False)])
def test_only_a_running_container_runs(state: int, running: bool) -> None:
    assert only(parsed(container(1, state=state))).running is running


def test_each_attempt_of_a_restarted_container_is_listed() -> None:
    found = parsed(container(1, state=EXITED, name="main"), container(2, name="main"))
    assert {id_: known.running for id_, known in found.known.items()} == {container_id(1): False, container_id(2): True}


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "user_image", "name"),
    [
        ("docker.io/library/busybox:latest", "", "docker.io/library/busybox:latest"),
        (DIGEST, "registry.example/app:2", "registry.example/app:2"),
        (DIGEST, "", None),
        ("0" * 64, "", None),
        ("", "", None),
        (f"registry.example/app@{DIGEST}", "", f"registry.example/app@{DIGEST}"),
    ],
)
def test_an_image_has_the_name_in_the_pod_and_a_digest_is_not_a_name(
    image: str, user_image: str, name: str | None
) -> None:
    assert only(parsed(container(1, image=image, user_image=user_image))).names.image == name


def test_configured_labels_are_read() -> None:
    labelled = container(1, labels={"team": "vision", "secret": "x", "app": "train"})
    assert only(parsed(labelled, labels=("team", "app", "absent"))).names.extra == (
        ("container.label.app", "train"),
        ("container.label.team", "vision"),
    )


def test_the_same_containers_in_another_order_give_the_same_object() -> None:
    containers = [container(number) for number in range(500)]
    first = parsed(*containers)
    for each in containers:  # Go's maps have no order either
        labels = list(each.labels)
        del each.labels[:]
        each.labels.extend(reversed(labels))
    assert parsed(*reversed(containers), before=first) is first


def test_a_change_of_state_leaves_other_containers_the_same_objects() -> None:
    first = parsed(container(1), container(2))
    second = parsed(container(1, state=EXITED), container(2), before=first)
    assert second is not first
    assert not second.known[container_id(1)].running
    assert second.known[container_id(2)] is first.known[container_id(2)]


def test_a_removed_container_is_dropped() -> None:
    first = parsed(container(1), container(2))
    assert set(parsed(container(2), before=first).known) == {container_id(2)}
    assert not parsed(before=first).known


@pytest.mark.parametrize("name", ['"quoted"', "new\nline", "🚀", "<script>alert(1)</script>", "\u202egnp.exe"])
def test_names_may_have_any_characters(name: str) -> None:
    found = parsed(container(1, name=name))
    assert only(found).names.container == name
    assert not found.problems


def test_a_long_label_is_cut_and_reported_while_its_container_exists() -> None:
    long = container(1, labels={"notes": "x" * 10_240})
    first = parsed(long, labels=("notes",))
    [(_, text)] = only(first).names.extra
    assert len(text) == 1_024
    [problem] = first.problems.values()
    assert (
        problem == "container 000000000000…: its label notes has 10,240 characters; only the first 1,024 are exported"
    )
    second = parsed(long, container(2), before=first, labels=("notes",))
    assert dict(second.problems) == dict(first.problems)
    assert not parsed(container(2), before=second, labels=("notes",)).problems


def test_invalid_text_does_not_lose_a_container() -> None:
    broken = container(1, pod=None)
    broken.labels.append(Label(key=b"io.kubernetes.pod.name", value=b"caf\xe9"))
    found = parsed(broken, container(2))
    assert found.known[container_id(1)].names.pod == "caf\ufffd"
    assert found.known[container_id(2)].names.pod == "train-0"
    assert "not valid UTF-8" in found.problems[container_id(1)]


def test_a_problem_is_one_line_for_any_id() -> None:
    broken = container(1, pod=None)
    broken.id = b"a\nlevel=error msg=forged"
    broken.labels.append(Label(key=b"io.kubernetes.pod.name", value=b"caf\xe9"))
    [problem] = parsed(broken).problems.values()
    assert problem.startswith("container 'a\\nlevel=er…: its pod is not valid UTF-8")
    assert problem.isprintable()


def test_a_container_without_an_id_is_skipped() -> None:
    assert not parsed(Container(state=RUNNING)).known


def test_the_runtimes_name_is_read() -> None:
    assert parse_runtime(VersionResponse(runtime_name=b"cri-o")) == "cri-o"
    assert parse_runtime(VersionResponse()) is None


texts = st.one_of(st.binary(max_size=20), st.sampled_from([b"io.kubernetes.pod.name", b"io.kubernetes.pod.uid", b"a"]))
containers = st.builds(
    Container,
    id=texts,
    state=st.integers(-(2**31), 2**31 - 1),
    created_at=st.integers(-(2**63), 2**63 - 1),
    labels=st.lists(st.builds(Label, key=texts, value=texts), max_size=4),
)


@many
@given(st.lists(containers, max_size=5), st.lists(containers, max_size=5))
def test_any_list_is_parsed(one: list[Container], other: list[Container]) -> None:
    first = parsed(*one, labels=("a",))
    second = parsed(*other, before=first, labels=("a",))
    assert set(second.known) == {each.id.decode("utf-8", "replace") for each in other if each.id}
    assert second.problems.keys() <= second.known.keys()
    for id_, known in second.known.items():
        assert known.ref.id == id_
        assert known.since_s is None or known.since_s > 0.0


@many
@given(st.binary(max_size=200))
def test_any_decodable_bytes_are_parsed(raw: bytes) -> None:
    try:
        answer = ListContainersResponse.FromString(raw)
    except DecodeError:
        return
    assert len(parse_containers(answer).known) <= len(answer.containers)
