"""From the books and one cycle's figures to the frozen Attribution that everybody reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.idle import IdleStep
from otel_gpu.attribution.ledger import DeviceSums, Ledger
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.places import Place, ProcessLine, WorkloadAt, WorkloadLine, workload_at
from otel_gpu.attribution.shown import GpuBooks
from otel_gpu.attribution.tracker import GpuCycle
from otel_gpu.model import (
    START_UNKNOWN,
    Attribution,
    DeviceTotals,
    EnergyBasis,
    EnergySplit,
    GpuAttribution,
    GpuReading,
    GpuState,
    Grant,
    MethodEnergy,
    MigAttribution,
    ProcessAttribution,
    Snapshot,
    WorkloadAttribution,
    WorkloadGpu,
    WorkloadRef,
)
from otel_gpu.model.result import NO_ENERGY

Figure = TypeVar("Figure", int, float)


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU in this cycle; ``cycle`` is ``None`` where it did not answer."""

    reading: GpuReading
    cycle: GpuCycle | None
    books: GpuBooks
    energy_source: str


def compose(
    snapshot: Snapshot,
    views: tuple[GpuView, ...],
    ledger: Ledger,
    options: AttributionOptions,
    *,
    window_s: float | None,
    anomalies: int,
) -> Attribution:
    """The answer of this cycle: everybody who is there, and who ended within the retention."""
    errors_mj = ledger.energy_errors_mj()
    by_uuid = {view.reading.identity.uuid: view for view in views}
    lines = sorted(ledger.processes.entries.items(), key=lambda item: (item[0].at.place, item[0]))
    return Attribution(
        wall_ns=snapshot.wall_ns,
        monotonic_ns=snapshot.monotonic_ns,
        window_s=window_s,
        gpus=tuple(_gpu(view, ledger, options, errors_mj) for view in views),
        workloads=_workloads(ledger, by_uuid, options.prices, snapshot),
        processes=tuple(
            _process(line, entry, by_uuid.get(line.at.place.gpu_uuid), ledger.device(line.at.place.gpu_uuid))
            for line, entry in lines
        ),
        sources=snapshot.sources,
        driver=snapshot.driver,
        anomalies=anomalies,
        epoch_ns=ledger.epoch_ns,
    )


# ---------------------------------------------------------------------------- GPUs


def _gpu(view: GpuView, ledger: Ledger, options: AttributionOptions, errors_mj: Mapping[str, int]) -> GpuAttribution:
    cycle, reading = view.cycle, view.reading
    sums = ledger.device(reading.identity.uuid)
    mig = None
    if reading.mig is not None:
        mig = tuple(
            MigAttribution(m.uuid, m.profile, cycle.memory[m.uuid] if cycle is not None else None) for m in reading.mig
        )
    return GpuAttribution(
        reading=reading,
        memory=cycle.memory[""] if cycle is not None else None,
        energy=_energy(cycle),
        mig=mig,
        totals=DeviceTotals(sums.attributed_mj, sums.idle_mj, sums.unattributed_mj),
        basis=_basis(view, options),
        energy_error_mj=errors_mj[reading.identity.uuid],
    )


def _energy(cycle: GpuCycle | None) -> EnergySplit | None:
    if cycle is None or cycle.metered is None or cycle.division is None:
        return None
    division = cycle.division
    return EnergySplit(
        delta_mj=cycle.metered.delta_mj,
        attributed_mj=sum(division.parts.values()),
        idle_mj=division.idle_mj,
        unattributed_mj=division.unattributed_mj,
    )


def _basis(view: GpuView, options: AttributionOptions) -> EnergyBasis | None:
    if view.cycle is None or view.cycle.baseline is None:
        return None
    estimate = view.cycle.baseline
    return EnergyBasis(
        source=view.energy_source,
        policy=options.energy_policy.value,
        model=options.energy_model.value,
        idle_w=estimate.idle_w,
        idle_origin=estimate.idle_origin.value,
        held_w=estimate.held_w,
        held_origin=estimate.held_origin.value,
    )


# ---------------------------------------------------------------------------- processes


