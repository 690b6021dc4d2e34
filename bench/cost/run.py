"""One run: every tool on every world, in turns, so that other load on the machine affects both tools alike."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.cost.meter import Footprint, Mark, footprint, mark
from bench.cost.sink import Sink, serving
from bench.cost.tools import OURS, PEER, Running, Scrape, our_agent, peer, started
from bench.cost.worlds import SIZES, Place, Population, Size, named, populated, write_world

PUSH_EVERY_CYCLES: Final = 15
"""The default export interval, 15 s, in cycles of one second."""

_SETTLE_CYCLES: Final = 3
"""Cycles at the start of a turn that are not counted: a resumed tool catches up, and pushes what is overdue."""

_START_CYCLES: Final = 5
"""Cycles that a tool runs before it is paused for the first time. Paused earlier, the agent exports containers before
their names are resolved, and the renamed series stay for the retention."""

_SPARE_S: Final = 60
"""How much longer than planned a world lasts: when it ends, its GPUs are idle, and a slow machine is not done yet.
Not much longer, since the stub driver loads all of it into the memory of the measured process."""

_NVML_DURATION: Final = re.compile(
    r'^otel_gpu_collection_duration_seconds\{.*otel_gpu_source="nvml".*\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured.

    ``cycles`` are those of one turn. As a multiple of ``PUSH_EVERY_CYCLES`` it holds as many pushes as the default
    interval gives, whenever in the turn they happen.
    """

    worlds: tuple[str, ...] = ("S", "M", "L")
    rounds: int = 3
    cycles: int = 2 * PUSH_EVERY_CYCLES
    latency_cycles: int = 8
    beside_peer: bool = True

    @property
    def world_s(self) -> int:
        """How long a world has to last: two tools take turns."""
        return 2 * (self.rounds * (self.cycles + _SETTLE_CYCLES) + _START_CYCLES) + _SPARE_S


@dataclass(slots=True)
class Turns:
    """All turns of one tool on one world: of each turn, the marks at its start and after each second."""

    tool: str
    world: Size
    start_s: float
    turns: list[list[Mark]] = field(default_factory=list)
    scrape_s: list[float] = field(default_factory=list)
    scrape_bytes: list[int] = field(default_factory=list)
    series: int = 0
    footprint: Footprint = field(default_factory=lambda: Footprint(0, 0))

    def total(self, figure: Callable[[Mark], float]) -> float:
        """The total of a count over all turns."""
        return sum(figure(marks[-1]) - figure(marks[0]) for marks in self.turns)

    def seconds(self) -> Iterator[tuple[float, bool]]:
        """Of each second, the CPU time used (s) and whether a push may be part of it.

        A push is encoded before it arrives and ends after that: the seconds next to its arrival count as well.
        """
        for marks in self.turns:
            pairs = list(pairwise(marks))
            arrived = [after.pushes > before.pushes for before, after in pairs]
            for number, (before, after) in enumerate(pairs):
                yield after.cpu_s - before.cpu_s, any(arrived[max(0, number - 1) : number + 2])


@dataclass(frozen=True, slots=True)
class Result:
    """Everything measured. ``pass_s`` is the time to read one GPU, and all of M, with 5 ms per driver call."""

    options: Options
    turns: tuple[Turns, ...]
    pass_s: tuple[float, float] | None


def run(options: Options, progress: Callable[[str], None]) -> Result:
    """Measure; takes minutes."""
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

    def place(self, name: str, *, latency_ms: int = 0) -> Place:
        """A history of this host's GPUs that begins now."""
        path = self.directory / f"{name}.world"
        write_world(
            path,
            self.size,
            self.population.pids,
            epoch_us=time.time_ns() // 1000,
            seconds=self.world_s,
            latency_ms=latency_ms,
        )
        return Place(path, self.population.proc)


@contextmanager
def _host(size: Size, directory: Path, world_s: int) -> Iterator[_Host]:
    directory.mkdir(parents=True)
    with populated(size, directory) as population, named(size, directory / "docker.sock") as docker:
        yield _Host(size, directory, population, docker, world_s)


def _in_turns(host: _Host, options: Options, sink: Sink, progress: Callable[[str], None]) -> list[Turns]:
    """Start the tools, pause them, and let one run at a time."""
    size = host.size
    place = host.place("busy")
    with ExitStack() as stack:
        running: list[tuple[Turns, Running]] = []
        for name in (OURS, PEER) if options.beside_peer else (OURS,):
            progress(f"{size.name}: starting {name}")
            directory = host.directory / name
            tool = peer(place) if name == PEER else our_agent(place, directory, sink_url=sink.url, docker=host.docker)
            process = stack.enter_context(started(tool, size, place, directory))
            running.append((Turns(name, size, process.start_s), process))
            _settle(process, _START_CYCLES)
            process.pause()
        for number in range(options.rounds):
            for turns, process in running:
                progress(f"{size.name}: {turns.tool}, turn {number + 1} of {options.rounds}")
                process.resume()
                _take_turn(turns, process, options.cycles, sink)
                process.pause()
        return [turns for turns, _ in running]


def _take_turn(turns: Turns, process: Running, cycles: int, sink: Sink) -> None:
    """Scrape once a second and count what the tool uses."""
    _settle(process, _SETTLE_CYCLES)
    marks = [mark(process, sink)]
    for scrape in _scrapes(process, cycles):
        marks.append(mark(process, sink))
        turns.scrape_s.append(scrape.took_s)
        turns.scrape_bytes.append(scrape.sent_bytes)
        turns.series = sum(not line.startswith("#") for line in scrape.text.splitlines())
    turns.turns.append(marks)
    turns.footprint = footprint(process.pid)


def _settle(process: Running, cycles: int) -> None:
    """Let a tool run with the usual scrapes, without counting."""
    for _ in _scrapes(process, cycles):
        pass


def _scrapes(process: Running, count: int) -> Iterator[Scrape]:
    """``count`` scrapes, one per second."""
    due_s = time.monotonic()
    for _ in range(count):
        due_s += 1.0
        time.sleep(max(0.0, due_s - time.monotonic()))
        yield process.scrape()


def _pass_times(
    directory: Path, options: Options, sink: Sink, progress: Callable[[str], None]
) -> tuple[float, float] | None:
    """How long one GPU, and all of M, take to read with 5 ms per driver call."""
    progress("M and one GPU of it, 5 ms per driver call")
    one = Size("one", 1, SIZES["M"].processes_per_gpu, 8)
    with ExitStack() as stack:
        agents = []
        for size in (one, SIZES["M"]):
            host = stack.enter_context(_host(size, directory / f"{size.name}-slow", _SPARE_S))
            place = host.place("slow", latency_ms=5)
            tool = our_agent(place, host.directory / OURS, sink_url=sink.url, docker=host.docker)
            agents.append(stack.enter_context(started(tool, size, place, host.directory / OURS)))
        taken_s: list[list[float]] = [[] for _ in agents]
        for _ in range(options.latency_cycles):
            time.sleep(1)
            for agent, times_s in zip(agents, taken_s, strict=True):
                times_s.append(_pass_s(agent.scrape().text))
    first, second = (statistics.median(times_s) for times_s in taken_s)
    return first, second


def _pass_s(text: str) -> float:
    found: Sequence[str] = _NVML_DURATION.findall(text)
    return float(found[0])
