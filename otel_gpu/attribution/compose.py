"""From the books and one cycle's figures to the frozen Attribution that everybody reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle import IdleStep, workload_state
from otel_gpu.attribution.ledger import Entry, Ledger
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt, workload_at
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
    MethodEnergy,
    MigAttribution,
    ProcessAttribution,
    Snapshot,
    WorkloadAttribution,
    WorkloadGpu,
    WorkloadNames,
    WorkloadRef,
)


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU in this cycle; ``cycle`` is ``None`` where it did not answer."""

    reading: GpuReading
    cycle: GpuCycle | None
    steps: Mapping[ProcessAt, IdleStep]
    workload_steps: Mapping[WorkloadAt, IdleStep]
    energy_source: str


def compose(
    snapshot: Snapshot,
    views: tuple[GpuView, ...],
    ledger: Ledger,
    options: AttributionOptions,
    names: Mapping[str, WorkloadNames],
    *,
    window_s: float | None,
    anomalies: int,
) -> Attribution:
    """The answer of this cycle: everybody who is there, and who ended within the retention."""
    by_uuid = {view.reading.identity.uuid: view for view in views}
    processes = tuple(
        _process(at, entry, by_uuid.get(at.place.gpu_uuid))
        for at, entry in sorted(ledger.processes.items(), key=_order)
    )
    return Attribution(
        wall_ns=snapshot.wall_ns,
        monotonic_ns=snapshot.monotonic_ns,
        window_s=window_s,
        gpus=tuple(_gpu(view, ledger, options) for view in views),
        workloads=_workloads(names, ledger, processes, by_uuid, options.prices),
        processes=processes,
        sources=snapshot.sources,
        driver=snapshot.driver,
        anomalies=anomalies,
    )


def _order(item: tuple[ProcessAt, Entry]) -> tuple[object, ...]:
    return (item[0].place, item[0].key)


# ---------------------------------------------------------------------------- GPUs


def _gpu(view: GpuView, ledger: Ledger, options: AttributionOptions) -> GpuAttribution:
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


def _process(at: ProcessAt, entry: Entry, view: GpuView | None) -> ProcessAttribution:
    cycle = view.cycle if view is not None else None
    resident = cycle.residents.get(at) if cycle is not None else None
    step = view.steps.get(at) if view is not None else None
    compute = cycle.compute if cycle is not None and resident is not None else None
    memory_bytes = resident.memory_bytes if resident is not None else 0 if entry.ended_ns is not None else None
    idle = step is not None and step.state is GpuState.IDLE
    held_bytes = memory_bytes if memory_bytes is not None else _inferred_of(at, cycle)
    return ProcessAttribution(
        key=at.key,
        name=entry.name,
        start_time_s=entry.start_time_s if at.key.start_ticks != START_UNKNOWN else None,
        workload=entry.ref,
        gpu_uuid=at.place.gpu_uuid,
        mig_uuid=at.place.instance,
        memory_bytes=memory_bytes,
        sm_ratio=compute.share(at.key.pid) if compute is not None else 0.0 if entry.ended_ns is not None else None,
        bandwidth_ratio=compute.bandwidth_share(at.key.pid) if compute is not None else None,
        energy=_window_energy([at], cycle),
        state=step.state if step is not None else None,
        idle_s=step.idle_s if step is not None else None,
        idle_bytes=held_bytes if idle else 0 if step is not None else None,
        totals=entry.sums.frozen(entry.since_ns),
        active=entry.ended_ns is None,
    )


def _inferred_of(at: ProcessAt, cycle: GpuCycle | None) -> int | None:
    hidden = cycle.hidden.get(at.place.mig_uuid) if cycle is not None else None
    held = hidden.inferred.get(at) if hidden is not None else None
    return held.bytes if held is not None else None


def _window_energy(ats: Iterable[ProcessAt], cycle: GpuCycle | None) -> MethodEnergy:
    if cycle is None or cycle.division is None:
        return MethodEnergy()
    division = cycle.division
    sums = dict.fromkeys(Method, 0)
    for at in ats:
        if at in division.parts:
            sums[division.methods[at]] += division.parts[at]
    return MethodEnergy(sums[Method.MEASURED], sums[Method.ESTIMATED], sums[Method.INFERRED])


# ---------------------------------------------------------------------------- workloads


def _workloads(
    names: Mapping[str, WorkloadNames],
    ledger: Ledger,
    processes: tuple[ProcessAttribution, ...],
    views: Mapping[str, GpuView],
    prices: Prices | None,
) -> tuple[WorkloadAttribution, ...]:
    members: dict[WorkloadAt, list[ProcessAt]] = {}
    of_process: dict[ProcessAt, ProcessAttribution] = {}
    for process in processes:
        at = ProcessAt(process.key, Place(process.gpu_uuid, process.mig_uuid or ""))
        of_process[at] = process
        entries = ledger.entries(at)
        if entries is not None:
            members.setdefault(workload_at(entries[1].ref, at.place), []).append(at)
    parts: dict[tuple[str, str], list[WorkloadGpu]] = {}
    refs: dict[tuple[str, str], WorkloadRef] = {}
    for workload, entry in sorted(ledger.workloads.items()):
        view = views.get(workload.place.gpu_uuid)
        ats = members.get(workload, [])
        refs[workload.kind, workload.id] = entry.ref
        parts.setdefault((workload.kind, workload.id), []).append(
            _workload_gpu(workload, entry, {at: of_process[at] for at in ats}, view, prices)
        )
    return tuple(
        WorkloadAttribution(refs[identity], names.get(refs[identity].id), tuple(gpus))
        for identity, gpus in sorted(parts.items())
    )


def _workload_gpu(
    workload: WorkloadAt,
    entry: Entry,
    processes: Mapping[ProcessAt, ProcessAttribution],
    view: GpuView | None,
    prices: Prices | None,
) -> WorkloadGpu:
    cycle = view.cycle if view is not None else None
    step = view.workload_steps.get(workload) if view is not None else None
    here = [process for process in processes.values() if process.active]
    states = [process.state for process in here if process.state is not None]
    state = workload_state(states) if states else None
    inferred, confidence = _inferred(workload, cycle)
    totals = entry.sums.frozen(entry.since_ns)
    return WorkloadGpu(
        gpu_uuid=workload.place.gpu_uuid,
        mig_uuid=workload.place.instance,
        measured_bytes=_sum_known([p.memory_bytes for p in here]) if here else 0,
        inferred_bytes=inferred,
        confidence=confidence,
        sm_ratio=_sum_known([p.sm_ratio for p in here]) if here else 0.0,
        bandwidth_ratio=_sum_known([p.bandwidth_ratio for p in here]) if here else 0.0,
        energy=_window_energy(processes, cycle),
        state=state,
        idle_s=step.idle_s if step is not None and state is step.state else 0.0 if state is GpuState.BUSY else None,
        idle_bytes=sum(p.idle_bytes or 0 for p in here) if state is not None else None,
        totals=totals,
        active=bool(here),
        costs=costs(totals, view.reading.identity.name if view is not None else "", prices),
    )


def _inferred(workload: WorkloadAt, cycle: GpuCycle | None) -> tuple[int | None, float | None]:
    """Inferred bytes and how sure they are; no confidence where nobody of the workload is a candidate."""
    hidden = cycle.hidden.get(workload.place.mig_uuid) if cycle is not None else None
    if hidden is None:
        return None, None
    held = hidden.workloads.get(workload)
    return (0, None) if held is None else (held.bytes, held.confidence)


def _sum_known(figures: list[int | None] | list[float | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None  # type: ignore[return-value]  # int or float, as it came