def _process(line: ProcessLine, entry: Entry, view: GpuView | None, device: DeviceSums) -> ProcessAttribution:
    part = _part(entry, view)
    key, place = line.at
    return ProcessAttribution(
        key=key,
        name=entry.name,
        start_time_s=entry.start_time_s if key.start_ticks != START_UNKNOWN else None,
        workload=entry.ref,
        gpu_uuid=place.gpu_uuid,
        mig_uuid=place.instance,
        memory_bytes=part.memory_bytes,
        sm_ratio=part.sm_ratio,
        bandwidth_ratio=part.bandwidth_ratio,
        energy=part.energy,
        state=part.step.state if part.step is not None else None,
        idle_s=part.step.idle_s if part.step is not None else None,
        idle_bytes=part.idle_bytes,
        totals=entry.sums.frozen(entry.since_ns),
        active=entry.ended_ns is None,
        naming=line.naming,
        gpu_index=device.index,
        mig_profile=device.profiles.get(place.mig_uuid),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What a line shows in this cycle. Who has ended holds and does nothing; who was not seen, nobody knows."""

    memory_bytes: int | None
    sm_ratio: float | None
    bandwidth_ratio: float | None
    energy: MethodEnergy
    step: IdleStep | None
    idle_bytes: int | None


def _part(entry: Entry, view: GpuView | None) -> _Part:
    shown = view.books.shown.get(entry) if view is not None else None
    energy = shown.energy if shown is not None else NO_ENERGY
    if entry.ended_ns is not None:
        return _Part(0, 0.0, 0.0, energy, None, None)
    cycle = view.cycle if view is not None else None
    step = shown.step if shown is not None else None
    if view is None or shown is None or cycle is None or not shown.members:
        return _Part(None, None, None, energy, step, None)
    compute = cycle.compute
    ats = [view.books.there[number] for number in shown.members]
    idle = step is not None and step.state is GpuState.IDLE
    return _Part(
        memory_bytes=_sum_known(cycle.residents[at].memory_bytes for at in ats),
        sm_ratio=_sum_known(compute.share(at.key.pid) for at in ats) if compute is not None else None,
        bandwidth_ratio=_sum_known(compute.bandwidth_share(at.key.pid) for at in ats) if compute is not None else None,
        energy=energy,
        step=step,
        idle_bytes=shown.held_bytes if idle else 0,
    )


# ---------------------------------------------------------------------------- workloads


_Identity = tuple[str, str, int]
"""A workload under one of the names it had: its kind, id and the number of its names."""


def _workloads(
    ledger: Ledger, views: Mapping[str, GpuView], prices: Prices | None, snapshot: Snapshot
) -> tuple[WorkloadAttribution, ...]:
    shares = {_at(grant): grant.share for grant in snapshot.grants if not grant.possible}
    parts: dict[_Identity, list[WorkloadGpu]] = {}
    refs: dict[_Identity, WorkloadRef] = {}
    for line, entry in sorted(ledger.workloads.entries.items()):
        uuid = line.at.place.gpu_uuid
        identity = (line.at.kind, line.at.id, line.naming)
        refs[identity] = entry.ref
        allocation = shares.get(line.at) if entry.ended_ns is None else 0.0
        part = _workload_gpu(line, entry, views.get(uuid), ledger.device(uuid), prices, allocation=allocation)
        parts.setdefault(identity, []).append(part)
    told = [
        WorkloadAttribution(
            ref=refs[identity],
            names=ledger.namings.names(refs[identity], identity[2]),
            gpus=tuple(gpus),
            naming=identity[2],
            held=ledger.namings.waiting(refs[identity]),
        )
        for identity, gpus in sorted(parts.items())
    ]
    return (*told, *_possible(ledger, snapshot))


def _possible(ledger: Ledger, snapshot: Snapshot) -> Iterator[WorkloadAttribution]:
    """Who could use a GPU and has never been seen there: that it could is all there is to tell."""
    profiles = {mig.uuid: mig.profile for gpu in snapshot.gpus for mig in gpu.mig or ()}
    there = {line.at for line in ledger.workloads.entries}
    could: dict[WorkloadRef, list[WorkloadGpu]] = {}
    for grant in snapshot.grants:
        if grant.possible and _at(grant) not in there and grant.workload.key not in snapshot.names_pending:
            part = WorkloadGpu(
                gpu_uuid=grant.gpu_uuid,
                mig_uuid=grant.mig_uuid or None,
                measured_bytes=None,
                active=False,
                gpu_index=ledger.device(grant.gpu_uuid).index,
                mig_profile=profiles.get(grant.mig_uuid),
                possible=True,
            )
            could.setdefault(grant.workload, []).append(part)
    for ref, gpus in could.items():
        yield WorkloadAttribution(ref=ref, names=snapshot.names.get(ref.key), gpus=tuple(gpus))


def _at(grant: Grant) -> WorkloadAt:
    return workload_at(grant.workload, Place(grant.gpu_uuid, grant.mig_uuid))


def _workload_gpu(
    line: WorkloadLine,
    entry: Entry,
    view: GpuView | None,
    device: DeviceSums,
    prices: Prices | None,
    *,
    allocation: float | None,
) -> WorkloadGpu:
    part = _part(entry, view)
    totals = entry.sums.frozen(entry.since_ns)
    step = part.step
    inferred, confidence = _inferred(line, entry, view)
    return WorkloadGpu(
        gpu_uuid=line.at.place.gpu_uuid,
        mig_uuid=line.at.place.instance,
        measured_bytes=part.memory_bytes,
        inferred_bytes=inferred,
        confidence=confidence,
        sm_ratio=part.sm_ratio,
        bandwidth_ratio=part.bandwidth_ratio,
        energy=part.energy,
        state=step.state if step is not None else None,
        idle_s=step.idle_s if step is not None else None,
        idle_bytes=part.idle_bytes,
        totals=totals,
        active=entry.ended_ns is None,
        costs=costs(totals, device.name, prices),
        gpu_index=device.index,
        mig_profile=device.profiles.get(line.at.place.mig_uuid),
        allocation=allocation,
    )


def _inferred(line: WorkloadLine, entry: Entry, view: GpuView | None) -> tuple[int | None, float | None]:
    """Inferred bytes and how sure they are; no confidence where nobody of the workload is a candidate."""
    if entry.ended_ns is not None:
        return 0, None
    cycle = view.cycle if view is not None else None
    hidden = cycle.hidden.get(line.at.place.mig_uuid) if cycle is not None else None
    if hidden is None:
        return None, None
    held = hidden.workloads.get(line.at)
    return (0, None) if held is None else (held.bytes, held.confidence)


def _sum_known(figures: Iterable[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known[1:], start=known[0]) if known else None
