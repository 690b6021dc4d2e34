"""Points of GPUs: ``hw.*`` for physical ones, ``gpu.device.*`` for them and their MIG instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.columns import OfDevices, plain
from otel_gpu.metrics.layout import DeviceTags
from otel_gpu.metrics.points_memory import memory_overcount, memory_states
from otel_gpu.metrics.points_reading import Device, Reading
from otel_gpu.metrics.series import Point
from otel_gpu.metrics.tags import Tags
from otel_gpu.model import GpuHealth, GpuState, MemorySplit, ProcessAttribution

_VENDOR: Final = "NVIDIA"
_STATUS: Final = MappingProxyType({now: tuple(int(now is health) for health in GpuHealth) for now in GpuHealth})


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


# ---------------------------------------------------------------------------- values


def _memory_limit(device: Device) -> tuple[float | None]:
    split = device.gpu.memory
    return (None if split is None else split.limit_bytes,)


def _memory_usage(device: Device) -> tuple[float | None]:
    split = device.gpu.memory
    return (None if split is None else _used_bytes(split),)


def _memory_utilization(device: Device) -> tuple[float | None]:
    split = device.gpu.memory
    return (_used_bytes(split) / split.limit_bytes if split is not None and split.limit_bytes else None,)


def _utilization(device: Device) -> tuple[float | None, ...]:
    told = device.gpu.reading
    return told.gpu_ratio, told.encoder_ratio, told.decoder_ratio


def _power(device: Device) -> tuple[float | None]:
    return (device.gpu.reading.power_w,)


def _energy(device: Device) -> tuple[float | None]:
    totals = device.gpu.totals
    return (totals.total_mj / 1e3 if totals is not None and device.tells_energy else None,)


def _temperature(device: Device) -> tuple[float | None]:
    return (device.gpu.reading.temperature_c,)


def _errors(device: Device) -> tuple[float | None, ...]:
    """Errors as the driver counts them. ECC errors count since the board was made, so they have no start.

    XIDs are counted as they happen, since the books began.
    """
    told = device.gpu.reading
    return told.ecc_corrected, told.ecc_uncorrected, told.xid_errors


def _status(device: Device) -> tuple[int, ...]:
    return _STATUS[device.gpu.reading.health]


def _energy_states(device: Device) -> tuple[float | None, ...]:
    totals = device.gpu.totals
    if totals is None or not device.tells_energy:
        return None, None, None
    return totals.attributed_mj / 1e3, totals.idle_mj / 1e3, totals.unattributed_mj / 1e3


DEVICE_VALUES: Final[Mapping[str, OfDevices]] = MappingProxyType(
    {
        "hw.gpu.memory.limit": OfDevices(_memory_limit, _named),
        "hw.gpu.memory.usage": OfDevices(_memory_usage, _named),
        "hw.gpu.memory.utilization": OfDevices(_memory_utilization, plain),
        "hw.gpu.utilization": OfDevices(_utilization, _by_task),
        "hw.power": OfDevices(_power, _typed),
        "hw.energy": OfDevices(_energy, _typed, (True,)),
        "hw.temperature": OfDevices(_temperature, plain),
        "hw.errors": OfDevices(_errors, _by_error, (False, False, True)),
        "hw.status": OfDevices(_status, _by_health),
        "gpu.device.energy": OfDevices(_energy_states, _by_energy_state, (True, True, True)),
    }
)


# ---------------------------------------------------------------------------- points by place


def _energy_info(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        basis = device.gpu.basis
        if basis is None:
            continue
        own = {
            "source": basis.source,
            "policy": basis.policy,
            "model": basis.model,
            "gpu.energy.idle.origin": basis.idle_origin,
            "gpu.energy.held.origin": basis.held_origin,
        }
        yield Point(1, device.place(None).adding(own))


def _idle_memory(reading: Reading) -> Iterator[Point]:
    """Bytes of idle processes; none where nobody can tell who is idle."""
    for device, processes in _with_processes(reading):
        idle: Counter[str] = Counter()
        for process in processes:
            idle[_known_place(device, process)] += process.idle_bytes or 0
        if device.tells_work or not processes:
            for uuid, place in device.places.items():
                yield Point(idle[uuid], place)


def _process_count(reading: Reading) -> Iterator[Point]:
    for device, processes in _with_processes(reading):
        counts = Counter((_known_place(device, process), process.state or GpuState.UNKNOWN) for process in processes)
        for uuid, place in device.places.items():
            for state in (GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN):
                yield Point(counts[uuid, state], place.adding({"gpu.state": state.value}))


def _with_processes(reading: Reading) -> Iterator[tuple[Device, list[ProcessAttribution]]]:
    """The GPUs that tell who is on them, with everybody who is, whether exported or not."""
    here: dict[str, list[ProcessAttribution]] = {}
    for process in reading.attribution.processes:
        if process.active:
            here.setdefault(process.gpu_uuid, []).append(process)
    for device in reading.devices:
        told = device.gpu.reading
        if told.processes is not None or any(mig.processes is not None for mig in told.mig or ()):
            yield device, here.get(device.gpu.identity.uuid, [])


def _known_place(device: Device, process: ProcessAttribution) -> str:
    uuid = process.mig_uuid or ""
    return uuid if uuid in device.places else ""


_OF: Final[Mapping[str, Callable[[Reading], Iterator[Point]]]] = MappingProxyType(
    {
        "gpu.device.memory.usage": memory_states,
        "gpu.device.memory.overcount": memory_overcount,
        "gpu.device.energy.info": _energy_info,
        "gpu.device.idle.memory": _idle_memory,
        "gpu.device.process.count": _process_count,
    }
)


def device_points(name: str, reading: Reading) -> Iterator[Point]:
    """The points of a metric of GPUs that has as many as there are instances."""
    return _OF[name](reading)
