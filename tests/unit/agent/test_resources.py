"""The attributes of the Resources of a host."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from otel_gpu.agent.resources import host_resources, parse_machine_id, read_machine_id, resources_of
from otel_gpu.config import load
from otel_gpu.metrics.labels import WorkloadIdentity
from otel_gpu.model import HOST_WORKLOAD

MACHINE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "machine-id").write_text(MACHINE + "\n")
    return tmp_path


def test_a_host_is_identified_by_its_machine_id_and_name(etc: Path) -> None:
    resources = host_resources(service_name="otel-gpu", given={}, environment={}, etc=etc)
    assert resources.shared == {"host.name": socket.gethostname(), "host.id": MACHINE}
    assert resources.agent["service.name"] == "otel-gpu"


def test_in_kubernetes_the_host_is_the_node_and_not_the_pod(etc: Path) -> None:
    resources = host_resources(service_name="otel-gpu", given={}, environment={"K8S_NODE_NAME": "node-7"}, etc=etc)
    assert resources.shared == {"host.name": "node-7", "host.id": MACHINE, "k8s.node.name": "node-7"}


def test_given_attributes_replace_detected_ones(etc: Path) -> None:
    given = {"host.name": "rack-1", "service.namespace": "infra", "team": "ml", "gpu.workload.id": "x", "hw.id": "x"}
    resources = host_resources(service_name="agent", given=given, environment={"NODE_NAME": "n"}, etc=etc)
    assert resources.shared["host.name"] == "rack-1"
    assert resources.shared["team"] == "ml"
    assert resources.agent["service.namespace"] == "infra"
    assert "x" not in {**resources.shared, **resources.agent}.values(), "identities are never given"


def test_the_instance_is_stable_over_restarts_and_differs_between_hosts(etc: Path, tmp_path: Path) -> None:
    first = host_resources(service_name="otel-gpu", given={}, environment={}, etc=etc)
    again = host_resources(service_name="otel-gpu", given={}, environment={}, etc=etc)
    (etc / "machine-id").write_text("f" * 32)
    other = host_resources(service_name="otel-gpu", given={}, environment={}, etc=etc)
    assert first.agent["service.instance.id"] == again.agent["service.instance.id"]
    assert first.agent["service.instance.id"] != other.agent["service.instance.id"]


def test_the_host_workloads_resource_differs_from_the_hosts_own(etc: Path) -> None:
    resources = host_resources(service_name="otel-gpu", given={}, environment={}, etc=etc)
    workload = resources.of(WorkloadIdentity.of(HOST_WORKLOAD, None))
    assert workload != resources.of(None)
    assert not any(key.startswith("service.") for key in workload)
    assert workload["host.id"] == MACHINE


@pytest.mark.parametrize("text", ["", "uninitialized\n", "0" * 31, "G" * 32, "0123\n4567"])
def test_an_invalid_machine_id_is_absent(text: str) -> None:
    assert parse_machine_id(text) is None


def test_an_unreadable_machine_id_is_absent(tmp_path: Path) -> None:
    assert read_machine_id(tmp_path) is None
    (tmp_path / "machine-id").write_bytes(b"\xff\xfe")
    assert read_machine_id(tmp_path) is None


def test_attributes_with_a_key_of_points_or_workloads_are_left_out_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"OTEL_RESOURCE_ATTRIBUTES": "team=ml,hw.id=x,k8s.pod.name=y,gpu.workload.id=z"}
    shared = resources_of(load({}, given).config).shared
    assert shared.keys() >= {"team", "host.name"}
    assert {"x", "y", "z"}.isdisjoint(shared.values())
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "resource-attributes gpu.workload.id, hw.id, k8s.pod.name are left out: metrics have attributes of that name",
    )
