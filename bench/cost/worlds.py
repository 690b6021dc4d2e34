"""The hosts that are measured: how many GPUs and processes, in how many containers, and what happens on them.

GPUs are simulated by the stub driver. Processes are real: they have device files open and mapped, as CUDA has, and wake
ten times a second for next to no time. Their ``/proc`` is the kernel's, behind a directory of links in which only
``cgroup`` is a file of the bench. So both tools read the same answers of the same kernel, without root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cost.compiled import compiled
from bench.cost.errors import CostError
from tests.docker_api import DockerApi, container_id, serving_docker
from tests.nvml_stub.world import Listed, World

STEP_US: Final = 500_000
"""The step of the energy counter. Drivers have shorter ones, but the stub keeps every step in the memory of the
measured process."""

SAMPLE_US: Final = 167_000
"""The time between utilisation samples, as in drivers."""

MAPPINGS: Final = 300
"""Lines in a process's ``maps``. A CUDA program has some hundreds, one with many libraries thousands."""

BYSTANDERS: Final = 200
"""Processes that use no GPU, as every host has them."""

_GIB: Final = 1 << 30
_TOTAL_BYTES: Final = 80 * _GIB
_RESERVED_BYTES: Final = 600 << 20
_SLEEPER: Final = Path(__file__).with_name("sleeper.c")
_LINKED: Final = (
    "stat", "status", "statm", "cmdline", "comm", "environ", "exe", "cwd", "fd", "maps", "io", "ns", "task", "limits",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """A host."""

    name: str
    gpus: int
    processes_per_gpu: int
    containers: int

    @property
    def processes(self) -> int:
        """Processes on all GPUs."""
        return self.gpus * self.processes_per_gpu

    def container_of(self, number: int) -> int:
        """The container of a process. All processes of a container are on one GPU."""
        on_gpu = range(number % self.gpus, self.containers, self.gpus)
        return on_gpu[number // self.gpus % len(on_gpu)]


SIZES: Final = {size.name: size for size in (Size("S", 1, 4, 2), Size("M", 8, 8, 40), Size("L", 16, 64, 500))}


@dataclass(frozen=True, slots=True)
class Place:
    """A world on disk: the stub's file and the ``/proc`` that belongs to it."""

    world: Path
    proc: Path


def write_world(
    path: Path, size: Size, pids: Sequence[Sequence[int]], *, epoch_us: int, seconds: int, latency_ms: int = 0
) -> Path:
    """Write the GPUs of a host for ``seconds``: processes work in turn, and memory changes each second."""
    world = World(epoch_us=epoch_us)
    if latency_ms:
        world.latency(latency_ms, function="nvmlDeviceGet*")
    end_us = seconds * 1_000_000
    for index in range(size.gpus):
        gpu = world.gpu()
        gpu.typical()
        mine = pids[index]
        watts = 380.0 + index
        gpu.power_mw(0, round(watts * 1000))
        gpu.energy_steps(0, end_us, watts, start_mj=1_000_000, step_us=STEP_US)
        held = [(1 + number % 4) * _GIB // (1 if len(mine) <= 16 else 8) for number in range(len(mine))]
        for second in range(seconds):
            # The memory of one process changes each second, as by allocations.
            held[second % len(held)] += (1 << 20) * (1 if second % 2 else -1)
            at_us = second * 1_000_000
            gpu.compute(at_us, [Listed(pid, amount) for pid, amount in zip(mine, held, strict=True)])
            gpu.memory(
                at_us, total_bytes=_TOTAL_BYTES, reserved_bytes=_RESERVED_BYTES, used_bytes=sum(held) + 300_000_000
            )
            gpu.temperature_c(at_us, 55 + second % 7)
            gpu.utilization(at_us, 70 + second % 20, 30)
        for number, at_us in enumerate(range(0, end_us, SAMPLE_US)):
            gpu.sample(at_us, mine[number % len(mine)], 60 + number % 40, memory=20)
    return world.write(path)


@dataclass(frozen=True, slots=True)
class Population:
    """The processes of a host by GPU, and their ``/proc``."""

    pids: list[list[int]]
    proc: Path


@contextmanager
def populated(size: Size, directory: Path) -> Iterator[Population]:
    """Start the processes of a host; they end with this context."""
    devices = directory / "dev"
    devices.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(size.gpus))):
        (devices / name).write_bytes(bytes(4096))
    counts = (size.gpus, size.processes_per_gpu, MAPPINGS, BYSTANDERS)
    command = [str(compiled(_SLEEPER)), str(devices), *map(str, counts)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sleepers:  # noqa: S603
        assert sleepers.stdout is not None
        try:
            wanted = size.processes + BYSTANDERS
            found = [int(sleepers.stdout.readline() or "0") for _ in range(wanted)]
            if 0 in found:
                raise CostError(f"only {found.index(0)} of {wanted} processes could be started: raise ulimit -u")
            holders, others = found[: size.processes], found[size.processes :]
            by_gpu = [holders[start :: size.gpus] for start in range(size.gpus)]
            yield Population(by_gpu, _write_proc(directory / "proc", holders, others, size))
        finally:
            sleepers.terminate()


@contextmanager
def named(size: Size, path: Path) -> Iterator[Path]:
    """Serve the API of a Docker engine that has the containers of a host, at this socket."""
    engine = DockerApi()
    for number in range(size.containers):
        engine.run(number, f"job-{number}")
    with serving_docker(engine, path):
        yield path


def _write_proc(root: Path, pids: Sequence[int], others: Sequence[int], size: Size) -> Path:
    """Write a directory like ``/proc`` with these processes only, each of ``pids`` in the cgroup of its container."""
    root.mkdir()
    general = (path.name for path in Path("/proc").iterdir() if not path.name.isdecimal())
    for name in (*general, "1", *map(str, others)):
        (root / name).symlink_to(f"/proc/{name}")
    for number, pid in enumerate(pids):
        mine = root / str(pid)
        mine.mkdir()
        for name in _LINKED:
            (mine / name).symlink_to(f"/proc/{pid}/{name}")
        container = container_id(size.container_of(number))
        (mine / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n", encoding="ascii")
    return root
