"""Kills an agent again and again through a simulated day: ``python -m tests.kill_run --kills 200 --seed 1``.

This process is the hardware: it simulates a host, which runs whatever happens to the agent, and checks what the agent
reports. The agent is the real engine with the real rules and a real state directory, forked, and killed with SIGKILL at
a random moment of a random cycle: before it writes, while it writes, during a checkpoint, before and after it reports.
Then the host runs without it for a while, and the next agent starts; now and then before the driver responds.

No counter may ever fall that has the same identity and start. At the end, per GPU, the energy of all workloads, idle
and unattributed, must be the advance of the GPU's counter, to the millijoule.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from otel_gpu.agent.engine import Engine
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuHealth, GpuIdentity, GpuReading, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import GpuRead, NameRead, ProcessRead
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Bursty, Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, JobStream, ProcessSpec, Visibility, WorkloadSpec, WorldSpec
from tests.state_dirs import OPTIONS, StatefulAgent, counters, fallen

DAY_S: Final = 86_400.0
CYCLE_S: Final = 20.0
LONGEST_AWAY_S: Final = 120.0
GIB: Final = 1 << 30

Counters = dict[tuple[Any, ...], tuple[int, ...]]


def world(seed: int) -> WorldSpec:
    """Three GPUs: one with one workload, one that is shared, one with a hidden process; and jobs that start and end."""

    def use(gpu: int, gib: float, work: Any, watts: float, **more: Any) -> GpuUse:
        return GpuUse(gpu, Steady(gib * GIB), work, Steady(watts), **more)

    def container(name: str) -> WorkloadSpec:
        return WorkloadSpec(WorkloadRef(WorkloadKind.CONTAINER, name * 8), WorkloadNames(container=name))

    gpus = tuple(
        GpuSpec(
            GpuIdentity(index, f"GPU-{index}", "NVIDIA A100-SXM4-80GB", minor=index),
            memory_total_bytes=80 * GIB,
            memory_reserved_bytes=GIB,
            static_w=46.0 + index,
            context_w=17.0,
            power_limit_w=400.0,
            noise_ratio=0.05,
            energy_start_mj=1_000_003 * index,
            sample_period_us=1_000_000,
        )
        for index in range(3)
    )
    processes = (
        ProcessSpec(100, "alone", container("alone"), (use(0, 20, Bursty(0.8, 0.5, 300.0, seed), 280.0),)),
        ProcessSpec(101, "web", container("web"), (use(1, 10, Bursty(0.5, 0.4, 60.0, seed + 1), 250.0),)),
        ProcessSpec(102, "batch", container("batch"), (use(1, 10, Steady(0.3), 180.0),)),
        ProcessSpec(103, "hidden", container("hidden"), (use(2, 6, Steady(0.2), 150.0, visibility=Visibility.HIDDEN),)),
    )
    job = ProcessSpec(0, "job", container("job"), (use(1, 4, Steady(0.4), 200.0),))
    brief = ProcessSpec(0, "brief", container("brief"), (use(2, 2, Steady(0.7), 220.0),))
    streams = (JobStream("jobs", 240.0, 30.0, 900.0, (job, brief), first_pid=5000),)
    return WorldSpec(seed, gpus, processes, streams, wall_start_ns=1_700_000_000_000_000_000)


# ---------------------------------------------------------------------------- messages


def send(descriptor: int, message: Any) -> None:
    """One message, in as many writes as it takes."""
    content = pickle.dumps(message)
    content = struct.pack("<I", len(content)) + content
    while content:
        content = content[os.write(descriptor, content) :]


def receive(descriptor: int) -> Any:
    """The next message; ``None`` if the other end is closed, in the middle of a message too."""
    head = _exactly(descriptor, 4)
    body = None if head is None else _exactly(descriptor, struct.unpack("<I", head)[0])
    return None if body is None else pickle.loads(body)


def _exactly(descriptor: int, count: int) -> bytes | None:
    content = b""
    while len(content) < count:
        more = os.read(descriptor, count - len(content))
        if not more:
            return None
        content += more
    return content


# ---------------------------------------------------------------------------- the agent, in a process of its own


class Hardware:
    """The host as the agent sees it: every read is a question to the other process."""

    def __init__(self, questions: int, answers: int) -> None:
        self._questions, self._answers = questions, answers

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer to a question."""
        send(self._questions, (what, *arguments))
        answer = receive(self._answers)
        if answer is None:
            os._exit(0)
        return answer


