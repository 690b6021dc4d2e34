"""The agent on a simulated host, and the figures scored from its reports. A missing figure is not 0."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.clock import Clock
from otel_gpu.model import GpuReport, GpuState, Report, WorkloadGpu
from otel_gpu.sources.sim.host import SimulatedHost

SM: Final = EnergyModel.SM.value
LEARNED: Final = EnergyModel.LEARNED.value
MODELS: Final = (LEARNED, SM)

T = TypeVar("T")


class BenchError(Exception):
    """The agent's answer cannot be scored."""


class Sampler(Protocol):
    """What is scored: an engine."""

    def sample(self) -> Report:
        """Read the world now and attribute it."""


class Start(Protocol):
    """Starts a sampler on a host; ``model`` is an energy model's name."""

    def __call__(self, host: SimulatedHost, clock: Clock, model: str) -> Sampler:
        """A new observer of this host."""


def start(host: SimulatedHost, clock: Clock, model: str) -> Sampler:
    """The agent's engine with the energy policy of the bench."""
    return Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=(host.name_source(),),
        clock=clock,
        options=AttributionOptions(energy_policy=EnergyPolicy.RESIDENT, energy_model=EnergyModel(model)),
    )


def _needed(value: T | None, what: str) -> T:
    if value is None:
        raise BenchError(f"the agent's answer has no {what}: it cannot be scored")
    return value


def only_gpu(answer: Report) -> GpuReport:
    """The world's one GPU."""
    if len(answer.gpus) != 1:
        raise BenchError(f"the agent's answer has {len(answer.gpus)} GPUs where the world has one")
    return answer.gpus[0]


def _parts(answer: Report) -> dict[str, WorkloadGpu]:
    parts: dict[str, WorkloadGpu] = {}
    for workload in answer.workloads:
        for part in workload.gpus:
            if workload.ref.id in parts:
                raise BenchError(f"workload {workload.ref.id[:12]} occurs twice on one GPU")
            parts[workload.ref.id] = part
    return parts


def energy_mj(answer: Report) -> dict[str, int]:
    """Energy of each workload so far, by all methods."""
    return {
        workload_id: _needed(_needed(part.totals, "totals of a workload").energy.total_mj, "energy of a workload")
        for workload_id, part in _parts(answer).items()
    }


def process_energy_mj(answer: Report) -> int:
    """Energy of all processes so far."""
    totals = [_needed(process.totals, "totals of a process") for process in answer.processes]
    return sum(_needed(each.energy.total_mj, "energy of a process") for each in totals)


def busy_s(answer: Report) -> dict[str, float]:
    """Compute time of each workload so far."""
    return {
        workload_id: _needed(part.totals, "totals of a workload").compute_us / 1e6
        for workload_id, part in _parts(answer).items()
    }


def standing_w(answer: Report) -> float:
    """The agent's estimate of the GPU's power with contexts and without work."""
    return _needed(only_gpu(answer).basis, "energy basis").context_power_w


def inferred_bytes(answer: Report) -> dict[str, int]:
    """Inferred memory of each workload. Only here absent counts as 0."""
    return {workload_id: part.inferred_bytes or 0 for workload_id, part in _parts(answer).items()}


def states(answer: Report) -> dict[str, GpuState]:
    """The reported state of each active workload."""
    return {
        workload_id: _needed(part.state, "state of a workload")
        for workload_id, part in _parts(answer).items()
        if part.active
    }


# ---------------------------------------------------------------------------- conservation


class Conservation:
    """Checks conservation in every cycle, and keeps the largest error in bytes and mJ."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.energy_mj = 0
        self._start_mj: int | None = None
        self._workloads_mj: dict[str, int] = {}

    def check(self, answer: Report) -> None:
        """Check one cycle."""
        gpu = only_gpu(answer)
        self._check_memory(answer, gpu)
        counter_mj = _needed(gpu.reading.energy_mj, "energy counter")
        if self._start_mj is None:
            self._start_mj = counter_mj
        totals = _needed(gpu.totals, "totals of a GPU")
        # Workloads that ended longer ago than the retention are not in the report, but their energy counts.
        self._workloads_mj.update(energy_mj(answer))
        misses = [
            totals.total_mj - (counter_mj - self._start_mj),
            totals.attributed_mj - sum(self._workloads_mj.values()),
        ]
        if len(self._workloads_mj) == len(answer.workloads):
            misses.append(totals.attributed_mj - process_energy_mj(answer))
        if gpu.energy is not None and answer.window_s is not None:
            split = gpu.energy
            parts = (split.attributed_mj, split.idle_mj, split.unattributed_mj)
            misses.append(split.delta_mj - sum(_needed(part, "part of the energy split") for part in parts))
        self.energy_mj = max(self.energy_mj, *map(abs, misses))

    def _check_memory(self, answer: Report, gpu: GpuReport) -> None:
        split = _needed(gpu.memory, "memory split")
        parts = _parts(answer).values()
        misses = (
            split.conservation_error_bytes,
            split.inferred_bytes - sum(part.inferred_bytes or 0 for part in parts),
            split.measured_bytes - sum(part.measured_bytes or 0 for part in parts),
        )
        self.memory_bytes = max(self.memory_bytes, *map(abs, misses))
