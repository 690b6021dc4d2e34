"""Workloads on many GPUs, workloads that share a name, and their colours, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.signals import Steady
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec, WorkloadSpec, WorldSpec
from otel_gpu.view.text import gpu_span, span
from tests.real.chromium import Browser
from tests.real.page_view import CARDS, TABLE, is_current, open_page
from tests.real.stepped_agent import SteppedAgent, stepped_agent

pytestmark = pytest.mark.real

COLOURED: Final = """[...document.querySelectorAll('#rows > tr:not(.details)')].map(
  row => [row.dataset.id, row.querySelector('.swatch').className])"""


# ---------------------------------------------------------------------------- many GPUs


def wide_world() -> WorldSpec:
    """Twelve GPUs: one workload is idle on all of them, others on some, and two on the first have the same name."""
    first = demo_world(1).gpus[0]
    gpus = tuple(
        replace(
            first,
            identity=replace(
                first.identity, index=index, minor=index, uuid=f"GPU-{index:02}", pci_bus_id=f"0000:{index:02x}:00.0"
            ),
        )
        for index in range(12)
    )

    def process(pid: int, name: str, pod: str | None, *on: int) -> ProcessSpec:
        names = WorkloadNames(name, None, pod, None if pod is None else "research")
        ref = WorkloadRef(WorkloadKind.CONTAINER, f"{pid:064x}")
        uses = tuple(GpuUse(index, Steady(2.0**30)) for index in on)
        return ProcessSpec(pid=pid, name="python3", workload=WorkloadSpec(ref, names), uses=uses)

    processes = (
        process(100, "everywhere", None, *range(12)),
        process(101, "pair", None, 1, 0),
        process(102, "tenth", None, 10),
        process(103, "second", None, 2),
        process(104, "eval", "model-eval-a", 0),
        process(105, "eval", "model-eval-b", 0),
    )
    return WorldSpec(seed=1, gpus=gpus, processes=processes, age_s=30.0)


@pytest.fixture(scope="module")
def wide() -> Iterator[SteppedAgent]:
    with stepped_agent(wide_world()) as agent:
        for _ in range(120):
            agent.advance(5)
        yield agent


def test_gpus_are_in_numeric_order_and_ranges_are_abbreviated(browser: Browser, wide: SteppedAgent) -> None:
    tab = open_page(browser, wide)
    tab.value("document.querySelector('#columns [data-key=gpu] button').click()")
    rows = [(row["name"], row["texts"]["gpu"]) for row in tab.value(TABLE)]
    assert rows == [
        ("eval (a)", "0"), ("eval (b)", "0"), ("pair", "0, 1"), ("everywhere", "0-11"), ("second", "2"),
        ("tenth", "10"),
    ]  # fmt: skip
    tab.value("[...document.querySelectorAll('.open')].find(each => each.textContent === 'everywhere').click()")
    named = tab.value("[...document.querySelectorAll('.facts dt')].map(node => node.textContent)")
    assert [name for name in named if name.startswith("GPU ")] == [f"GPU {index}" for index in range(12)]


def test_idle_time_on_several_gpus_is_gpu_time(browser: Browser, wide: SteppedAgent) -> None:
    tab = open_page(browser, wide)
    reported = {each.names.container: each for each in wide.now().workloads if each.names is not None}
    rows = {row["name"]: row for row in tab.value(TABLE)}
    for name, count in (("everywhere", 12), ("pair", 2), ("tenth", 1)):
        idle_s = sum(part.totals.idle_us / 1e6 for part in reported[name].reported_gpus if part.totals is not None)
        assert rows[name]["texts"]["idle"] == gpu_span(idle_s, count)
        summed = f" of GPU time, summed over {count} GPUs or MIG instances" if count > 1 else ""
        assert f"held memory without work for {span(idle_s)}{summed}, using " in rows[name]["how"]["idle"]
        assert f"; {rows[name]['texts']['state'].replace('idle', 'idle for')} now (since " in rows[name]["how"]["idle"]
    assert rows["everywhere"]["texts"]["idle"].endswith(" GPU-h")
    assert rows["tenth"]["texts"]["idle"].endswith(" m")


def test_workloads_of_one_name_have_a_suffix_from_their_pods(browser: Browser, wide: SteppedAgent) -> None:
    tab = open_page(browser, wide)
    card = tab.value(CARDS)[0]
    names = {name for name, _, _ in card["holders"]}
    assert names == {"everywhere", "pair", "eval (a)", "eval (b)"}
    bar = tab.value("document.querySelector('.bar').ariaLabel")
    assert all(f"{name} 1.0 GiB measured" in bar for name in names)
    hovered = tab.value(
        "[...document.querySelectorAll('.gpu')[0].querySelectorAll('.bar .measured')].map(each => each.title)"
    )
    assert {words.split(":")[0] for words in hovered} == names


# ---------------------------------------------------------------------------- colours


def growing_world() -> WorldSpec:
    """One GPU with a new container every 20 s, each larger than those before."""
    newcomers = tuple(
        ProcessSpec(
            pid=100 + number,
            name="python3",
            workload=WorkloadSpec(
                WorkloadRef(WorkloadKind.CONTAINER, f"{number:064x}"), WorkloadNames(f"job-{number}")
            ),
            uses=(GpuUse(0, Steady((1 + number) * 2.0**30)),),
            start_s=20.0 * number,
        )
        for number in range(6)
    )
    return WorldSpec(seed=1, gpus=demo_world(1).gpus[:1], processes=newcomers, age_s=30.0)


def test_a_workload_keeps_its_colour_in_every_browser(browser: Browser) -> None:
    with stepped_agent(growing_world()) as agent:
        tab = open_page(browser, agent)
        seen: dict[str, str] = {}
        for _ in range(8):
            coloured = dict(tab.value(COLOURED))
            assert seen.items() <= coloured.items()  # a new workload changes no colour
            seen = coloured
            agent.advance(20)
            tab.until(is_current(agent))
        assert len(seen) == len(set(seen.values())) == 6
        assert dict(open_page(browser, agent).value(COLOURED)) == seen
