"""``python -m bench.cost.guard``: what a cycle costs in counts; fails where one is a quarter over what was recorded.

Counts, no seconds: a machine that is busy or slow gives the same. One world (M), the stub driver in this process, a
``/proc`` of plain files and a clock that is told the time, so every run counts the same things. ``record`` writes
the counts down as those to compare with.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

from bench.cost.compiled import compiled
from bench.cost.worlds import SIZES, Size, write_world
from otel_gpu.clock import ManualClock
from otel_gpu.engine import Engine
from otel_gpu.export.otlp_wire import WireEncoder
from otel_gpu.export.prometheus import Exposition, PrometheusText
from otel_gpu.metrics.collection import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.readings import Readings
from otel_gpu.metrics.selfstats import SelfAccount
from otel_gpu.sources.nvml import NvmlSource
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.procfs_scan import STEADY
from otel_gpu.web.exchange import Encoder, Response
from tests.docker_api import container_id
from tests.nvml_stub.build import build
from tests.nvml_stub.play import STEPPED_EPOCH_US, StubClock, preload, stub_variables
from tests.procfs_tree import UVM, ProcTree, maps_line

RECORD: Final = Path(__file__).with_name("counts.json")
ALLOWED: Final = 1.25
CYCLES: Final = 30
"""Every slow figure and file is asked for at least once in so many seconds."""

_SETTLE_CYCLES: Final = 10
_ALLOCATING_CYCLES: Final = 10
_BUSY_S: Final = CYCLES + _SETTLE_CYCLES + _ALLOCATING_CYCLES + 5
_ALLOCATIONS: Final = Path(__file__).with_name("allocations.c")
_FIRST_PID: Final = 1000
_BYSTANDERS: Final = 50


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one cycle, read, attributed, scraped and pushed, on average; driver calls are of one GPU.

    ``allocations`` are those asked of the C library, ``held_bytes`` is how much more memory a cycle has at its peak
    than at its start.
    """

    driver_calls: float
    files_opened: float
    python_calls: float
    sent_bytes: float
    allocations: float
    held_bytes: float


class _Counter:
    """Counts what Python does, in all threads that start after it."""

    def __init__(self) -> None:
        self.python_calls = 0
        self.files_opened = 0
        self._counting = False
        sys.addaudithook(self._audit)  # for good: there is no way to take it away, so this is a process of its own

    def start(self) -> None:
        """Have threads that start from now on counted too."""
        threading.setprofile(self._profile)

    def count(self, cycle: Callable[[], None]) -> tuple[float, float]:
        """Calls of Python functions and files opened in a cycle."""
        self.python_calls = self.files_opened = 0
        for _ in range(CYCLES):
            self._run(cycle)
        return self.python_calls / CYCLES, self.files_opened / CYCLES

    def _run(self, cycle: Callable[[], None]) -> None:
        self._counting = True
        sys.setprofile(self._profile)
        try:
            cycle()
        finally:
            sys.setprofile(None)
            self._counting = False

    def _profile(self, _: FrameType, event: str, __: object) -> None:
        if event == "call" and self._counting:
            self.python_calls += 1

    def _audit(self, event: str, _: tuple[object, ...]) -> None:
        if event == "open" and self._counting:
            self.files_opened += 1


