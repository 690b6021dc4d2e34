from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.metrics.labels import IDENTITY_KEYS, WorkloadIdentity, declared_attributes
from otel_gpu.model import HOST_WORKLOAD, OVERFLOW_WORKLOAD, WorkloadKind, WorkloadNames, WorkloadRef
from tests.builders import CONTAINER, CONTAINER_ID


def known(ref: WorkloadRef, names: WorkloadNames | None = None) -> dict[str, str]:
    return dict(WorkloadIdentity.of(ref, names).attributes)


def test_a_container_of_a_pod_has_the_attributes_of_its_pod() -> None:
    names = WorkloadNames(container="vllm", image="vllm:1", pod="vllm-0", namespace="inference", pod_uid="uid")
    assert known(CONTAINER, names) == {
        "gpu.workload.kind": "container",
        "gpu.workload.id": CONTAINER_ID,
        "gpu.workload.name": "vllm",
        "container.id": CONTAINER_ID,
        "container.name": "vllm",
        "container.image.name": "vllm:1",
        "container.runtime.name": "containerd",
        "k8s.pod.uid": "pod-uid",
        "k8s.pod.name": "vllm-0",
        "k8s.namespace.name": "inference",
        "k8s.container.name": "vllm",
    }


def test_a_container_outside_kubernetes_has_no_name_there() -> None:
    ref = WorkloadRef(WorkloadKind.CONTAINER, "abc", runtime="docker")
    found = known(ref, WorkloadNames(container="ollama"))
    assert found["container.name"] == "ollama"
    assert not [key for key in found if key.startswith("k8s.")]


def test_unknown_names_are_absent_and_the_id_takes_the_place_of_the_name() -> None:
    assert known(CONTAINER) == {
        "gpu.workload.kind": "container",
        "gpu.workload.id": CONTAINER_ID,
        "gpu.workload.name": CONTAINER_ID,
        "container.id": CONTAINER_ID,
        "container.runtime.name": "containerd",
        "k8s.pod.uid": "pod-uid",  # the cgroup says it
    }


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (WorkloadKind.SLURM_JOB, "slurm.job.id"),
        (WorkloadKind.SYSTEMD_UNIT, "systemd.unit"),
        (WorkloadKind.LXC, "container.name"),
    ],
)
def test_other_kinds_are_known_by_their_own_key(kind: WorkloadKind, key: str) -> None:
    assert known(WorkloadRef(kind, "x")) == {
        "gpu.workload.kind": kind.value,
        "gpu.workload.id": "x",
        "gpu.workload.name": "x",
        key: "x",
    }


def test_the_workload_host_is_not_the_host_whose_resource_has_none_of_these() -> None:
    assert known(HOST_WORKLOAD) == {
        "gpu.workload.kind": "host",
        "gpu.workload.id": "host",
        "gpu.workload.name": "host",
    }
    assert WorkloadIdentity.of(HOST_WORKLOAD, None) != WorkloadIdentity.of(OVERFLOW_WORKLOAD, None)


def test_keys_are_in_one_order_and_none_is_empty() -> None:
    names = WorkloadNames(container="vllm", image="", pod="vllm-0", namespace="inference", pod_uid="uid")
    for ref in (CONTAINER, HOST_WORKLOAD):
        found = known(ref, names)
        assert tuple(found) == tuple(key for key in IDENTITY_KEYS if key in found)
        assert all(found.values())
        assert "container.image.name" not in found


def test_equal_workloads_have_equal_identities_that_can_be_looked_up() -> None:
    first, second = (WorkloadIdentity.of(CONTAINER, WorkloadNames(container="a")) for _ in range(2))
    assert {first: 1}[second] == 1
    assert WorkloadIdentity.of(CONTAINER, WorkloadNames(container="b")) != first


def test_labels_follow_what_every_workload_has_and_replace_none_of_it() -> None:
    extra = (("container.label.team", "ml"), ("container.name", "not this"), ("k8s.pod.label.app", ""))
    identity = WorkloadIdentity.of(CONTAINER, WorkloadNames(container="a", extra=extra))
    assert identity.attributes[-1] == ("container.label.team", "ml")
    assert dict(identity.attributes)["container.name"] == "a"
    assert "k8s.pod.label.app" not in dict(identity.attributes)


def test_a_job_is_identified_by_its_number_and_not_by_what_it_says_of_itself() -> None:
    declared = (("slurm.job.account", "physics"), ("slurm.job.name", "train-llm"))
    names = WorkloadNames(title="train-llm", declared=declared)
    job = {"gpu.workload.kind": "slurm_job", "gpu.workload.id": "4242", "gpu.workload.name": "4242"}
    assert known(WorkloadRef(WorkloadKind.SLURM_JOB, "4242"), names) == job | {"slurm.job.id": "4242"}
    assert declared_attributes(names) == {"slurm.job.name": "train-llm", "slurm.job.account": "physics"}


def test_declared_text_in_state_of_an_earlier_version_is_on_no_resource() -> None:
    names = WorkloadNames(title="train", extra=(("slurm.job.account", "physics"), ("slurm.job.name", "train")))
    found = known(WorkloadRef(WorkloadKind.SLURM_JOB, "4242"), names)
    assert not {"slurm.job.account", "slurm.job.name"} & found.keys()


def test_a_workload_in_the_slice_of_a_user_shows_the_user() -> None:
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service", user_uid=1000)
    assert known(unit) == {
        "gpu.workload.kind": "systemd_unit",
        "gpu.workload.id": "ollama.service",
        "gpu.workload.name": "user-1000/ollama.service",
        "gpu.workload.outer.id": "user-1000.slice",
        "systemd.unit": "ollama.service",
    }
    container = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64, outer_container_id="f" * 64, user_uid=1000)
    found = known(container)
    assert found["gpu.workload.outer.id"] == f"user-1000.slice/{'f' * 64}"
    assert found["gpu.workload.name"] == f"user-1000/{'f' * 12}/{'a' * 12}"
    assert "container.id" not in found
    assert known(container, WorkloadNames(container="web"))["container.id"] == "a" * 64


def test_the_runtime_comes_from_the_cgroup_or_else_from_the_source_of_the_name() -> None:
    names = WorkloadNames(runtime="podman")
    assert known(CONTAINER, names)["container.runtime.name"] == "containerd"
    assert known(replace(CONTAINER, runtime=None), names)["container.runtime.name"] == "podman"


@pytest.mark.parametrize(
    ("outer", "name"),
    [("f" * 64, f"{'f' * 12}/{'a' * 12}"), ("trainer", f"trainer/{'a' * 12}")],
)
def test_a_nested_container_has_its_own_id_and_that_of_the_outermost_one(outer: str, name: str) -> None:
    """A node of kind: the innermost container is the workload, and its outer id distinguishes it."""
    inside = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64, outer_container_id=outer)
    assert known(inside) == {
        "gpu.workload.kind": "container",
        "gpu.workload.id": "a" * 64,
        "gpu.workload.name": name,
        "gpu.workload.outer.id": outer,
    }
    assert known(inside, WorkloadNames(container="main"))["container.id"] == "a" * 64
