from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.host import name_options
from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.config import load
from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead, NameSource
from otel_gpu.sources.names import factory
from otel_gpu.sources.names.cri import CriSource
from otel_gpu.sources.names.discovery import DiscoveredSources, SourceDiscovery
from otel_gpu.sources.names.docker.source import DockerSource
from otel_gpu.sources.names.factory import NameSourceFactory, start_all
from otel_gpu.sources.names.kubernetes.source import KubernetesSource
from otel_gpu.sources.names.podresources import PodResourcesSource
from otel_gpu.sources.names.slurm import SlurmSource
from tests.builders import FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, process_read
from tests.cli import clean_environment
from tests.fake_root import FakeRoot, fake_root
from tests.proc_tree import ProcTree

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
def host() -> Iterator[FakeRoot]:
    with fake_root() as root:
        yield root


def sources(host: FakeRoot, variables: Mapping[str, str] | None = None, **flags: str) -> NameSourceFactory:
    config = load({name.replace("_", "-"): text for name, text in flags.items()}, {}).config
    return NameSourceFactory(name_options(config), ManualClock(), variables or {}, host.root)


def opened(host: FakeRoot, variables: Mapping[str, str] | None = None, **flags: str) -> dict[str, NameSource]:
    return {source.name: source for source in sources(host, variables, **flags).open_all()[0]}


def names(found: DiscoveredSources) -> list[str]:
    return [source.name for source in found.sources]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The arguments of the engines' sources; nothing connects."""
    noted: list[tuple[str, dict[str, Any]]] = []
    first = DockerSource.__init__

    def note(self: DockerSource, name: str, base_url: str, **rest: Any) -> None:
        noted.append((base_url, rest))
        first(self, name, base_url, **rest)

    monkeypatch.setattr(DockerSource, "__init__", note)
    return noted


# ---------------------------------------------------------------------------- opened sources


def test_in_auto_each_source_that_exists_is_opened(host: FakeRoot) -> None:
    for path in (
        "var/run/docker.sock",
        "run/podman/podman.sock",
        "run/crio/crio.sock",
        "var/lib/kubelet/pod-resources/kubelet.sock",
    ):
        host.listen(path)
    host.add("etc/slurm")
    kinds = {name: type(source) for name, source in opened(host).items()}
    assert kinds == {
        "cri": CriSource,
        "docker": DockerSource,
        "podman": DockerSource,
        "pod-resources": PodResourcesSource,
        "slurm": SlurmSource,
    }
    assert next(iter(kinds)) == "cri"  # if two know the same id, the first one counts


@pytest.mark.parametrize("name", ["docker", "podman", "kubernetes", "slurm", "host"])
def test_discovery_runs_in_auto_and_not_with_a_named_environment(host: FakeRoot, name: str) -> None:
    assert sources(host, environment=name).open_all()[1] is None
    assert isinstance(sources(host).open_all()[1], SourceDiscovery)


def test_a_source_that_appears_after_the_start_is_found_once(host: FakeRoot) -> None:
    of_host = sources(host)
    assert of_host.open_all()[0] == ()
    assert names(of_host.open_new()) == []
    host.listen("var/run/docker.sock")
    assert names(of_host.open_new()) == ["docker"]
    assert names(of_host.open_new()) == []


def test_a_job_on_a_gpu_is_a_trace_of_slurm(host: FakeRoot) -> None:
    """From within a container it may be the only trace."""
    of_host = sources(host)
    assert names(of_host.open_new({WorkloadKind.CONTAINER})) == []
    assert names(of_host.open_new({WorkloadKind.SLURM_JOB})) == ["slurm"]