class FarClock:
    """The host's clock."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._now: tuple[int, int] = (0, 0)

    def look(self) -> None:
        """Read the time."""
        self._now = self._hardware.ask("time")

    def wall_ns(self) -> int:
        """Unix time at the last look."""
        return self._now[0]

    def monotonic_ns(self) -> int:
        """Monotonic time at the last look."""
        return self._now[1]


class FarGpus:
    """The host's GPUs."""

    name = "sim"

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def read(self) -> GpuRead:
        """Read the GPUs."""
        read: GpuRead = self._hardware.ask("gpus")
        return read

    def close(self) -> None:
        """Do nothing."""


class FarProcesses:
    """The host's processes."""

    name = "procfs"

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """Read the processes."""
        read: ProcessRead = self._hardware.ask("processes", frozenset(pids))
        return read


class FarNames:
    """The host's container engine."""

    name = "names"

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """Names of all containers."""
        return NameRead(self._hardware.ask("names"))

    def wait(self, timeout_s: float) -> bool:
        """Names are known at once."""
        return True

    def close(self) -> None:
        """Do nothing."""


def agent(directory: Path, hardware: Hardware, checkpoint_every_s: float) -> None:
    """Sample and report until killed, or close and exit if the answer is to end."""
    clock = FarClock(hardware)
    attributor = StatefulAgent(directory, OPTIONS, checkpoint_every_s=checkpoint_every_s)
    engine = Engine(
        gpus=FarGpus(hardware),
        processes=FarProcesses(hardware),
        names=[FarNames(hardware)],
        clock=clock,
        rules=attributor,
    )
    while True:
        clock.look()
        if hardware.ask("report", counters(engine.sample())) == "end":
            attributor.close()
            os._exit(0)


# ---------------------------------------------------------------------------- the hardware, and the judge


class Judge:
    """All counters reported so far, and violations in them."""

    def __init__(self) -> None:
        self.reported: Counters = {}
        self.cycles = 0
        self.reported_last = 0
        self.wrong: list[str] = []

    def check(self, new: Counters) -> None:
        """Check a report."""
        self.cycles += 1
        self.wrong += [f"{key} fell from {before} to {after}" for key, before, after in fallen(self.reported, new)]
        self.reported |= new

    def missing_mj(self, uuid: str, advanced_mj: int) -> int:
        """The advance of a GPU's counter without all energy that was reported of it."""
        parts = sum(sum(sums[:3]) for key, sums in self.reported.items() if key[0] == "workload" and key[-3] == uuid)
        devices = [sums for key, sums in self.reported.items() if key[:2] == ("gpu", uuid)]
        return advanced_mj - parts - sum(idle + unattributed for _, idle, unattributed in devices)


