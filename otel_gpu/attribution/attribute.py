"""One cycle's answer: (previous snapshot, snapshot) → Attribution."""

from __future__ import annotations

from collections.abc import Iterator

from otel_gpu.attribution.memory import Holders, holders_by_instance, split
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    Attribution,
    EnergySplit,
    GpuAttribution,
    GpuReading,
    MigAttribution,
    ProcessAttribution,
    ProcessFacts,
    ProcessKey,
    Snapshot,
    WorkloadAttribution,
    WorkloadGpu,
    WorkloadRef,
)

_Place = tuple[str, str | None]
"""GPU UUID and MIG UUID."""


def attribute(previous: Snapshot | None, snapshot: Snapshot) -> Attribution:
    """Who holds what. Energy is given per GPU only; its division needs more than two snapshots."""
    held = {reading.identity.uuid: holders_by_instance(reading) for reading in snapshot.gpus}
    processes = tuple(
        sorted(
            (process for reading in snapshot.gpus for process in _processes(reading, held, snapshot)),
            key=lambda process: (process.gpu_uuid, process.mig_uuid or "", process.key),
        )
    )
    before = {reading.identity.uuid: reading for reading in previous.gpus} if previous is not None else {}
    return Attribution(
        wall_ns=snapshot.wall_ns,
        monotonic_ns=snapshot.monotonic_ns,
        window_s=(snapshot.monotonic_ns - previous.monotonic_ns) / 1e9 if previous is not None else None,
        gpus=tuple(
            _gpu(reading, held[reading.identity.uuid], before.get(reading.identity.uuid)) for reading in snapshot.gpus
        ),
        workloads=_workloads(processes, snapshot),
        processes=processes,
        sources=snapshot.sources,
        driver=snapshot.driver,
    )


def _gpu(reading: GpuReading, held: dict[str | None, Holders], before: GpuReading | None) -> GpuAttribution:
    mig = None
    if reading.mig is not None:
        mig = tuple(
            MigAttribution(
                instance.uuid, instance.profile, split(instance.memory, held.get(instance.uuid, {}).values())
            )
            for instance in reading.mig
        )
    everyone = [bytes_ for holders in held.values() for bytes_ in holders.values()]
    return GpuAttribution(reading, split(reading.memory, everyone), _energy(reading, before), mig)


def _energy(reading: GpuReading, before: GpuReading | None) -> EnergySplit | None:
    """What the counter advanced by; a counter that went down was reset, and tells nothing of the time before."""
    if before is None or before.energy_mj is None or reading.energy_mj is None:
        return None
    return EnergySplit(delta_mj=max(0, reading.energy_mj - before.energy_mj))


def _processes(
    reading: GpuReading, held: dict[str, dict[str | None, Holders]], snapshot: Snapshot
) -> Iterator[ProcessAttribution]:
    """Who the driver lists on this GPU, and who has it open for CUDA without being listed."""
    uuid = reading.identity.uuid
    listed: set[int] = set()
    for mig_uuid, holders in held[uuid].items():
        listed.update(holders)
        for pid, memory_bytes in holders.items():
            yield _process(pid, snapshot.processes.get(pid), (uuid, mig_uuid), memory_bytes)
    for pid, facts in snapshot.processes.items():
        # An open /dev/nvidiaN alone may be a monitor; with nvidia-uvm it is CUDA.
        if pid not in listed and facts.alive and facts.uvm_open and reading.identity.minor in facts.gpu_minors_open:
            yield _process(pid, facts, (uuid, None), None)


def _process(pid: int, facts: ProcessFacts | None, place: _Place, memory_bytes: int | None) -> ProcessAttribution:
    gpu_uuid, mig_uuid = place
    return ProcessAttribution(
        key=facts.key if facts is not None else ProcessKey(pid, START_UNKNOWN),
        name=facts.name if facts is not None else None,
        start_time_s=facts.start_time_s if facts is not None else None,
        workload=facts.workload if facts is not None else UNIDENTIFIED_WORKLOAD,
        gpu_uuid=gpu_uuid,
        mig_uuid=mig_uuid,
        memory_bytes=memory_bytes,
    )


def _workloads(processes: tuple[ProcessAttribution, ...], snapshot: Snapshot) -> tuple[WorkloadAttribution, ...]:
    parts: dict[tuple[str, str], dict[_Place, list[int | None]]] = {}
    refs: dict[tuple[str, str], WorkloadRef] = {}
    for process in processes:
        identity = (process.workload.kind, process.workload.id)
        refs.setdefault(identity, process.workload)
        place = (process.gpu_uuid, process.mig_uuid)
        parts.setdefault(identity, {}).setdefault(place, []).append(process.memory_bytes)
    return tuple(
        WorkloadAttribution(
            ref=refs[identity],
            names=snapshot.names.get(refs[identity].id),
            gpus=tuple(
                WorkloadGpu(gpu_uuid, mig_uuid, _sum_known(figures))
                for (gpu_uuid, mig_uuid), figures in sorted(
                    places.items(), key=lambda item: (item[0][0], item[0][1] or "")
                )
            ),
        )
        for identity, places in sorted(parts.items())
    )


def _sum_known(figures: list[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None
