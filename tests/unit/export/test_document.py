from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.clock import ManualClock
from otel_gpu.export.document import document, to_json
from otel_gpu.model import EnergySplit, GpuState, MethodEnergy, Pod, SourceOutcome, SourceState, WorkloadNames
from otel_gpu.sources.sim import SimulatedHost, demo_world
from tests.builders import (
    CONTAINER,
    CONTAINER_ID,
    GIB,
    attribute,
    attribution,
    facts,
    failed_gpu,
    gpu,
    listed,
    snapshot,
)

MEMORY = {"limit", "reserved", "measured", "inferred", "unattributed", "free", "overcount"}
CONTRACT: dict[str, set[str]] = {
    "": {"gpus", "workloads", "processes", "sources"},
    "gpus": {"index", "uuid", "name", "mig", "memory", "energy", "power_w", "utilization", "temperature_c"},
    "gpus.memory": MEMORY,
    "gpus.energy": {"delta_mj", "attributed_mj", "idle_mj", "unattributed_mj"},
    "gpus.mig": {"uuid", "profile", "memory"},
    "gpus.mig.memory": MEMORY,
    "workloads": {"kind", "id", "name", "namespace", "pod", "pod_uid", "container", "image", "gpus"},
    "workloads.gpus": {"uuid", "mig", "memory", "utilization", "energy_mj", "state", "idle_seconds"},
    "workloads.gpus.memory": {"measured", "inferred", "confidence"},
    "workloads.gpus.energy_mj": {"measured", "estimated", "inferred"},
    "processes": {
        "pid", "start_time", "name", "workload", "gpu", "memory", "utilization", "energy_mj", "state", "idle_seconds",
    },
    "sources": {"name", "ok", "reason", "blind"},
}  # fmt: skip
"""The keys of every object, by where it stands: the contract of ``once --format json``."""


def keys_by_place(value: Any, place: str = "") -> dict[str, list[set[str]]]:
    """The key sets of all objects, by their path without list positions."""
    found: dict[str, list[set[str]]] = {}
    if isinstance(value, dict):
        found[place] = [set(value)]
        children = [(child, f"{place}.{key}".lstrip(".")) for key, child in value.items()]
    else:
        children = [(child, place) for child in value] if isinstance(value, list) else []
    for child, at in children:
        for where, keys in keys_by_place(child, at).items():
            found.setdefault(where, []).extend(keys)
    return found


def simulated() -> dict[str, Any]:
    clock = ManualClock()
    host = SimulatedHost(demo_world(seed=1), clock)
    engine = Engine(gpus=host.gpu_source(), processes=host.process_source(), names=[host.name_source()], clock=clock)
    engine.sample()
    clock.advance(5)
    return document(engine.sample())


def example() -> dict[str, Any]:
    return document(attribution())


@pytest.mark.parametrize("whole", [example, simulated])
def test_every_object_has_exactly_the_keys_of_the_contract(whole: Callable[[], dict[str, Any]]) -> None:
    found = keys_by_place(whole())
    assert found.keys() == CONTRACT.keys()
    for place, key_sets in found.items():
        for keys in key_sets:
            assert keys == CONTRACT[place], place


def test_a_gpu_without_any_figure_has_the_same_keys_with_null_in_them() -> None:
    (lost,) = document(attribute(None, snapshot(failed_gpu(3))))["gpus"]
    assert lost == {
        "index": 3,
        "uuid": "GPU-3",
        "name": "NVIDIA A100-SXM4-80GB",
        "mig": None,
        "memory": dict.fromkeys(MEMORY),
        "energy": dict.fromkeys(("delta_mj", "attributed_mj", "idle_mj", "unattributed_mj")),
        "power_w": None,
        "utilization": None,
        "temperature_c": None,
    }


def test_a_gpu_is_reported_in_bytes_millijoules_watts_degrees_and_ratios() -> None:
    first, second, _ = document(attribution())["gpus"]
    assert first["memory"] == {
        "limit": 80 * GIB,
        "reserved": GIB,
        "measured": 55 * GIB + GIB // 2,
        "inferred": 4 * GIB + GIB // 2,
        "unattributed": 0,
        "free": 19 * GIB,
        "overcount": 0,
    }
    assert first["energy"] == {"delta_mj": 300_000, "attributed_mj": 300_000, "idle_mj": 0, "unattributed_mj": 0}
    assert (first["power_w"], first["temperature_c"], first["utilization"]) == (295.7, 49, 0.834)
    assert first["mig"] is None
    assert [(instance["uuid"], instance["profile"]) for instance in second["mig"]] == [("MIG-1", "1g.10gb")]
    assert second["mig"][0]["memory"]["measured"] == 4 * GIB


