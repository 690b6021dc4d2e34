"""Values of a checkpoint, checked: keys and amounts from plain data as JSON gives it. ValueError on anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_gpu.attribution.keys import (
    DeviceKey,
    ProcessAccountKey,
    ProcessOnDevice,
    WorkloadAccountKey,
    WorkloadOnDevice,
)
from otel_gpu.attribution.residents import Resident
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef

_LIMIT: Final = 1 << 200
"""Above any count, time or amount; a float still holds it."""


def whole(data: Any) -> int:
    """A whole number that is not negative."""
    if type(data) is not int or not 0 <= data < _LIMIT:
        raise ValueError("not a whole number, negative, or out of range")
    return data


def number(data: Any) -> float:
    """A finite number."""
    if type(data) not in (int, float) or not -_LIMIT < data < _LIMIT:
        raise ValueError("not a number, or out of range")
    return float(data)


def text(data: Any) -> str:
    """A text."""
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is not a text")  # noqa: TRY004 - to the caller it is a bad value, as all of these
    return data


def optional_text(data: Any) -> str | None:
    """A text, or ``None``."""
    return None if data is None else text(data)


def process_on_device_from(data: Any) -> ProcessOnDevice:
    """A process on a device."""
    (pid, start_ticks), device = _parts(data, 2)
    if type(pid) is not int or type(start_ticks) is not int:
        raise ValueError(f"{data!r} is not a process")
    return ProcessOnDevice(ProcessKey(pid, start_ticks), _device_from(device))


def workload_on_device_from(data: Any) -> WorkloadOnDevice:
    """A workload on a device."""
    kind, id_, device = _parts(data, 3)
    return WorkloadOnDevice(WorkloadKind(kind).value, text(id_), _device_from(device))


def process_account_key_from(data: Any) -> ProcessAccountKey:
    """The key of a process's account."""
    subject, naming = _parts(data, 2)
    return ProcessAccountKey(process_on_device_from(subject), whole(naming))


def workload_account_key_from(data: Any) -> WorkloadAccountKey:
    """The key of a workload's account."""
    subject, naming = _parts(data, 2)
    return WorkloadAccountKey(workload_on_device_from(subject), whole(naming))


def ref_state(ref: WorkloadRef) -> list[str | None]:
    """A workload, as a list."""
    return [ref.kind.value, ref.id, ref.runtime, ref.pod_uid, ref.slurm_step, ref.outer_container_id]


def ref_from(data: Any) -> WorkloadRef:
    """The counterpart of ``ref_state``."""
    kind, id_, *rest = _parts(data, 6)
    return WorkloadRef(WorkloadKind(kind), text(id_), *map(optional_text, rest))


def resident_state(resident: Resident) -> list[Any]:
    """A process on a GPU, as a list."""
    return [
        resident.at,
        ref_state(resident.ref),
        resident.name,
        resident.start_time_s,
        resident.listed,
        resident.memory_bytes,
        resident.mapping_bytes,
        resident.sm_count,
    ]


def resident_from(data: Any) -> Resident:
    """The counterpart of ``resident_state``."""
    at, ref, name, start_time_s, listed, *amounts = _parts(data, 8)
    memory_bytes, mapping_bytes, sm_count = (None if amount is None else whole(amount) for amount in amounts)
    return Resident(
        at=process_on_device_from(at),
        ref=ref_from(ref),
        name=optional_text(name),
        start_time_s=None if start_time_s is None else number(start_time_s),
        listed=listed is True,
        memory_bytes=memory_bytes,
        mapping_bytes=mapping_bytes,
        sm_count=sm_count,
    )


def _device_from(data: Any) -> DeviceKey:
    return DeviceKey(*map(text, _parts(data, 2)))


def _parts(data: Any, count: int) -> Sequence[Any]:
    if not isinstance(data, list | tuple) or len(data) != count:
        raise ValueError(f"{data!r} does not have {count} parts")
    return data
