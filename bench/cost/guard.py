"""``python -m bench.cost.guard``: counts of a cycle, a scrape and a push; fails where one is 25 % over the record.

It counts and takes no times: a busy or slow machine gives the same counts. World M, the stub driver in this process, a
``/proc`` of plain files and a manual clock make every run the same. A scrape follows each cycle, and a push every 15
cycles, as by default. ``record`` writes the counts as the record.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final, Protocol, TypeAlias

from bench.cost.compiled import compiled
from bench.cost.run import PUSH_EVERY_CYCLES
from bench.cost.worlds import SIZES, Size, write_world
from otel_gpu.agent.engine import Engine
from otel_gpu.clock import ManualClock
from otel_gpu.export.batches import split_by_size
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.series import Collection
from otel_gpu.sources.nvml import NvmlSource
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import STEADY
from otel_gpu.web.bodies import Bodies, CycleBody
from tests.docker_api import container_id
from tests.nvml_stub.build import build
from tests.nvml_stub.play import STEPPED_EPOCH_US, StubClock, preload, stub_variables
from tests.proc_tree import UVM, ProcTree, maps_line

RECORD: Final = Path(__file__).with_name("counts.json")
ALLOWED: Final = 1.25
CYCLES: Final = 2 * PUSH_EVERY_CYCLES
"""Every figure and file that is read less than once per cycle is read at least once in 30 s."""

_SETTLE_CYCLES: Final = 10
_ALLOCATING_CYCLES: Final = 10
_WORLD_S: Final = _SETTLE_CYCLES + CYCLES + _ALLOCATING_CYCLES + 10
_ALLOCATIONS: Final = Path(__file__).with_name("allocations.c")
_FIRST_PID: Final = 1000
_BYSTANDERS: Final = 50

Counts: TypeAlias = dict[str, dict[str, float]]
"""Means by part (cycle, scrape, push) and by count. Driver calls are per GPU; ``allocations`` are calls of the C
library's allocator; ``peak_bytes`` is the peak of memory in the part over that at its start."""


class Agent:
    """The parts of an agent on one world; the caller advances it second by second."""

    def __init__(self, directory: Path, size: Size) -> None:
        pids = [
            [_FIRST_PID + gpu + number * size.gpus for number in range(size.processes_per_gpu)]
            for gpu in range(size.gpus)
        ]
        world = write_world(directory / "world", size, pids, epoch_us=STEPPED_EPOCH_US, seconds=_WORLD_S)
        self._stub_clock = StubClock(directory / "clock")
        self._library = preload(build())
        os.environ.update(stub_variables(world, self._stub_clock))
        self._clock = ManualClock(wall_ns=STEPPED_EPOCH_US * 1000)
        self._size = size
        self._nvml = NvmlSource(self._clock, event_wait_ms=10, sys_root=directory / "sys")
        processes = ProcfsSource(_write_proc(directory / "proc", pids, size), self._clock, intervals=STEADY)
        self._engine = Engine(gpus=self._nvml, processes=processes, clock=self._clock)
        account = SelfAccount(started_ns=self._clock.wall_ns(), cpu_s=lambda: 1.0, memory_bytes=lambda: 1)
        self._metrics = AgentMetrics(CycleMetrics(lambda: self._engine.latest, account))
        resources = Resources({"host.name": "bench", "host.id": "0" * 32}, {"service.name": "otel-gpu"})
        self._resources, self._renderer = resources, PrometheusRenderer(resources)
        self._bodies = Bodies()

    def cycle(self) -> int:
        """Read and attribute, one second later; sends no bytes."""
        self._clock.advance(1)
        self._stub_clock.advance_s(1)
        self._engine.sample()
        return 0

    def scrape(self) -> int:
        """Collect, render and compress as for Prometheus; the bytes sent."""
        collection, form = self._collected(), Exposition.OPENMETRICS
        body = CycleBody(self._bodies, form, collection.time_ns, lambda: self._renderer.parts(collection, form))
        return len(body.compressed().data)

    def push(self) -> int:
        """Split and encode as for a Collector; the bytes sent."""
        batches = split_by_size(self._collected(), self._resources)
        return sum(len(encode(batch, self._resources).SerializeToString()) for batch in batches)

    def _collected(self) -> Collection:
        collection = self._metrics.collect()
        assert collection is not None
        return collection

    def driver_calls_per_gpu(self) -> float:
        """Driver calls that named a GPU so far, per GPU."""
        return sum(int(self._library.stub_device_call_count(gpu)) for gpu in range(self._size.gpus)) / self._size.gpus

    def close(self) -> None:
        """End its threads."""
        self._nvml.close()
        self._stub_clock.close()


