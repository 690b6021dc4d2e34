"""Responses of a Docker or Podman engine: its list, descriptions and events, with arbitrary names and labels.

And a user's engine that describes containers of others: it changes neither their names nor their grants.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, Final

from otel_gpu.bounded_io import LineSplitter
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import KUBERNETES, Claim, NameRead, PodContainer, Speaker, SpeakerKind, WorkloadInfo
from otel_gpu.sources.names.docker.containers import ContainerParser, parse_event, parse_listed
from otel_gpu.sources.names.docker.registry import ContainerRegistry
from otel_gpu.sources.names.resolver import NameResolver, Resolution
from otel_gpu.sources.names.untrusted import MAX_TEXT_BYTES
from tests.builders import gpu
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
    texts = (names.container, names.image, names.pod, names.namespace, names.pod_uid)
    labels = (wrong for _, text in names.extra if (wrong := unfit(text, MAX_TEXT_BYTES)))
    return next(labels, None) or next((wrong for text in texts if (wrong := unfit(text))), None)


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


# ---------------------------------------------------------------------------- a hostile engine

USER: Final = Speaker(SpeakerKind.ENGINE, frozenset({"docker"}), uid=1000)
DOCKER: Final = Speaker(SpeakerKind.ENGINE, frozenset({"docker"}))
POD_UID: Final = "00000000-0000-4000-8000-000000000001"
VICTIM: Final = WorkloadRef(WorkloadKind.CONTAINER, KEY, runtime="docker")
IN_POD: Final = WorkloadRef(WorkloadKind.CONTAINER, container_id(8), runtime="containerd", pod_uid=POD_UID)
OF_USER: Final = WorkloadRef(WorkloadKind.CONTAINER, container_id(9), runtime="docker", user_uid=1000)
POD: Final = WorkloadNames(container="main", pod="train-0", namespace="team-a", pod_uid=POD_UID)
HONEST: Final = (
    NameRead({IN_POD.id: WorkloadInfo(IN_POD, POD)}, speaker=KUBERNETES),
    NameRead({KEY: WorkloadInfo(VICTIM, WorkloadNames(container="victim"), claims=(Claim("1"),))}, speaker=DOCKER),
    NameRead(pods={PodContainer("team-a", "train-0", "main"): (Claim("0"),)}, speaker=KUBERNETES),
)
PLACES: Final = (
    None,
    VICTIM,
    IN_POD,
    OF_USER,
    *(replace(each, user_uid=uid) for each in (VICTIM, IN_POD) for uid in (1000, 1001)),
    replace(VICTIM, outer_container_id="f" * 64),
)


def _of_others(resolution: Resolution) -> object:
    names = {key: names for key, names in resolution.names.items() if not key[1].startswith("user-1000.slice/")}
    grants = {
        (grant.workload.key, grant.gpu_uuid) for grant in resolution.grants if grant.workload.user_uid != USER.uid
    }
    return names, grants


def check_user_engine(data: bytes) -> str | None:
    """The input also chooses the ids, where the named processes are, and which workloads are on GPUs."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    rng = random.Random(data)
    known: dict[str, WorkloadInfo] = {}
    for id_ in rng.sample([KEY, IN_POD.id, OF_USER.id], rng.randint(1, 3)):
        info = ContainerParser("docker", ("team",)).parse_container(id_, document, rng.choice(PLACES)).info
        if info is not None:
            known[id_] = info
    on_gpus = [ref for ref in PLACES if ref is not None and rng.random() < 0.5]
    gpus = [gpu(0), gpu(1)]
    without = NameResolver().resolve(HONEST, on_gpus, gpus)
    at = rng.randint(0, len(HONEST))
    hostile = NameRead(known, speaker=USER)
    resolution = NameResolver().resolve([*HONEST[:at], hostile, *HONEST[at:]], on_gpus, gpus)
    if _of_others(resolution) != _of_others(without):
        return f"a user's engine changed {_of_others(without)} to {_of_others(resolution)}"
    for (_, id_), names in resolution.names.items():
        if id_.startswith("user-1000.slice/") and (names.pod or names.namespace or names.pod_uid):
            return f"a user's container is in a pod: {names}"
    return None


def make_inspected(rng: random.Random) -> bytes:
    """A description; one in a hundred has a huge label, and one in ten the labels of a pod that is not its own."""
    examples = json.loads(json.dumps(INSPECTED))
    if rng.random() < 0.01:
        examples[0]["Config"]["Labels"]["team"] = rng.choice("x€🚀\n") * rng.randint(1, 200_000)
    if rng.random() < 0.1:
        examples[0]["Config"]["Labels"] |= INSPECTED[1]["Config"]["Labels"]
    return mutated_json(rng, examples) if rng.random() < 0.9 else json.dumps(rng.choice(examples)).encode()


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
    Target("docker-inspect", make_inspected, check_inspected),
    Target("docker-user-engine", make_inspected, check_user_engine),
    Target("docker-list", lambda rng: mutated_json(rng, LISTED), check_listed),
    Target("docker-events", make_events, check_events),
)
