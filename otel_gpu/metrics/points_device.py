"""Points of GPUs: ``hw.*`` for physical ones, ``gpu.device.*`` for them and their MIG instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.columns import Devices, OfDevices, of_each, plain
from otel_gpu.metrics.layout import DeviceTags
from otel_gpu.metrics.points_memory import by_memory_state, instances_first, memory_overcount, memory_states
from otel_gpu.metrics.points_reading import Device
from otel_gpu.metrics.points_use import PER_JOULE, Values
from otel_gpu.metrics.tags import Tags
from otel_gpu.model import GpuHealth, GpuState, MemorySplit, ProcessReport

_VENDOR: Final = "NVIDIA"
_STATUS: Final = MappingProxyType({now: tuple(int(now is health) for health in GpuHealth) for now in GpuHealth})

_BASIS_KEYS: Final = ("source", "policy", "model", "gpu.energy.idle.origin", "gpu.energy.held.origin")
_PROCESS_STATES: Final = (GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN)


def _used_bytes(split: MemorySplit) -> int:
    return split.limit_bytes - (split.reserved_bytes or 0) - split.free_bytes


# ---------------------------------------------------------------------------- attributes


def _named(device: DeviceTags) -> tuple[Tags, ...]:
    name = device.name
    model = name.removeprefix(_VENDOR).strip() or name
    return (device.attributes.adding({"hw.name": name, "hw.model": model, "hw.vendor": _VENDOR}),)


def _typed(device: DeviceTags) -> tuple[Tags, ...]:
    return (device.attributes.adding({"hw.type": "gpu"}),)


def _by_task(device: DeviceTags) -> tuple[Tags, ...]:
    return tuple(device.attributes.adding({"hw.gpu.task": task}) for task in ("general", "encoder", "decoder"))


def _by_error(device: DeviceTags) -> tuple[Tags, ...]:
    errors = ("corrected", "uncorrected", "xid")
    return tuple(device.attributes.adding({"hw.type": "gpu", "error.type": error}) for error in errors)


def _by_health(device: DeviceTags) -> tuple[Tags, ...]:
    return tuple(device.attributes.adding({"hw.type": "gpu", "hw.state": health.value}) for health in GpuHealth)


def _by_energy_state(device: DeviceTags) -> tuple[Tags, ...]:
    states = ("attributed", "idle", "unattributed")
    return tuple(device.places[""].adding({"gpu.energy.state": state}) for state in states)


def _by_place(device: DeviceTags) -> tuple[Tags, ...]:
    return tuple(device.places.values())


def _by_place_and_state(device: DeviceTags) -> tuple[Tags, ...]:
    return tuple(
        place.adding({"gpu.state": state.value}) for place in device.places.values() for state in _PROCESS_STATES
    )


def _by_basis(device: DeviceTags) -> tuple[Tags, ...]:
    """Without a basis there is no value either."""
    return (device.places[""].adding(dict(zip(_BASIS_KEYS, device.basis or (), strict=False))),)


# ---------------------------------------------------------------------------- values


def _memory_limit(devices: Devices) -> Values:
    splits = [device.gpu.memory for device in devices]
    return [None if split is None else split.limit_bytes for split in splits]


def _memory_usage(devices: Devices) -> Values:
    splits = [device.gpu.memory for device in devices]
    return [None if split is None else _used_bytes(split) for split in splits]


def _memory_utilization(devices: Devices) -> Values:
    splits = [device.gpu.memory for device in devices]
    return [
        _used_bytes(split) / split.limit_bytes if split is not None and split.limit_bytes else None for split in splits
    ]


def _utilization(devices: Devices) -> Values:
    values: Values = []
    for device in devices:
        told = device.gpu.reading
        values += (told.gpu_ratio, told.encoder_ratio, told.decoder_ratio)
    return values


def _power(devices: Devices) -> Values:
    return [device.gpu.reading.power_w for device in devices]


def _energy_mj(devices: Devices) -> Values:
    totals = [device.gpu.totals if device.tells_energy else None for device in devices]
    return [None if own is None else own.total_mj for own in totals]


def _temperature(devices: Devices) -> Values:
    return [device.gpu.reading.temperature_c for device in devices]


def _errors(devices: Devices) -> Values:
    """Errors as the driver counts them. ECC errors count since the board was made, so they have no start.

    XIDs are counted as they happen, since the books began.
    """
    values: Values = []
    for device in devices:
        told = device.gpu.reading
        values += (told.ecc_corrected, told.ecc_uncorrected, told.xid_errors)
    return values


def _status(devices: Devices) -> Values:
    return [now for device in devices for now in _STATUS[device.gpu.reading.health]]


def _energy_states_mj(devices: Devices) -> Values:
    values: Values = []
    for device in devices:
        own = device.gpu.totals if device.tells_energy else None
        values += (None, None, None) if own is None else (own.attributed_mj, own.idle_mj, own.unattributed_mj)
    return values


def _energy_info(devices: Devices) -> Values:
    return [None if device.gpu.basis is None else 1 for device in devices]


def _idle_memory(device: Device) -> Iterable[float | None]:
    """Bytes of idle processes; none where nobody can tell who is idle."""
    if not _tells_processes(device) or (device.residents and not device.tells_work):
        return (None,) * len(device.places)
    return [sum([each.idle_bytes or 0 for each in here]) for here in _residents_by_place(device)]


def _process_count(device: Device) -> Iterable[float | None]:
    if not _tells_processes(device):
        return (None,) * (len(device.places) * len(_PROCESS_STATES))
    values: list[float | None] = []
    for here in _residents_by_place(device):
        states = [each.state or GpuState.UNKNOWN for each in here]
        values += map(states.count, _PROCESS_STATES)
    return values


def _tells_processes(device: Device) -> bool:
    told = device.gpu.reading
    return told.processes is not None or any(mig.processes is not None for mig in told.mig or ())


def _residents_by_place(device: Device) -> Iterable[Sequence[ProcessReport]]:
    """Who is on which place; on the GPU itself who is on an instance that is not known."""
    if len(device.places) == 1:
        return (device.residents,)
    found: dict[str, list[ProcessReport]] = {uuid: [] for uuid in device.places}
    for process in device.residents:
        found.get(process.mig_uuid or "", found[""]).append(process)
    return found.values()


DEVICE_VALUES: Final[Mapping[str, OfDevices]] = MappingProxyType(
    {
        "hw.gpu.memory.limit": OfDevices(_memory_limit, _named),
        "hw.gpu.memory.usage": OfDevices(_memory_usage, _named),
        "hw.gpu.memory.utilization": OfDevices(_memory_utilization, plain),
        "hw.gpu.utilization": OfDevices(_utilization, _by_task),
        "hw.power": OfDevices(_power, _typed),
        "hw.energy": OfDevices(_energy_mj, _typed, (True,), per=PER_JOULE),
        "hw.temperature": OfDevices(_temperature, plain),
        "hw.errors": OfDevices(_errors, _by_error, (False, False, True)),
        "hw.status": OfDevices(_status, _by_health),
        "gpu.device.memory.usage": OfDevices(of_each(memory_states), by_memory_state),
        "gpu.device.memory.overcount": OfDevices(of_each(memory_overcount), instances_first),
        "gpu.device.energy": OfDevices(_energy_states_mj, _by_energy_state, (True, True, True), per=PER_JOULE),
        "gpu.device.energy.info": OfDevices(_energy_info, _by_basis),
        "gpu.device.idle.memory": OfDevices(of_each(_idle_memory), _by_place),
        "gpu.device.process.count": OfDevices(of_each(_process_count), _by_place_and_state),
    }
)