def _write_proc(root: Path, pids: Sequence[Sequence[int]], size: Size) -> Path:
    tree = ProcTree(root)
    maps = "".join(maps_line(0x10000 * number, 4096, UVM if number % 10 == 0 else "/x.so") for number in range(1, 300))
    for gpu, mine in enumerate(pids):
        for pid in mine:
            group = container_id(pid % size.containers)
            fds = ("/dev/null", "/dev/null", "/dev/null", "/dev/nvidiactl", UVM, f"/dev/nvidia{gpu}")
            tree.add(pid, cgroup=f"0::/system.slice/docker-{group}.scope\n", fds=fds, maps=maps)
    for number in range(_BYSTANDERS):
        tree.add(100 + number, fds=("/dev/null", "/tmp/x"))  # noqa: S108 - a link, never followed
    return tree.root


# ---------------------------------------------------------------------------- counting


class Gauge(Protocol):
    """Runs a part of the agent and counts something during it."""

    def measure(self, part: str, work: Callable[[], int]) -> None:
        """Run ``work`` and count it under ``part``."""


class _Unmeasured:
    """Counts nothing."""

    def measure(self, part: str, work: Callable[[], int]) -> None:  # noqa: ARG002 - the protocol's
        """Run ``work``."""
        work()


class _Means:
    """Values by part and count, and their means."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[float]] = {}

    def add(self, part: str, **values: float) -> None:
        """Take in one run of a part."""
        for name, value in values.items():
            self._values.setdefault((part, name), []).append(value)

    def counts(self) -> Counts:
        """The means, without counts that are always 0."""
        found: Counts = {}
        for (part, name), values in self._values.items():
            if any(values):
                found.setdefault(part, {})[name] = fmean(values)
        return found


class CallGauge:
    """Counts Python calls, files opened, driver calls and bytes sent, in all threads that start after it."""

    def __init__(self) -> None:
        self.means = _Means()
        self.driver_calls: Callable[[], float] = lambda: 0.0
        self._python_calls = 0
        self._files_opened = 0
        self._counting = False
        sys.addaudithook(self._audit)  # it cannot be removed, so this is a process of its own
        threading.setprofile(self._profile)

    def measure(self, part: str, work: Callable[[], int]) -> None:
        """Run ``work`` with a profile function and an audit hook."""
        self._python_calls = self._files_opened = 0
        driver_calls = self.driver_calls()
        self._counting = True
        sys.setprofile(self._profile)
        try:
            sent_bytes = work()
        finally:
            sys.setprofile(None)
            self._counting = False
        self.means.add(
            part,
            driver_calls=self.driver_calls() - driver_calls,
            files_opened=self._files_opened,
            python_calls=self._python_calls,
            sent_bytes=sent_bytes,
        )

    def _profile(self, _: FrameType, event: str, __: object) -> None:
        if event == "call" and self._counting:
            self._python_calls += 1

    def _audit(self, event: str, _: tuple[object, ...]) -> None:
        if event == "open" and self._counting:
            self._files_opened += 1


class AllocationGauge:
    """Counts allocations of the whole process, by a library that is preloaded."""

    def __init__(self) -> None:
        self.means = _Means()
        self._library = ctypes.CDLL(None)

    def measure(self, part: str, work: Callable[[], int]) -> None:
        """Run ``work``."""
        before = int(self._library.otel_gpu_allocations())
        work()
        self.means.add(part, allocations=int(self._library.otel_gpu_allocations()) - before)


class PeakGauge:
    """Measures the peak of Python's memory, while tracemalloc runs."""

    def __init__(self) -> None:
        self.means = _Means()

    def measure(self, part: str, work: Callable[[], int]) -> None:
        """Run ``work``."""
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        work()
        self.means.add(part, peak_bytes=tracemalloc.get_traced_memory()[1] - before)


