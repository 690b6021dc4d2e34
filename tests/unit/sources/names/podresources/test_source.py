"""Grants of a kubelet, over a real socket."""

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


def test_claims_are_known_by_pod_and_container_name(kubelet: Kubelet) -> None:
    kubelet.pods = [
        pod("train-0", given("main", devices("nvidia.com/gpu", GPU)), given("sidecar")),
        pod("infer-0", given("main", devices("nvidia.com/mig-1g.10gb", MIG)), namespace="team-b"),
        pod("web-0", given("main", devices("amd.com/gpu", "0000:03:00.0"))),
    ]
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: bool(answer.pods))
        assert set(kubelet_source.granted()) == set(answer.pods)
    assert dict(answer.pods) == {TRAIN: (Claim(GPU),), PodContainer("team-b", "infer-0", "main"): (Claim(MIG),)}
    assert (answer.state, answer.reason, answer.pending) == (SourceState.OK, None, frozenset())


def test_time_slicing_counts_the_allocatable_replicas(kubelet: Kubelet) -> None:
    kubelet.allocatable = [devices("nvidia.com/gpu.shared", *(f"{GPU}::{number}" for number in range(4)))]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu.shared", f"{GPU}::2")))]
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: bool(answer.pods))
    assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=4),)}
    assert answer.state is SourceState.OK
    assert kubelet.calls["GetAllocatableResources"] == 1


def test_replicas_are_unknown_without_allocatable_devices(kubelet: Kubelet) -> None:
    del kubelet.answers["GetAllocatableResources"]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", f"{GPU}::2")))]
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: bool(answer.pods) and answer.state is SourceState.DEGRADED)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=0),)}
        assert answer.reason == (
            f"the number of replicas of {GPU} is unknown: {kubelet.path}: the server does not implement "
            "GetAllocatableResources of v1.PodResourcesLister"
        )
        assert answer.errors == 1
        soon(lambda: kubelet.calls["List"] >= 4)
        assert kubelet_source.read({}).errors == 0


def test_a_refused_query_for_replicas_is_repeated_later(kubelet: Kubelet) -> None:
    allocatable = kubelet.answers["GetAllocatableResources"]
    kubelet.answers["GetAllocatableResources"] = kubelet.refuse(grpc.StatusCode.UNKNOWN, "disabled")
    kubelet.allocatable = [devices("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1")]
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", f"{GPU}::0")))]
    clock = ManualClock()
    with reading(PodResourcesSource(str(kubelet.path), clock=clock, poll_s=0.05)) as kubelet_source:
        until(kubelet_source, lambda answer: answer.state is SourceState.DEGRADED)
        kubelet.answers["GetAllocatableResources"] = allocatable
        soon(lambda: kubelet.calls["List"] >= 4)
        assert kubelet.calls["GetAllocatableResources"] == 1
        clock.advance(pod_resources.ALLOCATABLE_SOON_S)
        answer = until(kubelet_source, lambda answer: answer.state is SourceState.OK)
    assert dict(answer.pods) == {TRAIN: (Claim(GPU, replicas=2),)}


def test_without_shared_devices_a_refusal_is_not_a_problem(kubelet: Kubelet) -> None:
    kubelet.answers["GetAllocatableResources"] = kubelet.refuse(grpc.StatusCode.UNKNOWN, "disabled")
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
    with reading(source(kubelet)) as kubelet_source:
        assert until(kubelet_source, lambda answer: bool(answer.pods)).state is SourceState.OK


def test_an_unknown_id_is_one_error_and_other_claims_are_known(kubelet: Kubelet) -> None:
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU, "tegra")))]
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: answer.state is SourceState.DEGRADED)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU),)}
        assert answer.errors == 1
        kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
        until(kubelet_source, lambda answer: answer.state is SourceState.OK)


def test_lists_without_changes_publish_the_same_object(kubelet: Kubelet) -> None:
    kubelet.pods = [pod(f"pod-{n}", given("main", devices("nvidia.com/gpu", f"{GPU}::{n}"))) for n in range(500)]
    with reading(source(kubelet)) as kubelet_source:
        first = until(kubelet_source, lambda answer: len(answer.pods) == 500)
        kubelet.pods.reverse()
        lists, holders = kubelet.calls["List"], kubelet_source.granted()
        soon(lambda: kubelet.calls["List"] >= lists + 3)
        assert kubelet_source.read({}).pods is first.pods
        assert kubelet_source.granted() is holders


def test_a_new_pod_on_a_gpu_starts_a_list(kubelet: Kubelet) -> None:
    with reading(source(kubelet, poll_s=600.0)) as kubelet_source:
        until(kubelet_source, lambda _: kubelet.calls["List"] == 1)
        kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
        ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(1), pod_uid=pod_uid(1))
        soon(lambda: bool(kubelet_source.read({ref: [1]}).pods))
    assert kubelet.calls["List"] == 2


def test_a_pod_that_is_listed_twice_is_one_error_and_its_claims_are_possible(
    kubelet: Kubelet,
) -> None:
    ended, successor = (pod("train-0", given("main", devices("nvidia.com/gpu", id_))) for id_ in (GPU, MIG))
    kubelet.pods = [ended, successor]
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: bool(answer.pods) and answer.reason is not None)
        assert dict(answer.pods) == {TRAIN: (Claim(GPU, possible=True), Claim(MIG, possible=True))}
        assert (answer.state, answer.errors) == (SourceState.DEGRADED, 1)
        kubelet.pods = [successor]
        answer = until(kubelet_source, lambda answer: answer.state is SourceState.OK)
        assert dict(answer.pods) == {TRAIN: (Claim(MIG),)}
        assert answer.errors == 0


def test_claims_persist_while_the_kubelet_restarts(kubelet: Kubelet) -> None:
    kubelet.pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))]
    with reading(source(kubelet)) as kubelet_source:
        first = until(kubelet_source, lambda answer: bool(answer.pods))
        kubelet.stop()
        lost = until(kubelet_source, lambda answer: answer.state is SourceState.UNAVAILABLE)
        assert lost.pods is first.pods
        kubelet.start()
        back = until(kubelet_source, lambda answer: answer.state is SourceState.OK)
        assert back.pods is first.pods
        assert our_threads("pod-resources") == 1
    assert our_threads("pod-resources") == 0


def test_a_kubelet_that_hangs_is_unavailable_and_close_does_not_wait(kubelet: Kubelet) -> None:
    kubelet.answers["List"] = kubelet.hang
    kubelet_source = source(kubelet, timeout_s=0.2)
    answer = until(kubelet_source, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == f"{kubelet.path}: no answer to List within 0.2 s"
    started_s = time.monotonic()
    kubelet_source.close()
    assert time.monotonic() - started_s < 5.0
    soon(lambda: our_threads("pod-resources") == 0)


def test_another_service_on_the_socket_is_a_reason(kubelet: Kubelet) -> None:
    kubelet.answers.clear()
    with reading(source(kubelet)) as kubelet_source:
        answer = until(kubelet_source, lambda answer: answer.state is SourceState.UNAVAILABLE)
    assert answer.reason == f"{kubelet.path}: the server does not implement List of v1.PodResourcesLister"
