"""What a kubelet gave to whom, over a real socket."""

from __future__ import annotations

import time

import grpc

from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim, PodContainer
from otel_gpu.sources.names.podresources import source as pod_resources
from otel_gpu.sources.names.podresources.source import PodResourcesSource
from tests.kubelet_servers import Kubelet, container_id, devices, given, pod, pod_uid
from tests.unit.sources.names.waiting import our_threads, reading, soon, until

GPU = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
MIG = "MIG-7c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
TRAIN = PodContainer("team-a", "train-0", "main")


def source(kubelet: Kubelet, *, poll_s: float = 0.05, timeout_s: float = 5.0) -> PodResourcesSource:
    return PodResourcesSource(str(kubelet.path), clock=SystemClock(), poll_s=poll_s, timeout_s=timeout_s)


def test_what_was_given_is_known_by_pod_and_container(kubelet: Kubelet) -> None:
    kubelet.pods = [
        pod("train-0", given("main", devices("nvidia.com/gpu", GPU)), given("sidecar")),
        pod("infer-0", given("main", devices("nvidia.com/mig-1g.10gb", MIG)), namespace="team-b"),
        pod("web-0", given("main", devices("amd.com/gpu", "0000:03:00.0"))),
    ]
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: bool(answer.pods))
        assert set(gave.granted()) == set(answer.pods)
    assert dict(answer.pods) == {TRAIN: (Claim(GPU),), PodContainer("team-b", "infer-0", "main"): (Claim(MIG),)}
    assert (answer.state, answer.reason, answer.pending) == (SourceState.OK, None, frozenset())


def test_time_slicing_is_divided_by_what_is_allocatable(kubelet: Kubelet) -> None:
    kubelet.allocatable = [devices("nvidia.com/gpu.shared", *(f"{GPU}::{number}" for number in range(4)))]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu.shared", f"{GPU}::2")))]
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: bool(answer.pods))
    assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=4),)}
    assert answer.state is SourceState.OK
    assert kubelet.calls["GetAllocatableResources"] == 1


def test_a_kubelet_that_does_not_tell_what_is_allocatable_leaves_the_division_unknown(kubelet: Kubelet) -> None:
    del kubelet.answers["GetAllocatableResources"]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", f"{GPU}::2")))]
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: bool(answer.pods) and answer.state is SourceState.DEGRADED)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=0),)}
        assert answer.reason == (
            f"the number of replicas of {GPU} is unknown: {kubelet.path}: the server does not implement "
            "GetAllocatableResources of v1.PodResourcesLister"
        )
        assert answer.errors == 1
        soon(lambda: kubelet.calls["List"] >= 4)
        assert gave.read({}).errors == 0


def test_a_kubelet_that_refuses_to_tell_what_is_allocatable_is_asked_again_later(kubelet: Kubelet) -> None:
    allocatable = kubelet.answers["GetAllocatableResources"]
    kubelet.answers["GetAllocatableResources"] = kubelet.refuse(grpc.StatusCode.UNKNOWN, "disabled")
    kubelet.allocatable = [devices("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1")]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", f"{GPU}::0")))]
    clock = ManualClock()
    with reading(PodResourcesSource(str(kubelet.path), clock=clock, poll_s=0.05)) as gave:
        until(gave, lambda answer: answer.state is SourceState.DEGRADED)
        kubelet.answers["GetAllocatableResources"] = allocatable
        soon(lambda: kubelet.calls["List"] >= 4)
        assert kubelet.calls["GetAllocatableResources"] == 1
        clock.advance(pod_resources.ALLOCATABLE_SOON_S)
        answer = until(gave, lambda answer: answer.state is SourceState.OK)
    assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=2),)}


def test_without_shared_devices_a_refusal_is_no_problem(kubelet: Kubelet) -> None:
    kubelet.answers["GetAllocatableResources"] = kubelet.refuse(grpc.StatusCode.UNKNOWN, "disabled")
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
    with reading(source(kubelet)) as gave:
        assert until(gave, lambda answer: bool(answer.pods)).state is SourceState.OK


def test_an_unknown_form_of_id_is_an_error_once_and_the_rest_is_told(kubelet: Kubelet) -> None:
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU, "tegra")))]
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: answer.state is SourceState.DEGRADED)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU),)}
        assert answer.errors == 1
        kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
        until(gave, lambda answer: answer.state is SourceState.OK)


def test_lists_without_news_leave_the_same_object(kubelet: Kubelet) -> None:
    kubelet.pods = [pod(f"pod-{n}", given("main", devices("nvidia.com/gpu", f"{GPU}::{n}"))) for n in range(500)]
    with reading(source(kubelet)) as gave:
        first = until(gave, lambda answer: len(answer.pods) == 500)
        kubelet.pods.reverse()
        lists, holders = kubelet.calls["List"], gave.granted()
        soon(lambda: kubelet.calls["List"] >= lists + 3)
        assert gave.read({}).pods is first.pods
        assert gave.granted() is holders


def test_a_pod_that_is_new_on_a_gpu_is_looked_up_at_once(kubelet: Kubelet) -> None:
    with reading(source(kubelet, poll_s=600.0)) as gave:
        until(gave, lambda _: kubelet.calls["List"] == 1)
        kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
        ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(1), pod_uid=pod_uid(1))
        soon(lambda: bool(gave.read({ref: [1]}).pods))
    assert kubelet.calls["List"] == 2


def test_a_pod_that_is_listed_twice_is_an_error_once_and_its_gpus_are_possible_until_one_is_left(
    kubelet: Kubelet,
) -> None:
    ended, successor = (pod("train-0", given("main", devices("nvidia.com/gpu", id_))) for id_ in (GPU, MIG))
    kubelet.pods = [ended, successor]
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: bool(answer.pods) and answer.reason is not None)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU, possible=True), Claim(MIG, possible=True))}
        assert (answer.state, answer.errors) == (SourceState.DEGRADED, 1)
        kubelet.pods = [successor]
        answer = until(gave, lambda answer: answer.state is SourceState.OK)
        assert dict(answer.pods) == {TRAIN: (Claim(MIG),)}
        assert answer.errors == 0


def test_a_kubelet_that_is_restarted_is_found_again_and_what_it_gave_stands(kubelet: Kubelet) -> None:
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
    with reading(source(kubelet)) as gave:
        first = until(gave, lambda answer: bool(answer.pods))
        kubelet.stop()
        lost = until(gave, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert lost.pods is first.pods
        kubelet.start()
        back = until(gave, lambda answer: answer.state is SourceState.OK)
        assert back.pods is first.pods
        assert our_threads("pod-resources") == 1
    assert our_threads("pod-resources") == 0


def test_a_kubelet_that_hangs_is_unavailable_and_closing_does_not_wait_for_it(kubelet: Kubelet) -> None:
    kubelet.answers["List"] = kubelet.hang
    gave = source(kubelet, timeout_s=0.2)
    answer = until(gave, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == f"{kubelet.path}: no answer to List within 0.2 s"
    started_s = time.monotonic()
    gave.close()
    assert time.monotonic() - started_s < 5.0
    soon(lambda: our_threads("pod-resources") == 0)


def test_another_service_on_the_socket_is_said(kubelet: Kubelet) -> None:
    kubelet.answers.clear()
    with reading(source(kubelet)) as gave:
        answer = until(gave, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == f"{kubelet.path}: the server does not implement List of v1.PodResourcesLister"
