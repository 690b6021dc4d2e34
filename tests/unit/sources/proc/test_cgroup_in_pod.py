"""Cgroup paths as a container with a private cgroup namespace sees them: its own pod, and others."""

from __future__ import annotations

import pytest

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef
from otel_gpu.sources.proc.cgroup import parse_cgroup, parse_cgroup_in_pod

OWN = "40934a46-d409-4f4a-bb8b-1ec0b0436320"
OTHER = "019c1fe8-0d92-4aa0-b61c-4df58bdde71c"
CID = "3726184226f5d3147c25fdeab5b60097e378e8a720503a5e19ecfdf29f869860"


def container(pod_uid: str | None, runtime: str | None = "containerd", id_: str = CID) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, id_, runtime=runtime, pod_uid=pod_uid)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/../cri-containerd-{CID}.scope", container(OWN)),
        (f"/../{CID}", container(OWN, None)),
        (f"/../docker-{CID}.scope", container(OWN, "docker")),
        (f"/../../crio-{CID}.scope/container", container(OWN, "cri-o")),
        (f"/../cri-containerd-{CID}.scope/nested/deeper", container(OWN)),
    ],
)
def test_a_container_beside_the_agents_is_in_its_pod(path: str, found: WorkloadRef) -> None:
    assert parse_cgroup_in_pod(f"0::{path}\n", OWN) == found


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/../../kubepods-burstable-pod{OTHER.replace('-', '_')}.slice/cri-containerd-{CID}.scope", container(OTHER)),
        (f"/../../pod{OTHER}/{CID}", container(OTHER, None)),
        (f"/../../../../system.slice/docker-{CID}.scope", container(None, "docker")),
        (f"/../../../docker/{CID}", container(None, "docker")),
        (f"/../../../{CID}", container(None, None)),
    ],
)
def test_a_container_elsewhere_is_not_in_its_pod(path: str, found: WorkloadRef) -> None:
    assert parse_cgroup_in_pod(f"0::{path}\n", OWN) == found


@pytest.mark.parametrize("text", ["0::/\n", "0::/workers\n", "0::/system.slice/vllm.service\n", "1:cpu:/\n2:pids:/\n"])
def test_the_agents_own_container_is_identified_by_its_pods_uid(text: str) -> None:
    assert parse_cgroup_in_pod(text, OWN) == WorkloadRef(WorkloadKind.CONTAINER, OWN, pod_uid=OWN)


def test_a_container_nested_in_the_agents_is_in_its_pod() -> None:
    assert parse_cgroup_in_pod(f"0::/docker/{CID}\n", OWN) == container(OWN, "docker")


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/..\n", "0::/../../init.scope\n", "0::/../../../user.slice\n"])
def test_a_path_that_identifies_nothing_is_not_in_the_pod(text: str) -> None:
    assert parse_cgroup_in_pod(text, OWN) == parse_cgroup(text)
    assert parse_cgroup_in_pod(text, OWN) in {None, HOST_WORKLOAD}


def test_under_cgroup_v1_any_hierarchy_may_identify_the_container() -> None:
    text = f"2:cpu:/../{CID}\n1:name=systemd:/../{CID}\n0::/..\n"
    assert parse_cgroup_in_pod(text, OWN) == container(OWN, None)
