"""One run: every tool on every world, in turns, so that what else the machine does meanwhile strikes all alike."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.cost.meter import Footprint, Mark, footprint, mark
from bench.cost.sink import Sink, serving
from bench.cost.tools import OURS, PEER, Running, our_agent, peer, started
from bench.cost.worlds import SIZES, Place, Population, Size, named, populated, write_world

IDLE: Final = "otel-gpu, nothing changes"
_SETTLE_CYCLES: Final = 3
"""After its turn came a tool has so many cycles to catch up, which are not counted."""

_SPARE_S: Final = 60
"""How much longer than planned a world goes on: one that ends before a slow machine is through would be an idle one.
Not much longer, for the stub has all of it in the memory of the process that is measured."""

_SOURCE: Final = re.compile(r'^otel_gpu_collection_duration_seconds\{.*otel_gpu_source="nvml".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    worlds: tuple[str, ...] = ("S", "M", "L")
    rounds: int = 3
    cycles: int = 20
    """Cycles of one turn."""
    latency_cycles: int = 8
    beside_peer: bool = True

    @property
    def world_s(self) -> int:
        """How long a world has to go on: three tools take turns."""
        return 3 * self.rounds * (self.cycles + _SETTLE_CYCLES) + _SPARE_S


@dataclass(slots=True)
class Turns:
    """What one tool did in all its turns on one world."""

    tool: str
    world: Size
    start_s: float
    turns: list[tuple[Mark, Mark]] = field(default_factory=list)
    scrape_s: list[float] = field(default_factory=list)
    scrape_bytes: list[int] = field(default_factory=list)
    series: int = 0
    footprint: Footprint = field(default_factory=lambda: Footprint(0, 0))

    def total(self, figure: Callable[[Mark], float]) -> float:
        """What a count came to over all turns."""
        return sum(figure(after) - figure(before) for before, after in self.turns)


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was measured. ``pass_s`` is the time to read one GPU, and all of M, at 5 ms a driver call."""

    options: Options
    turns: tuple[Turns, ...]
    pass_s: tuple[float, float] | None


def run(options: Options, progress: Callable[[str], None]) -> Result:
    """Measure; minutes."""
    found: list[Turns] = []
    with TemporaryDirectory(prefix="og-") as name, serving() as sink:
        for world in options.worlds:
            with _host(SIZES[world], Path(name) / world, options.world_s) as host:
                found += _in_turns(host, options, sink, progress)
        pass_s = _pass_times(Path(name), options, sink, progress) if "M" in options.worlds else None
    return Result(options, tuple(found), pass_s)


@dataclass(frozen=True, slots=True)
class _Host:
    size: Size
    directory: Path
    population: Population
    docker: Path
    world_s: int

    def place(self, name: str, *, busy: bool = True, latency_ms: int = 0) -> Place:
        """A history of this host's GPUs that begins now."""
        path = self.directory / f"{name}.world"
        now_us = time.time_ns() // 1000
        pids = self.population.pids
        write_world(
            path,
            self.size,
            pids,
            epoch_us=now_us,
            seconds=self.world_s,
            busy_s=None if busy else 0,
            latency_ms=latency_ms,
        )
        return Place(path, self.population.proc)


@contextmanager
def _host(size: Size, directory: Path, world_s: int = 300) -> Iterator[_Host]:
    directory.mkdir(parents=True)
    with populated(size, directory) as population, named(size, directory / "docker.sock") as docker:
        yield _Host(size, directory, population, docker, world_s)


def _in_turns(host: _Host, options: Options, sink: Sink, progress: Callable[[str], None]) -> list[Turns]:
    size = host.size
    busy = host.place("busy")
    with ExitStack() as stack:
        running: list[tuple[Turns, Running]] = []

        def start(name: str, on: _Host, place: Place, directory: Path) -> None:
            progress(f"{size.name}: starting {name}")
            tool = peer(place) if name == PEER else our_agent(place, directory, sink_url=sink.url, docker=on.docker)
            process = stack.enter_context(started(tool, size, place, directory))
            running.append((Turns(name, size, process.start_s), process))
            process.pause()

        start(OURS, host, busy, host.directory / "ours")
        if options.beside_peer:
            start(PEER, host, busy, host.directory / "peer")
        if size.name == "M":
            # Processes of its own, which always sleep: had they run in the turns of others, it would find that out in
            # its turn, and look at all of them again. Those of the others go on in its turn as well, so that the
            # machine does the same in every turn.
            still = stack.enter_context(_host(size, host.directory / "still", host.world_s))
            still.population.run(busy=False)
            start(IDLE, still, still.place("idle", busy=False), still.directory / "ours")
        for number in range(options.rounds):
            for turns, process in running:
                progress(f"{size.name}: {turns.tool}, turn {number + 1} of {options.rounds}")
                process.resume()
                _take_turn(turns, process, options.cycles, sink)
                process.pause()
        return [turns for turns, _ in running]


def _take_turn(turns: Turns, process: Running, cycles: int, sink: Sink) -> None:
    """Scrape once a second, and count what is used meanwhile."""

    def now() -> Mark:
        return mark(process, pushed_bytes=sink.body_bytes, requests=sink.requests)

    due_s = time.monotonic()
    before = now()
    for number in range(_SETTLE_CYCLES + cycles):
        due_s += 1.0
        time.sleep(max(0.0, due_s - time.monotonic()))
        scrape = process.scrape()
        if number == _SETTLE_CYCLES - 1:
            before = now()
        elif number >= _SETTLE_CYCLES:
            turns.scrape_s.append(scrape.took_s)
            turns.scrape_bytes.append(scrape.sent_bytes)
            turns.series = sum(not line.startswith("#") for line in scrape.text.splitlines())
    turns.turns.append((before, now()))
    turns.footprint = footprint(process.pid)


def _pass_times(
    directory: Path, options: Options, sink: Sink, progress: Callable[[str], None]
) -> tuple[float, float] | None:
    """How long one GPU, and all of M, take to read where every call takes 5 ms."""
    progress("M and one GPU of it, 5 ms for every driver call")
    one = Size("one", 1, SIZES["M"].processes_per_gpu, 8)
    with ExitStack() as stack:
        agents = []
        for size in (one, SIZES["M"]):
            host = stack.enter_context(_host(size, directory / f"{size.name}-slow", _SPARE_S))
            place = host.place("slow", latency_ms=5)
            tool = our_agent(place, host.directory / "ours", sink_url=sink.url, docker=host.docker)
            agents.append(stack.enter_context(started(tool, size, place, host.directory / "ours")))
        taken_s: list[list[float]] = [[] for _ in agents]
        for _ in range(options.latency_cycles):
            time.sleep(1)
            for agent, times_s in zip(agents, taken_s, strict=True):
                times_s.append(_pass_s(agent.scrape().text))
    first, second = (statistics.median(times_s) for times_s in taken_s)
    return first, second


def _pass_s(text: str) -> float:
    found: Sequence[str] = _SOURCE.findall(text)
    return float(found[0])
