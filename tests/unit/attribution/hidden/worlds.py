"""Worlds in which GPU memory is hidden from the driver's lists, and how far an inference is off their truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_gpu.attribution.hidden import Candidate, Evidence, HiddenMemory
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuIdentity, ProcessKey, WorkloadKind, WorkloadRef
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Points
from otel_gpu.sources.sim.world import (
    TICKS_PER_SECOND,
    GpuSpec,
    GpuUse,
    ProcessSpec,
    Visibility,
    WorkloadSpec,
    WorldSpec,
)

GIB: Final = 1 << 30
POLL_S: Final = 5.0
END_S: Final = 600.0
DEVICE: Final = DeviceKey("GPU-0", "")


@dataclass(slots=True)
class Life:
    """One process: when it starts and ends, and what it holds at (seconds since its start, bytes)."""

    start_s: float
    points: list[tuple[float, float]]
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """A kind of world, and when it is first looked at."""

    lives: Callable[[random.Random, list[float]], list[Life]]
    first_look_s: float = 0.0


def _one_step(rng: random.Random, size: float) -> list[tuple[float, float]]:
    at_s = rng.uniform(0.5, 4.0)
    return [(0.0, 0.0), (at_s, 0.0), (at_s, size)]


def _staggered(rng: random.Random, sizes: list[float]) -> list[Life]:
    start_s, lives = 0.0, []
    for size in sizes:
        start_s += rng.uniform(15.0, 60.0)
        lives.append(Life(start_s, _one_step(rng, size)))
    return lives


def _ramps_and_frees(rng: random.Random, sizes: list[float]) -> list[Life]:
    start_s, lives = 0.0, []
    for size in sizes:
        start_s += rng.uniform(25.0, 50.0)
        begin_s, end_s = rng.uniform(0.5, 4.0), rng.uniform(8.0, 24.0)
        points = [(0.0, 0.0), (begin_s, 0.0), (end_s, size)]
        if rng.random() < 0.5:
            free_s = end_s + rng.uniform(30.0, 200.0)
            points += [(free_s, size), (free_s, size * rng.uniform(0.6, 0.9))]
        lives.append(Life(start_s, points))
    return lives


def _overlapping_ramps(rng: random.Random, sizes: list[float]) -> list[Life]:
    start_s, lives = 0.0, []
    for size in sizes:
        start_s += rng.uniform(5.0, 30.0)
        begin_s = rng.uniform(0.5, 4.0)
        lives.append(Life(start_s, [(0.0, 0.0), (begin_s, 0.0), (begin_s + rng.uniform(60.0, 180.0), size)]))
    return lives


def _slow_growth(rng: random.Random, sizes: list[float]) -> list[Life]:
    start_s, lives = 0.0, []
    for size in sizes:
        start_s += rng.uniform(10.0, 30.0)
        first = size * rng.uniform(0.4, 1.0)
        grows_s = 300.0 - start_s
        points = _one_step(rng, first)
        lives.append(Life(start_s, [*points, (grows_s, first), (grows_s + rng.uniform(100.0, 300.0), size)]))
    return lives


def _simultaneous(rng: random.Random, sizes: list[float]) -> list[Life]:
    start_s = rng.uniform(20.0, 25.0)
    return [
        Life(start_s + rng.uniform(0.0, 1.0), [(0.0, 0.0), (1.0, 0.0), (1.0 + rng.uniform(0.5, 30.0), size)])
        for size in sizes
    ]


def _stops_only(rng: random.Random, sizes: list[float]) -> list[Life]:
    lives = [Life(rng.uniform(1.0, 90.0), _one_step(rng, size)) for size in sizes]
    for life in lives[1:]:
        life.end_s = rng.uniform(200.0, 580.0) if rng.random() < 0.4 else None
    return lives


def _open_without_memory(rng: random.Random, sizes: list[float]) -> list[Life]:
    lives = _staggered(rng, sizes)
    for life in rng.sample(lives, max(1, len(lives) // 3)):
        life.points = [(0.0, 0.0)]
    return lives


FAMILIES: Final[Mapping[str, MetricBlock]] = {
    "staggered": MetricBlock(_staggered),
    "ramps and frees": MetricBlock(_ramps_and_frees),
    "overlapping ramps": MetricBlock(_overlapping_ramps),
    "slow growth": MetricBlock(_slow_growth),
    "simultaneous": MetricBlock(_simultaneous),
    "late start": MetricBlock(_stops_only, first_look_s=100.0),
    "open without memory": MetricBlock(_open_without_memory),
}


def world(family: str, sharers: int, seed: int, *, mappings: bool) -> WorldSpec:
    """A GPU of 80 GiB and processes on it that its driver does not list; mappings are 1 to 1.4 of what is held."""
    rng = random.Random(f"{family}/{sharers}/{seed}")
    sizes = [math.exp(rng.uniform(math.log(0.5), math.log(16.0))) for _ in range(sharers)]
    scale = min(1.0, 72.0 / sum(sizes)) * GIB
    lives = FAMILIES[family].lives(rng, [size * scale for size in sizes])
    pids = rng.sample(range(1, 1000), sharers)
    processes = tuple(
        ProcessSpec(
            pid=pid,
            name=f"p{pid}",
            workload=WorkloadSpec(WorkloadRef(WorkloadKind.CONTAINER, f"{pid:064x}")),
            uses=(
                GpuUse(
                    gpu=0,
                    memory=Points(tuple(life.points)),
                    visibility=Visibility.HIDDEN,
                    uvm_factor=rng.uniform(1.0, 1.4) if mappings else None,
                ),
            ),
            start_s=life.start_s,
            end_s=life.end_s,
        )
        for pid, life in zip(pids, lives, strict=True)
    )
    gpu = GpuSpec(
        identity=GpuIdentity(0, DEVICE.gpu_uuid, "Test GPU", minor=0),
        memory_total_bytes=80 * GIB,
        memory_reserved_bytes=GIB,
        static_w=40.0,
        context_w=20.0,
        power_limit_w=300.0,
        sample_period_us=1_000_000,
    )
    return WorldSpec(seed=seed, gpus=(gpu,), processes=processes)


class Look(NamedTuple):
    """One poll: what the agent sees, and the truth."""

    now_s: float
    unknown_bytes: int
    candidates: list[Candidate]
    true_bytes: dict[ProcessKey, int]


def looks(spec: WorldSpec, first_look_s: float) -> Iterator[Look]:
    """Poll a world until its end."""
    clock = ManualClock()
    host = SimulatedHost(spec, clock)
    driver, procfs = host.gpu_source(), host.process_source()
    clock.advance(first_look_s)
    for poll in range(int((END_S - first_look_s) / POLL_S) + 1):
        if poll:
            clock.advance(POLL_S)
        now_s = clock.monotonic_ns() / 1e9
        memory = driver.read().gpus[0].memory
        assert memory is not None
        found = procfs.read(()).processes.values()
        candidates = [
            Candidate(
                id=ProcessOnDevice(facts.key, DEVICE),
                evidence=Evidence.DEVICE_OPEN,
                age_s=now_s - (facts.key.start_ticks / TICKS_PER_SECOND - spec.uptime_s),
                mapping_bytes=facts.uvm_mapping_bytes,
            )
            for facts in found
        ]
        truth = {one.key: one.resident_bytes for one in host.truth().gpus[0].processes if not one.ended}
        yield Look(now_s, memory.used_bytes, candidates, truth)


class Errors(NamedTuple):
    """Mean over the workloads that held anything of Σ|inferred - true| / Σ true over all polls, in percent."""

    inferred: float
    equal: float


def errors(family: str, sharers: int, seed: int, *, mappings: bool) -> Errors:
    """How far this inference is off in one world, beside an equal split among the candidates."""
    memory = HiddenMemory()
    true: dict[ProcessKey, int] = {}
    off: dict[ProcessKey, float] = {}
    off_equal: dict[ProcessKey, float] = {}
    for look in looks(world(family, sharers, seed, mappings=mappings), FAMILIES[family].first_look_s):
        split = memory.observe(unknown_bytes=look.unknown_bytes, candidates=look.candidates, now_s=look.now_s)
        assert sum(part.bytes for part in split.inferred.values()) + split.unattributed_bytes == look.unknown_bytes
        for key, held in look.true_bytes.items():
            part = split.inferred.get(ProcessOnDevice(key, DEVICE))
            true[key] = true.get(key, 0) + held
            off[key] = off.get(key, 0) + abs((part.bytes if part is not None else 0) - held)
            off_equal[key] = off_equal.get(key, 0) + abs(look.unknown_bytes / len(look.candidates) - held)
    holders = [key for key, held in true.items() if held]
    return Errors(
        100 * sum(off[key] / true[key] for key in holders) / len(holders),
        100 * sum(off_equal[key] / true[key] for key in holders) / len(holders),
    )
