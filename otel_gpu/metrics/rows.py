"""The rows of a report with the labels of their points: GPUs, workloads on a device, processes on a device.

A device is a physical GPU or one MIG instance of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from otel_gpu.metrics.labels import (
    Attributes,
    WorkloadIdentity,
    gpu_attributes,
    mig_attributes,
    process_attributes,
    workload_attributes,
)
from otel_gpu.model import (
    OVERFLOW_WORKLOAD,
    GpuHealth,
    GpuReport,
    ProcessReport,
    Report,
    WorkloadGpu,
    WorkloadRef,
)

Use = TypeVar("Use", WorkloadGpu, ProcessReport)
_NamingKey: TypeAlias = tuple[str, str, int]
"""Kind, id and naming: a workload that was renamed has one entry per name."""


class GpuRow(NamedTuple):
    """A physical GPU.

    ``instances`` are the attributes of its MIG instances by UUID. ``residents`` are all processes on it now, whether
    exported or not.
    """

    gpu: GpuReport
    attributes: Attributes
    instances: Mapping[str, Attributes]
    residents: Sequence[ProcessReport]


GpuValues: TypeAlias = Iterable[tuple[int | float | None, Attributes]]
"""Values of one GPU, ``None`` where there is no point, and the attributes that each adds to the GPU's."""


class UseRow(NamedTuple, Generic[Use]):
    """A workload's or process's use of one device, with the labels that all its points share.

    Energy and utilization that are not counted are absent, not 0. ``is_watched`` is false while the agent is paused:
    presence at the time of the pause says nothing about now.
    """

    use: Use
    workload: WorkloadIdentity
    attributes: Attributes
    has_energy: bool
    has_utilization: bool
    is_watched: bool


@dataclass(frozen=True, slots=True)
class ReportRows:
    """A report and its rows."""

    report: Report
    gpus: tuple[GpuRow, ...]
    workloads: tuple[UseRow[WorkloadGpu], ...]
    processes: tuple[UseRow[ProcessReport], ...]


def report_rows(report: Report, *, include_awaiting_names: bool = False) -> ReportRows:
    """The rows of a report. A workload that awaits its names is left out unless ``include_awaiting_names``."""
    gpus = _gpu_rows(report)
    owners = _Owners(report, include_awaiting_names=include_awaiting_names)
    by_uuid = {row.gpu.identity.uuid: row for row in gpus}
    return ReportRows(report, gpus, _workload_rows(report, owners, by_uuid), _process_rows(report, owners, by_uuid))


# ---------------------------------------------------------------------------- GPUs


def _gpu_rows(report: Report) -> tuple[GpuRow, ...]:
    residents: dict[str, list[ProcessReport]] = {}
    for process in report.processes:
        if process.active:
            residents.setdefault(process.gpu_uuid, []).append(process)
    gpus = {gpu.identity.uuid: gpu for gpu in report.gpus}
    return tuple(_gpu_row(gpu, residents.get(uuid, ())) for uuid, gpu in gpus.items())


def _gpu_row(gpu: GpuReport, residents: Sequence[ProcessReport]) -> GpuRow:
    attributes = gpu_attributes(gpu.identity.uuid, gpu.identity.index)
    instances = {mig.uuid: mig_attributes(mig.uuid, mig.profile) for mig in gpu.mig or ()}
    return GpuRow(gpu, attributes, instances, residents)


# ---------------------------------------------------------------------------- workloads and processes


class _Owner(NamedTuple):
    """An exported workload. ``number`` is the same for entries with equal identities, and quicker to hash."""

    identity: WorkloadIdentity
    number: int


class _Owners:
    """The workloads of a report, by naming; ``None`` for one that is not exported yet."""

    def __init__(self, report: Report, *, include_awaiting_names: bool) -> None:
        self._numbers: dict[WorkloadIdentity, int] = {}
        self._by_naming: dict[_NamingKey, _Owner | None] = {}
        for workload in report.workloads:
            is_held_back = workload.awaiting_names and not include_awaiting_names
            owner = None if is_held_back else self._owner(WorkloadIdentity.of(workload.ref, workload.names))
            self._by_naming[*workload.ref.key, workload.naming] = owner

    def of(self, ref: WorkloadRef, naming: int) -> _Owner | None:
        """The owner of a row. A workload that the report does not list has no names."""
        key = (*ref.key, naming)
        if key not in self._by_naming:
            self._by_naming[key] = self._owner(WorkloadIdentity.of(ref, None))
        return self._by_naming[key]

    def _owner(self, identity: WorkloadIdentity) -> _Owner:
        return _Owner(identity, self._numbers.setdefault(identity, len(self._numbers)))


def _workload_rows(report: Report, owners: _Owners, gpus: Mapping[str, GpuRow]) -> tuple[UseRow[WorkloadGpu], ...]:
    """The exported workloads on their devices.

    A workload that was renamed and renamed back within the retention has two entries with the same labels: only the
    newest is exported.
    """
    newest: dict[tuple[int, str, str | None], UseRow[WorkloadGpu]] = {}
    for workload in sorted(report.workloads, key=lambda each: each.naming):
        owner = owners.of(workload.ref, workload.naming)
        if owner is None:
            continue
        is_overflow = workload.ref == OVERFLOW_WORKLOAD
        for part in workload.gpus:
            attributes = workload_attributes(part, is_overflow=is_overflow)
            row = _use_row(part, owner.identity, attributes, gpus.get(part.gpu_uuid))
            newest[owner.number, part.gpu_uuid, part.mig_uuid] = row
    return tuple(newest.values())


def _process_rows(report: Report, owners: _Owners, gpus: Mapping[str, GpuRow]) -> tuple[UseRow[ProcessReport], ...]:
    """The exported processes on their devices.

    Of two processes with the same pid, name and device, only the younger is exported.
    """
    newest: dict[tuple[int, int, str, str, str | None], UseRow[ProcessReport]] = {}
    for process in sorted(report.processes, key=lambda each: (each.naming, each.key.start_ticks)):
        owner = owners.of(process.workload, process.naming)
        if owner is None:
            continue
        series = owner.number, process.key.pid, process.name or "", process.gpu_uuid, process.mig_uuid
        attributes = process_attributes(process)
        newest[series] = _use_row(process, owner.identity, attributes, gpus.get(process.gpu_uuid))
    return tuple(newest.values())


def _use_row(use: Use, workload: WorkloadIdentity, attributes: Attributes, gpu: GpuRow | None) -> UseRow[Use]:
    """The row of a use. On a GPU that does not answer, what was counted before is still exported."""
    totals = use.totals
    counts_energy = gpu is not None and gpu.gpu.has_energy
    counts_work = gpu is not None and gpu.gpu.has_utilization
    return UseRow(
        use,
        workload,
        attributes,
        totals is not None and (counts_energy or bool(totals.energy.total_mj)),
        counts_work or (totals is not None and totals.compute_us > 0),
        gpu is None or gpu.gpu.reading.health is not GpuHealth.PAUSED,
    )
