"""Points of GPUs: ``hw.*`` for physical ones, ``gpu.device.*`` for them and their MIG instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.points_memory import memory_overcount, memory_states
from otel_gpu.metrics.points_reading import Device, Point, Reading
from otel_gpu.metrics.tags import Attributes
from otel_gpu.model import GpuHealth, GpuState, MemorySplit, ProcessAttribution

_VENDOR: Final = "NVIDIA"


def _named(device: Device) -> Attributes:
    name = device.gpu.identity.name
    model = name.removeprefix(_VENDOR).strip() or name
    return device.attributes.adding({"hw.name": name, "hw.model": model, "hw.vendor": _VENDOR})


def _typed(device: Device, own: Attributes = MappingProxyType({})) -> Attributes:
    return device.attributes.adding({"hw.type": "gpu", **own})


def _used_bytes(split: MemorySplit) -> int:
    return split.limit_bytes - (split.reserved_bytes or 0) - split.free_bytes


# ---------------------------------------------------------------------------- hw


def _memory_limit(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        if device.gpu.memory is not None:
            yield Point(device.gpu.memory.limit_bytes, _named(device))


def _memory_usage(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        if device.gpu.memory is not None:
            yield Point(_used_bytes(device.gpu.memory), _named(device))


def _memory_utilization(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        split = device.gpu.memory
        if split is not None and split.limit_bytes:
            yield Point(_used_bytes(split) / split.limit_bytes, device.attributes)


def _utilization(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        told = device.gpu.reading
        tasks = {"general": told.gpu_ratio, "encoder": told.encoder_ratio, "decoder": told.decoder_ratio}
        for task, ratio in tasks.items():
            if ratio is not None:
                yield Point(ratio, device.attributes.adding({"hw.gpu.task": task}))


def _power(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        if device.gpu.reading.power_w is not None:
            yield Point(device.gpu.reading.power_w, _typed(device))


def _energy(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        if device.gpu.totals is not None and device.tells_energy:
            yield Point(device.gpu.totals.total_mj / 1e3, _typed(device), start_ns=reading.attribution.epoch_ns)


def _temperature(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        if device.gpu.reading.temperature_c is not None:
            yield Point(device.gpu.reading.temperature_c, device.attributes)


def _errors(reading: Reading) -> Iterator[Point]:
    """Errors as the driver counts them. ECC errors count since the board was made, so they have no start.

    XIDs are counted as they happen, since the books began.
    """
    for device in reading.devices:
        told = device.gpu.reading
        lifelong = {"corrected": told.ecc_corrected, "uncorrected": told.ecc_uncorrected}
        for error, count in lifelong.items():
            if count is not None:
                yield Point(count, _typed(device, {"error.type": error}))
        if told.xid_errors is not None:
            yield Point(told.xid_errors, _typed(device, {"error.type": "xid"}), start_ns=reading.attribution.epoch_ns)


def _status(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        for health in GpuHealth:
            yield Point(int(device.gpu.reading.health is health), _typed(device, {"hw.state": health.value}))


# ---------------------------------------------------------------------------- gpu.device


def _energy_states(reading: Reading) -> Iterator[Point]:
    for device in reading.devices:
        totals = device.gpu.totals
        if totals is None or not device.tells_energy:
            continue
        went = {"attributed": totals.attributed_mj, "idle": totals.idle_mj, "unattributed": totals.unattributed_mj}
        for state, energy_mj in went.items():
            own = device.place(None).adding({"gpu.energy.state": state})
            yield Point(energy_mj / 1e3, own, start_ns=reading.attribution.epoch_ns)


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
        "gpu.device.idle.memory": _idle_memory,
        "gpu.device.process.count": _process_count,
    }
)


def device_points(name: str, reading: Reading) -> Iterator[Point]:
    """The points of a metric of GPUs."""
    return _OF[name](reading)