def test_a_workload_is_reported_with_its_known_names() -> None:
    workloads = {workload["id"]: workload for workload in document(attribution())["workloads"]}
    vllm = workloads[CONTAINER_ID]
    assert {key: vllm[key] for key in ("kind", "name", "namespace", "pod", "pod_uid", "container", "image")} == {
        "kind": "container",
        "name": "vllm-chat",
        "namespace": "inference",
        "pod": "vllm-chat-0",
        "pod_uid": "pod-uid",
        "container": "vllm-chat",
        "image": "vllm:1",
    }
    nameless = workloads["d" * 64]
    assert nameless["name"] == "d" * 64  # the id still identifies
    assert [nameless[key] for key in ("namespace", "pod", "pod_uid", "container", "image")] == [None] * 5
    assert nameless["gpus"][0]["uuid"] == "GPU-1"
    assert nameless["gpus"][0]["mig"] == "MIG-1"


def test_a_pod_uid_known_only_from_the_cgroup_is_reported() -> None:
    nameless = attribution()
    nameless = replace(nameless, workloads=tuple(one._replace(names=None) for one in nameless.workloads))
    workloads = {workload["id"]: workload for workload in document(nameless)["workloads"]}
    assert workloads[CONTAINER_ID]["pod_uid"] == "pod-uid"


def test_no_name_changes_the_pod_uid_of_the_cgroup() -> None:
    report = attribution()
    names = WorkloadNames(pod="other", pod_uid="other-uid")
    renamed = replace(report, workloads=tuple(one._replace(names=names) for one in report.workloads))
    workloads = {workload["id"]: workload for workload in document(renamed)["workloads"]}
    assert workloads[CONTAINER_ID]["pod_uid"] == "pod-uid"
    assert workloads["d" * 64]["pod_uid"] == "other-uid"
    assert Pod("pod-uid").has(CONTAINER, names)


def test_a_process_points_to_its_workload_and_its_gpu() -> None:
    processes = {process["pid"]: process for process in document(attribution())["processes"]}
    assert processes[100] == {
        "pid": 100,
        "start_time": 1_700_000_001.0,
        "name": "vllm-chat",
        "workload": CONTAINER_ID,
        "gpu": "GPU-0",
        "memory": 54 * GIB,
        "utilization": None,
        "energy_mj": 271_698,
        "state": "unknown",
        "idle_seconds": None,
    }
    assert processes[201]["memory"] is None  # listed without a figure is not 0
    assert (processes[999]["name"], processes[999]["start_time"], processes[999]["workload"]) == (
        None,
        None,
        "unidentified",
    )


def test_every_process_belongs_to_a_workload_and_a_gpu_of_the_document() -> None:
    whole = simulated()
    workload_ids = {workload["id"] for workload in whole["workloads"]}
    uuids = {one["uuid"] for one in whole["gpus"]}
    assert whole["processes"]
    assert {process["workload"] for process in whole["processes"]} <= workload_ids
    assert {process["gpu"] for process in whole["processes"]} <= uuids


def test_every_figure_of_a_report_is_in_the_document() -> None:
    answer = attribution()
    (part,) = answer.workloads[0].gpus
    energy = MethodEnergy(measured_mj=3, estimated_mj=None, inferred_mj=4)
    known = part._replace(
        inferred_bytes=5, confidence=0.5, sm_ratio=0.25, energy=energy, state=GpuState.IDLE, idle_s=12.5
    )
    process = answer.processes[0]._replace(sm_ratio=0.75, energy=energy, state=GpuState.BUSY, idle_s=0.0)
    first = answer.gpus[0]._replace(energy=EnergySplit(10, 7, 2, 1))
    whole = document(
        replace(
            answer,
            gpus=(first,),
            workloads=(answer.workloads[0]._replace(gpus=(known,)),),
            processes=(process,),
        )
    )
    part_document = whole["workloads"][0]["gpus"][0]
    assert part_document["memory"] == {"measured": part.measured_bytes, "inferred": 5, "confidence": 0.5}
    assert part_document["energy_mj"] == {"measured": 3, "estimated": None, "inferred": 4}
    assert (part_document["utilization"], part_document["state"], part_document["idle_seconds"]) == (0.25, "idle", 12.5)
    of_process = whole["processes"][0]
    assert (of_process["utilization"], of_process["energy_mj"], of_process["state"]) == (0.75, 7, "busy")
    assert of_process["idle_seconds"] == 0.0
    assert whole["gpus"][0]["energy"] == {
        "delta_mj": 10, "attributed_mj": 7, "idle_mj": 2, "unattributed_mj": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "ok"), [(SourceState.OK, True), (SourceState.DEGRADED, False), (SourceState.UNAVAILABLE, False)]
)
def test_a_source_is_ok_only_if_nothing_is_missing(state: SourceState, ok: bool) -> None:
    sources = (SourceOutcome("nvml", state, "why"),)
    assert document(attribute(None, snapshot(sources=sources)))["sources"] == [
        {"name": "nvml", "ok": ok, "reason": "why", "blind": False}
    ]


def test_the_text_is_the_document_in_ascii() -> None:
    answer = attribution(name="模型\x1b[31m\ud800")
    text = to_json(answer)
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text) == document(answer)


def test_nan_and_infinity_are_never_written() -> None:
    for impossible in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            to_json(attribute(None, snapshot(gpu(0, [listed(1)], power_w=impossible), processes=[facts(1)])))
