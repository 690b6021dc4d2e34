"""Where on a host somebody uses a GPU: keys of everything that is booked, in an order that never changes."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from otel_gpu.model import ProcessKey, WorkloadRef


class Place(NamedTuple):
    """A GPU, or a MIG instance of it (empty where there is none)."""

    gpu_uuid: str
    mig_uuid: str

    @property
    def instance(self) -> str | None:
        """The MIG instance's UUID."""
        return self.mig_uuid or None


class ProcessAt(NamedTuple):
    """A process at a place."""

    key: ProcessKey
    place: Place


class WorkloadAt(NamedTuple):
    """A workload at a place."""

    kind: str
    id: str
    place: Place


def workload_at(ref: WorkloadRef, place: Place) -> WorkloadAt:
    """The key of a workload at a place."""
    return WorkloadAt(ref.kind.value, ref.key_id, place)


class ProcessLine(NamedTuple):
    """A line of the books: a process at a place, under the ``naming`` (first, second, …) of its workload."""

    at: ProcessAt
    naming: int = 0


class WorkloadLine(NamedTuple):
    """A line of the books: a workload at a place, under one of the names it had."""

    at: WorkloadAt
    naming: int = 0


Line: TypeAlias = ProcessLine | WorkloadLine
