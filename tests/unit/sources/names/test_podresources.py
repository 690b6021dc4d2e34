"""Grants of a kubelet over a real socket, and claims from its device ids."""

from __future__ import annotations

import random
import time

import grpc
import pytest

from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim, PodContainer
from otel_gpu.sources.names import podresources as pod_resources
from otel_gpu.sources.names.podresources import (
    REPLICAS_UNKNOWN,
    PodGrants,
    PodResourcesSource,
    parse_pods,
    parse_replicas,
)
from otel_gpu.sources.names.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    CdiDevice,
    ClaimResource,
    ContainerDevices,
    DynamicResource,
)
from tests.kubelet_servers import Kubelet, container_id, devices, given, pod, pod_uid, pods_listing
from tests.unit.sources.names.waiting import our_threads, reading, until
from tests.waiting import until as soon

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


# ---------------------------------------------------------------------------- device ids


GPU = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
OTHER_GPU = "GPU-6c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
MIG = "MIG-7c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
WHERE = PodContainer("team-a", "train-0", "main")


def claims(*found: ContainerDevices, replicas: dict[str, int] | None = None) -> tuple[Claim, ...]:
    answer = pods_listing([pod("train-0", given("main", *found))])
    return parse_pods(answer, replicas or {}).claims.get(WHERE, ())


def dra(resource: ClaimResource) -> PodGrants:
    claim = DynamicResource(claim_name=b"one-gpu", claim_namespace=b"team-a", claim_resources=[resource])
    return parse_pods(pods_listing([pod("train-0", given("main", claims=[claim]))]), {})


@pytest.mark.parametrize(
    ("resource", "id_", "device"),
    [
        ("nvidia.com/gpu", GPU, GPU),
        ("nvidia.com/mig-1g.10gb", MIG, MIG),
        ("nvidia.com/gpu", f"MIG-{GPU}/1/0", f"MIG-{GPU}/1/0"),
        ("nvidia.com/gpu", "nvidia0", "nvidia0"),
        ("nvidia.com/gpu", "nvidia11/gi1", "nvidia11/gi1"),
        ("example.com/big-gpu", GPU, GPU),
    ],
)
def test_a_device_is_recognised_by_its_id_for_any_resource_name(resource: str, id_: str, device: str) -> None:
    assert claims(devices(resource, id_)) == (Claim(device),)


@pytest.mark.parametrize(
    ("id_", "device"),
    [
        (f"{GPU}::3", GPU),
        (f"{MIG}::0", MIG),
        (f"MIG-{GPU}/1/0::2", f"MIG-{GPU}/1/0"),
        ("nvidia0/vgpu1", "nvidia0"),
        ("nvidia0/gi2/vgpu1", "nvidia0/gi2"),
    ],
)
def test_a_replica_is_a_claim_to_its_device(id_: str, device: str) -> None:
    assert claims(devices("nvidia.com/gpu.shared", id_), replicas={device: 4}) == (Claim(device, replicas=4),)
    assert claims(devices("nvidia.com/gpu.shared", id_)) == (Claim(device, replicas=REPLICAS_UNKNOWN),)


def test_two_replicas_of_one_device_are_two_claims() -> None:
    found = claims(devices("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1"), replicas={GPU: 4})
    assert found == (Claim(GPU, replicas=4), Claim(GPU, replicas=4))


def test_replicas_are_counted_in_the_allocatable_devices() -> None:
    answer = AllocatableResourcesResponse(
        devices=[
            devices("nvidia.com/gpu.shared", *(f"{GPU}::{number}" for number in range(4))),
            devices("nvidia.com/gpu.shared", f"{GPU}::0", f"{OTHER_GPU}::0"),
            devices("nvidia.com/mig-1g.10gb", MIG),
            devices("amd.com/gpu", "0000:03:00.0"),
        ]
    )
    assert dict(parse_replicas(answer)) == {GPU: 4, OTHER_GPU: 1}


@pytest.mark.parametrize(
    ("resource", "id_"),
    [("amd.com/gpu", "0000:03:00.0"), ("gpu.intel.com/i915", "card0-0"), ("smarter-devices/fuse", "fuse0"), ("", "")],
)
def test_devices_of_other_vendors_are_skipped(resource: str, id_: str) -> None:
    found = parse_pods(pods_listing([pod("train-0", given("main", devices(resource, id_)))]), {})
    assert (dict(found.claims), found.problems) == ({}, ())


@pytest.mark.parametrize(
    ("resource", "id_"),
    [
        ("nvidia.com/gpu", f"{GPU}-3"),  # a scheduler that divides GPUs itself: it need not be that one
        ("example.com/vgpu", f"{GPU}-3"),
        ("nvidia.com/gpu", "tegra"),
        ("nvidia.com/mig-1g.10gb", ""),
        ("nvidia.com/gpu", "GPU-\x00\n"),
    ],
)
def test_an_unknown_form_of_nvidias_ids_is_a_problem_and_no_claim(resource: str, id_: str) -> None:
    found = parse_pods(pods_listing([pod("train-0", given("main", devices(resource, id_, GPU)))]), {})
    assert dict(found.claims) == {WHERE: (Claim(GPU),)}
    [problem] = found.problems
    assert problem == f"device {id_!r} of {resource!r}: its id does not identify a GPU"


