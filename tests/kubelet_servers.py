"""A container runtime and a kubelet for tests, with the real protocols over real unix sockets."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from otel_gpu.sources.names.proto.cri_pb2 import (
    Container,
    ContainerMetadata,
    ImageSpec,
    Label,
    ListContainersResponse,
    VersionResponse,
)
from otel_gpu.sources.names.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    ListPodResourcesResponse,
    PodResources,
)

RUNTIME: Final = "runtime.v1.RuntimeService"
LISTER: Final = "v1.PodResourcesLister"
RUNNING, EXITED = 1, 2
ENDED: Final = "ListContainers of exited containers"


class Refused(Exception):
    """Raised by a method to answer with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class NodeServer:
    """A service on a socket. ``answers`` has a function for each method that gives the raw bytes of its answer.

    A method that is not there is UNIMPLEMENTED. ``calls`` counts; ``filtered`` are requests of a method that count and
    are answered under another name. It can be stopped and started again.
    """

    def __init__(self, path: Path, service: str) -> None:
        self.path = path
        self.service = service
        self.answers: dict[str, Callable[[], bytes]] = {}
        self.filtered: dict[tuple[str, bytes], str] = {}
        self.calls: Counter[str] = Counter()
        self.ended = threading.Event()
        self._server: grpc.Server | None = None
        self._threads: futures.ThreadPoolExecutor

    def start(self) -> None:
        """Listen."""
        self.ended.clear()
        self._threads = futures.ThreadPoolExecutor(4)
        server = grpc.server(self._threads, handlers=[_Handlers(self)], options=[("grpc.so_reuseport", 0)])
        assert server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Close every connection."""
        self.ended.set()
        if self._server is not None:
            self._server.stop(None).wait(5)
            self._server = None
            self._threads.shutdown()
        self.path.unlink(missing_ok=True)

    def hang(self) -> bytes:
        """An answer that never comes while the server runs."""
        self.ended.wait(30)
        raise Refused(grpc.StatusCode.UNAVAILABLE, "ended")

    def refuse(self, code: grpc.StatusCode, details: str) -> Callable[[], bytes]:
        """An answer that is a status."""

        def answer() -> bytes:
            raise Refused(code, details)

        return answer


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, server: NodeServer) -> None:
        self._server = server

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, method = details.method.strip("/").rpartition("/")
        if service != self._server.service or method not in self._server.answers:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answer(method, request, context))

    def _answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = self._server.filtered.get((method, request), method)
        self._server.calls[name] += 1
        try:
            return self._server.answers[name]()
        except Refused as refused:
            context.abort(refused.code, str(refused))
            raise AssertionError("not reached") from None


@contextmanager
def socket_directory() -> Iterator[Path]:
    """A directory for sockets, whose paths must be short."""
    directory = Path(tempfile.mkdtemp(prefix="og-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ---------------------------------------------------------------------------- a container runtime


class Runtime(NodeServer):
    """A runtime with containers, listed in the order of ``containers``; on request only the exited ones."""

    def __init__(self, path: Path, containers: Iterable[Container] = (), name: bytes = b"containerd") -> None:
        super().__init__(path, RUNTIME)
        self.containers = list(containers)
        self.answers["Version"] = lambda: VersionResponse(runtime_name=name).SerializeToString()
        self.answers["ListContainers"] = lambda: listing(self.containers).SerializeToString()
        # ListContainersRequest.filter.state.state = CONTAINER_EXITED
        self.filtered["ListContainers", b"\x0a\x04\x12\x02\x08\x02"] = ENDED
        self.answers[ENDED] = lambda: listing(
            each for each in self.containers if each.state == EXITED
        ).SerializeToString()


def listing(containers: Iterable[Container]) -> ListContainersResponse:
    """A list of these."""
    return ListContainersResponse(containers=containers)


def container(
    number: int,
    *,
    state: int = RUNNING,
    pod: str | None = "train-0",
    namespace: str = "team-a",
    image: str = "registry.example/train:1",
    user_image: str = "",
    labels: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Container:
    """The container with this number; of a pod, unless that is ``None``."""
    kubernetes = {
        "io.kubernetes.container.name": name or f"main-{number}",
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": pod_uid(number),
    }
    said = (kubernetes if pod is not None else {}) | dict(labels or {})
    return Container(
        id=container_id(number).encode(),
        metadata=ContainerMetadata(name=(name or f"main-{number}").encode()),
        image=ImageSpec(image=image.encode(), user_specified_image=user_image.encode()),
        state=state,
        created_at=1_700_000_000_000_000_000 + number,
        labels=[Label(key=key.encode(), value=(value or "").encode()) for key, value in said.items()],
    )


def container_id(number: int) -> str:
    """The id of the container with this number."""
    return f"{number:064x}"


def pod_uid(number: int) -> str:
    """The uid of the pod of the container with this number."""
    return f"00000000-0000-4000-8000-{number:012x}"


# ---------------------------------------------------------------------------- a kubelet


class Kubelet(NodeServer):
    """A kubelet that granted devices to pods; ``allocatable`` are all of its devices."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, LISTER)
        self.pods: list[PodResources] = []
        self.allocatable: list[ContainerDevices] = []
        self.answers["List"] = lambda: pods_listing(self.pods).SerializeToString()
        self.answers["GetAllocatableResources"] = lambda: AllocatableResourcesResponse(
            devices=self.allocatable
        ).SerializeToString()


def pods_listing(pods: Iterable[PodResources]) -> ListPodResourcesResponse:
    """A list of these."""
    return ListPodResourcesResponse(pod_resources=[each.SerializeToString() for each in pods])


def pod(name: str, *containers: ContainerResources, namespace: str = "team-a") -> PodResources:
    """A pod with these containers."""
    return PodResources(name=name.encode(), namespace=namespace.encode(), containers=containers)


def given(name: str, *devices: ContainerDevices, claims: Iterable[DynamicResource] = ()) -> ContainerResources:
    """A container with these devices."""
    return ContainerResources(name=name.encode(), devices=devices, dynamic_resources=claims)


def devices(resource: str, *ids: str) -> ContainerDevices:
    """Devices of a resource."""
    return ContainerDevices(resource_name=resource.encode(), device_ids=[id_.encode() for id_ in ids])
