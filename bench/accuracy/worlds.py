"""The kinds of worlds attribution is scored on, and their seeds.

A family makes a world from a seed. ``TUNE`` seeds are for finding parameters, ``HOLDOUT`` seeds for the table; no
parameter may be chosen by results of the latter. The worlds themselves were not designed blind: some properties (how
far sharers differ in use, how fast watts drift, how much a ramp frees, how closely ramps overlap) were chosen after
first scores, mostly of ``TUNE`` seeds. ``large frees`` has the cases that were too hard for ``ramps``.

Every world is one GPU, polled for ten minutes, with one process per workload; energy and memory worlds have 2 to 8
sharers. GPUs, levels, watts, sizes and times are drawn for each seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.accuracy.dice import Dice
from otel_gpu.model import GpuIdentity, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.signals import seed_for
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, ProcessSpec, WorkloadSpec, WorldSpec, container_id

TUNE: Final = tuple(range(1, 41))
HOLDOUT: Final = tuple(range(1001, 1041))

DURATION_S: Final = 600.0
CADENCE_S: Final = 5.0
GIB: Final = 1 << 30

_NAMES: Final = (
    "mail-relay",
    "html-render",
    "llm-server",
    "trainer",
    "notebook",
    "transcoder",
    "embedder",
    "vector-index",
    "ray-tracer",
    "ml-batch",
)
"""Container names, independent of what the containers run."""


class Kind(StrEnum):
    """The quantity that a family's worlds are scored on."""

    ENERGY = "energy"
    MEMORY = "memory"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of world, and how many of its seeds the table takes.

    ``group`` is what the table calls the worlds' processes before it names their duty (idle families only).
    """

    name: str
    kind: Kind
    make: Callable[[int], WorldSpec]
    seeds: int
    group: str = ""


def make_gpu(dice: Dice, *, power_exponent: float = 1.0) -> GpuSpec:
    """A GPU with 80 GiB that draws 11 to 25 % of its limit without work, as data-centre GPUs do."""
    limit_w = dice.between(150.0, 700.0)
    sample_period_us, ring_size = dice.pick(((139_000, 72), (167_000, 100)))
    return GpuSpec(
        identity=GpuIdentity(0, f"GPU-{dice.seed:016x}", "Simulated GPU", minor=0),
        memory_total_bytes=80 * GIB,
        memory_reserved_bytes=GIB,
        static_w=limit_w * dice.between(0.07, 0.15),
        context_w=limit_w * dice.between(0.04, 0.10),
        power_limit_w=limit_w,
        power_exponent=power_exponent,
        noise_ratio=0.02,
        energy_start_mj=dice.integer(0, 10**12),
        sample_period_us=sample_period_us,
        ring_size=ring_size,
    )


def make_process(
    dice: Dice, number: int, use: GpuUse, *, start_s: float = 0.0, end_s: float | None = None, name: str | None = None
) -> ProcessSpec:
    """A process alone in a container, with a random name unless one is given."""
    called = f"{dice.pick(_NAMES)}-{number}" if name is None else name
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(seed_for(dice.seed, f"container {number}")), "docker")
    workload = WorkloadSpec(ref, WorkloadNames(container=called))
    return ProcessSpec(10_000 + number, called, workload, (use,), start_s, end_s)
