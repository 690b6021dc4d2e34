"""The rows of a report with the labels of their points: GPUs, workloads on a device, processes on a device.

A device is a physical GPU or one MIG instance of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from otel_gpu.metrics.labels import (
    Attributes,
    WorkloadIdentity,
    declared_attributes,
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
)

Use = TypeVar("Use", WorkloadGpu, ProcessReport)

Value: TypeAlias = tuple[str, int | float | None, Attributes]
"""A metric, its value in one row (``None``: no point), and the attributes that its point adds to those of the row."""

MJ_PER_J: Final = 1e3
US_PER_S: Final = 1e6
"""The ledger counts millijoules and microseconds."""


class GpuRow(NamedTuple):
    """A physical GPU.

    ``instances`` are the attributes of its MIG instances by UUID. ``residents`` are all processes on it now, whether
    exported or not.
    """

    gpu: GpuReport
    attributes: Attributes
    instances: Mapping[str, Attributes]
    residents: Sequence[ProcessReport]


class UseRow(NamedTuple, Generic[Use]):
    """A workload's or process's use of one device, with the labels that all its points share.

    Energy and utilization that are not counted are absent, not 0. ``is_watched`` is false while the agent is paused:
    presence at the time of the pause says nothing about now. ``declared`` is what a workload says of itself;
    ``None`` for a process, and under names that the workload no longer has.
    """

    use: Use
    workload: WorkloadIdentity
    attributes: Attributes
    has_energy: bool
    has_utilization: bool
    is_watched: bool
    declared: Attributes | None = None


@dataclass(frozen=True, slots=True)
class ReportRows:
    """A report and its rows."""

    report: Report
    gpus: tuple[GpuRow, ...]
    workloads: tuple[UseRow[WorkloadGpu], ...]
    processes: tuple[UseRow[ProcessReport], ...]


def report_rows(report: Report, *, include_awaiting_names: bool = False) -> ReportRows:
    """The rows of a report. A workload that awaits its names is left out unless ``include_awaiting_names``."""
    identities: _Identities = {
        (*workload.ref.key, workload.naming): None
        if workload.awaiting_names and not include_awaiting_names
        else WorkloadIdentity.of(workload.ref, workload.names)
        for workload in report.workloads
    }
    gpus = _gpu_rows(report)
    return ReportRows(
        report,
        tuple(gpus.values()),
        _workload_rows(report, identities, gpus),
        _process_rows(report, identities, gpus),
    )


_Identities: TypeAlias = dict[tuple[str, str, int], WorkloadIdentity | None]
"""By kind, id and naming, since a workload that was renamed has one entry per name. ``None``: not exported yet."""


def _gpu_rows(report: Report) -> dict[str, GpuRow]:
    """The GPUs by UUID."""
    residents: dict[str, list[ProcessReport]] = {}
    for process in report.processes:
        if process.active:
            residents.setdefault(process.gpu_uuid, []).append(process)
    rows: dict[str, GpuRow] = {}
    for gpu in report.gpus:
        uuid = gpu.identity.uuid
        attributes = gpu_attributes(uuid, gpu.identity.index)
        instances = {mig.uuid: mig_attributes(mig.uuid, mig.profile) for mig in gpu.mig or ()}
        rows[uuid] = GpuRow(gpu, attributes, instances, residents.get(uuid, ()))
    return rows


def _workload_rows(
    report: Report, identities: _Identities, gpus: Mapping[str, GpuRow]
) -> tuple[UseRow[WorkloadGpu], ...]:
    """The exported workloads on their devices.

    A workload that was renamed and renamed back within the retention has two entries with the same labels: only the
    newest is exported.
    """
    newest: dict[tuple[WorkloadIdentity, str, str | None], UseRow[WorkloadGpu]] = {}
    ordered = sorted(report.workloads, key=lambda each: each.naming)
    present = {workload.ref.key: workload.naming for workload in ordered}
    for workload in ordered:
        identity = identities[*workload.ref.key, workload.naming]
        if identity is None:
            continue
        is_overflow = workload.ref == OVERFLOW_WORKLOAD
        has_present_names = present[workload.ref.key] == workload.naming
        declared = declared_attributes(workload.names) if has_present_names else None
        for part in workload.gpus:
            attributes = workload_attributes(part, is_overflow=is_overflow)
            row = _use_row(part, identity, attributes, gpus.get(part.gpu_uuid))._replace(declared=declared)
            newest[identity, part.gpu_uuid, part.mig_uuid] = row
    return tuple(newest.values())


def _process_rows(
    report: Report, identities: _Identities, gpus: Mapping[str, GpuRow]
) -> tuple[UseRow[ProcessReport], ...]:
    """The exported processes on their devices. One of a workload that the report does not list has no names.

    Of two processes with the same pid, name and device, only the younger is exported.
    """
    newest: dict[tuple[WorkloadIdentity, int, str, str, str | None], UseRow[ProcessReport]] = {}
    for process in sorted(report.processes, key=lambda each: (each.naming, each.key.start_ticks)):
        key = (*process.workload.key, process.naming)
        if key not in identities:
            identities[key] = WorkloadIdentity.of(process.workload, None)
        identity = identities[key]
        if identity is None:
            continue
        attributes = process_attributes(process)
        row = _use_row(process, identity, attributes, gpus.get(process.gpu_uuid))
        newest[identity, process.key.pid, process.name or "", process.gpu_uuid, process.mig_uuid] = row
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
