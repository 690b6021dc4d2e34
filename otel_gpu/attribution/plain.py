"""Keys of the books from plain data, as JSON gives it back: lists for tuples. ValueError on anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_gpu.attribution.places import Place, ProcessAt, ProcessLine, WorkloadAt, WorkloadLine
from otel_gpu.attribution.presence import Resident
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef

_ABSURD: Final = 1 << 200


def whole(data: Any) -> int:
    """A whole number that is not negative, and small enough for a float to hold."""
    if type(data) is not int or not 0 <= data < _ABSURD:
        raise ValueError("no whole number, or negative, or absurd")
    return data


def number(data: Any) -> float:
    """A finite number."""
    if type(data) not in (int, float) or not -_ABSURD < data < _ABSURD:
        raise ValueError("no number, or an absurd one")
    return float(data)


def text(data: Any) -> str:
    """A text."""
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is no text")  # noqa: TRY004 - to the caller it is a bad value, as all of these
    return data


def optional_text(data: Any) -> str | None:
    """A text, or nothing."""
    return None if data is None else text(data)


def process_at_from(data: Any) -> ProcessAt:
    """A process at a place."""
    (pid, start_ticks), place = _parts(data, 2)
    if type(pid) is not int or type(start_ticks) is not int:
        raise ValueError(f"{data!r} is no process")
    return ProcessAt(ProcessKey(pid, start_ticks), _place_from(place))


def workload_at_from(data: Any) -> WorkloadAt:
    """A workload at a place."""
    kind, id_, place = _parts(data, 3)
    return WorkloadAt(WorkloadKind(kind).value, text(id_), _place_from(place))


def process_line_from(data: Any) -> ProcessLine:
    """A process's line."""
    at, naming = _parts(data, 2)
    return ProcessLine(process_at_from(at), whole(naming))


def workload_line_from(data: Any) -> WorkloadLine:
    """A workload's line."""
    at, naming = _parts(data, 2)
    return WorkloadLine(workload_at_from(at), whole(naming))


def ref_state(ref: WorkloadRef) -> list[str | None]:
    """Which workload, as a list."""
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
        at=process_at_from(at),
        ref=ref_from(ref),
        name=optional_text(name),
        start_time_s=None if start_time_s is None else number(start_time_s),
        listed=listed is True,
        memory_bytes=memory_bytes,
        mapping_bytes=mapping_bytes,
        sm_count=sm_count,
    )


def _place_from(data: Any) -> Place:
    return Place(*map(text, _parts(data, 2)))


def _parts(data: Any, count: int) -> Sequence[Any]:
    if not isinstance(data, list | tuple) or len(data) != count:
        raise ValueError(f"{data!r} has not {count} parts")
    return data