def test_a_gpu_of_a_dra_claim_is_its_device_node() -> None:
    found = dra(
        ClaimResource(
            driver_name=b"gpu.nvidia.com",
            pool_name=b"node-1",
            device_name=b"gpu-3",
            cdi_devices=[CdiDevice(name=b"k8s.gpu.nvidia.com/claim=6f8a-gpu-3")],
        )
    )
    assert (dict(found.claims), found.problems) == ({WHERE: (Claim("nvidia3"),)}, ())


def test_a_uuid_in_a_cdi_name_is_used_for_any_driver() -> None:
    found = dra(
        ClaimResource(driver_name=b"gpu.example", cdi_devices=[CdiDevice(name=f"nvidia.com/gpu={GPU}".encode())])
    )
    assert dict(found.claims) == {WHERE: (Claim(GPU),)}


def test_a_mig_instance_of_a_dra_claim_is_a_problem() -> None:
    found = dra(ClaimResource(driver_name=b"gpu.nvidia.com", device_name=b"gpu-0-mig-1g5gb-19-0"))
    assert not found.claims
    [problem] = found.problems
    assert problem.startswith("device 'gpu-0-mig-1g5gb-19-0' of claim 'team-a/one-gpu': its name does not")


@pytest.mark.parametrize(
    ("driver", "device"),
    [(b"gpu.nvidia.com", b"gpu-vfio-0"), (b"compute-domain.nvidia.com", b"channel-0"), (b"gpu.amd.com", b"gpu-0")],
)
def test_devices_of_other_drivers_and_of_virtual_machines_are_skipped(driver: bytes, device: bytes) -> None:
    found = dra(ClaimResource(driver_name=driver, device_name=device))
    assert (dict(found.claims), found.problems) == ({}, ())


def test_the_same_pods_in_another_order_give_the_same_object() -> None:
    pods = [pod(f"pod-{n}", given("main", devices("nvidia.com/gpu", f"{GPU}::{n}"))) for n in range(500)]
    first = parse_pods(pods_listing(pods), {GPU: 500})
    random.Random(1).shuffle(pods)
    assert parse_pods(pods_listing(pods), {GPU: 500}, first) is first


def test_a_pod_without_a_gpu_does_not_change_the_claims() -> None:
    holder = pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))
    first = parse_pods(pods_listing([holder]), {})
    second = parse_pods(pods_listing([pod("web-0", given("main")), holder]), {}, first)
    assert second.claims is first.claims


def test_devices_in_another_order_give_the_same_claims() -> None:
    first = parse_pods(pods_listing([pod("a", given("main", devices("nvidia.com/gpu", GPU, OTHER_GPU)))]), {})
    second = parse_pods(pods_listing([pod("a", given("main", devices("nvidia.com/gpu", OTHER_GPU, GPU)))]), {}, first)
    assert second.claims is first.claims


def test_a_later_count_of_replicas_changes_the_claim() -> None:
    listed = pods_listing([pod("train-0", given("main", devices("nvidia.com/gpu", f"{GPU}::0")))])
    first = parse_pods(listed, {})
    assert first.with_unknown_replicas == (GPU,)
    second = parse_pods(listed, {GPU: 2}, first)
    assert dict(second.claims) == {WHERE: (Claim(GPU, replicas=2),)}
    assert second.with_unknown_replicas == ()


def test_an_undecodable_pod_does_not_lose_the_others() -> None:
    answer = pods_listing([pod("train-0", given("main", devices("nvidia.com/gpu", GPU)))])
    answer.pod_resources.append(b"\x0a\xff")
    found = parse_pods(answer, {})
    assert dict(found.claims) == {WHERE: (Claim(GPU),)}
    assert found.problems == ("cannot decode a pod in the kubelet's list (2 bytes)",)


def test_claims_of_two_pods_with_the_same_name_are_only_possible() -> None:
    pods = [pod("train-0", given("main", devices("nvidia.com/gpu", id_))) for id_ in (OTHER_GPU, GPU)]
    both = parse_pods(pods_listing(pods), {})
    assert dict(both.claims) == {WHERE: (Claim(GPU, possible=True), Claim(OTHER_GPU, possible=True))}
    [problem] = both.problems
    assert problem == ("'team-a/train-0/main' is listed twice with different devices; its current devices are unknown")
    one = parse_pods(pods_listing(pods[1:]), {}, both)
    assert (dict(one.claims), one.problems) == ({WHERE: (Claim(GPU),)}, ())


def test_a_gpu_of_one_of_two_pods_with_the_same_name_is_a_possible_claim() -> None:
    pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU))), pod("train-0", given("main"))]
    assert dict(parse_pods(pods_listing(pods), {}).claims) == {WHERE: (Claim(GPU, possible=True),)}


def test_a_pod_and_its_successor_with_the_same_gpu_have_a_certain_claim() -> None:
    pods = [pod("train-0", given("main", devices("nvidia.com/gpu", GPU)), given(side)) for side in ("a", "b")]
    found = parse_pods(pods_listing(pods), {})
    assert (dict(found.claims), found.problems) == ({WHERE: (Claim(GPU),)}, ())
