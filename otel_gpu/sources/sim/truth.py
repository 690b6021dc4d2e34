"""What really happened on a simulated host: what no driver tells, and what attribution is scored against.

Energy is in integer picojoules, so that the parts equal the whole exactly: a GPU's total is static + context
+ dynamic, and its dynamic part is the sum over its processes (and ``retired``, those forgotten).

How static and context energy divide among processes is a policy, not a truth; each policy's share of a
process is a time here, to be multiplied by the constant ``static_w`` and ``context_w``: ``equal_share_s``
(equal among resident workloads, then among each one's processes), ``memory_share_s`` (by memory held),
``work_share_s`` (by SM share, while anyone works).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_gpu.model import ProcessKey, WorkloadRef

PJ_PER_MJ: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProcessTruth:
    """One process on one GPU since it started (or since world time 0).

    ``busy_s`` is ∫ SM share dt of the whole GPU. ``idle_since_s`` is the world time since which it does
    nothing, ``None`` while it works or once it has ended. ``resident_bytes`` counts hidden memory too.
    """

    key: ProcessKey
    workload: WorkloadRef
    gpu_uuid: str
    mig_uuid: str | None
    hidden: bool
    ended: bool
    resident_bytes: int
    dynamic_pj: int
    busy_s: float
    resident_s: float
    equal_share_s: float
    memory_share_s: float
    work_share_s: float
    idle_since_s: float | None

    @property
    def dynamic_mj(self) -> float:
        """What its own work drew, in millijoules."""
        return self.dynamic_pj / PJ_PER_MJ


@dataclass(frozen=True, slots=True)
class GpuTruth:
    """One GPU since world time 0. ``occupied_s`` is how long anyone was resident."""

    uuid: str
    static_w: float
    context_w: float
    static_pj: int
    context_pj: int
    dynamic_pj: int
    retired_pj: int
    busy_s: float
    occupied_s: float
    used_bytes: int
    hidden_bytes: int
    processes: tuple[ProcessTruth, ...]

    @property
    def total_pj(self) -> int:
        """All it drew, in picojoules."""
        return self.static_pj + self.context_pj + self.dynamic_pj

    @property
    def total_mj(self) -> float:
        """All it drew, in millijoules."""
        return self.total_pj / PJ_PER_MJ


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a world at one time, in world seconds."""

    at_s: float
    gpus: tuple[GpuTruth, ...]
