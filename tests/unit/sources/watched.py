"""The engine on the NVML stub with a check of every report, for tests of faults."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from otel_gpu.agent.engine import AttributionRules, Engine
from otel_gpu.agent.sampling import GpuLog, StateLog
from otel_gpu.model import (
    GpuHealth,
    GpuIdentity,
    GpuReport,
    Report,
    SourceOutcome,
    WorkloadKind,
    WorkloadRef,
)
from otel_gpu.sources.pause import PausableGpus
from tests.builders import FakeProcesses, facts, process_read
from tests.nvml_stage import Stage
from tests.nvml_stub.world import Listed, World, WorldGpu
from tests.unit.metrics.builders import values_by

GIB = 1 << 30
S = 1_000_000
CYCLE_S = 5
BEGINS_S, ENDS_S = 22, 102
"""Start and end of the fault. Cycles are at whole multiples of their length, so none is at an edge."""

HEALTHY, FAILING = 0, 1
POWER_W = {HEALTHY: 300, FAILING: 200}
PIDS = {HEALTHY: (100,), FAILING: (200, 201)}
WORKLOADS = {pid: WorkloadRef(WorkloadKind.CONTAINER, f"{pid:064x}") for pids in PIDS.values() for pid in pids}


def counter_mj(gpu: int, at_s: float) -> int:
    """The energy counter of the world, which steps once a second."""
    return 1_000_000 + POWER_W[gpu] * 1000 * int(at_s)


def two_gpus() -> tuple[World, WorldGpu, WorldGpu]:
    """Two GPUs that work, with one process on the first and two on the second."""
    world = World()
    gpus = world.gpu(), world.gpu()
    for index, gpu in enumerate(gpus):
        gpu.typical()
        gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=(3 + 2 * index) * GIB)
        gpu.compute(0, [Listed(pid, 2 * GIB) for pid in PIDS[index]])
        gpu.energy_steps(0, 400 * S, POWER_W[index], start_mj=counter_mj(index, 0), step_us=S)
        for at_s in range(0, 400, 2):
            gpu.sample(at_s * S, PIDS[index][0], 50)
    return world, *gpus


class Watched:
    """The engine on a stage, with a check of every report, and the log lines of an agent."""

    def __init__(
        self,
        stage: Stage,
        world: World,
        *,
        deadline_s: float = 30.0,
        init_deadline_s: float = 30.0,
        rules: AttributionRules | None = None,
    ) -> None:
        self.stage = stage
        self.rules = rules
        self.nvml = stage.play(world, deadline_s=deadline_s, init_deadline_s=init_deadline_s)
        self.source = PausableGpus(self.nvml, stage.clock, holds=self.nvml.holds)
        present = process_read(*(facts(pid, ref) for pid, ref in WORKLOADS.items()))
        self.engine = Engine(gpus=self.source, processes=FakeProcesses(present), clock=stage.clock, rules=rules)
        self._states, self._gpus = StateLog(), GpuLog("nvml")
        self.now_s = 0.0
        self.totals_mj: dict[str, int] = {}

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Know GPUs from an earlier run, as an agent that starts does."""
        self.nvml.recall(gpus)
        self.source.recall(gpus)

    def cycle(self) -> Report:
        """One cycle, with the checks that hold in all of them."""
        answer = self.engine.sample()
        self._states.observe(answer.sources)
        self._gpus.observe(answer)
        for gpu in answer.gpus:
            self._check(gpu, answer)
        self.stage.advance(CYCLE_S)
        self.now_s += CYCLE_S
        return answer

    def until(self, at_s: float) -> list[Report]:
        """The cycles before that time."""
        answers = []
        while self.now_s < at_s:
            answers.append(self.cycle())
        return answers

    def _check(self, gpu: GpuReport, answer: Report) -> None:
        uuid = gpu.identity.uuid
        status = values_by("hw.status", answer, "hw.id", "hw.state")
        assert status == {
            (each.identity.uuid, state.value): int(each.reading.health is state)
            for each in answer.gpus
            for state in GpuHealth
        }
        assert gpu.energy_error_mj == 0
        if gpu.memory is not None:
            assert gpu.memory.conservation_error_bytes == 0
        if not gpu.reading.answered:
            assert gpu.memory is None
            assert gpu.reading.reason
        if gpu.totals is None:
            return
        parts = (part for workload in answer.workloads for part in workload.gpus if part.gpu_uuid == uuid)
        workloads_mj = sum(part.totals.energy.total_mj or 0 for part in parts if part.totals is not None)
        assert workloads_mj + gpu.totals.idle_mj + gpu.totals.unattributed_mj == gpu.totals.total_mj
        assert gpu.totals.total_mj >= self.totals_mj.get(uuid, 0)  # no counter ever falls
        self.totals_mj[uuid] = gpu.totals.total_mj


class Lines(logging.Handler):
    """Log lines as they come."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.messages.append(record.getMessage())


def of(answer: Report, index: int) -> GpuReport:
    return next(gpu for gpu in answer.gpus if gpu.identity.uuid.endswith(str(index)))


def nvml(answer: Report) -> SourceOutcome:
    return next(source for source in answer.sources if source.name == "nvml")


def health(answer: Report) -> tuple[GpuHealth, ...]:
    return tuple(of(answer, index).reading.health for index in (HEALTHY, FAILING))
