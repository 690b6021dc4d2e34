"""Names from a container runtime over a real socket, and the parser of its list."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import HOST_WORKLOAD, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import PodContainer, WorkloadInfo
from otel_gpu.sources.names import cri
from otel_gpu.sources.names.cri import NO_CONTAINERS, Containers, CriSource, parse_containers, parse_runtime
from otel_gpu.sources.names.proto.cri_pb2 import Container, Label, ListContainersResponse, VersionResponse
from tests.kubelet_servers import ENDED, EXITED, RUNNING, Runtime, container, container_id, listing, pod_uid
from tests.unit.sources.names.waiting import our_threads, reading, sockets_to, until
from tests.waiting import until as soon


def source(runtime: Runtime, *, relist_s: float = 60.0, timeout_s: float = 5.0) -> CriSource:
    return CriSource(str(runtime.path), clock=SystemClock(), relist_s=relist_s, timeout_s=timeout_s)


def on_gpu(*numbers: int) -> dict[WorkloadRef, list[int]]:
    return {WorkloadRef(WorkloadKind.CONTAINER, container_id(number)): [number] for number in numbers}


def test_the_first_list_has_all_containers(runtime: Runtime) -> None:
    runtime.containers = [container(1, name="worker"), container(2, state=EXITED)]
    with reading(source(runtime)) as names:
        first = names.read(on_gpu(1))
        assert first.pending in (frozenset({container_id(1)}), frozenset())
        assert names.wait(10.0)
        answer = names.read(on_gpu(1))
    assert answer.state is SourceState.OK
    assert answer.pending == frozenset()
    assert answer.known[container_id(1)].names.container == "worker"
    assert answer.known[container_id(1)].names.runtime == "containerd"
    assert not answer.known[container_id(2)].running


def test_no_call_is_made_while_all_containers_are_known(runtime: Runtime) -> None:
    runtime.containers = [container(number) for number in range(500)]
    with reading(source(runtime)) as names:
        first = until(names, lambda answer: len(answer.known) == 500)
        for _ in range(50):
            answer = names.read(on_gpu(*range(500)))
            assert answer.known is first.known
            assert answer.pending == frozenset()
    assert dict(runtime.calls) == {"Version": 1, "ListContainers": 1}


def test_a_list_without_changes_publishes_the_same_object(runtime: Runtime) -> None:
    runtime.containers = [container(number) for number in range(500)]
    with reading(source(runtime, relist_s=0.01)) as names:
        first = until(names, lambda answer: len(answer.known) == 500)
        runtime.containers.reverse()
        soon(lambda: runtime.calls["ListContainers"] >= 4)
        assert names.read({}).known is first.known


def test_an_unknown_container_starts_a_list_and_is_pending_until_then(runtime: Runtime) -> None:
    with reading(source(runtime)) as names:
        until(names, lambda _: runtime.calls["ListContainers"] == 1)
        runtime.containers = [container(7)]
        deadline_s = time.monotonic() + 10.0
        while container_id(7) not in (answer := names.read(on_gpu(7))).known:
            assert answer.pending == frozenset({container_id(7)})
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert answer.pending == frozenset()
    assert runtime.calls["ListContainers"] == 2


def test_a_container_that_the_runtime_does_not_have_is_looked_up_once(runtime: Runtime) -> None:
    runtime.containers = [container(1)]
    with reading(source(runtime)) as names:
        until(names, lambda answer: bool(answer.known))
        soon(lambda: names.read(on_gpu(1, 8)).pending == frozenset())
        for _ in range(130):  # longer than a pause between two lists
            assert names.read(on_gpu(1, 8)).pending == frozenset()
            time.sleep(0.01)
        assert runtime.calls["ListContainers"] == 2
        assert names.read(on_gpu(1, 8, 9)).pending == frozenset({container_id(9)})


def test_jobs_and_the_host_are_not_looked_up(runtime: Runtime) -> None:
    with reading(source(runtime)) as names:
        until(names, lambda _: runtime.calls["ListContainers"] == 1)
        jobs = {HOST_WORKLOAD: [1], WorkloadRef(WorkloadKind.SLURM_JOB, "7"): [2]}
        assert names.read(jobs).pending == frozenset()


def test_a_later_list_shows_ended_and_removed_containers(runtime: Runtime) -> None:
    runtime.containers = [container(1), container(2)]
    with reading(source(runtime, relist_s=0.05)) as names:
        until(names, lambda answer: len(answer.known) == 2)
        runtime.containers = [container(1, state=EXITED), container(2)]
        until(names, lambda answer: not answer.known[container_id(1)].running)
        runtime.containers = [container(2)]
        until(names, lambda answer: set(answer.known) == {container_id(2)})


def test_lists_are_frequent_until_a_container_with_a_grant_exists(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.05)
    expected: list[frozenset[PodContainer]] = [frozenset()]
    with reading(CriSource(str(runtime.path), clock=SystemClock(), expected=lambda: expected[0])) as names:
        until(names, lambda _: runtime.calls["ListContainers"] == 1)
        expected[0] = frozenset({PodContainer("team-a", "train-0", "main-1")})
        until(names, lambda _: runtime.calls["ListContainers"] >= 3)
        runtime.containers = [container(1)]
        until(names, lambda answer: container_id(1) in answer.known)
        lists = runtime.calls["ListContainers"]
        time.sleep(0.3)
        assert runtime.calls["ListContainers"] == lists


def test_lists_are_frequent_until_a_container_with_a_grant_is_restarted(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.05)
    runtime.containers = [container(1, name="main", state=EXITED)]
    expected = frozenset({PodContainer("team-a", "train-0", "main")})
    with reading(CriSource(str(runtime.path), clock=SystemClock(), expected=lambda: expected)) as names:
        until(names, lambda answer: container_id(1) in answer.known)
        runtime.containers.append(container(2, name="main"))
        until(names, lambda answer: container_id(2) in answer.known)


@pytest.mark.parametrize("successor", [(), (container(2, name="main"),)], ids=["ends", "is restarted"])
def test_the_end_of_a_container_with_a_grant_is_noticed_before_the_next_list(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, successor: tuple[Container, ...]
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.05)
    monkeypatch.setattr(cri, "EXITED_S", 0.05)
    runtime.containers = [container(1, name="main")]
    expected = frozenset({PodContainer("team-a", "train-0", "main")})
    with reading(CriSource(str(runtime.path), clock=SystemClock(), expected=lambda: expected)) as names:
        until(names, lambda answer: container_id(1) in answer.known)
        soon(lambda: runtime.calls[ENDED] >= 2)
        assert runtime.calls["ListContainers"] == 1
        runtime.containers = [container(1, name="main", state=EXITED), *successor]
        answer = until(names, lambda answer: not answer.known[container_id(1)].running)
        assert {id_ for id_, known in answer.known.items() if known.running} == (
            {container_id(2)} if successor else set()
        )


def test_the_end_of_a_container_without_a_grant_starts_no_list(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.02)
    monkeypatch.setattr(cri, "EXITED_S", 0.02)
    runtime.containers = [container(1, name="main"), container(2, name="web"), container(3, name="old", state=EXITED)]
    expected: list[frozenset[PodContainer]] = [frozenset()]
    with reading(CriSource(str(runtime.path), clock=SystemClock(), expected=lambda: expected[0])) as names:
        until(names, lambda answer: len(answer.known) == 3)
        time.sleep(0.2)
        assert runtime.calls[ENDED] == 0
        expected[0] = frozenset({PodContainer("team-a", "train-0", "main")})
        runtime.containers[1] = container(2, name="web", state=EXITED)
        soon(lambda: runtime.calls[ENDED] >= 3)
        assert runtime.calls["ListContainers"] == 1


def test_the_pause_before_the_next_list_is_bounded_for_a_container_that_does_not_start(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.01)
    monkeypatch.setattr(cri, "MAX_EXPECTED_S", 0.05)
    expected = frozenset({PodContainer("team-a", "train-0", "main")})
    with reading(CriSource(str(runtime.path), clock=SystemClock(), expected=lambda: expected)) as names:
        until(names, lambda _: runtime.calls["ListContainers"] >= 10)  # doubled each time, they would take 5 s


def test_a_cut_text_is_one_error_and_the_state_persists(runtime: Runtime) -> None:
    runtime.containers = [container(1, name="x" * 5_000), container(2, name="y" * 5_000)]
    with reading(source(runtime, relist_s=0.01)) as names:
        first = until(names, lambda answer: answer.state is SourceState.DEGRADED)
        assert first.errors == 2
        assert first.reason is not None
        assert first.reason.endswith("its name has 5,000 bytes; only the first 253 are exported (and 1 more)")
        soon(lambda: runtime.calls["ListContainers"] >= 4)
        again = names.read({})
        assert (again.state, again.reason, again.errors) == (first.state, first.reason, 0)
        runtime.containers = [container(3)]
        until(names, lambda answer: answer.state is SourceState.OK)


# ---------------------------------------------------------------------------- faults


def test_names_persist_while_a_runtime_restarts(runtime: Runtime) -> None:
    runtime.containers = [container(1)]
    with reading(source(runtime, relist_s=0.05)) as names:
        first = until(names, lambda answer: container_id(1) in answer.known)
        runtime.stop()
        lost = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert lost.known is first.known
        assert names.read(on_gpu(1, 2)).pending == frozenset()
        runtime.containers = [container(1), container(2)]
        runtime.start()
        back = until(names, lambda answer: container_id(2) in answer.known)
        assert back.state is SourceState.OK
        assert back.known[container_id(1)] is first.known[container_id(1)]
        assert our_threads("cri") == 1
    assert our_threads("cri") == 0


def test_another_runtime_on_the_socket_replaces_the_names(runtime: Runtime, directory: Path) -> None:
    runtime.containers = [container(1)]
    with reading(source(runtime, relist_s=0.05)) as names:
        until(names, lambda answer: container_id(1) in answer.known)
        runtime.stop()
        until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
        other = Runtime(runtime.path, name=b"cri-o")
        other.start()
        until(names, lambda answer: not answer.known)
        other.containers = [container(2)]
        answer = until(names, lambda answer: container_id(2) in answer.known)
        assert answer.known[container_id(2)].names.runtime == "cri-o"
        other.stop()


def test_nothing_is_pending_while_a_runtime_hangs(runtime: Runtime) -> None:
    runtime.answers["ListContainers"] = runtime.hang
    with reading(source(runtime, timeout_s=0.2)) as names:
        assert names.read(on_gpu(1)).pending == frozenset({container_id(1)})
        answer = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert answer.reason == f"{runtime.path}: no answer to ListContainers within 0.2 s"
        assert names.read(on_gpu(1)).pending == frozenset()


def test_close_is_quick_while_a_runtime_hangs(runtime: Runtime) -> None:
    runtime.answers["ListContainers"] = runtime.hang
    names = source(runtime, timeout_s=30.0)
    names.read({})
    soon(lambda: runtime.calls["ListContainers"] == 1)
    started_s = time.monotonic()
    names.close()
    assert time.monotonic() - started_s < 5.0  # the call itself would take 30 s
    soon(lambda: our_threads("cri") == 0)


def test_names_persist_after_a_truncated_answer(runtime: Runtime) -> None:
    runtime.containers = [container(1)]
    with reading(source(runtime, relist_s=0.05)) as names:
        until(names, lambda answer: container_id(1) in answer.known)
        whole = ListContainersResponse(containers=[container(1)]).SerializeToString()
        runtime.answers["ListContainers"] = lambda: whole[:-5]
        answer = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert answer.reason == (
            f"{runtime.path}: cannot decode the answer to ListContainers ({len(whole) - 5:,} bytes)"
        )
        assert container_id(1) in answer.known
        runtime.answers["ListContainers"] = lambda: whole
        until(names, lambda answer: answer.state is SourceState.OK)


def test_the_reason_for_a_containerd_without_cri_has_the_fix(runtime: Runtime) -> None:
    runtime.answers.clear()
    with reading(source(runtime)) as names:
        answer = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == (
        f"{runtime.path}: the server does not implement Version of runtime.v1.RuntimeService; "
        "for containerd: remove cri from disabled_plugins in config.toml"
    )


def test_no_connection_is_open_between_lists(runtime: Runtime) -> None:
    with reading(source(runtime)) as names:
        until(names, lambda _: runtime.calls["ListContainers"] == 1)
        soon(lambda: sockets_to(runtime.path) == 1)


def test_an_answer_over_four_megabytes_is_used(runtime: Runtime) -> None:
    runtime.containers = [container(number, labels={"notes": "x" * 20_000}) for number in range(400)]
    with reading(source(runtime)) as names:
        answer = until(names, lambda answer: len(answer.known) == 400)
    assert answer.state is SourceState.OK


def test_a_directory_in_place_of_the_socket_is_a_reason(directory: Path) -> None:
    with reading(CriSource(str(directory), clock=SystemClock())) as names:
        answer = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == (f"{directory}: is a directory, not a socket: a mount created it while there was no socket")


# ---------------------------------------------------------------------------- the list of containers


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


@pytest.mark.parametrize("created_at", [0, -5])
def test_a_container_without_a_start_has_none(created_at: int) -> None:
    assert only(parsed(Container(id=b"x", created_at=created_at))).since_s is None


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
    assert text == "x" * 125 + "…"
    [problem] = first.problems.values()
    assert problem == "container 000000000000…: its label notes has 10,240 bytes; only the first 125 are exported"
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
    assert problem.startswith("container a level=erro…: its pod is not valid UTF-8")
    assert problem.isprintable()


def test_a_container_without_an_id_is_skipped() -> None:
    assert not parsed(Container(state=RUNNING)).known


def test_the_runtimes_name_is_read() -> None:
    assert parse_runtime(VersionResponse(runtime_name=b"cri-o")) == "cri-o"
    assert parse_runtime(VersionResponse()) is None
