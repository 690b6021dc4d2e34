"""Build the frozen Report of a cycle from the ledger and from what the cycle showed of each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu.attribution.accounts import Account, AnyAccount
from otel_gpu.attribution.cost import costs
from otel_gpu.attribution.gpu import GpuResult
from otel_gpu.attribution.keys import DeviceKey, WorkloadAccountKey, WorkloadOnDevice, workload_on
from otel_gpu.attribution.ledger import GpuAccount, Ledger
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.posting import Usage
from otel_gpu.model import (
    START_UNKNOWN,
    EnergyBasis,
    EnergySplit,
    GpuReading,
    GpuReport,
    GpuState,
    GpuTotals,
    Grant,
    MethodEnergy,
    MigReport,
    ProcessReport,
    Report,
    Snapshot,
    WorkloadGpu,
    WorkloadRef,
    WorkloadReport,
)
from otel_gpu.model.report import NO_ENERGY


class AttributedGpu(NamedTuple):
    """One GPU of a Snapshot: its result, ``None`` where it did not answer, and what each account used of it."""

    reading: GpuReading
    result: GpuResult | None
    usages: Mapping[AnyAccount, Usage]


def build_report(
    snapshot: Snapshot,
    ledger: Ledger,
    attributed: Sequence[AttributedGpu],
    options: AttributionOptions,
    *,
    window_s: float | None,
    anomalies: int,
) -> Report:
    """The Report of a cycle: present workloads and processes, and those that ended within the retention."""
    by_gpu = {each.reading.identity.uuid: each for each in attributed}
    errors_mj = ledger.energy_errors_mj()
    return Report(
        wall_ns=snapshot.wall_ns,
        monotonic_ns=snapshot.monotonic_ns,
        window_s=window_s,
        gpus=tuple(
            _gpu(attributed, ledger.gpus[uuid], errors_mj.get(uuid, 0), options) for uuid, attributed in by_gpu.items()
        ),
        workloads=(*_workloads(snapshot, ledger, by_gpu, options), *_possible_users(snapshot, ledger)),
        processes=tuple(_processes(ledger, by_gpu)),
        sources=snapshot.sources,
        driver=snapshot.driver,
        anomalies=anomalies,
        epoch_ns=ledger.epoch_ns,
        unreadable=snapshot.unreadable,
    )


# ---------------------------------------------------------------------------- GPUs


def _gpu(attributed: AttributedGpu, gpu: GpuAccount, error_mj: int, options: AttributionOptions) -> GpuReport:
    result, reading = attributed.result, attributed.reading
    splits = {} if result is None else result.memory.splits
    mig = None
    if reading.mig is not None:
        mig = tuple(MigReport(each.uuid, each.profile, splits.get(each.uuid)) for each in reading.mig)
    energy = None
    if result is not None and result.metered is not None and result.division is not None:
        parts = result.division
        energy = EnergySplit(result.metered.delta_mj, parts.attributed_mj, parts.idle_mj, parts.unattributed_mj)
    totals = GpuTotals(gpu.attributed_mj, gpu.idle_mj, gpu.unattributed_mj)
    is_metered = reading.energy_mj is not None or reading.power_w is not None
    return GpuReport(
        reading=reading,
        memory=splits.get(""),
        energy=energy,
        mig=mig,
        totals=totals,
        basis=_basis(result, options),
        energy_error_mj=error_mj,
        has_energy=is_metered or totals.total_mj > 0,
        has_utilization=reading.utilization is not None,
    )


def _basis(result: GpuResult | None, options: AttributionOptions) -> EnergyBasis | None:
    if result is None:
        return None
    baseline = result.baseline
    return EnergyBasis(
        source=result.energy_source,
        policy=options.energy_policy.value,
        model=options.energy_model.value,
        idle_power_w=baseline.idle_power_w,
        idle_power_origin=baseline.idle_power_origin.value,
        context_power_w=baseline.context_power_w,
        context_power_origin=baseline.context_power_origin.value,
    )


# ---------------------------------------------------------------------------- accounts


class _Figures(NamedTuple):
    """What an account shows in this cycle, ``None`` where it is unknown.

    ProcessReport and WorkloadGpu have these fields in this order.
    """

    memory_bytes: int | None = None
    sm_ratio: float | None = None
    bandwidth_ratio: float | None = None
    energy: MethodEnergy = NO_ENERGY
    state: GpuState | None = None
    idle_s: float | None = None
    idle_bytes: int | None = None


def _figures(account: AnyAccount, attributed: AttributedGpu | None) -> _Figures:
    """An ended account holds and does nothing. Without a resident in the driver's lists its figures are unknown."""
    usage = None if attributed is None else attributed.usages.get(account)
    energy = NO_ENERGY if usage is None else usage.energy
    if account.ended_ns is not None:
        return _Figures(memory_bytes=0, sm_ratio=0.0, bandwidth_ratio=0.0, energy=energy)
    if usage is None:
        return _Figures()
    if not usage.pids:
        return _Figures(energy=energy, state=usage.state, idle_s=usage.idle_s)
    return _Figures(
        memory_bytes=usage.memory_bytes,
        sm_ratio=usage.sm_ratio,
        bandwidth_ratio=usage.bandwidth_ratio,
        energy=energy,
        state=usage.state,
        idle_s=usage.idle_s,
        idle_bytes=usage.held_bytes if usage.state is GpuState.IDLE else 0,
    )