def test_a_job_found_in_the_first_sample_has_a_name_in_the_second(host: FakeRoot) -> None:
    """``once`` takes two samples."""
    tree = ProcTree(host.root / "proc")
    tree.add(70)
    tree.write("70/environ", b"SLURM_JOB_ID=7\0SLURM_JOB_NAME=train\0")
    clock = ManualClock()
    there, discovery = sources(host, proc_root=str(tree.root)).open_all()
    assert discovery is not None
    engine = Engine(
        gpus=FakeGpus(gpu_read(gpu(0, [listed(70)]))),
        processes=FakeProcesses(process_read(facts(70, WorkloadRef(WorkloadKind.SLURM_JOB, "7")))),
        names=there,
        discovery=discovery,
        clock=clock,
    )
    engine.sample()
    discovery.wait(10.0)
    clock.advance(1.0)
    [workload] = engine.sample().workloads
    engine.close()
    assert (workload.display_name, workload.naming) == ("train", 0)


@pytest.mark.parametrize("environment", ["auto", "docker"])
def test_a_source_that_fails_to_open_is_tried_again(
    host: FakeRoot, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    host.listen("var/run/docker.sock")
    host.listen("run/podman/podman.sock")
    first = DockerSource.__init__

    def refuse(self: DockerSource, name: str, base_url: str, **rest: Any) -> None:
        if name == "docker":
            raise Unavailable("no certificate")
        first(self, name, base_url, **rest)

    monkeypatch.setattr(DockerSource, "__init__", refuse)
    of_host = sources(host, environment=environment)
    there, discovery = of_host.open_all()
    assert [source.name for source in there] == (["podman"] if environment == "auto" else [])
    assert discovery is not None  # it tries the failed source again
    assert of_host.open_new().failed == ("docker cannot be opened: no certificate",)
    monkeypatch.setattr(DockerSource, "__init__", first)
    assert of_host.open_new().failed == ()
    assert of_host._opened >= {"docker"}


def test_the_number_of_sources_is_bounded(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "MAX_SOURCES", 1)
    host.listen("var/run/docker.sock")
    host.listen("run/podman/podman.sock")
    found = sources(host).open_new()
    assert names(found) == ["docker"]
    assert found.failed == ("podman is not used: the limit is 1 sources until the next start",)


def test_a_missing_runtime_in_a_chosen_environment_is_unavailable(host: FakeRoot) -> None:
    clock = SystemClock()
    for name, where in (("docker", "var/run/docker.sock"), ("kubernetes", "run/containerd/containerd.sock")):
        source = sources(host, environment=name).open_all()[0][0]
        assert start_all([source], {}, clock, 10.0) == [True]
        read = source.read({})
        assert read.state is SourceState.UNAVAILABLE
        assert str(host.root / where) in (read.reason or "")
        source.close()


# ---------------------------------------------------------------------------- engines


def test_an_engine_gets_its_address_runtime_and_labels(host: FakeRoot, made: list[tuple[str, dict[str, Any]]]) -> None:
    opened(host, docker_host="tcp://a:2375", podman_host="unix:///x.sock", container_labels="team")
    (docker, of_docker), (podman, of_podman) = made
    assert (docker, of_docker["runtime"], of_docker["tls"]) == ("tcp://a:2375", "docker", None)
    assert (podman, of_podman["runtime"], of_podman["tls"]) == ("unix:///x.sock", "podman", None)
    assert of_docker["labels"] == of_podman["labels"] == ("team",)


@pytest.mark.parametrize(
    ("flags", "tls"),
    [
        ({"docker_host": "tcp://a:2376"}, False),
        ({"docker_host": "tcp://a:2376", "docker_tls_verify": "on"}, True),
        ({"docker_host": "https://a:2376"}, True),
        ({"docker_host": "http://a:2376", "docker_tls_verify": "on"}, False),
        ({"docker_host": "unix:///a.sock", "docker_tls_verify": "on"}, False),
    ],
)
def test_tls_is_used_for_https_and_for_tcp_with_verification(
    host: FakeRoot, made: list[tuple[str, dict[str, Any]]], flags: dict[str, str], tls: bool
) -> None:
    opened(host, None, **flags)
    assert (made[0][1]["tls"] is not None) is tls


def test_certificates_are_in_the_configured_or_the_default_directory(
    host: FakeRoot, made: list[tuple[str, dict[str, Any]]]
) -> None:
    host.add("home/me/.docker")
    (host.root / "home/me/.docker/ca.pem").touch()
    opened(host, {"HOME": "/home/me"}, docker_host="https://a")
    opened(host, {}, docker_host="https://a", docker_cert_path="/certs")
    usual, named = (rest["tls"] for _, rest in made)
    assert (usual.ca, usual.cert, usual.key) == (host.root / "home/me/.docker/ca.pem", None, None)
    assert (named.ca, named.cert, named.key) == tuple(Path(f"/certs/{name}.pem") for name in ("ca", "cert", "key"))
    assert usual.verify
    assert named.verify


def test_the_runtime_expects_the_containers_with_a_grant(host: FakeRoot) -> None:
    of_node = opened(host, environment="kubernetes")
    cri, kubelet = of_node["cri"], of_node["pod-resources"]
    assert isinstance(cri, CriSource)
    assert isinstance(kubelet, PodResourcesSource)
    assert cri._expected() == kubelet.granted()


# ---------------------------------------------------------------------------- the cluster


def test_the_api_is_used_with_the_pods_service_account_for_this_node(host: FakeRoot) -> None:
    (host.add(ACCOUNT) / "token").write_text("x")
    found = opened(host, IN_CLUSTER, environment="kubernetes", node_name="n1", pod_labels="app")["kubernetes"]
    assert isinstance(found, KubernetesSource)
    assert (found._node_name, found._labels) == ("n1", ("app",))


def test_without_a_node_name_the_reason_has_the_fix(
    host: FakeRoot,
) -> None:
    (host.add(ACCOUNT) / "token").write_text("x")
    read = opened(host, IN_CLUSTER, kubernetes_api="always")["kubernetes"].read({})
    assert read.state is SourceState.UNAVAILABLE
    assert read.reason is not None
    assert "--node-name" in read.reason
    assert "fieldPath: spec.nodeName" in read.reason


def test_the_api_is_not_used_without_an_account_or_node_name_unless_requested(
    host: FakeRoot,
) -> None:
    assert "kubernetes" not in opened(host, IN_CLUSTER, node_name="n1")
    (host.add(ACCOUNT) / "token").write_text("x")
    assert "kubernetes" not in opened(host, IN_CLUSTER)
    assert "kubernetes" in opened(host, IN_CLUSTER, node_name="n1")


def test_without_a_service_account_the_reason_has_the_fix(host: FakeRoot) -> None:
    read = opened(host, kubernetes_api="always", node_name="n1")["kubernetes"].read({})
    assert read.state is SourceState.UNAVAILABLE
    assert read.reason is not None
    assert "automountServiceAccountToken" in read.reason


# ---------------------------------------------------------------------------- waiting


class Slow:
    """Answers after ``takes_s`` on a manual clock."""

    def __init__(self, clock: ManualClock, takes_s: float) -> None:
        self.name = "slow"
        self._clock = clock
        self._takes_s = takes_s
        self.reads: list[object] = []
        self.waited_s: float | None = None

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        self.reads.append(workloads)
        return NameRead()

    def wait(self, timeout_s: float) -> bool:
        self.waited_s = timeout_s
        self._clock.advance(min(timeout_s, self._takes_s))
        return self._takes_s <= timeout_s

    def close(self) -> None:
        pass


def test_all_sources_start_before_the_wait_and_share_its_timeout() -> None:
    clock = ManualClock()
    slow = [Slow(clock, 0.75), Slow(clock, 0.75), Slow(clock, 0.75)]
    assert start_all(slow, {}, clock, 1.0) == [True, False, False]
    assert [each.waited_s for each in slow] == pytest.approx([1.0, 0.25, 0.0])
    assert all(each.reads == [{}] for each in slow)


# ---------------------------------------------------------------------------- imports


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("config",),
        ("once", "--source", "sim"),
        ("doctor", "--environment", "host", "--exporters", "none"),
    ],
)
def test_client_libraries_are_not_imported_without_a_runtime(arguments: tuple[str, ...]) -> None:
    script = (
        "import sys, otel_gpu.cli\n"
        "try:\n"
        "    otel_gpu.cli.main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "loaded = {'docker', 'grpc', 'requests', 'google.protobuf'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=clean_environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