class _Host:
    """An agent's parts on one world, a cycle at a time."""

    def __init__(self, directory: Path, size: Size) -> None:
        pids = [
            [_FIRST_PID + gpu + number * size.gpus for number in range(size.processes_per_gpu)]
            for gpu in range(size.gpus)
        ]
        world = write_world(
            directory / "world", size, pids, epoch_us=STEPPED_EPOCH_US, seconds=3 * _BUSY_S, busy_s=_BUSY_S
        )
        self._stub_clock = StubClock(directory / "clock")
        self._library = preload(build())
        os.environ.update(stub_variables(world, self._stub_clock))
        self._clock = ManualClock(wall_ns=STEPPED_EPOCH_US * 1000)
        self._size = size
        self._nvml = NvmlSource(self._clock, event_wait_ms=10, sys_root=directory / "sys")
        processes = ProcfsSource(_write_proc(directory / "proc", pids, size), self._clock, pace=STEADY)
        self._engine = Engine(gpus=self._nvml, processes=processes, clock=self._clock)
        account = SelfAccount(started_ns=self._clock.wall_ns(), cpu_s=lambda: 1.0, memory_bytes=lambda: 1)
        self._metrics = AgentMetrics(Readings(lambda: self._engine.latest, account))
        resources = Resources({"host.name": "bench", "host.id": "0" * 32}, {"service.name": "otel-gpu"})
        self._wire, self._text, self._encoder = WireEncoder(resources), PrometheusText(resources), Encoder()
        self.sent_bytes = 0

    def cycle(self) -> None:
        """A second later, everything once."""
        self._clock.advance(1)
        self._stub_clock.advance_s(1)
        self._engine.sample()
        collection = self._metrics.collect()
        assert collection is not None
        self.sent_bytes += sum(len(batch.data) for batch in self._wire.batches(collection))
        scrape = Response(self._text.parts(collection, Exposition.OPENMETRICS))
        self.sent_bytes += len(self._encoder.encode(scrape, "gzip")[0])  # as Prometheus asks for it

    def driver_calls(self) -> int:
        """Calls that named a GPU, so far."""
        return sum(int(self._library.stub_device_call_count(gpu)) for gpu in range(self._size.gpus))

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


def count(size: Size = SIZES["M"]) -> Counts:
    """Count; once for a process, since a stub driver and an audit hook stay."""
    counter = _Counter()
    with TemporaryDirectory(prefix="og-") as directory:
        counter.start()
        host = _Host(Path(directory), size)
        try:
            for _ in range(_SETTLE_CYCLES):
                host.cycle()
            calls, sent = host.driver_calls(), host.sent_bytes
            python_calls, files_opened = counter.count(host.cycle)
            calls, sent = host.driver_calls() - calls, host.sent_bytes - sent
            allocated = _allocated(host.cycle)
            held_bytes = _held_bytes(host.cycle)
        finally:
            threading.setprofile(None)
            host.close()
    return Counts(
        driver_calls=round(calls / CYCLES / size.gpus, 2),
        files_opened=round(files_opened, 1),
        python_calls=round(python_calls),
        sent_bytes=round(sent / CYCLES),
        allocations=round(allocated),
        held_bytes=held_bytes,
    )


def _allocated(cycle: Callable[[], None]) -> float:
    """How often memory is asked for in a cycle, by everybody in this process."""
    library = ctypes.CDLL(None)
    before = int(library.otel_gpu_allocations())
    for _ in range(_ALLOCATING_CYCLES):
        cycle()
    return (int(library.otel_gpu_allocations()) - before) / _ALLOCATING_CYCLES


def _held_bytes(cycle: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        cycle()  # what is kept from cycle to cycle is there once this one is over
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        cycle()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _have_allocations_counted(arguments: Sequence[str]) -> None:
    """Start anew with what counts allocations, unless this process has it."""
    counting = {"LD_PRELOAD": str(compiled(_ALLOCATIONS, "-shared", "-fPIC")), "PYTHONMALLOC": "malloc"}
    if counting.items() <= os.environ.items():
        return
    os.execve(sys.executable, (sys.executable, "-m", "bench.cost.guard", *arguments), {**os.environ, **counting})  # noqa: S606 - ours


def judged(found: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """What is more than a quarter over what was recorded, a line each."""
    return [
        f"{name}: {found[name]:,.6g} in a cycle, recorded are {limit:,.6g} ({found[name] / limit - 1:+.0%})"
        for name, limit in recorded.items()
        if found[name] > limit * ALLOWED
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and compare; 0 if nothing grew by more than a quarter, 1 if something did."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost.guard", description=__doc__)
    parser.add_argument("record", nargs="?", choices=("record",), help="write the counts down as those to compare with")
    given = parser.parse_args(arguments)
    _have_allocations_counted(sys.argv[1:] if arguments is None else arguments)
    found = asdict(count())
    if given.record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    print(f"{'in a cycle of M':20}{'found':>14}{'recorded':>14}")
    for name, value in found.items():
        print(f"{name:20}{value:14,.10g}{recorded[name]:14,.10g}")
    grown = judged(found, recorded)
    for line in grown:
        print(f"more than a quarter over: {line}")
    if grown:
        print("if it is worth it: python -m bench.cost.guard record, and say why in the change")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
