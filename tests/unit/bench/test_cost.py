"""Targets, counts and figures of the cost bench."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cost import guard, page
from bench.cost.extrapolation import Assumed, sums
from bench.cost.meter import Footprint, Mark
from bench.cost.report import Figures, as_document, as_markdown, figures, targets
from bench.cost.run import PUSH_EVERY_CYCLES, Options, Result, Turns
from bench.cost.sink import Sink
from bench.cost.tools import OURS, PEER, peer_version
from bench.cost.worlds import SIZES, populated, write_world
from otel_gpu.config import load
from tests.nvml_stub.build import build
from tests.nvml_stub.play import LiveCounts, stub_env

REPOSITORY = Path(__file__).parents[3]
START = Mark(cpu_s=1.0, cycles=100.0, device_calls=1_000, pushes=7, pushed_bytes=0)
SECONDS = 10
PUSHED_IN = 4


def turn(cpu_s: float, calls: int, push_cpu_s: float) -> list[Mark]:
    """Ten seconds of one cycle each; a push arrives in the fifth."""
    marks = [START]
    for second in range(1, SECONDS + 1):
        pushed = second > PUSHED_IN
        marks.append(
            Mark(
                cpu_s=START.cpu_s + cpu_s * second / SECONDS + push_cpu_s * pushed,
                cycles=START.cycles + second,
                device_calls=START.device_calls + calls * second // SECONDS,
                pushes=START.pushes + pushed,
                pushed_bytes=5_000 * pushed,
            )
        )
    return marks


def turns(
    tool: str, world: str, *, cpu_s: float = 0.2, calls: int = 800, rss_mb: int = 50, push_cpu_s: float = 0.0
) -> Turns:
    return Turns(
        tool,
        SIZES[world],
        start_s=0.5,
        turns=[turn(cpu_s, calls, push_cpu_s) for _ in range(2)],
        scrape_s=[0.001, 0.002, 0.9],
        scrape_bytes=[100, 200],
        series=7,
        footprint=Footprint(rss_mb * 1_000_000, 3),
    )


def test_figures_are_per_cycle_over_all_turns() -> None:
    found = figures(turns(OURS, "M"))
    assert (found.cycles, found.cpu_ms, found.driver_calls_per_gpu) == (20.0, 20.0, 10.0)
    assert (found.scrape_ms, found.slowest_scrape_ms, found.scraped_bytes) == (2.0, 900.0, 150)
    assert (found.gpus, found.processes, found.containers) == (8, 64, 40)


def test_bytes_and_cpu_of_a_push_are_those_of_one_push() -> None:
    found = figures(turns(OURS, "M", push_cpu_s=0.05))
    assert (found.pushes, found.pushed_bytes) == (2, 5_000)
    assert found.push_cpu_ms == pytest.approx(50.0)
    assert found.cpu_ms == pytest.approx(20.0 + 50.0 / 10)


def test_a_tool_that_does_not_push_has_no_figures_of_a_push() -> None:
    silent = turns(PEER, "M")
    silent.turns = [[replace(mark, pushes=0, pushed_bytes=0) for mark in marks] for marks in silent.turns]
    found = figures(silent)
    assert (found.pushes, found.pushed_bytes, found.push_cpu_ms) == (0, None, None)


def test_a_turn_has_as_many_pushes_as_the_default_interval_gives() -> None:
    assert load({}, {}).config.export.interval_s == PUSH_EVERY_CYCLES
    assert Options().cycles % PUSH_EVERY_CYCLES == 0


def test_requests_close_together_are_one_push() -> None:
    sink = Sink()
    for at_s in (100.0, 100.4, 101.5, 116.0, 131.0, 131.2):
        sink.received(10, at_s)
    assert (sink.pushes, sink.body_bytes) == (3, 60)


def all_figures(**ours: float) -> list[Figures]:
    measured = [turns(OURS, "M"), turns(PEER, "M", cpu_s=0.6), turns(OURS, "L", cpu_s=4.0)]
    found = [figures(each) for each in measured]
    return [replace(found[0], **ours), *found[1:]]  # type: ignore[arg-type]


def test_every_target_can_be_reached() -> None:
    assert [target.what for target in targets(all_figures(), (1.0, 1.3)) if not target.reached] == []


@pytest.mark.parametrize(
    ("ours", "what"),
    [
        ({"driver_calls_per_gpu": 10.1}, "driver calls"),
        ({"cpu_ms": 20.1}, "of nvitop-exporter's"),
        ({"rss_mb": 72.1}, "resident memory"),
        ({"start_s": 1.6}, "start to first metrics"),
        ({"cpu_ms": 19.9}, "CPU per cycle, L"),
    ],
)
def test_a_target_is_missed_by_the_figure_that_it_is_about(ours: dict[str, float], what: str) -> None:
    missed = [target.what for target in targets(all_figures(**ours), (1.0, 1.3)) if not target.reached]
    assert any(what in each for each in missed)


def test_a_target_that_was_not_measured_is_neither_reached_nor_missed() -> None:
    document = as_document(Result(Options(), (turns(OURS, "S"),), None), {})
    assert [target["reached"] for target in document["targets"]] == [None] * 6
    unknown = [line for line in as_markdown(document) if "not measured" in line]
    assert len(unknown) == 6
    assert all(line.endswith("| unknown |") for line in unknown)


def test_a_count_passes_up_to_a_quarter_over_its_record() -> None:
    recorded = {"cycle": {"python_calls": 100.0}, "push": {"sent_bytes": 1.0}}
    assert guard.judged({"cycle": {"python_calls": 125.0}, "push": {}}, recorded) == []
    (line,) = guard.judged({"cycle": {"python_calls": 126.0}, "push": {"sent_bytes": 1.0}}, recorded)
    assert line == "python_calls of a cycle: 126, recorded 100 (+26%)"


@pytest.mark.long
def test_cycle_scrape_and_push_are_at_most_a_quarter_over_their_record() -> None:
    child = [sys.executable, "-m", "bench.cost.guard"]
    done = subprocess.run(child, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = json.loads(guard.RECORD.read_text())
    assert recorded["cycle"]["driver_calls"] <= 10
    assert recorded["scrape"]["sent_bytes"] > 0
    assert recorded["push"]["sent_bytes"] > 0


def test_nvitop_exporter_is_pinned_with_hashes_and_is_no_dependency_of_the_project() -> None:
    pinned = (REPOSITORY / "constraints/bench.txt").read_text()
    assert pinned.count("--hash=sha256:") > pinned.count("==")
    assert peer_version()
    assert "nvitop" not in (REPOSITORY / "pyproject.toml").read_text()
    assert "nvitop" not in (REPOSITORY / "constraints/dev.txt").read_text()


def test_driver_calls_are_counted_while_a_process_makes_them(tmp_path: Path) -> None:
    size = replace(SIZES["S"], gpus=2)
    world = write_world(tmp_path / "world", size, [[1, 2], [3, 4]], epoch_us=1, seconds=2)
    live = LiveCounts(tmp_path / "live")
    assert (sum(live.calls().values()), live.device_calls(2)) == (0, 0)
    script = (
        "import pynvml as n, sys\n"
        "n.nvmlInit()\n"
        "for index in (0, 1, 1): n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(index))\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = stub_env(build(), world, live=live)
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "made\n"
        assert live.calls()["nvmlDeviceGetMemoryInfo"] == 3
        assert (live.device_calls(1), live.device_calls(2)) == (2, 6)
        child.communicate("")


def test_the_page_has_the_recorded_figures() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(text) == text, "python -m bench.cost.page writes it"
    percent = page.percent_of_a_core(page.read("now"))
    assert f"{percent} of one CPU core" in text
    assert f"**Costs** {percent} of one CPU core" in (page.PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- made: ") == text.count("<!-- end -->") == 5


def test_a_fleet_costs_as_much_as_its_hosts_together() -> None:
    measured = (turns(OURS, "M", push_cpu_s=0.05), turns(PEER, "M"))
    document = as_document(Result(Options(), measured, None), {})
    host, rack, fleet = sums(document, Assumed(interval_s=5, export_interval_s=10, rack_hosts=4, fleet_hosts=1000))
    assert (host.gpus, host.memory_gb) == (8, 0.05)
    assert host.cpu_cores == pytest.approx(0.020 / 5 + 0.050 / 10)
    assert (host.series, host.points_per_s, host.received_bytes_per_s) == (7, 0.7, 500.0)
    assert (rack.gpus, rack.series) == (32, 28)
    assert fleet.cpu_cores == pytest.approx(9.0)
    assert fleet.received_bytes_per_s == 500_000.0


@pytest.mark.parametrize("world", SIZES)
def test_each_container_has_processes_all_on_one_gpu(world: str) -> None:
    size = SIZES[world]
    places = {(size.container_of(number), number % size.gpus) for number in range(size.processes)}
    assert {container for container, _ in places} == set(range(size.containers))
    assert len(places) == size.containers


def cpu_time_ns(pid: int) -> int:
    return time.clock_gettime_ns((~pid << 3) | 2)  # CPUCLOCK_SCHED, include/linux/posix-timers_types.h


def test_processes_on_gpus_wake_all_the_time(tmp_path: Path) -> None:
    with populated(SIZES["S"], tmp_path) as population:
        before = [cpu_time_ns(pid) for pid in population.pids[0]]
        time.sleep(1.0)
        after = [cpu_time_ns(pid) for pid in population.pids[0]]
    assert all(now_ns != earlier_ns for now_ns, earlier_ns in zip(after, before, strict=True))
