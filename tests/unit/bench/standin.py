"""A small agent for the bench's own tests: it divides by SM share, and its sums add up."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_gpu.attribution.apportion import apportion, whole_weights
from otel_gpu.clock import Clock
from otel_gpu.model import (
    EnergyBasis,
    EnergySplit,
    GpuReading,
    GpuReport,
    GpuState,
    GpuTotals,
    MemorySplit,
    MethodEnergy,
    ProcessFacts,
    ProcessReport,
    Report,
    Totals,
    WorkloadGpu,
    WorkloadReport,
)
from otel_gpu.sources.sim.host import SimulatedHost

IDLE_POLLS = 2


def totals(energy_mj: int, compute_us: int = 0) -> Totals:
    """Totals with only an estimate of energy."""
    return Totals(0, MethodEnergy(0, energy_mj, 0), compute_us, 0, 0, 0, 0, 0, 0)


@dataclass
class StandIn:
    """Attributes one GPU with simple figures that add up."""

    host: SimulatedHost
    clock: Clock
    model: str
    energy_mj: dict[int, int] = field(default_factory=dict)
    compute_us: dict[int, int] = field(default_factory=dict)
    zeros: dict[int, int] = field(default_factory=dict)
    before: GpuReading | None = None
    start_mj: int | None = None

    def __post_init__(self) -> None:
        self._gpus, self._processes = self.host.gpu_source(), self.host.process_source()

    def sample(self) -> Report:
        """One cycle."""
        reading = self._gpus.read().gpus[0]
        facts = self._processes.read(()).processes
        listed = {entry.pid: entry.memory_bytes or 0 for entry in reading.processes or ()}
        standing_w = 0.2 * (reading.power_limit_w or 0.0)
        window_s = 0.0 if self.before is None else (reading.taken_at_ns - self.before.taken_at_ns) / 1e9
        delta_mj = 0 if self.before is None else (reading.energy_mj or 0) - (self.before.energy_mj or 0)
        rows = {row.pid: row.sm_percent for row in reading.utilization.rows} if reading.utilization else {}
        standing_mj = min(delta_mj, round(standing_w * window_s * 1e3)) if any(rows.values()) else delta_mj
        self._book(standing_mj, dict.fromkeys(listed, 1.0))
        self._book(delta_mj - standing_mj, {pid: float(rows.get(pid, 0)) for pid in listed})
        for pid in listed:
            self.compute_us[pid] = self.compute_us.get(pid, 0) + round(rows.get(pid, 0) / 100 * window_s * 1e6)
            self.zeros[pid] = 0 if rows.get(pid) else self.zeros.get(pid, 0) + 1
        hidden = [pid for pid, fact in facts.items() if pid not in listed and fact.uvm_open]
        assert reading.memory is not None
        unknown = reading.memory.used_bytes - sum(listed.values())
        inferred, _ = apportion(unknown, dict.fromkeys(hidden, 1))
        self.before = reading
        parts = {pid: self._part(reading, pid, listed.get(pid), inferred.get(pid)) for pid in facts}
        attributed_mj = sum(self.energy_mj.values())
        self.start_mj = (reading.energy_mj or 0) if self.start_mj is None else self.start_mj
        return Report(
            wall_ns=self.clock.wall_ns(),
            monotonic_ns=reading.taken_at_ns,
            window_s=window_s or None,
            gpus=(
                GpuReport(
                    reading,
                    MemorySplit(
                        reading.memory.total_bytes,
                        reading.memory.reserved_bytes,
                        sum(listed.values()),
                        0,
                        sum(inferred.values()),
                        unknown - sum(inferred.values()),
                        reading.memory.free_bytes,
                    ),
                    EnergySplit(delta_mj, delta_mj if listed else 0, 0 if listed else delta_mj, 0),
                    None,
                    GpuTotals(attributed_mj, (reading.energy_mj or 0) - self.start_mj - attributed_mj, 0),
                    EnergyBasis("counter", "resident", self.model, standing_w, "assumed", standing_w, "assumed"),
                ),
            ),
            workloads=tuple(WorkloadReport(facts[pid].workload, None, (part,)) for pid, part in parts.items()),
            processes=tuple(self._process(facts[pid], part) for pid, part in parts.items()),
            sources=(),
        )

    def _book(self, amount_mj: int, weights: dict[int, float]) -> None:
        parts, _ = apportion(amount_mj, whole_weights(weights))
        for pid, part in parts.items():
            self.energy_mj[pid] = self.energy_mj.get(pid, 0) + part

    def _part(self, reading: GpuReading, pid: int, measured: int | None, inferred: int | None) -> WorkloadGpu:
        return WorkloadGpu(
            gpu_uuid=reading.identity.uuid,
            mig_uuid=None,
            measured_bytes=measured,
            inferred_bytes=inferred,
            state=GpuState.IDLE if self.zeros.get(pid, 0) >= IDLE_POLLS else GpuState.BUSY,
            totals=totals(self.energy_mj.get(pid, 0), self.compute_us.get(pid, 0)),
        )

    def _process(self, facts: ProcessFacts, part: WorkloadGpu) -> ProcessReport:
        return ProcessReport(
            facts.key, facts.name, 0.0, facts.workload, part.gpu_uuid, None, part.measured_bytes, totals=part.totals
        )
