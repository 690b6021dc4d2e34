"""Values from saved state, checked: numbers, texts and keys from plain data as JSON gives it. ValueError otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from otel_gpu.attribution.keys import (
    DeviceKey,
    ProcessAccountKey,
    ProcessOnDevice,
    WorkloadAccountKey,
    WorkloadOnDevice,
)
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef

T = TypeVar("T")

_LIMIT: Final = 1 << 200
"""Above any count, time or amount. A float holds it, and products of a few such numbers stay finite."""


@contextmanager
def restoring(what: str) -> Iterator[None]:
    """Turn every error of reading saved state into ValueError, with the part of the state in front."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{what}: not a saved state: {error!r}") from error


def integer(data: Any) -> int:
    """A whole number."""
    if type(data) is not int or not -_LIMIT < data < _LIMIT:
        raise ValueError("not a whole number, or out of range")
    return data


def whole(data: Any) -> int:
    """A whole number that is not negative."""
    if integer(data) < 0:
        raise ValueError("a negative number")
    return int(data)


def number(data: Any) -> float:
    """A finite number."""
    if type(data) not in (int, float) or not -_LIMIT < data < _LIMIT:
        raise ValueError("not a number, or out of range")
    return float(data)


def amount(data: Any) -> float:
    """A finite number that is not negative."""
    if number(data) < 0:
        raise ValueError("a negative number")
    return float(data)


def boolean(data: Any) -> bool:
    """True or false."""
    if not isinstance(data, bool):
        raise ValueError(f"{data!r} is neither true nor false")  # noqa: TRY004 - a bad value to the caller, as all here
    return data


def text(data: Any) -> str:
    """A text."""
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is not a text")  # noqa: TRY004 - likewise
    return data


def optional(read: Callable[[Any], T], data: Any) -> T | None:
    """What ``read`` makes of the data, or ``None``."""
    return None if data is None else read(data)


def parts(data: Any, count: int, added: int = 0) -> Sequence[Any]:
    """A list of this many values, and of as many more as later versions ``added``: ``None`` for those that it lacks."""
    if not isinstance(data, list | tuple) or not count <= len(data) <= count + added:
        raise ValueError(f"{data!r} does not have {count} parts")
    return [*data, *[None] * (count + added - len(data))] if added else data


def process_key_from(data: Any) -> ProcessKey:
    """A process."""
    return ProcessKey(*map(integer, parts(data, 2)))


def process_on_device_from(data: Any) -> ProcessOnDevice:
    """A process on a device."""
    process, device = parts(data, 2)
    return ProcessOnDevice(process_key_from(process), _device_from(device))


def workload_on_device_from(data: Any) -> WorkloadOnDevice:
    """A workload on a device."""
    kind, id_, device = parts(data, 3)
    return WorkloadOnDevice(WorkloadKind(kind).value, text(id_), _device_from(device))


def process_account_key_from(data: Any) -> ProcessAccountKey:
    """The key of a process's account."""
    subject, naming = parts(data, 2)
    return ProcessAccountKey(process_on_device_from(subject), whole(naming))


def workload_account_key_from(data: Any) -> WorkloadAccountKey:
    """The key of a workload's account."""
    subject, naming = parts(data, 2)
    return WorkloadAccountKey(workload_on_device_from(subject), whole(naming))


def ref_state(ref: WorkloadRef) -> list[str | int | None]:
    """A workload, as a list. Its user is left out if it has none, as earlier versions did."""
    texts = (ref.kind.value, ref.id, ref.runtime, ref.pod_uid, ref.slurm_step, ref.outer_container_id)
    return [*texts] if ref.user_uid is None else [*texts, ref.user_uid]


def ref_from(data: Any) -> WorkloadRef:
    """The counterpart of ``ref_state``."""
    kind, id_, *rest, user_uid = parts(data, 6, added=1)
    runtime, pod_uid, step, outer = (optional(text, each) for each in rest)
    return WorkloadRef(WorkloadKind(kind), text(id_), runtime, pod_uid, step, outer, optional(whole, user_uid))


def _device_from(data: Any) -> DeviceKey:
    return DeviceKey(*map(text, parts(data, 2)))
