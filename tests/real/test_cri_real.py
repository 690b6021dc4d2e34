"""Names from a real containerd of real pods, in cgroups as a kubelet creates them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.names import cri
from otel_gpu.sources.names.cri import CriSource
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.real.containerd import IMAGE, Containerd, Pod, containerd, pids_of
from tests.unit.sources.names.waiting import reading, until
from tests.waiting import until as soon

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    with containerd() as started:
        yield started


def source(runtime: Containerd, relist_s: float = 60.0) -> CriSource:
    return CriSource(f"unix://{runtime.socket}", clock=SystemClock(), relist_s=relist_s, labels=["team"])


def named(answer: NameRead, container_id: str) -> tuple[str | None, ...]:
    names = answer.known[container_id].names
    return names.namespace, names.pod, names.container, names.pod_uid, names.image, names.runtime


def cgroup_of(container_id: str) -> WorkloadRef | None:
    [pid] = pids_of(container_id)
    return parse_cgroup(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))


def test_names_are_those_of_containerd_and_ids_those_of_the_kernel(runtime: Containerd) -> None:
    pods = [runtime.run_pod("train-0", "team-a"), runtime.run_pod('odd "pod" 🚀\n', "team-b")]
    started: dict[str, tuple[Pod, str]] = {}
    for pod in pods:
        for name in ("main", "side<car>"):
            started[runtime.run_container(pod, name, labels={"team": f"of {name}"})] = (pod, name)
    with reading(source(runtime)) as names:
        answer = until(names, lambda answer: len(answer.known) == 4)
    assert (answer.state, answer.reason) == (SourceState.OK, None)
    for container_id, (pod, name) in started.items():
        assert named(answer, container_id) == (pod.namespace, pod.name, name, pod.uid, IMAGE, "containerd")
        known: WorkloadInfo = answer.known[container_id]
        assert known.running
        assert known.since_s is not None
        assert known.names.extra == (("container.label.team", f"of {name}"),)
        in_kernel = cgroup_of(container_id)
        assert in_kernel is not None
        assert (in_kernel.kind, in_kernel.id, in_kernel.pod_uid) == (WorkloadKind.CONTAINER, known.ref.id, pod.uid)
        assert known.ref.pod_uid == pod.uid
    for pod in pods:
        runtime.remove_pod(pod)


def test_a_container_that_starts_ends_and_is_removed_is_followed(runtime: Containerd) -> None:
    pod = runtime.run_pod("infer-0", "team-a")
    first = runtime.run_container(pod, "main")
    with reading(source(runtime)) as names:
        until(names, lambda answer: first in answer.known)
        second = runtime.run_container(pod, "late")
        on_gpu = {parse_cgroup_of(second): pids_of(second)}
        soon(lambda: second in names.read(on_gpu).known)
        assert names.read(on_gpu).pending == frozenset()
    with reading(source(runtime, relist_s=0.1)) as names:
        until(names, lambda answer: {first, second} <= answer.known.keys())
        runtime.stop_container(first)
        until(names, lambda answer: not answer.known[first].running)
        runtime.remove_container(first)
        until(names, lambda answer: answer.known.keys() == {second})
    runtime.remove_pod(pod)


def test_a_restarted_container_with_a_gpu_is_found_before_the_next_list(
    runtime: Containerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.2)
    monkeypatch.setattr(cri, "EXITED_S", 0.2)
    pod = runtime.run_pod("train-1", "team-a")
    first = runtime.run_container(pod, "main")
    expected = frozenset({PodContainer("team-a", "train-1", "main")})
    names = CriSource(str(runtime.socket), clock=SystemClock(), relist_s=600.0, expected=lambda: expected)
    with reading(names):
        until(names, lambda answer: first in answer.known)
        runtime.stop_container(first)
        until(names, lambda answer: not answer.known[first].running)
        second = runtime.run_container(pod, "main", attempt=1)
        # A list between its creation and its start has it, and it does not run yet.
        answer = until(names, lambda answer: second in answer.known and answer.known[second].running)
        assert not answer.known[first].running
    runtime.remove_pod(pod)


def parse_cgroup_of(container_id: str) -> WorkloadRef:
    found = cgroup_of(container_id)
    assert found is not None
    return found


def test_an_unchanged_list_is_the_same_object_although_containerd_reorders_it(runtime: Containerd) -> None:
    pod = runtime.run_pod("many-0", "team-a")
    ids = {runtime.run_container(pod, f"c{number}") for number in range(3)}
    with reading(source(runtime, relist_s=0.05)) as names:
        first = until(names, lambda answer: answer.known.keys() == ids)
        answers = {runtime.call("ListContainers", {}) for _ in range(50)}
        assert names.read({}).known is first.known
    assert len(answers) > 1
    runtime.remove_pod(pod)


def test_names_continue_after_a_restart_of_containerd(runtime: Containerd) -> None:
    pod = runtime.run_pod("stays-0", "team-a")
    container_id = runtime.run_container(pod, "main")
    with reading(source(runtime, relist_s=0.1)) as names:
        first = until(names, lambda answer: container_id in answer.known)
        runtime.stop()
        lost = until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert lost.known is first.known
        assert str(runtime.socket) in (lost.reason or "")
        runtime.start()
        back = until(names, lambda answer: answer.state is SourceState.OK)
        assert back.known is first.known
        late = runtime.run_container(pod, "late")
        until(names, lambda answer: late in answer.known)
    runtime.remove_pod(pod)
