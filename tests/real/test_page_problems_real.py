"""The page of hosts with problems, and of an agent that stops and starts again, in a real browser."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.model import GpuHealth, GpuReading, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.signals import Steady
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec, WorkloadSpec, WorldSpec
from tests.agent_process import simulated_agent
from tests.real.chromium import Browser, Tab
from tests.real.page_view import (
    CARDS,
    LOW_CONTRAST,
    NAMES,
    NARROW,
    TABLE,
    TOTALS,
    UNKNOWN,
    WIDE,
    assert_clean,
    open_page,
)
from tests.real.programs import free_addresses
from tests.real.stepped_agent import stepped_agent

pytestmark = pytest.mark.real

HOSTILE: Final = "<img src=x onerror=\"document.title='owned'\">"
LONG_POD: Final = "a-pod-whose-name-has-no-end-" * 8  # 224 characters


def totals_of(tab: Tab) -> dict[str, str]:
    """The texts of the totals by name."""
    return {name: read for name, read, _, _ in tab.value(TOTALS)}


# ---------------------------------------------------------------------------- hosts with problems


def hostile_world() -> WorldSpec:
    """The demo with one container whose name is markup, one without a name, and one with a long pod name."""
    world = demo_world(1)
    names: dict[int, WorkloadNames | None] = {
        41_207: WorkloadNames(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        41_990: None,
        33_871: WorkloadNames("notebook", "registry.example/" + "long/" * 40, LONG_POD, "research", "uid"),
    }
    processes = tuple(
        replace(
            each,
            name="<b>vllm" if each.pid == 41_207 else each.name,
            workload=replace(each.workload, names=names[each.pid]),
        )
        if each.pid in names
        else each
        for each in world.processes
    )
    return replace(world, processes=processes)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_markup_in_names_is_text_and_long_names_do_not_widen_the_page(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    with stepped_agent(hostile_world()) as agent:
        tab = open_page(browser, agent, width=width)
        assert HOSTILE in tab.value(NAMES)
        tab.value("document.querySelectorAll('.open').forEach(button => button.click())")
        assert "Process" in tab.value("document.querySelector('.details').textContent")
        assert tab.value("document.querySelectorAll('img, b, script:not([src])').length") == tab.value(
            "document.querySelectorAll('#totals b, .amount b').length"
        )
        assert LONG_POD in tab.value("document.getElementById('rows').textContent")
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert "owned" not in tab.value("document.title")
        tab.screenshot(tmp_path / "page.png")
        assert_clean(tab, agent.url)


def troubled(reading: GpuReading) -> GpuReading:
    """GPUs that are lost, asleep and paused, and one without power and utilisation."""
    bare = GpuReading(reading.identity, reading.taken_at_ns)
    match reading.identity.index:
        case 0:
            return replace(bare, health=GpuHealth.FAILED, reason="GPU is lost: it fell off the bus")
        case 1:
            return replace(bare, health=GpuHealth.ASLEEP, reason="runtime-suspended")
        case 2:
            return replace(bare, health=GpuHealth.PAUSED, reason="paused for 10 m")
        case _:
            return replace(reading, power_w=None, energy_mj=None, temperature_c=None, gpu_ratio=None, utilization=None)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_gpus_without_figures_say_so_and_unknown_is_a_dash(browser: Browser, tmp_path: Path, width: int) -> None:
    with stepped_agent(alter=lambda read: replace(read, gpus=tuple(map(troubled, read.gpus)))) as agent:
        tab = open_page(browser, agent, width=width)
        cards = tab.value(CARDS)
        assert [card["state"] for card in cards] == [
            "failed: GPU is lost: it fell off the bus",
            "asleep: runtime-suspended",
            "paused for 10 m",
            "ok",
        ]
        assert [card["texts"] for card in cards[:3]] == [[UNKNOWN] * 4] * 3
        assert [text == UNKNOWN for text in cards[3]["texts"]] == [True, True, False, True]
        drawn = "[...document.querySelectorAll('.gpu .state')].map(node => getComputedStyle(node).color)"
        failed, asleep, paused, ok = tab.value(drawn)
        assert asleep == paused
        assert len({failed, asleep, ok}) == 3
        problems = "[...document.querySelectorAll('#problem-list li')]"
        assert tab.value(f"{problems}.map(node => node.textContent)") == [
            "GPU 0: failed: GPU is lost: it fell off the bus",
            "GPU 1: asleep: runtime-suspended",
            "GPU 2: paused for 10 m",
        ]
        assert tab.value(f"{problems}.map(node => getComputedStyle(node).color)") == [failed, asleep, asleep]
        assert tab.value(LOW_CONTRAST) == []
        totals = totals_of(tab)
        assert totals["GPUs"] == "4 3 without figures"
        assert totals["Memory in use"].endswith(" of 22.5 GiB, of 1 of 4 GPUs")
        assert totals["Power"] == f"{UNKNOWN} "
        for row in tab.value(TABLE):
            assert row["texts"]["power"] == row["texts"]["sm"] == row["texts"]["energy"] == UNKNOWN
        assert tab.value("document.documentElement.scrollWidth") <= width
        tab.screenshot(tmp_path / "page.png")
        assert_clean(tab, agent.url)


def test_a_host_without_a_driver_shows_the_reason(browser: Browser, tmp_path: Path) -> None:
    nothing = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: the driver is not loaded", errors=1)
    with stepped_agent(alter=lambda _: nothing) as agent:
        tab = open_page(browser, agent)
        shown = tab.value("document.getElementById('main').innerText")
        for words in (
            "unavailable: NVML: the driver is not loaded",
            "No GPU could be read.",
            "The workloads on the GPUs are unknown.",
        ):
            assert words in shown
        assert tab.value("[...document.querySelectorAll('#totals b')].map(node => node.textContent)") == [
            "0", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN,
        ]  # fmt: skip
        tab.screenshot(tmp_path / "page.png")
        assert_clean(tab, agent.url)


def crowded_world(count: int) -> WorldSpec:
    """The demo with ``count`` more containers, each with a process on the first GPU."""
    world = demo_world(1)
    crowd = tuple(
        ProcessSpec(
            pid=100_000 + number,
            name="python3",
            workload=WorkloadSpec(
                WorkloadRef(WorkloadKind.CONTAINER, f"{number:064x}"), WorkloadNames(container=f"crowd-{number:03}")
            ),
            uses=(GpuUse(gpu=0, memory=Steady(1 << 20)),),
        )
        for number in range(count)
    )
    return replace(world, processes=world.processes + crowd)


def test_a_hundred_workloads_are_shown_and_the_rest_on_request(browser: Browser) -> None:
    with stepped_agent(crowded_world(150)) as agent:
        tab = open_page(browser, agent)
        count_of_all = len(agent.now().workloads)
        assert len(tab.value(NAMES)) == 100
        assert tab.value("document.getElementById('count').textContent") == f"{count_of_all} workloads"
        further = "document.getElementById('further')"
        assert tab.value(f"{further}.textContent") == f"Show {count_of_all - 100} more of {count_of_all}"
        tab.value("document.getElementById('filter').value = 'crowd-149'")
        tab.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
        assert tab.value(NAMES) == ["crowd-149"]  # also a row that was not shown
        assert tab.value(f"{further}.hidden") is True
        tab.value("document.getElementById('filter').value = ''")
        tab.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
        tab.value(f"{further}.click()")
        assert len(tab.value(NAMES)) == count_of_all
        assert tab.value(f"{further}.hidden") is True
        assert tab.value("document.getElementById('announcement').textContent") == f"{count_of_all} workloads are shown"
        assert_clean(tab, agent.url)


def without_utilization(read: GpuRead) -> GpuRead:
    """Remove the utilisation of all GPUs."""
    return replace(read, gpus=tuple(replace(each, utilization=None, gpu_ratio=None) for each in read.gpus))


def test_memory_held_while_idle_is_shown_with_undecided_memory(browser: Browser) -> None:
    with stepped_agent() as agent:  # two samples are too few for an idle state
        tab = open_page(browser, agent)
        states = [(row["texts"]["state"], row["memory"]) for row in tab.value(TABLE)]
        undecided = sum(int(memory) for state, memory in states if state == "unknown")
        assert {"busy", "unknown", "allocated"} == {state for state, _ in states}
        assert totals_of(tab)["Held while idle"] == f"0 MiB {undecided / 2**30:.1f} GiB undecided"
    with stepped_agent(alter=without_utilization) as agent:
        tab = open_page(browser, agent)
        held_idle = totals_of(tab)["Held while idle"]
        assert held_idle.startswith(f"{UNKNOWN} ")
        assert held_idle.endswith(" GiB undecided")


# ---------------------------------------------------------------------------- an agent that stops and starts again


NOTICE: Final = "(document.getElementById('link').hidden ? '' : document.getElementById('link').innerText)"
NO_EXPORTERS: Final = ("--exporters", "none")


IN_SIGHT: Final = """(() => {
  const {top, bottom, left, right} = document.getElementById('link').getBoundingClientRect();
  return top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth && bottom > top;
})()"""
MOVES: Final = """(() => {
  const link = document.getElementById('link');
  const place = () => [document.getElementById('main').getBoundingClientRect().top, document.body.scrollHeight];
  const before = place();
  link.hidden = !link.hidden;
  const after = place();
  link.hidden = !link.hidden;
  return before.some((each, at) => each !== after[at]);
})()"""
"""Whether anything on the page moves when the notice appears or disappears."""


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_page_says_that_it_lost_the_agent_and_recovers_by_itself(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    (address,) = free_addresses(1)
    tab = Tab(browser)
    tab.emulate(width=width, dark=False)
    with simulated_agent(*NO_EXPORTERS, directory=tmp_path, listen=str(address)) as agent:
        assert agent.address == address  # waits until it listens
        tab.open(f"http://{address}")
        tab.until("document.getElementById('main')?.dataset.cycle")
        assert tab.value(NOTICE) == ""
        assert_clean(tab, f"http://{address}")
        cycle = tab.value("document.getElementById('main').dataset.cycle")
        tab.until(f"document.getElementById('main').dataset.cycle !== '{cycle}'")
        title = tab.value("document.title")
        tab.value("document.getElementById('rows').lastChild.scrollIntoView()")
    said = tab.until(f"{NOTICE}.startsWith('Lost the agent') && {NOTICE}")
    assert "Retrying" in said
    assert tab.value("document.getElementById('announcement').textContent") == said
    assert len(tab.value(CARDS)) == 4  # old figures stay, marked as stale
    assert tab.value("document.body.matches('.stale')")
    assert tab.value("scrollY") > 200
    for place in ("document.body.scrollHeight", "0"):  # at any scroll position
        tab.value(f"scrollTo(0, {place})")
        assert tab.value(IN_SIGHT)
        assert not tab.value(MOVES)
    assert tab.value("document.title") == f"(lost) {title}"
    for dark in (False, True):
        tab.emulate(width=width, dark=dark)
        assert tab.value(LOW_CONTRAST) == []  # grey text is readable
    tab.screenshot(tmp_path / "lost.png")
    with simulated_agent(*NO_EXPORTERS, directory=tmp_path, listen=str(address)):
        tab.until(f"{NOTICE} === 'The agent is back.'")
        assert not tab.value("document.body.matches('.stale')")
        assert tab.value(IN_SIGHT)
        assert tab.value("document.title") == title


def test_a_page_says_that_a_connected_agent_is_silent(browser: Browser, tmp_path: Path) -> None:
    tab = Tab(browser)
    with simulated_agent(*NO_EXPORTERS, directory=tmp_path) as agent:
        tab.open(f"http://{agent.address}")
        tab.until("document.getElementById('main')?.dataset.cycle")
        agent.process.send_signal(signal.SIGSTOP)
        tab.until(f"{NOTICE}.includes(': it sends no data. ')")
        agent.process.send_signal(signal.SIGCONT)
        tab.until(f"{NOTICE} === 'The agent is back.'")
        assert tab.console_errors == []


TURN: Final = """Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});
document.dispatchEvent(new Event('visibilitychange'))"""


def test_old_figures_are_grey_until_a_silent_agent_sends_a_cycle(browser: Browser, tmp_path: Path) -> None:
    tab = Tab(browser)
    with simulated_agent(*NO_EXPORTERS, directory=tmp_path) as agent:
        tab.open(f"http://{agent.address}")
        tab.until("document.getElementById('main')?.dataset.cycle")
        assert not tab.value("document.body.matches('.stale')")
        tab.value(TURN.format("true"))
        agent.process.send_signal(signal.SIGSTOP)
        tab.value(TURN.format("false"))
        assert tab.value("document.body.matches('.stale')")
        assert tab.value(NOTICE) == ""  # no notice for a moment
        tab.until(f"{NOTICE}.includes(': it sends no data. The figures are old, from ')")
        assert tab.value("document.body.matches('.stale')")
        agent.process.send_signal(signal.SIGCONT)
        tab.until(f"{NOTICE} === 'The agent is back.' && !document.body.matches('.stale')")


FOLLOWED: Final = """(async () => {
  const {follow} = await import('/static/stream.js');
  const said = [];
  let now = 0;
  let tick = null;
  const streams = [];
  window.EventSource = class extends EventTarget {
    constructor() { super(); streams.push(this); }
    close() {}
    tell(id) {
      this.dispatchEvent(new MessageEvent('view', {data: '{"lost_after_s": 13}', lastEventId: id}));
    }
  };
  performance.now = () => now * 1000;
  window.setInterval = (each) => { tick = each; };
  const noting = (word) => () => { if (said.at(-1) !== word) said.push(word); };
  follow('/api/events', {
    onCycle: () => {}, onOld: noting('old'), onCurrent: noting('current'),
    onLost: noting('lost'), onBack: noting('back'),
  });
  const wait = (seconds) => { for (let at = 0; at < seconds; at += 1) { now += 1; tick(); } };
  STEPS
  return said;
})()"""


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("streams.at(-1).tell('1'); wait(13);", ["current"]),
        ("wait(11);", ["lost"]),  # that never sent a cycle
        ("streams.at(-1).tell('1'); wait(14);", ["current", "lost", "old"]),
        # A hanging sampler: a new connection receives the same old cycle.
        ("streams.at(-1).tell('1'); wait(14); streams.at(-1).tell('1'); wait(5);", ["current", "lost", "old"]),
        (
            "streams.at(-1).tell('1'); wait(14); streams.at(-1).tell('2'); wait(5); streams.at(-1).tell('3');",
            ["current", "lost", "old", "back", "current"],
        ),
    ],
    ids=["within the limit", "no cycle", "silence", "the same cycle", "back"],
)
def test_a_repeated_cycle_does_not_make_a_page_current(browser: Browser, steps: str, said: list[str]) -> None:
    with stepped_agent() as agent:
        tab = open_page(browser, agent)
        assert tab.value(FOLLOWED.replace("STEPS", steps)) == said
