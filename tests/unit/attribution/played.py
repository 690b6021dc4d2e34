"""A host that is played cycle by cycle. Every GPU that answers has drawn 200 W since its last answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import (
    GpuReading,
    Grant,
    ListedProcess,
    ProcessFacts,
    ProcessReport,
    Report,
    Totals,
    UtilizationRead,
    UtilizationRow,
    WorkloadGpu,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.builders import GIB, WALL_NS, facts, gpu, memory, snapshot

CYCLE_S = 5.0
CYCLE_MJ = 1_000_000
WEB = WorkloadRef(WorkloadKind.CONTAINER, "web")
JOB = WorkloadRef(WorkloadKind.CONTAINER, "job")


class Played:
    """Feeds cycles of 5 s to an attributor, and can restart it."""

    def __init__(self, options: AttributionOptions | None = None) -> None:
        self.options = options or AttributionOptions()
        self.attributor = Attributor(self.options)
        self.at_s = -CYCLE_S

    def next(
        self,
        *gpus: GpuReading,
        processes: Iterable[ProcessFacts] = (),
        names: Mapping[str, WorkloadNames] = MappingProxyType({}),
        looked_up: bool = False,
        grants: Iterable[Grant] = (),
        complete: bool = True,
    ) -> Report:
        """The report of the next cycle. ``complete`` is false where the driver may hide processes."""
        self.at_s += CYCLE_S
        counter_mj = round(self.at_s / CYCLE_S * CYCLE_MJ) + 1
        read = [
            replace(each, energy_mj=counter_mj if each.energy_mj is None else each.energy_mj, power_limit_w=400.0)
            for each in gpus
        ]
        present, granted = list(processes), tuple(grants)
        taken = snapshot(*read, processes=present, names=names, at_s=self.at_s)
        workloads = [*(facts.workload for facts in present), *(grant.workload for grant in granted)]
        workloads += self.attributor.held_workloads
        pending = frozenset(ref.key for ref in workloads if looked_up and ref.key not in taken.names)
        taken = replace(taken, names_pending=pending, grants=granted, pids_complete=complete)
        return self.attributor.observe(taken)

    def restart(self, *, away_s: float = 0.0, same_boot: bool = True) -> None:
        """Save the state, wait ``away_s``, and restore it. ``same_boot`` is false for a reboot in between."""
        saved = json.loads(json.dumps(self.attributor.to_state()))
        self.at_s += away_s
        now_ns = round(self.at_s * 1e9)
        self.attributor = Attributor.from_state(self.options, saved, now_ns=now_ns, same_boot=same_boot)

    def rows(self, *work: tuple[int, int] | tuple[int, int, int]) -> UtilizationRead:
        """Utilisation rows of (pid, SM percent) or (pid, SM percent, memory percent) for the next cycle."""
        until_us = WALL_NS // 1000 + round((self.at_s + CYCLE_S) * 1e6)
        rows = tuple(UtilizationRow(pid, until_us - 10_000, sm, sum(memory), 0, 0) for pid, sm, *memory in work)
        return UtilizationRead(until_us - 5_000_000, until_us, rows)


def at_wall_ns(played: Played) -> int:
    """Unix time of the last cycle."""
    return WALL_NS + round(played.at_s * 1e9)


def old(pid: int, workload: WorkloadRef | None = None) -> ProcessFacts:
    """A process that started long before the first cycle."""
    found = facts(pid, start_ticks=1) if workload is None else facts(pid, workload, start_ticks=1)
    return found._replace(start_time_s=1_600_000_000.0)


def gpu_with(*processes: ListedProcess, used_gib: float | None = None, index: int = 0) -> GpuReading:
    """A GPU with these processes listed. Its memory in use is what they hold, unless ``used_gib`` is given."""
    held = sum(process.memory_bytes or 0 for process in processes) / GIB
    return gpu(index, processes, memory=memory(used_gib=held if used_gib is None else used_gib, reserved_gib=0))


def process(report: Report, pid: int, naming: int | None = None) -> ProcessReport:
    """The report of a process under one naming of its workload, by default the newest."""
    found = [each for each in report.processes if each.key.pid == pid and naming in (None, each.naming)]
    return max(found, key=lambda each: each.naming)


def workload(report: Report, id_: str, naming: int = 0) -> WorkloadGpu:
    """The report of a workload on its only GPU."""
    (found,) = (each for each in report.workloads if each.ref.id == id_ and each.naming == naming)
    (part,) = found.gpus
    return part


def totals(part: ProcessReport | WorkloadGpu) -> Totals:
    """The totals, which are never absent here."""
    assert part.totals is not None
    return part.totals


def energy_mj(part: ProcessReport | WorkloadGpu) -> int:
    """Energy used so far, by all methods."""
    return totals(part).energy.total_mj or 0


def time_us(part: ProcessReport | WorkloadGpu) -> int:
    """Time posted so far, in all states."""
    posted = totals(part)
    return posted.busy_us + posted.idle_us + posted.allocated_us + posted.unknown_us


def assert_adds_up(report: Report) -> None:
    """The window's energy of all processes, and of all workloads, is the attributed energy of each GPU."""
    for each in report.gpus:
        assert each.energy_error_mj == 0
        if each.energy is None:
            continue
        uuid = each.identity.uuid
        of_processes = sum(p.energy.total_mj or 0 for p in report.processes if p.gpu_uuid == uuid)
        parts = [part for w in report.workloads for part in w.gpus if part.gpu_uuid == uuid]
        assert of_processes == sum(part.energy.total_mj or 0 for part in parts) == each.energy.attributed_mj
