"""The Kubernetes configuration in a real Collector, with a fake Kubernetes API that has two pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics
from opentelemetry.sdk.resources import Resource

from tests.real.collector import CONFIGURATIONS, Addresses, Collector, collector, read_file, to_file
from tests.real.otlp_client import over_grpc, send, workloads
from tests.real.otlp_points import resource_attributes
from tests.real.programs import LOOPBACK, serving

pytestmark = pytest.mark.real

NODE = "node-1"
TRAINING, AGENT = "a" * 64, "b" * 64
POD_UID = "27e1cf4c-6b07-4a0c-a5f1-1d5c7c1f3f11"


def pod(name: str, uid: str, container: str, container_id: str, ip: str) -> Mapping[str, Any]:
    image = f"registry.example/{container}:v1"
    status = {"name": container, "containerID": f"containerd://{container_id}", "image": image, "restartCount": 0}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": "1", "ownerReferences": [owner]},
        "spec": {"nodeName": NODE, "containers": [{"name": container, "image": image}]},
        "status": {"phase": "Running", "podIP": ip, "containerStatuses": [status]},
    }


PODS = [
    pod("train-0", POD_UID, "trainer", TRAINING, "10.0.0.7"),
    # The agent's pod, whose address is the source of all data.
    pod("otel-gpu-x", "38e1cf4c-6b07-4a0c-a5f1-1d5c7c1f3f22", "agent", AGENT, LOOPBACK),
]


def kubernetes(request: WSGIEnvironment, start: StartResponse) -> Sequence[bytes]:
    """A Kubernetes API with the constant pods of a node, and no namespaces."""
    query = parse_qs(request["QUERY_STRING"])
    if "sendInitialEvents" in query:
        # Like a server without streaming lists.
        start("422 Unprocessable Entity", [("Content-Type", "application/json")])
        return [json.dumps({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422}).encode()]
    start("200 OK", [("Content-Type", "application/json")])
    if "watch" in query:
        return [b""]
    about_pods = request["PATH_INFO"] == "/api/v1/pods" and query["fieldSelector"] == [f"spec.nodeName={NODE}"]
    kind, items = ("PodList", PODS) if about_pods else ("NamespaceList", [])
    return [
        json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}).encode()
    ]


@contextmanager
def on_kubernetes(directory: Path, path: Path) -> Iterator[Collector]:
    """A Collector with the shipped configuration, except for ports, access to the API and the exporter."""
    addresses = Addresses.free()
    otlp = {
        "protocols": {"grpc": {"endpoint": str(addresses.otlp_grpc)}, "http": {"endpoint": str(addresses.otlp_http)}}
    }
    ours = {
        "receivers": {"otlp": otlp},
        "extensions": {"health_check": {"endpoint": str(addresses.health)}},
        "processors": {"k8s_attributes": {"auth_type": "kubeConfig"}},
    }
    with serving(kubernetes) as api:
        access = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": f"http://{api}"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}],
            "current-context": "test",
        }
        (directory / "kubeconfig").write_text(json.dumps(access), encoding="utf-8")
        environment = {
            "K8S_NODE_NAME": NODE,
            "K8S_POD_IP": LOOPBACK,
            "GATEWAY_ENDPOINT": f"{LOOPBACK}:1",
            "KUBECONFIG": str(directory / "kubeconfig"),
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=east",
        }
        with collector(
            CONFIGURATIONS / "kubernetes.yaml",
            f"yaml:{json.dumps(ours)}",
            to_file(path),
            directory=directory,
            addresses=addresses,
            environment=environment,
        ) as one:
            yield one


def enriched(tmp_path: Path, identity: Mapping[str, str]) -> Mapping[str, str]:
    """The attributes of a Resource after the Collector."""
    path = tmp_path / "out.json"
    [metrics] = workloads({"one": 1.0}).resource_metrics
    with on_kubernetes(tmp_path, path) as one:
        sent = ResourceMetrics(Resource(identity), metrics.scope_metrics, "")
        send(over_grpc(one.addresses.otlp_grpc), MetricsData([sent]))
        one.process.until(lambda: bool(read_file(path)))
        [resource] = read_file(path)
    return resource_attributes(resource)


@pytest.mark.parametrize(
    "identity",
    [{"container.id": TRAINING}, {"k8s.pod.uid": POD_UID, "container.id": TRAINING}],
    ids=["container", "pod"],
)
def test_a_workload_gets_the_names_of_its_own_pod(tmp_path: Path, identity: Mapping[str, str]) -> None:
    assert enriched(tmp_path, identity) == {
        "container.id": TRAINING,
        "k8s.pod.uid": POD_UID,
        "k8s.pod.name": "train-0",
        "k8s.namespace.name": "ml",
        "k8s.node.name": NODE,
        "k8s.job.name": "train",
        "k8s.container.name": "trainer",
        "container.image.name": "registry.example/trainer",
        "container.image.tag": "v1",
        "k8s.cluster.name": "east",
    }


def test_the_host_does_not_get_the_names_of_the_agents_pod(tmp_path: Path) -> None:
    identity = {"gpu.workload.kind": "host", "host.name": "h"}
    assert enriched(tmp_path, identity) == identity | {"k8s.cluster.name": "east"}