class Day:
    """A simulated host through a day, and one agent after the other on it."""

    def __init__(self, seed: int, directory: Path, day_s: float) -> None:
        self.clock = ManualClock()
        self._day_s = day_s
        self.host = SimulatedHost(world(seed), self.clock)
        self.judge = Judge()
        self._directory = directory
        self._dice = random.Random(seed)
        self._sources = (self.host.gpu_source(), self.host.process_source(), self.host.name_source())
        self._counters_mj: dict[int, dict[str, int]] = {}  # by the time of the cycle
        self._xids: Counter[str] = Counter()
        self._away_cycles = 0

    def life(self, cycles: int | None) -> None:
        """Run one agent: killed in the cycle after ``cycles``, or stopped at the end of the day."""
        mine, theirs = os.pipe(), os.pipe()
        checkpoint_every_s = self._dice.choice((CYCLE_S, 10 * CYCLE_S))
        pid = os.fork()
        if pid == 0:
            os.close(mine[0])
            os.close(theirs[1])
            agent(self._directory, Hardware(mine[1], theirs[0]), checkpoint_every_s)
        os.close(mine[1])
        os.close(theirs[0])
        # Utilisation since the last query and XIDs are counted per agent: they start again with each.
        self._xids.clear()
        self._away_cycles = 0 if cycles is None else self._dice.choice((0, 0, 0, 1, 3))
        self._sources = (self.host.gpu_source(), self.host.process_source(), self.host.name_source())
        try:
            self._serve(pid, mine[0], theirs[1], cycles)
        finally:
            os.close(mine[0])
            os.close(theirs[1])
            os.waitpid(pid, 0)

    def _serve(self, pid: int, questions: int, answers: int, cycles: int | None) -> None:
        reports = 0
        while (question := receive(questions)) is not None:
            what, *arguments = question
            if what == "report":
                self.judge.check(arguments[0])
                reports += 1
                self.clock.advance(CYCLE_S)
                if cycles is None and reports >= 3 and self.clock.monotonic_ns() >= self._day_s * 1e9:
                    send(answers, "end")
                    return
            send(answers, self._answer(what, arguments))
            if reports == cycles and what == "names":
                # It has read everything: within some milliseconds it writes, attributes and reports the cycle.
                time.sleep(self._dice.choice((0.001, 0.01, 0.03)) * self._dice.random())
                os.kill(pid, signal.SIGKILL)
                while (question := receive(questions)) is not None:
                    if question[0] == "report":  # it was faster, and the report counts as exported
                        self.judge.check(question[1])
                        self.judge.reported_last += 1
                return

    def _answer(self, what: str, arguments: list[Any]) -> Any:
        gpus, processes, names = self._sources
        match what:
            case "time":
                return self.clock.wall_ns(), self.clock.monotonic_ns()
            case "gpus":
                read = gpus.read()
                if self._away_cycles:
                    self._away_cycles -= 1
                    return GpuRead(
                        tuple(map(_silent, read.gpus)), None, SourceState.UNAVAILABLE, "not loaded", errors=1
                    )
                self._counters_mj[self.clock.wall_ns()] = {gpu.identity.uuid: gpu.energy_mj or 0 for gpu in read.gpus}
                return replace(read, gpus=tuple(map(self._with_xids, read.gpus)))
            case "processes":
                return processes.read(arguments[0])
            case "names":
                return names.read({}).known
        return "continue"

    def _with_xids(self, gpu: GpuReading) -> GpuReading:
        """A reading with a critical error now and then."""
        uuid = gpu.identity.uuid
        self._xids[uuid] += self._dice.random() < 0.05
        return replace(gpu, xid_errors=self._xids[uuid], last_xid=79 if self._xids[uuid] else None)

    def run_without_agent(self, seconds: float) -> None:
        """Let the host run without an agent."""
        self.clock.advance(seconds)

    def missing(self) -> list[str]:
        """GPUs whose energy does not add up."""
        epochs = {key[-1] for key in self.judge.reported if key[0] == "gpu"}
        if len(epochs) != 1:
            return [f"the ledger began {len(epochs)} times"]
        first_mj, last_mj = self._counters_mj[epochs.pop()], self._counters_mj[max(self._counters_mj)]
        return [
            f"{uuid}: {missing_mj} mJ are missing"
            for uuid in last_mj
            if (missing_mj := self.judge.missing_mj(uuid, last_mj[uuid] - first_mj[uuid]))
        ]


def _silent(gpu: GpuReading) -> GpuReading:
    """A GPU that is known from an earlier run and does not respond."""
    return GpuReading(gpu.identity, gpu.taken_at_ns, GpuHealth.FAILED, "not loaded")


def play(
    kills: int, seed: int, directory: Path, day_s: float = DAY_S, *, say: Callable[[str], object]
) -> tuple[Judge, list[str]]:
    """A day with this many kills; returns the reports and the violations. ``say`` prints progress."""
    dice = random.Random(seed)
    day = Day(seed, directory, day_s)
    most_cycles = max(2, round((day_s / (kills + 1) - LONGEST_AWAY_S / 6) / CYCLE_S * 2))
    for number in range(kills):
        if number % 20 == 0:
            say(f"killed {number} of {kills} times\n")
        day.life(dice.randrange(most_cycles))
        day.run_without_agent(dice.choice((0.0, 1.0, dice.uniform(0.0, LONGEST_AWAY_S))))
    day.life(None)
    return day.judge, day.judge.wrong + day.missing()


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description="kills an agent again and again through a simulated day")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        state = Path(root) / "state"
        judge, wrong = play(options.kills, options.seed, state, options.hours * 3600, say=sys.stderr.write)
    for each in wrong[:10]:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(
        f"{options.kills} kills, {judge.reported_last} of them after a report, {judge.cycles} cycles reported, "
        f"{len(judge.reported)} series, {len(wrong)} wrong, {time.monotonic() - started_s:.0f} s\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
