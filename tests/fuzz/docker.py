"""Responses of a Docker or Podman engine: its list, descriptions and events, with arbitrary names and labels."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from otel_gpu.bounded_io import LineSplitter
from otel_gpu.model import WorkloadNames
from otel_gpu.sources.names.docker.containers import ContainerParser, parse_event, parse_listed
from otel_gpu.sources.names.docker.registry import ContainerRegistry
from tests.docker_api import container_id
from tests.fuzz.target import Target, mutated_json, random_bytes, unfit

KEY: Final = container_id(7)
INSPECTED: Final[tuple[dict[str, Any], ...]] = (
    {
        "Id": KEY,
        "Name": "/vllm",
        "State": {"Running": True, "Restarting": False, "StartedAt": "2026-01-02T03:04:05.678901234Z"},
        "Config": {
            "Image": "vllm:1",
            "Labels": {"team": "a", "com.example/x": "y"},
            "Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0,GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"],
        },
        "HostConfig": {
            "Runtime": "nvidia",
            "Privileged": False,
            "Devices": [{"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0"}],
            "DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}],
        },
    },
    {
        "Id": KEY,
        "Name": "k8s_main_train-0",
        "State": {"Running": False, "StartedAt": "0001-01-01T00:00:00Z"},
        "Config": {
            "Image": "sha256:" + "f" * 64,
            "Labels": {
                "io.kubernetes.pod.name": "train-0",
                "io.kubernetes.pod.namespace": "team-a",
                "io.kubernetes.pod.uid": "00000000-0000-4000-8000-000000000001",
                "io.kubernetes.container.name": "main",
                "io.kubernetes.docker.type": "container",
            },
        },
        "HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]}]},
        "OCIRuntime": "nvidia-cdi",
    },
)
LISTED: Final[tuple[Any, ...]] = (
    [{"Id": KEY, "Names": ["/vllm", "/other/alias"], "State": "running", "Status": "Up 5 minutes (healthy)"}],
    [{"Id": container_id(8), "Names": ["/x"], "State": "restarting", "Status": "Up About a minute"}, {"Id": "short"}],
)
EVENTS: Final[tuple[Any, ...]] = (
    {"Type": "container", "Action": "start", "Actor": {"ID": KEY, "Attributes": {"name": "vllm"}}},
    {"status": "rename", "id": KEY, "Actor": {"ID": KEY, "Attributes": {"name": "v2", "oldName": "/vllm"}}},
    {"Action": "died", "Actor": {"ID": KEY, "Attributes": {}}},
)


def _unfit_names(names: WorkloadNames) -> str | None:
    texts = (names.container, names.image, names.pod, names.namespace, names.pod_uid, *(v for _, v in names.extra))
    return next((wrong for text in texts if (wrong := unfit(text))), None)


def check_inspected(data: bytes) -> str | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None  # the SDK's to refuse
    container = ContainerParser("docker", ("team", "com.example/x")).parse_container(KEY, document)
    registry = ContainerRegistry()
    registry.add(KEY, container, 1.0)
    known = registry.known(2.0).get(KEY)
    if known is not None and known.ref.id != KEY:
        return "the container has another id"
    if any("\n" in note for note in container.notes):
        return f"a note of several lines: {container.notes}"
    return None if known is None else _unfit_names(known.names)


def check_listed(data: bytes) -> str | None:
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found = [one for item in (items if isinstance(items, list) else [items]) if (one := parse_listed(item))]
    due = ContainerRegistry().apply_list(found, 1.0, 1_700_000_000.0)
    if set(due) - {one.id for one in found}:
        return "a container is to be inspected that is not listed"
    if any(len(one.id) != 64 for one in found):
        return "an id of a container has not 64 digits"
    return next((wrong for one in found if (wrong := unfit(one.name))), None)


def make_events(rng: random.Random) -> bytes:
    return b"\n".join(mutated_json(rng, EVENTS) if rng.random() < 0.9 else random_bytes(rng) for _ in range(3)) + b"\n"


def check_events(data: bytes) -> str | None:
    at = len(data) // 3
    lines, registry = LineSplitter(1 << 20), ContainerRegistry()
    for line in (line for chunk in (data[:at], data[at:]) for line in lines.feed(chunk)):
        if line is not None and (event := parse_event(line)) is not None:
            registry.apply_event(event, 1.0)
            if len(event.id) != 64:
                return "an id of a container has not 64 digits"
            if wrong := unfit(event.name):
                return wrong
    return None


TARGETS: Final = (
    Target("docker-inspect", lambda rng: mutated_json(rng, INSPECTED), check_inspected),
    Target("docker-list", lambda rng: mutated_json(rng, LISTED), check_listed),
    Target("docker-events", make_events, check_events),
)
