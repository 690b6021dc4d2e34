"""Histories of a host with few changes: most cycles equal the one before, and some differ in one thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st

from otel_gpu.model import (
    DeviceMemory,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    Grant,
    ListedProcess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    Snapshot,
    SourceOutcome,
    SourceState,
    UtilizationRead,
    UtilizationRow,
    WorkloadKey,
    WorkloadNames,
    WorkloadRef,
)
from tests.property.histories import MIB, WALL_NS, WORKLOADS, S

GPUS: Final = 2
PIDS: Final = range(100, 112)
TOTAL_BYTES: Final = 40_960 * MIB
_STEPS_S: Final = (5, 5, 5, 5, 1, 1, 0, 40)
_QUIET_CYCLES: Final = (0, 0, 0, 0, 1, 3, 8)
"""Number of cycles without a change after each change. After three cycles without work all processes are idle."""


@dataclass(slots=True)
class _Gpu:
    """The state of one GPU. Faults last for one cycle and are reset after it."""

    index: int
    held: dict[int, int | None] = field(default_factory=dict)
    hidden_bytes: int = 0
    divided: bool = False
    counter_mj: int = 1_000
    working: tuple[int, ...] = ()
    failed: bool = False
    absent: bool = False
    listless: bool = False
    rowless: bool = False
    uncounted: bool = False

    def reading(self, at_ns: int, wall_us: int, step_us: int) -> GpuReading:
        """The reading of this GPU."""
        identity = GpuIdentity(self.index, f"GPU-{self.index}", "GPU", minor=self.index)
        if self.failed:
            return GpuReading(identity, at_ns, health=GpuHealth.FAILED, reason="lost")
        instance = (1, 0) if self.divided else (None, None)
        listed = tuple(ListedProcess(pid, ProcessKind.COMPUTE, held, *instance) for pid, held in self.held.items())
        used = sum(held or 0 for held in self.held.values()) + self.hidden_bytes
        memory = DeviceMemory(TOTAL_BYTES, used, TOTAL_BYTES - used, 0)
        rows = tuple(
            UtilizationRow(pid, wall_us - 1000 * number, 20 + number, 10, 0, 0)
            for number, pid in enumerate(self.working)
        )
        mig = None
        if self.divided:
            mig = (MigReading("MIG-1", 1, 0, "1g.10gb", 14, memory, None if self.listless else listed),)
        return GpuReading(
            identity,
            at_ns,
            memory=memory,
            processes=None if self.listless else listed,
            utilization=None if self.divided or self.rowless else UtilizationRead(wall_us - step_us, wall_us, rows),
            energy_mj=None if self.uncounted else self.counter_mj,
            power_limit_w=400.0,
            mig=mig,
        )


@dataclass(slots=True)
class _Host:
    """A host. Each method is an event that changes one thing."""

    gpus: list[_Gpu] = field(default_factory=lambda: [_Gpu(index) for index in range(GPUS)])
    processes: dict[int, ProcessFacts] = field(default_factory=dict)
    names: dict[WorkloadKey, WorkloadNames] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()

    def nothing(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """No change."""

    def work(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """Some work on every GPU."""
        for each in self.gpus:
            each.working = tuple(each.held)[:2]

    def come(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process comes to a GPU."""
        self.processes.setdefault(pid, _facts(pid, 1, ref))
        gpu.held[pid] = 256 * MIB

    def go(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process leaves a GPU and still runs."""
        gpu.held.pop(pid, None)

    def die(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process ends."""
        self.processes.pop(pid, None)
        for each in self.gpus:
            each.held.pop(pid, None)

    def reuse(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A pid is reused by another process."""
        before = self.processes.get(pid)
        self.processes[pid] = _facts(pid, 1 if before is None else before.key.start_ticks + 1, ref)
        gpu.held[pid] = 128 * MIB

    def grow(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process takes more memory."""
        if gpu.held.get(pid) is not None:
            gpu.held[pid] = (gpu.held[pid] or 0) + 64 * MIB

    def lose_figure(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process is listed without a figure."""
        if pid in gpu.held:
            gpu.held[pid] = None

    def move(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A process moves to another cgroup."""
        if pid in self.processes:
            self.processes[pid] = self.processes[pid]._replace(workload=ref)

    def name(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A workload is named, or renamed."""
        self.names = {**self.names, ref.key: WorkloadNames(container="b" if ref.key in self.names else "a")}

    def grant(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A GPU is granted to a workload, or all grants are revoked."""
        self.grants = () if self.grants else (Grant(ref, f"GPU-{gpu.index}", "", None, 0.5),)

    def hide(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """Unexplained memory appears, or disappears."""
        gpu.hidden_bytes = 0 if gpu.hidden_bytes else 2048 * MIB

    def fail(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A GPU does not answer."""
        gpu.failed = True

    def be_absent(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A GPU is absent from the snapshot."""
        gpu.absent = True

    def lose_lists(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """The process lists of a GPU cannot be read."""
        gpu.listless = True

    def lose_rows(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A GPU reports no utilisation."""
        gpu.rowless = True

    def divide(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """MIG is switched on or off on a GPU."""
        gpu.divided = not gpu.divided

    def lose_counter(self, gpu: _Gpu, pid: int, ref: WorkloadRef) -> None:
        """A GPU reports no energy."""
        gpu.uncounted = True

    def snapshot(self, at_ns: int, step_s: int) -> Snapshot:
        """The snapshot of this host now."""
        wall_ns, step_us = WALL_NS + at_ns, max(1, step_s) * 1_000_000
        read = Snapshot(
            wall_ns,
            at_ns,
            gpus=tuple(gpu.reading(at_ns, wall_ns // 1000, step_us) for gpu in self.gpus if not gpu.absent),
            processes=dict(self.processes),
            names=self.names,
            sources=(SourceOutcome("nvml", SourceState.OK),),
            grants=self.grants,
        )
        for gpu in self.gpus:
            gpu.working = ()
            gpu.failed = gpu.absent = gpu.listless = gpu.rowless = gpu.uncounted = False
        return read


_EVENTS: Final = (
    *(_Host.nothing,) * 3,
    _Host.work,
    _Host.come,
    _Host.go,
    _Host.die,
    _Host.reuse,
    _Host.grow,
    _Host.lose_figure,
    _Host.move,
    _Host.name,
    _Host.grant,
    _Host.hide,
    _Host.fail,
    _Host.be_absent,
    _Host.lose_lists,
    _Host.lose_rows,
    _Host.divide,
    _Host.lose_counter,
)
# Strategies are created once here: creating one costs more than drawing from it.
first_pids: Final = st.sets(st.sampled_from(PIDS), max_size=6)
cycles: Final = st.lists(
    st.tuples(
        st.sampled_from(_EVENTS),
        st.integers(0, GPUS - 1),
        st.sampled_from(PIDS),
        st.sampled_from(WORKLOADS),
        st.sampled_from(_STEPS_S),
        st.integers(0, 400 * 1000),
        st.sampled_from(_QUIET_CYCLES),
    ),
    min_size=2,
    max_size=24,
)


@st.composite
def steady_histories(draw: st.DrawFn) -> list[Snapshot]:
    """Histories of few changes."""
    host = _Host()
    for pid in sorted(draw(first_pids)):
        host.processes[pid] = _facts(pid, 1, WORKLOADS[pid % len(WORKLOADS)])
        host.gpus[pid % GPUS].held[pid] = 512 * MIB
    at_ns, history = 0, []
    for event, index, pid, ref, step_s, charge_mj, quiet_cycles in draw(cycles):
        event(host, host.gpus[index], pid, ref)
        for _ in range(1 + quiet_cycles):
            at_ns += step_s * S
            for gpu in host.gpus:
                gpu.counter_mj += charge_mj * step_s
            history.append(host.snapshot(at_ns, step_s))
    return history


def _facts(pid: int, start_ticks: int, ref: WorkloadRef) -> ProcessFacts:
    return ProcessFacts(
        ProcessKey(pid, start_ticks),
        "python3",
        1_699_999_000.0,
        0,
        ref,
        gpu_minors_open=frozenset({pid % GPUS}),
        uvm_open=True,
        uvm_mapping_bytes=1024 * MIB,
    )
