"""Who claims another container's id below its own cgroup: what is told of both, to whoever reads it."""

from __future__ import annotations

import json
import re

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.export.document import to_json
from otel_gpu.export.prometheus import Exposition, render
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.readings import Readings
from otel_gpu.metrics.selfstats import SelfAccount
from otel_gpu.model import Report, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, Known, NameRead
from otel_gpu.sources.cgroup import parse_cgroup
from tests.builders import GIB, FakeNames, facts, gpu, gpu_read, listed, memory, process_read
from tests.unit.compat.told import values
from tests.unit.test_engine import World

VICTIM_ID, MALLORY_ID = "a" * 64, "f" * 64
VICTIM, MALLORY = (WorkloadRef(WorkloadKind.CONTAINER, each, runtime="docker") for each in (VICTIM_ID, MALLORY_ID))
FOUND = parse_cgroup(f"0::/machine.slice/libpod-{MALLORY_ID}.scope/docker/{VICTIM_ID}")
assert FOUND is not None
IMPOSTOR = FOUND
NAMES = WorkloadNames(container="victim", image="victims/image")
VICTIMS_ENGINE = NameRead({VICTIM_ID: Known(VICTIM, NAMES, claims=(Claim("0"),))})
BOTH_ENGINES = NameRead({**VICTIMS_ENGINE.known, MALLORY_ID: Known(MALLORY, WorkloadNames(container="mallory"))})

ALONE = gpu_read(gpu(0, [listed(3, 5 * GIB)], memory=memory(used_gib=5, reserved_gib=0)))
TOGETHER = gpu_read(gpu(0, [listed(1, 2 * GIB), listed(3, 5 * GIB)], memory=memory(used_gib=7, reserved_gib=0)))
MINER, TRAINER = facts(3, IMPOSTOR), facts(1, VICTIM)


def last_of(world: World, cycles: int = 8) -> Report:
    return [world.next() for _ in range(cycles)][-1]


def the_victim_comes_late() -> World:
    """Mallory is there first, and nobody knows his own container."""
    return World(
        *[ALONE] * 4,
        TOGETHER,
        processes=[*[process_read(MINER)] * 4, process_read(MINER, TRAINER)],
        names=[FakeNames(VICTIMS_ENGINE)],
    )


def his_own_engine_is_late() -> World:
    """Mallory is there first, and his own container becomes known later."""
    return World(
        *[ALONE] * 4,
        TOGETHER,
        processes=[*[process_read(MINER)] * 4, process_read(MINER, TRAINER)],
        names=[FakeNames(*[VICTIMS_ENGINE] * 4, BOTH_ENGINES)],
    )


def collected(answer: Report) -> Collection:
    account = SelfAccount(started_ns=0, cpu_s=lambda: 0.0, memory_bytes=lambda: 0)
    collection = AgentMetrics(Readings(lambda: answer, account)).collect()
    assert collection is not None
    return collection


def held_by(answer: Report) -> dict[tuple[str, ...], float]:
    """What Prometheus reads of memory that somebody holds, by who it is said to be."""
    text = render(collected(answer), Resources({}, {}), Exposition.TEXT).decode()
    keys = ("container_name", "container_id", "gpu_workload_id", "gpu_workload_outer_id")
    found: dict[tuple[str, ...], float] = {}
    for labels, value in re.findall(r"^gpu_workload_memory_usage_bytes\{(.*)\} (\d+)$", text, re.MULTILINE):
        told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if int(value):
            found[tuple(told[key] for key in keys)] = int(value)
    return found


@pytest.mark.parametrize("world", [the_victim_comes_late, his_own_engine_is_late])
def test_an_impostor_has_the_names_of_another_only_until_that_one_comes_or_his_own_are_known(world: object) -> None:
    assert callable(world)
    assert held_by(last_of(world())) == {
        ("victim", VICTIM_ID, VICTIM_ID, ""): 2 * GIB,
        ("", "", VICTIM_ID, MALLORY_ID): 5 * GIB,
    }


def test_what_an_impostor_used_under_anothers_names_is_told_as_ended_and_he_starts_at_zero() -> None:
    world = the_victim_comes_late()
    before = last_of(world, 4)
    assert [(each.names, each.naming) for each in before.workloads] == [(NAMES, 0)]
    after = last_of(world, 2)
    mallorys = [each for each in after.workloads if each.ref == IMPOSTOR]
    assert [(each.names, each.naming, each.gpus[0].active) for each in mallorys] == [
        (NAMES, 0, False),
        (WorkloadNames(), 1, True),
    ]


def test_who_was_never_named_is_not_renamed_when_that_is_said_in_so_many_words() -> None:
    world = World(
        TOGETHER,
        processes=[process_read(MINER, TRAINER)],
        names=[FakeNames(NameRead(), NameRead(), NameRead(), VICTIMS_ENGINE)],
    )
    mallory = [each for each in last_of(world).workloads if each.ref == IMPOSTOR]
    assert [each.naming for each in mallory] == [0]


@pytest.mark.parametrize("outer", ["0" * 64, "f" * 64], ids=["who sorts first", "who sorts last"])
def test_other_exporters_names_have_both_and_several_whom_nobody_knows(outer: str) -> None:
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


def test_in_json_the_name_of_who_is_inside_of_another_has_both_ids() -> None:
    document = json.loads(to_json(last_of(the_victim_comes_late())))
    told = [(each["id"], each["name"]) for each in document["workloads"] if each["gpus"][0]["memory"]["measured"]]
    assert sorted(told) == [(VICTIM_ID, f"{MALLORY_ID[:12]}/{VICTIM_ID[:12]}"), (VICTIM_ID, "victim")]


def test_books_in_which_who_is_inside_of_another_has_the_line_of_one_outside_are_not_gone_on_from() -> None:
    """Earlier versions knew who is inside of a container by its own id alone."""
    rules = Attributor(AttributionOptions())
    world = World(ALONE, processes=[process_read(MINER)])
    world.engine._attributor = rules
    last_of(world, 3)
    books = json.loads(json.dumps(rules.to_state()))
    Attributor.from_state(AttributionOptions(), books, now_ns=0, same_boot=True)
    [line] = [entry[0] for entry in books["ledger"]["workloads"]["entries"]]
    line[0][1] = VICTIM_ID
    with pytest.raises(ValueError, match="books: "):
        Attributor.from_state(AttributionOptions(), books, now_ns=0, same_boot=True)
