"""A source that is configured and cannot be opened: it is listed with the reason instead of being left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from otel_gpu.model import SourceState, WorkloadRef
from otel_gpu.sources.base import NameRead


class AbsentSource:
    """A name source that is always unavailable, with a reason."""

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:  # noqa: ARG002
        """No names, and the reason."""
        return NameRead(state=SourceState.UNAVAILABLE, reason=self._reason)

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Return at once."""
        return True

    def close(self) -> None:
        """Do nothing."""
