"""Of whom a source does not know yet. Asked every cycle with the same answer, so it is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NO_WORKLOADS, WorkloadInfo


class Unknown:
    """The workloads a source could know and does not. ``may_know`` says by a reference alone whether it could."""

    def __init__(self, may_know: Callable[[WorkloadRef], bool]) -> None:
        self._may_know = may_know
        self._workloads: Collection[WorkloadRef] = ()
        self._known: Mapping[str, WorkloadInfo] = NO_WORKLOADS
        self._unknown: tuple[WorkloadRef, ...] = ()

    def among(self, workloads: Collection[WorkloadRef], known: Mapping[str, WorkloadInfo]) -> tuple[WorkloadRef, ...]:
        """Those of the workloads; worked out anew for another object of either: neither may be changed after that."""
        if known is not self._known or workloads is not self._workloads:
            self._workloads, self._known = workloads, known
            self._unknown = tuple(ref for ref in workloads if ref.id not in known and self._may_know(ref))
        return self._unknown


def is_container(ref: WorkloadRef) -> bool:
    """Whether it is one, whoever runs it."""
    return ref.kind is WorkloadKind.CONTAINER
