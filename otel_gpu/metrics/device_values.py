"""Values of GPUs: ``hw.*`` for physical GPUs, ``gpu.device.*`` for them and their MIG instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from otel_gpu.metrics.agent_values import explained_values
from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes
from otel_gpu.metrics.rows import MJ_PER_J, GpuRow, Value
from otel_gpu.model import GpuHealth, GpuState, MemorySplit, MigReport, ProcessReport

_VENDOR: Final = "NVIDIA"
_TYPE: Final[Attributes] = {"hw.type": "gpu"}
_HEALTH: Final = tuple((health, {**_TYPE, "hw.state": health.value}) for health in GpuHealth)
_PROCESS_STATES: Final = (GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN)


def gpu_values(row: GpuRow) -> Iterator[Value]:
    """The values of a GPU, and how much of it the agent explains."""
    return chain(_hardware_values(row), _divided_values(row), explained_values(row))


def _hardware_values(row: GpuRow) -> Iterator[Value]:
    """``hw.*``: what the driver reports of a physical GPU, and its energy as the ledger counts it.

    ECC errors are those of the board's life, XIDs those since the ledger began.
    """
    gpu, reading, split = row.gpu, row.gpu.reading, row.gpu.memory
    if split is not None:
        model = _model(gpu.identity.name)
        yield "hw.gpu.memory.limit", split.limit_bytes, model
        yield "hw.gpu.memory.usage", split.used_bytes, model
        if split.limit_bytes:
            yield "hw.gpu.memory.utilization", split.used_bytes / split.limit_bytes, NO_ATTRIBUTES
    yield "hw.gpu.utilization", reading.gpu_ratio, {"hw.gpu.task": "general"}
    yield "hw.gpu.utilization", reading.encoder_ratio, {"hw.gpu.task": "encoder"}
    yield "hw.gpu.utilization", reading.decoder_ratio, {"hw.gpu.task": "decoder"}
    yield "hw.power", reading.power_w, _TYPE
    if gpu.has_energy and gpu.totals is not None:
        yield "hw.energy", gpu.totals.total_mj / MJ_PER_J, _TYPE
    yield "hw.temperature", reading.temperature_c, NO_ATTRIBUTES
    yield "hw.errors", reading.ecc_corrected, {**_TYPE, "error.type": "corrected"}
    yield "hw.errors", reading.ecc_uncorrected, {**_TYPE, "error.type": "uncorrected"}
    yield "hw.errors", reading.xid_errors, {**_TYPE, "error.type": "xid"}
    for health, own in _HEALTH:
        yield "hw.status", int(reading.health is health), own


def _model(name: str) -> Attributes:
    model = name.removeprefix(_VENDOR).strip() or name
    return {"hw.name": name, "hw.model": model, "hw.vendor": _VENDOR} if name else {"hw.vendor": _VENDOR}


def _divided_values(row: GpuRow) -> Iterator[Value]:
    """``gpu.device.*``: how the memory and energy of a GPU are divided, and the processes on it."""
    gpu, totals, basis = row.gpu, row.gpu.totals, row.gpu.basis
    if gpu.memory is not None:
        yield from _memory_values(row, gpu.memory)
    if gpu.has_energy and totals is not None:
        yield "gpu.device.energy", totals.attributed_mj / MJ_PER_J, {"gpu.energy.state": "attributed"}
        yield "gpu.device.energy", totals.idle_mj / MJ_PER_J, {"gpu.energy.state": "idle"}
        yield "gpu.device.energy", totals.unattributed_mj / MJ_PER_J, {"gpu.energy.state": "unattributed"}
    if gpu.has_energy and basis is not None:
        origins = {
            "gpu.energy.idle.origin": basis.idle_power_origin,
            "gpu.energy.held.origin": basis.context_power_origin,
        }
        own = {"source": basis.source, "policy": basis.policy, "model": basis.model, **origins}
        yield "gpu.device.energy.info", 1, own
    if not lists_processes(row):
        return
    knows_idleness = gpu.has_utilization or not row.residents
    for device, residents in _residents_by_device(row):
        if knows_idleness:
            yield "gpu.device.idle.memory", sum([process.idle_bytes or 0 for process in residents]), device
        states = [process.state or GpuState.UNKNOWN for process in residents]
        for state in _PROCESS_STATES:
            yield "gpu.device.process.count", states.count(state), {**device, "gpu.state": state.value}


def lists_processes(row: GpuRow) -> bool:
    """Whether the driver lists the processes of the GPU or of one of its instances."""
    reading = row.gpu.reading
    return reading.processes is not None or any(mig.processes is not None for mig in reading.mig or ())


def _residents_by_device(row: GpuRow) -> Iterable[tuple[Attributes, list[ProcessReport]]]:
    """Residents of the GPU itself, then of each MIG instance. Those of an unknown instance count for the GPU."""
    whole: list[ProcessReport] = []
    instances: dict[str, list[ProcessReport]] = {uuid: [] for uuid in row.instances}
    for process in row.residents:
        instances.get(process.mig_uuid or "", whole).append(process)
    yield NO_ATTRIBUTES, whole
    for uuid, residents in instances.items():
        yield row.instances[uuid], residents


# ---------------------------------------------------------------------------- memory


def _memory_values(row: GpuRow, whole: MemorySplit) -> Iterator[Value]:
    """Bytes by state, and overcount: of each MIG instance, then of the rest of the GPU (all of it without MIG)."""
    instances = [(_states(split), split, row.instances[mig.uuid]) for mig, split in _instances(row, whole)]
    rest_overcount = whole.overcount_bytes
    for states, split, device in instances:
        rest_overcount -= split.overcount_bytes
        yield "gpu.device.memory.overcount", split.overcount_bytes, device
        for state, held_bytes in states.items():
            yield "gpu.device.memory.usage", held_bytes, {**device, "gpu.memory.state": state}
    yield "gpu.device.memory.overcount", max(0, rest_overcount), NO_ATTRIBUTES
    for state, held_bytes in _rest(_states(whole), [states for states, _, _ in instances]).items():
        yield "gpu.device.memory.usage", held_bytes, {"gpu.memory.state": state}


def _instances(row: GpuRow, whole: MemorySplit) -> list[tuple[MigReport, MemorySplit]]:
    """The instances that have memory of their own.

    Compute instances of one GPU instance share its memory, and each reports all of it: that memory is counted with the
    rest of the GPU. So is all memory where the instances claim more than the GPU has.
    """
    if not row.gpu.mig:
        return []
    read = row.gpu.reading.mig or ()
    sharing = Counter(mig.gpu_instance_id for mig in read if mig.gpu_instance_id is not None)
    shared = {mig.uuid for mig in read if mig.gpu_instance_id is not None and sharing[mig.gpu_instance_id] > 1}
    own = [(mig, mig.memory) for mig in row.gpu.mig if mig.memory is not None and mig.uuid not in shared]
    return own if sum(split.limit_bytes for _, split in own) <= whole.limit_bytes else []


def _states(split: MemorySplit) -> dict[str, int]:
    """Bytes by state; the states sum to the limit. Measured is net of overcount."""
    reserved = {} if split.reserved_bytes is None else {"reserved": split.reserved_bytes}
    return {
        **reserved,
        "measured": split.measured_bytes - split.overcount_bytes,
        "inferred": split.inferred_bytes,
        "unattributed": split.unattributed_bytes,
        "free": split.free_bytes,
    }


def _rest(whole: Mapping[str, int], instances: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The memory of no instance. Where instances have more of a state than the GPU, its other states make up for it."""
    if not instances:
        return whole
    rest = Counter(whole)
    for states in instances:
        rest.subtract(states)
    missing = -sum(held_bytes for held_bytes in rest.values() if held_bytes < 0)
    for state, held_bytes in rest.most_common():
        taken = min(missing, max(0, held_bytes))
        rest[state] = max(0, held_bytes) - taken
        missing -= taken
    return {state: rest[state] for state in rest if state in whole}
