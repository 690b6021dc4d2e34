"""An impostor: a container that uses the id of another one in a nested cgroup. What every export shows of both."""

from __future__ import annotations

import json
import re

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.export.document import to_json
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Report, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, NameRead, WorkloadInfo
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.builders import GIB, FakeNames, facts, gpu, gpu_read, listed, memory, process_read
from tests.unit.agent.test_engine import Recorder, World
from tests.unit.compat.series import values

VICTIM_ID, MALLORY_ID = "a" * 64, "f" * 64
VICTIM, MALLORY = (WorkloadRef(WorkloadKind.CONTAINER, each, runtime="docker") for each in (VICTIM_ID, MALLORY_ID))
FOUND = parse_cgroup(f"0::/machine.slice/libpod-{MALLORY_ID}.scope/docker/{VICTIM_ID}")
assert FOUND is not None
IMPOSTOR = FOUND
NAMES = WorkloadNames(container="victim", image="victims/image")
VICTIMS_ENGINE = NameRead({VICTIM_ID: WorkloadInfo(VICTIM, NAMES, claims=(Claim("0"),))})
BOTH_ENGINES = NameRead({**VICTIMS_ENGINE.known, MALLORY_ID: WorkloadInfo(MALLORY, WorkloadNames(container="mallory"))})

ALONE = gpu_read(gpu(0, [listed(3, 5 * GIB)], memory=memory(used_gib=5, reserved_gib=0)))
TOGETHER = gpu_read(gpu(0, [listed(1, 2 * GIB), listed(3, 5 * GIB)], memory=memory(used_gib=7, reserved_gib=0)))
MINER, TRAINER = facts(3, IMPOSTOR), facts(1, VICTIM)


def last_of(world: World, cycles: int = 8) -> Report:
    return [world.next() for _ in range(cycles)][-1]


def victim_starts_late() -> World:
    """The impostor is there first, and no source knows its outer container."""
    return World(
        *[ALONE] * 4,
        TOGETHER,
        processes=[*[process_read(MINER)] * 4, process_read(MINER, TRAINER)],
        names=[FakeNames(VICTIMS_ENGINE)],
    )


def outer_container_is_known_late() -> World:
    """The impostor is there first, and its outer container becomes known later."""
    return World(
        *[ALONE] * 4,
        TOGETHER,
        processes=[*[process_read(MINER)] * 4, process_read(MINER, TRAINER)],
        names=[FakeNames(*[VICTIMS_ENGINE] * 4, BOTH_ENGINES)],
    )


def collected(answer: Report) -> Collection:
    account = SelfAccount(started_ns=0, cpu_s=lambda: 0.0, memory_bytes=lambda: 0)
    collection = AgentMetrics(CycleMetrics(lambda: answer, account)).collect()
    assert collection is not None
    return collection


def held_by(answer: Report) -> dict[tuple[str, ...], float]:
    """Memory in the Prometheus text, by the labels that identify the workload."""
    text = PrometheusRenderer(Resources({}, {})).render(collected(answer), Exposition.TEXT).decode()
    keys = ("container_name", "container_id", "gpu_workload_id", "gpu_workload_outer_id")
    found: dict[tuple[str, ...], float] = {}
    for labels, value in re.findall(r"^gpu_workload_memory_usage_bytes\{(.*)\} (\d+)$", text, re.MULTILINE):
        found_labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if int(value):
            found[tuple(found_labels.get(key, "") for key in keys)] = int(value)
    return found


@pytest.mark.parametrize("world", [victim_starts_late, outer_container_is_known_late])
def test_an_impostor_loses_the_victims_names_when_the_victim_starts_or_the_outer_container_is_known(
    world: object,
) -> None:
    assert callable(world)
    assert held_by(last_of(world())) == {
        ("victim", VICTIM_ID, VICTIM_ID, ""): 2 * GIB,
        ("", "", VICTIM_ID, MALLORY_ID): 5 * GIB,
    }


def test_usage_under_the_victims_names_ends_and_the_impostor_starts_at_zero() -> None:
    world = victim_starts_late()
    before = last_of(world, 4)
    assert [(each.names, each.naming) for each in before.workloads] == [(NAMES, 0)]
    after = last_of(world, 2)
    impostors = [each for each in after.workloads if each.ref == IMPOSTOR]
    assert [(each.names, each.naming, each.gpus[0].active) for each in impostors] == [
        (NAMES, 0, False),
        (WorkloadNames(), 1, True),
    ]


def test_a_workload_that_never_had_names_is_not_renamed_by_explicitly_having_none() -> None:
    world = World(
        TOGETHER,
        processes=[process_read(MINER, TRAINER)],
        names=[FakeNames(NameRead(), NameRead(), NameRead(), VICTIMS_ENGINE)],
    )
    impostor = [each for each in last_of(world).workloads if each.ref == IMPOSTOR]
    assert [each.naming for each in impostor] == [0]


@pytest.mark.parametrize("outer", ["0" * 64, "f" * 64], ids=["sorts first", "sorts last"])
def test_compat_exporters_show_victim_and_several_unnamed_nested_containers(outer: str) -> None:
    nested = [WorkloadRef(WorkloadKind.CONTAINER, each, outer_container_id=outer) for each in (VICTIM_ID, "b" * 64)]
    held = gpu_read(
        gpu(
            0,
            [listed(1, 2 * GIB), listed(3, 5 * GIB), listed(4, GIB)],
            memory=memory(used_gib=8, reserved_gib=0),
        )
    )
    processes = process_read(TRAINER, facts(3, nested[0]), facts(4, nested[1]))
    answer = last_of(World(held, processes=[processes], names=[FakeNames(VICTIMS_ENGINE)]))
    short = outer[:12]
    assert values("gpu-inference", "container_gpu_memory_bytes", answer, "container_name", "container_id") == {
        ("victim", "a" * 12): 2 * GIB,
        ("", f"{short}/{'a' * 12}"): 5 * GIB,
        ("", f"{short}/{'b' * 12}"): GIB,
    }
    shares = values("dcgm-exporter", "DCGM_FI_DEV_FB_USED", answer, "container", kubernetes=True)
    assert sum(shares.values()) == 8 * 1024


def test_in_json_the_name_of_a_nested_container_has_both_ids() -> None:
    document = json.loads(to_json(last_of(victim_starts_late())))
    named = [(each["id"], each["name"]) for each in document["workloads"] if each["gpus"][0]["memory"]["measured"]]
    assert sorted(named) == [(VICTIM_ID, f"{MALLORY_ID[:12]}/{VICTIM_ID[:12]}"), (VICTIM_ID, "victim")]


def test_saved_state_that_keys_a_nested_container_by_its_own_id_is_rejected() -> None:
    """Earlier versions identified a nested container by its own id alone."""
    rules = Recorder()
    last_of(World(ALONE, processes=[process_read(MINER)], rules=rules), 3)
    books = json.loads(json.dumps(rules.to_state()))
    Attributor.from_state(AttributionOptions(), books, now_ns=0, same_boot=True)
    [line] = [entry[0] for entry in books["ledger"]["workloads"]["entries"]]
    line[0][1] = VICTIM_ID
    with pytest.raises(ValueError, match="ledger: "):
        Attributor.from_state(AttributionOptions(), books, now_ns=0, same_boot=True)