def _play(agent: Agent, cycles: int, gauge: Gauge) -> None:
    """Run a cycle and a scrape per second, and a push in the first second of every fifteen."""
    for number in range(cycles):
        gauge.measure("cycle", agent.cycle)
        gauge.measure("scrape", agent.scrape)
        if number % PUSH_EVERY_CYCLES == 0:
            gauge.measure("push", agent.push)


def count(size: Size = SIZES["M"]) -> Counts:
    """Count; once per process, since the stub driver and the audit hook stay."""
    calls, allocations, peaks = CallGauge(), AllocationGauge(), PeakGauge()
    with TemporaryDirectory(prefix="og-") as directory:
        agent = Agent(Path(directory), size)
        calls.driver_calls = agent.driver_calls_per_gpu
        try:
            _play(agent, _SETTLE_CYCLES, _Unmeasured())
            _play(agent, CYCLES, calls)
            _play(agent, _ALLOCATING_CYCLES, allocations)
            tracemalloc.start()
            _play(agent, 1, _Unmeasured())  # tracing begins after the first cycle
            _play(agent, 1, peaks)
        finally:
            tracemalloc.stop()
            threading.setprofile(None)
            agent.close()
    return _joined(calls.means.counts(), allocations.means.counts(), peaks.means.counts())


def _joined(*found: Counts) -> Counts:
    joined: Counts = {}
    for counts in found:
        for part, values in counts.items():
            rounded = {name: round(value, 1 if value < 100 else None) for name, value in values.items()}
            joined.setdefault(part, {}).update(rounded)
    return joined


# ---------------------------------------------------------------------------- comparing


def judged(found: Mapping[str, Mapping[str, float]], recorded: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each count that is over a quarter above the record."""
    return [
        f"{name} of a {part}: {value:,.6g}, recorded {limit:,.6g} ({value / limit - 1:+.0%})"
        for part, limits in recorded.items()
        for name, limit in limits.items()
        if (value := found[part].get(name, 0.0)) > limit * ALLOWED
    ]


def table(found: Mapping[str, Mapping[str, float]], recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """The counts next to the record."""
    yield f"{'M':24}{'found':>14}{'recorded':>14}"
    for part, counts in found.items():
        for name, value in counts.items():
            limit = recorded.get(part, {}).get(name)
            yield f"{f'{part} {name}':24}{value:14,.6g}" + ("" if limit is None else f"{limit:14,.6g}")


def _have_allocations_counted(arguments: Sequence[str]) -> None:
    """Start again with the library that counts allocations, unless this process has it."""
    counting = {"LD_PRELOAD": str(compiled(_ALLOCATIONS, "-shared", "-fPIC")), "PYTHONMALLOC": "malloc"}
    if counting.items() <= os.environ.items():
        return
    os.execve(sys.executable, (sys.executable, "-m", "bench.cost.guard", *arguments), {**os.environ, **counting})  # noqa: S606 - ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and compare; 0 if nothing is more than a quarter over the record, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost.guard", description=__doc__)
    parser.add_argument("record", nargs="?", choices=("record",), help="write the counts as the record")
    given = parser.parse_args(arguments)
    _have_allocations_counted(sys.argv[1:] if arguments is None else arguments)
    found = count()
    if given.record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    for line in table(found, recorded):
        print(line)
    missed = judged(found, recorded)
    for line in missed:
        print(f"more than a quarter over the record: {line}")
    if missed:
        print("if the change is worth it: python -m bench.cost.guard record, with the reason in the commit message")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
