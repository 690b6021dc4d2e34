"""What the cost of the agent is judged by."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cost import guard, page
from bench.cost.meter import Footprint, Mark
from bench.cost.report import Figures, as_document, as_markdown, figures, targets
from bench.cost.run import IDLE, Options, Result, Turns
from bench.cost.sums import Assumed, sums
from bench.cost.tools import OURS, PEER, peer_version
from bench.cost.worlds import SIZES, populated, write_world
from otel_gpu.sources.cpuclock import cpu_clock_for, cpu_time_ns
from tests.nvml_stub.build import build
from tests.nvml_stub.play import LiveCounts, stub_env

REPOSITORY = Path(__file__).parents[3]
START = Mark(time_s=0.0, cpu_s=1.0, cycles=100.0, device_calls=1_000, all_calls=2_000, pushed_bytes=0, requests=0)


def turns(tool: str, world: str, *, cpu_s: float = 0.2, calls: int = 800, rss_mb: int = 50) -> Turns:
    end = replace(START, cpu_s=START.cpu_s + cpu_s, cycles=110.0, device_calls=1_000 + calls, pushed_bytes=5_000)
    return Turns(
        tool,
        SIZES[world],
        start_s=0.5,
        turns=[(START, end), (START, end)],
        scrape_s=[0.001, 0.002, 0.9],
        scrape_bytes=[100, 200],
        series=7,
        footprint=Footprint(rss_mb * 1_000_000, 3),
    )


def test_figures_are_by_cycle_over_all_turns() -> None:
    found = figures(turns(OURS, "M"))
    assert (found.cycles, found.cpu_ms, found.driver_calls_per_gpu) == (20.0, 20.0, 10.0)
    assert (found.scrape_ms, found.scraped_bytes, found.pushed_bytes) == (2.0, 150, 500)
    assert (found.gpus, found.processes, found.containers) == (8, 64, 40)


def all_figures(**ours: float) -> list[Figures]:
    measured = [turns(OURS, "M"), turns(PEER, "M", cpu_s=0.6), turns(IDLE, "M", cpu_s=0.1), turns(OURS, "L", cpu_s=4.0)]
    found = [figures(each) for each in measured]
    return [replace(found[0], **ours), *found[1:]]  # type: ignore[arg-type]


def test_every_target_can_be_reached() -> None:
    assert [target.what for target in targets(all_figures(), (1.0, 1.3)) if not target.reached] == []


@pytest.mark.parametrize(
    ("ours", "what"),
    [
        ({"driver_calls_per_gpu": 10.1}, "driver calls"),
        ({"cpu_ms": 20.1}, "of nvitop-exporter's"),
        ({"rss_mb": 64.1}, "resident memory"),
        ({"start_s": 1.6}, "start to first metrics"),
        ({"cpu_ms": 19.9}, "CPU where nothing changes"),
    ],
)
def test_a_target_is_missed_by_the_figure_that_it_is_about(ours: dict[str, float], what: str) -> None:
    missed = [target.what for target in targets(all_figures(**ours), (1.0, 1.3)) if not target.reached]
    assert any(what in each for each in missed)


def test_what_was_not_measured_is_neither_reached_nor_missed_and_said_to_be_so() -> None:
    document = as_document(Result(Options(), (turns(OURS, "S"),), None), {})
    assert [target["reached"] for target in document["targets"]] == [None] * 7
    unknown = [line for line in as_markdown(document) if "not measured" in line]
    assert len(unknown) == 7
    assert all(line.endswith("| not known |") for line in unknown)


def test_a_count_a_quarter_over_its_record_passes_and_one_more_does_not() -> None:
    assert guard.judged({"python_calls": 125.0}, {"python_calls": 100.0}) == []
    (line,) = guard.judged({"python_calls": 126.0, "x": 1}, {"python_calls": 100.0, "x": 1})
    assert line.startswith("python_calls: 126 in a cycle, recorded are 100 (+26%)")


@pytest.mark.long
def test_a_cycle_costs_no_more_than_a_quarter_over_what_was_recorded() -> None:
    child = [sys.executable, "-m", "bench.cost.guard"]
    done = subprocess.run(child, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(guard.RECORD.read_text())["driver_calls"] <= 10


def test_the_other_exporter_is_pinned_with_hashes_and_is_no_dependency_of_the_project() -> None:
    pinned = (REPOSITORY / "constraints/bench.txt").read_text()
    assert pinned.count("--hash=sha256:") > pinned.count("==")
    assert peer_version()
    assert "nvitop" not in (REPOSITORY / "pyproject.toml").read_text()
    assert "nvitop" not in (REPOSITORY / "constraints/dev.txt").read_text()


def test_calls_can_be_counted_while_a_process_makes_them(tmp_path: Path) -> None:
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


def test_the_page_has_the_figures_that_are_recorded() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(text) == text, "python -m bench.cost.page writes it"
    assert text.count("<!-- made: ") == text.count("<!-- end -->") == 4


def test_a_fleet_costs_as_much_as_its_hosts_do() -> None:
    document = as_document(Result(Options(), (turns(OURS, "M"), turns(PEER, "M")), None), {})
    host, rack, fleet = sums(document, Assumed(interval_s=5, export_interval_s=10, rack_hosts=4, fleet_hosts=1000))
    assert (host.gpus, host.cpu_cores, host.memory_gb) == (8, 0.004, 0.05)
    assert (host.series, host.points_per_s, host.received_bytes_per_s) == (7, 0.7, 50.0)
    assert (rack.gpus, rack.series) == (32, 28)
    assert (fleet.cpu_cores, fleet.received_bytes_per_s) == (4.0, 50_000.0)


@pytest.mark.parametrize("world", SIZES)
def test_everybodys_processes_are_on_one_gpu_and_nobody_has_none(world: str) -> None:
    size = SIZES[world]
    places = {(size.container_of(number), number % size.gpus) for number in range(size.processes)}
    assert {container for container, _ in places} == set(range(size.containers))
    assert len(places) == size.containers


def test_processes_run_while_a_host_is_busy_and_sleep_while_nothing_changes(tmp_path: Path) -> None:
    with populated(SIZES["S"], tmp_path) as population:
        assert cpu_clock_for(population.proc) is cpu_time_ns  # links to the real one: who sleeps is known to
        pids = population.pids[0]

        def ran(for_s: float) -> list[bool]:
            before = [cpu_time_ns(pid) for pid in pids]
            time.sleep(for_s)
            return [cpu_time_ns(pid) != cpu_ns for pid, cpu_ns in zip(pids, before, strict=True)]

        for _ in range(2):
            population.run(busy=True)
            assert all(ran(for_s=1.0))
            population.run(busy=False)
            assert not any(ran(for_s=0.3))