def _processes(ledger: Ledger, by_gpu: Mapping[str, AttributedGpu]) -> Iterator[ProcessReport]:
    """Processes by device, in the order of their keys."""
    for key, account in sorted(ledger.processes.by_key.items(), key=lambda item: (item[0].subject.device, item[0])):
        process, (gpu_uuid, mig_uuid) = key.subject
        gpu = ledger.gpus[gpu_uuid]
        figures = _figures(account, by_gpu.get(gpu_uuid))
        yield ProcessReport(
            process,
            account.name,
            account.start_time_s if process.start_ticks != START_UNKNOWN else None,
            account.ref,
            gpu_uuid,
            mig_uuid or None,
            *figures,
            totals=account.totals.frozen(account.since_ns),
            active=account.ended_ns is None,
            naming=key.naming,
            gpu_index=gpu.index,
            mig_profile=gpu.profiles.get(mig_uuid),
        )


def _workloads(
    snapshot: Snapshot, ledger: Ledger, by_gpu: Mapping[str, AttributedGpu], options: AttributionOptions
) -> Iterator[WorkloadReport]:
    """Workloads by kind, id and naming, each with its parts of the GPUs."""
    shares = {_granted(grant): grant.share for grant in snapshot.grants if not grant.possible}
    by_workload: dict[tuple[str, str, int], list[Account[WorkloadAccountKey]]] = {}
    for key, account in sorted(ledger.workloads.by_key.items(), key=lambda item: item[0]):
        by_workload.setdefault((key.subject.kind, key.subject.id, key.naming), []).append(account)
    for (_, _, naming), accounts in sorted(by_workload.items(), key=lambda item: item[0]):
        ref = accounts[-1].ref
        yield WorkloadReport(
            ref=ref,
            names=ledger.namings.names(ref, naming),
            gpus=tuple(_workload_gpu(account, ledger, by_gpu, shares, options) for account in accounts),
            naming=naming,
            awaiting_names=ledger.namings.is_waiting(ref),
        )


def _workload_gpu(
    account: Account[WorkloadAccountKey],
    ledger: Ledger,
    by_gpu: Mapping[str, AttributedGpu],
    shares: Mapping[WorkloadOnDevice, float | None],
    options: AttributionOptions,
) -> WorkloadGpu:
    workload = account.key.subject
    gpu_uuid, mig_uuid = workload.device
    gpu, attributed = ledger.gpus[gpu_uuid], by_gpu.get(gpu_uuid)
    figures = _figures(account, attributed)
    totals = account.totals.frozen(account.since_ns)
    inferred_bytes, confidence = _inferred(workload, attributed) if account.ended_ns is None else (0, None)
    return WorkloadGpu(
        gpu_uuid=gpu_uuid,
        mig_uuid=mig_uuid or None,
        measured_bytes=figures.memory_bytes,
        inferred_bytes=inferred_bytes,
        confidence=confidence,
        sm_ratio=figures.sm_ratio,
        bandwidth_ratio=figures.bandwidth_ratio,
        energy=figures.energy,
        state=figures.state,
        idle_s=figures.idle_s,
        idle_bytes=figures.idle_bytes,
        totals=totals,
        active=account.ended_ns is None,
        costs=costs(totals, gpu.name, options.prices),
        gpu_index=gpu.index,
        mig_profile=gpu.profiles.get(mig_uuid),
        allocation=shares.get(workload) if account.ended_ns is None else 0.0,
    )


def _inferred(workload: WorkloadOnDevice, attributed: AttributedGpu | None) -> tuple[int | None, float | None]:
    """Inferred bytes and their confidence, which is ``None`` where no process of the workload is a candidate."""
    hidden = None
    if attributed is not None and attributed.result is not None:
        hidden = attributed.result.memory.hidden.get(workload.device.mig_uuid)
    if hidden is None:
        return None, None
    inferred = hidden.workloads.get(workload)
    return (0, None) if inferred is None else (inferred.bytes, inferred.confidence)


def _possible_users(snapshot: Snapshot, ledger: Ledger) -> Iterator[WorkloadReport]:
    """Workloads that could use a GPU and never did: their access is all there is to report."""
    profiles = {mig.uuid: mig.profile for gpu in snapshot.gpus for mig in gpu.mig or ()}
    users = {key.subject for key in ledger.workloads.by_key}
    by_workload: dict[WorkloadRef, list[WorkloadGpu]] = {}
    for grant in snapshot.grants:
        if not grant.possible or _granted(grant) in users or grant.workload.key in snapshot.names_pending:
            continue
        gpu = ledger.gpus.get(grant.gpu_uuid)
        part = WorkloadGpu(
            gpu_uuid=grant.gpu_uuid,
            mig_uuid=grant.mig_uuid or None,
            measured_bytes=None,
            active=False,
            gpu_index=None if gpu is None else gpu.index,
            mig_profile=profiles.get(grant.mig_uuid),
            possible=True,
        )
        by_workload.setdefault(grant.workload, []).append(part)
    users_of_others = {account.ref.key for account in ledger.workloads.by_key.values()}
    for ref, gpus in by_workload.items():
        if ref.key not in users_of_others:
            yield WorkloadReport(ref=ref, names=snapshot.names.get(ref.key), gpus=tuple(gpus))
            continue
        # It uses another GPU: under the same names there and here.
        naming = ledger.namings.number(ref)
        yield WorkloadReport(
            ref=ref,
            names=ledger.namings.names(ref, naming),
            gpus=tuple(gpus),
            naming=naming,
            awaiting_names=ledger.namings.is_waiting(ref),
        )


def _granted(grant: Grant) -> WorkloadOnDevice:
    return workload_on(grant.workload, DeviceKey(grant.gpu_uuid, grant.mig_uuid))
