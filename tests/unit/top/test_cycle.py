from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.errors import Unavailable
from otel_gpu.export.document import document
from otel_gpu.export.text import cells
from otel_gpu.model import GpuState, MethodEnergy, WorkloadNames
from otel_gpu.top.cycle import combine
from tests.builders import CONTAINER, GIB, attribution, gpu
from tests.unit.metrics.builders import answer, device, part, split, totals
from tests.unit.metrics.builders import process as process_of
from tests.unit.metrics.builders import workload as workload_of
from tests.unit.top.cycles import crowd, cycle, drawn, told, workload


def test_a_cycle_has_everything_that_the_document_tells() -> None:
    shown, told_by = cycle(), document(attribution())
    assert [gpu.index for gpu in shown.gpus] == [0, 1, 2]
    assert [gpu.memory is None for gpu in shown.gpus] == [False, False, True]
    assert shown.gpus[1].instances[0].profile == "1g.10gb"
    assert (shown.gpus[2].health, shown.gpus[2].reason) == ("failed", "GPU is lost: it fell off the bus")
    assert [workload.id for workload in shown.workloads] == [each["id"] for each in told_by["workloads"]]
    assert sum(len(workload.processes) for workload in shown.workloads) == len(told_by["processes"])
    assert [(each.name, each.state) for each in shown.troubles] == [("nvml", "degraded")]
    assert (shown.host, shown.currency, shown.interval_s) == ("node-1", "EUR", 5.0)


def test_an_id_without_a_name_is_as_docker_shows_it() -> None:
    assert "d" * 12 in [workload.title for workload in cycle().workloads]


def test_somebody_on_several_gpus_is_one_line_with_the_sums() -> None:
    busy = MethodEnergy(estimated_mj=2000)
    parts = [
        part(index=0, measured=GIB, sm_ratio=0.5, state=GpuState.BUSY, energy=busy, totals=totals()),
        part(index=1, measured=2 * GIB, sm_ratio=0.25, state=GpuState.IDLE, idle_s=7.0, totals=totals()),
    ]
    (shown,) = cycle(answer(device(), device(), workloads=[workload_of(*parts)], processes=[])).workloads
    assert (shown.memory_bytes, shown.use.sm_ratio, shown.places) == (3 * GIB, 0.75, "0, 1")
    assert (shown.use.state, shown.use.idle_for_s) == ("busy", None)
    assert shown.use.lately.estimated_mj == 2000


def test_idle_time_of_several_gpus_is_gpu_time_and_of_one_just_time() -> None:
    idle = [part(index=at, measured=1, state=GpuState.IDLE, totals=totals(idle_us=600_000_000)) for at in range(3)]
    for parts, words in ((idle, "30 GPU-m"), (idle[:1], "10 m")):
        looked_at = cycle(answer(*map(device, map(gpu, range(3))), workloads=[workload_of(*parts)], processes=[]))
        assert looked_at.workloads[0].use.idle_s == 600 * len(parts)
        (line,) = (line for line in drawn(looked_at, columns=200) if "idle" in line and "container" in line)
        assert f"  {words}  " in line


def namesakes(*pods: tuple[str | None, str | None]) -> list[str | None]:
    """What tells containers apart that are all called "eval", in these pods of these namespaces."""
    refs = [replace(CONTAINER, id=f"{number:064x}") for number in range(len(pods))]
    workloads = [
        workload_of(part(measured=GIB), ref=ref, names=WorkloadNames("eval", None, pod, namespace, None))
        for ref, (namespace, pod) in zip(refs, pods, strict=True)
    ]
    shown = cycle(answer(device(), workloads=workloads, processes=[]))
    assert {workload.title for workload in shown.workloads} == {"eval"}
    return [workload.apart for workload in shown.workloads]


def test_those_of_one_name_are_told_apart_by_the_shortest_that_does() -> None:
    assert namesakes(("a", "model-eval-qfvnd")) == [None]
    assert namesakes(("a", "model-eval-qfvnd"), ("a", "model-eval-x2kfp")) == ["…-qfvnd", "…-x2kfp"]
    assert namesakes(("a", "run-0"), ("a", "run-1")) == ["run-0", "run-1"]
    assert namesakes(("a", "worker-0"), ("b", "worker-0")) == ["a", "b"]
    assert namesakes((None, None), (None, None)) == ["0" * 12, "0" * 12]  # nothing else is known of them


def test_a_screen_of_80_columns_tells_those_of_one_name_apart() -> None:
    both = [
        replace(workload(name, 5), title="eval", apart=apart)
        for name, apart in (("one", "…qfvnd"), ("other", "…x2kfp"))
    ]
    screen = "\n".join(drawn(crowd(*both)))
    assert "eval …qfvnd" in screen
    assert "eval …x2kfp" in screen


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["idle", "idle"], ("idle", 3.0)),
        (["idle", "unknown"], ("unknown", None)),
        (["allocated", "idle"], ("idle", 3.0)),
        (["allocated", "allocated"], ("allocated", None)),
    ],
)
def test_somebody_is_idle_only_if_he_may_be_busy_nowhere(states: list[str], expected: tuple[str, float | None]) -> None:
    parts = [
        part(index=at, measured=1, state=GpuState(state), idle_s=span_s)
        for at, (state, span_s) in enumerate(zip(states, (5.0, 3.0), strict=True))
    ]
    (shown,) = cycle(answer(device(), workloads=[workload_of(*parts)], processes=[])).workloads
    assert (shown.use.state, shown.use.idle_for_s) == expected


def test_processes_stand_under_their_workload_the_largest_first() -> None:
    small, large = (process_of(memory_bytes=size) for size in (GIB, 2 * GIB))
    large = large._replace(key=large.key._replace(pid=large.key.pid + 1))
    (shown,) = cycle(
        answer(device(memory=split(measured=3)), workloads=[workload_of(part(measured=3))], processes=[small, large])
    ).workloads
    assert [process.memory_bytes for process in shown.processes] == [2 * GIB, GIB]


# ---------------------------------------------------------------------------- an agent of another version


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something is in it."""
    below: list[tuple[Any, ...]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        below += [(*path, key), *places(inner, (*path, key))]
    return below


BOTH = list(told(attribution()))


@given(
    st.sampled_from([where for where in places(BOTH) if len(where) > 1]),
    st.sampled_from([None, "text", 1.5, -1, 10**400, True, [], {}, [1], {"a": 1}, "gone", float("inf"), float("nan")]),
)
def test_whatever_an_agent_tells_is_refused_or_can_be_shown(where: tuple[Any, ...], other: object) -> None:
    both: Any = copy.deepcopy(BOTH)
    inner = both
    for key in where[:-1]:
        inner = inner[key]
    if other == "gone":
        del inner[where[-1]]
    else:
        inner[where[-1]] = other
    with contextlib.suppress(Unavailable):
        shown = combine(*both)
        assert all(cells(line) <= 80 for line in drawn(shown))


@pytest.mark.parametrize("both", [(None, None), ({}, {}), ([], []), ("", 1)])
def test_what_is_no_cycle_at_all_is_not_understood(both: tuple[object, object]) -> None:
    with pytest.raises(Unavailable, match="not understood"):
        combine(*both)
