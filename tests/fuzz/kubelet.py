"""Answers of a node's sockets, as bytes: the runtime's (CRI), the kubelet's (pod-resources), HTTP/2 around them."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, cast

from google.protobuf.message import DecodeError

from otel_gpu.clock import ManualClock
from otel_gpu.errors import OtelGpuError
from otel_gpu.sources.names.cri import parse_containers, parse_exited, parse_runtime
from otel_gpu.sources.names.grpc_client import GrpcConnection
from otel_gpu.sources.names.podresources import parse_pods, parse_replicas
from otel_gpu.sources.names.proto.cri_pb2 import ListContainersResponse, VersionResponse
from otel_gpu.sources.names.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    CdiDevice,
    ClaimResource,
    DynamicResource,
    ListPodResourcesResponse,
)
from tests.fuzz.target import Target, mutated, unfit
from tests.kubelet_servers import EXITED, container, devices, given, listing, pod, pods_listing

GPU: Final = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
DEVICE: Final = re.compile(r"((GPU|MIG)-[0-9a-f-]{36}|MIG-GPU-[0-9a-f-]{36}/\d+/\d+|nvidia\d+(/gi\d+)?)")
CONTAINERS: Final = (
    listing([container(1), container(2, state=EXITED, labels={"team": "a"})]).SerializeToString(),
    listing([container(3, pod=None, image="sha256:" + "f" * 64, user_image="x")]).SerializeToString(),
    VersionResponse(runtime_name=b"containerd").SerializeToString(),
    b"",
)
CLAIM: Final = ClaimResource(
    cdi_devices=[CdiDevice(name=f"nvidia.com/gpu={GPU}".encode())], driver_name=b"gpu.nvidia.com", device_name=b"gpu-0"
)
PODS: Final = (
    pods_listing(
        [
            pod("train-0", given("main", devices("nvidia.com/gpu", GPU, f"{GPU}::1", "nvidia0/vgpu3", "nvidia1/gi2"))),
            pod("train-1", given("main", claims=[DynamicResource(claim_name=b"one", claim_resources=[CLAIM])])),
        ]
    ).SerializeToString(),
    AllocatableResourcesResponse(devices=[devices("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1")]).SerializeToString(),
)
PROTOBUF: Final = (
    b"\x0a\x04",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0b",
    b"\x0c",
    b"\x7f",
    b"\xff" * 11,
)


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + (1).to_bytes(4, "big") + payload


MESSAGE: Final = b"\0" + len(CONTAINERS[0]).to_bytes(4, "big") + CONTAINERS[0]
STREAMS: Final = (
    _frame(4, 0, b"") + _frame(1, 4, b"\x88") + _frame(0, 0, MESSAGE) + _frame(1, 5, b"\x00"),
    _frame(0, 9, b"\x03" + MESSAGE + bytes(3)),
    _frame(7, 0, bytes(8)),
    _frame(1, 5, b"\x88\x00\x0bgrpc-status\x0212\x00\x0cgrpc-message\x0bno%20such%0A"),
)


def check_containers(data: bytes) -> str | None:
    with suppress(DecodeError):
        parse_runtime(VersionResponse.FromString(data))
    try:
        answer = ListContainersResponse.FromString(data)
    except DecodeError:
        return None  # reported as Unavailable
    found = parse_containers(answer, runtime="containerd", labels=("team",))
    if parse_containers(answer, found, runtime="containerd", labels=("team",)) is not found and len(found.known) == len(
        answer.containers
    ):
        return "the same list, read again, is another"
    list(parse_exited(answer))
    if found.known.keys() != {id_ for each in answer.containers if (id_ := each.id.decode("utf-8", "replace"))}:
        return "the ids are not those of the list"
    if any(each.ref.id != id_ or (each.since_s is not None and each.since_s <= 0) for id_, each in found.known.items()):
        return "a container has another id, or a start before 1970"
    if any("\n" in problem for problem in found.problems.values()):
        return f"a problem of several lines: {found.problems}"
    named = (each.names for each in found.known.values())
    return next(
        (wrong for names in named for text in (names.container, names.pod, names.image) if (wrong := unfit(text))), None
    )


def check_pods(data: bytes) -> str | None:
    replicas: dict[str, int] = {}
    with suppress(DecodeError):
        replicas.update(parse_replicas(AllocatableResourcesResponse.FromString(data)))
    try:
        answer = ListPodResourcesResponse.FromString(data)
    except DecodeError:
        return None
    found = parse_pods(answer, replicas)
    if parse_pods(answer, replicas, found) is not found:
        return "the same list, read again, is another"
    if found.pods.keys() != set(answer.pod_resources):
        return "the pods are not those of the list"
    if any(not DEVICE.fullmatch(claim.device) for claims in found.claims.values() for claim in claims):
        return f"a claim to what is not a device: {found.claims}"
    return f"a problem of several lines: {found.problems}" if any("\n" in each for each in found.problems) else None


class _Peer:
    """A socket whose other end sends these bytes and closes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def settimeout(self, seconds: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


def check_grpc(data: bytes) -> str | None:
    try:
        answer = GrpcConnection("/run/x.sock", cast("socket.socket", _Peer(data)), 1.0, ManualClock()).call("/a.B/C")
    except OtelGpuError as error:
        return f"a reason of several lines: {error}" if "\n" in str(error) else None
    return None if len(answer) <= len(data) else "the answer is longer than what was received"


def _pieces() -> Iterator[bytes]:
    yield from PROTOBUF
    yield from (b"\n", b"\xff", b"\0" * 8, "\u202e".encode(), b"nvidia.com/gpu", b"::", b"/vgpu9", b"GPU-", b"x" * 1100)


PIECES: Final = tuple(_pieces())


def _from(examples: tuple[bytes, ...], rng: random.Random) -> bytes:
    return mutated(rng, examples, PIECES)


TARGETS: Final = (
    Target("cri", lambda rng: _from(CONTAINERS, rng), check_containers),
    Target("pod-resources", lambda rng: _from(PODS, rng), check_pods),
    Target("grpc", lambda rng: _from(STREAMS, rng), check_grpc),
)
