"""Answers of the Kubernetes API: pages of pods, and lines of a watch cut anywhere."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from otel_gpu.bounded_io import LineSplitter
from otel_gpu.sources.names.kubernetes.pods import Change, Failure, PodInfo, parse_event, parse_list
from otel_gpu.sources.names.kubernetes.source import PodRegistry
from tests.fuzz.target import Target, mutated_json, unfit

POD: Final[dict[str, Any]] = {
    "metadata": {
        "name": "train-0",
        "namespace": "team-a",
        "uid": "00000000-0000-4000-8000-000000000001",
        "resourceVersion": "12",
        "labels": {"app": "train", "team": "a"},
        "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "abc"},
    },
    "spec": {"containers": [{"name": "main", "image": "train:1"}], "initContainers": [{"name": "init"}]},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "main",
                "containerID": "containerd://" + "a" * 64,
                "image": "train:1",
                "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
                "lastState": {"terminated": {"containerID": "containerd://" + "b" * 64}},
            }
        ],
    },
}
LISTS: Final[tuple[Any, ...]] = (
    {"metadata": {"resourceVersion": "12", "continue": "next"}, "items": [POD, POD]},
    {"metadata": {"resourceVersion": "12"}, "items": None},
)
EVENTS: Final[tuple[Any, ...]] = (
    {"type": "ADDED", "object": POD},
    {"type": "DELETED", "object": POD},
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}},
    {"type": "ERROR", "object": {"code": 410, "message": "too old"}},
)
LABELS: Final = ("app", "team")


def _put(registry: PodRegistry, pod: PodInfo) -> str | None:
    registry.put(pod, 1.0)
    for known in registry.known.values():
        names = known.names
        texts = (names.pod, names.namespace, names.container, names.image, names.pod_uid, *dict(names.extra).values())
        if wrong := next((wrong for text in texts if (wrong := unfit(text))), None):
            return wrong
    problem = registry.problem or ""
    return None if problem.isprintable() else f"a problem that is not one line of text: {problem!a}"


def check_list(data: bytes) -> str | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None  # reported as Unavailable
    page, registry = parse_list(document, LABELS), PodRegistry()
    return next((wrong for pod in (page.pods if page else ()) if (wrong := _put(registry, pod))), None)


def make_watch(rng: random.Random) -> bytes:
    return b"".join(mutated_json(rng, EVENTS) + rng.choice((b"\n", b"\r\n", b"\n\n", b"")) for _ in range(3))


def check_watch(data: bytes) -> str | None:
    lines, registry = LineSplitter(4 << 20), PodRegistry()
    for at in range(0, len(data), 100):
        for line in lines.feed(data[at : at + 100]):
            event = None if line is None else parse_event(line, LABELS)
            if isinstance(event, Failure) and "\n" in event.text:
                return f"a failure of several lines: {event}"
            if isinstance(event, Change) and event.pod is not None and (wrong := _put(registry, event.pod)):
                return wrong
    return None


TARGETS: Final = (
    Target("kubernetes-list", lambda rng: mutated_json(rng, LISTS), check_list),
    Target("kubernetes-watch", make_watch, check_watch),
)
