"""Values of GPUs: ``hw.*`` for physical GPUs, ``gpu.device.*`` for them and their MIG instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes
from otel_gpu.metrics.memory_values import memory_overcount, memory_states
from otel_gpu.metrics.rows import GpuRow, GpuValues
from otel_gpu.metrics.use_values import MJ_PER_J
from otel_gpu.model import GpuHealth, GpuState, MemorySplit, ProcessReport

_VENDOR: Final = "NVIDIA"
_TYPE: Final[Attributes] = {"hw.type": "gpu"}
_HEALTH: Final = tuple((health, {**_TYPE, "hw.state": health.value}) for health in GpuHealth)
_PROCESS_STATES: Final = (GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN)
_LIFETIME_ERRORS: Final = ("corrected", "uncorrected")


def start_ns(own: Attributes, since_ns: int | None) -> int | None:
    """The start of a counter: that of its row. ECC errors count over the board's life, and have no start."""
    return None if own.get("error.type") in _LIFETIME_ERRORS else since_ns


# ---------------------------------------------------------------------------- hw.*


def _used_bytes(split: MemorySplit) -> int:
    return split.limit_bytes - (split.reserved_bytes or 0) - split.free_bytes


def _model(row: GpuRow) -> Attributes:
    name = row.gpu.identity.name
    model = name.removeprefix(_VENDOR).strip() or name
    return {"hw.name": name, "hw.model": model, "hw.vendor": _VENDOR} if name else {"hw.vendor": _VENDOR}


def _memory_limit(row: GpuRow) -> GpuValues:
    if row.gpu.memory is not None:
        yield row.gpu.memory.limit_bytes, _model(row)


def _memory_usage(row: GpuRow) -> GpuValues:
    if row.gpu.memory is not None:
        yield _used_bytes(row.gpu.memory), _model(row)


def _memory_utilization(row: GpuRow) -> GpuValues:
    split = row.gpu.memory
    if split is not None and split.limit_bytes:
        yield _used_bytes(split) / split.limit_bytes, NO_ATTRIBUTES


def _utilization(row: GpuRow) -> GpuValues:
    reading = row.gpu.reading
    yield reading.gpu_ratio, {"hw.gpu.task": "general"}
    yield reading.encoder_ratio, {"hw.gpu.task": "encoder"}
    yield reading.decoder_ratio, {"hw.gpu.task": "decoder"}


def _power(row: GpuRow) -> GpuValues:
    yield row.gpu.reading.power_w, _TYPE


def _energy(row: GpuRow) -> GpuValues:
    if row.gpu.has_energy and row.gpu.totals is not None:
        yield row.gpu.totals.total_mj / MJ_PER_J, _TYPE


def _temperature(row: GpuRow) -> GpuValues:
    yield row.gpu.reading.temperature_c, NO_ATTRIBUTES


def _errors(row: GpuRow) -> GpuValues:
    """ECC errors as the driver counts them; XIDs since the ledger began."""
    reading = row.gpu.reading
    yield reading.ecc_corrected, {**_TYPE, "error.type": "corrected"}
    yield reading.ecc_uncorrected, {**_TYPE, "error.type": "uncorrected"}
    yield reading.xid_errors, {**_TYPE, "error.type": "xid"}


def _status(row: GpuRow) -> GpuValues:
    for health, own in _HEALTH:
        yield int(row.gpu.reading.health is health), own


# ---------------------------------------------------------------------------- gpu.device.*


def _energy_states(row: GpuRow) -> GpuValues:
    totals = row.gpu.totals
    if row.gpu.has_energy and totals is not None:
        yield totals.attributed_mj / MJ_PER_J, {"gpu.energy.state": "attributed"}
        yield totals.idle_mj / MJ_PER_J, {"gpu.energy.state": "idle"}
        yield totals.unattributed_mj / MJ_PER_J, {"gpu.energy.state": "unattributed"}


def _energy_info(row: GpuRow) -> GpuValues:
    basis = row.gpu.basis
    if basis is not None and row.gpu.has_energy:
        yield (
            1,
            {
                "source": basis.source,
                "policy": basis.policy,
                "model": basis.model,
                "gpu.energy.idle.origin": basis.idle_power_origin,
                "gpu.energy.held.origin": basis.context_power_origin,
            },
        )


def idle_memory(row: GpuRow) -> GpuValues:
    """Bytes held by idle processes, by device; absent where idleness cannot be known."""
    if _lists_processes(row) and (row.gpu.has_utilization or not row.residents):
        for device, residents in _residents_by_device(row):
            yield sum([process.idle_bytes or 0 for process in residents]), device


def process_count(row: GpuRow) -> GpuValues:
    """Processes on the GPU, by device and state."""
    if _lists_processes(row):
        for device, residents in _residents_by_device(row):
            states = [process.state or GpuState.UNKNOWN for process in residents]
            for state in _PROCESS_STATES:
                yield states.count(state), {**device, "gpu.state": state.value}


def _lists_processes(row: GpuRow) -> bool:
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


DEVICE_VALUES: Final[Mapping[str, Callable[[GpuRow], GpuValues]]] = MappingProxyType(
    {
        "hw.gpu.memory.limit": _memory_limit,
        "hw.gpu.memory.usage": _memory_usage,
        "hw.gpu.memory.utilization": _memory_utilization,
        "hw.gpu.utilization": _utilization,
        "hw.power": _power,
        "hw.energy": _energy,
        "hw.temperature": _temperature,
        "hw.errors": _errors,
        "hw.status": _status,
        "gpu.device.memory.usage": memory_states,
        "gpu.device.memory.overcount": memory_overcount,
        "gpu.device.energy": _energy_states,
        "gpu.device.energy.info": _energy_info,
        "gpu.device.idle.memory": idle_memory,
        "gpu.device.process.count": process_count,
    }
)
