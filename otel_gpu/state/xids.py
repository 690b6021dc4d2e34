"""What is kept of GPUs beside the books: who was told of last, and critical errors (XID).

A source counts those from 0 whenever the agent starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from otel_gpu.model import GpuReading


@dataclass(frozen=True, slots=True)
class XidTotal:
    """Critical errors of one GPU since the books began, and the code of the last one."""

    errors: int
    last_xid: int | None

    def __post_init__(self) -> None:
        """Counts are not negative; ValueError if this one is."""
        if self.errors < 0:
            raise ValueError("fewer errors than none")


@dataclass(frozen=True, slots=True)
class XidTotals:
    """Those of every GPU by UUID: as many as there are GPUs in the books. ``told`` are those of the last cycle.

    The books never forget a GPU; one that was taken out long ago is not missed again after every start.
    """

    by_gpu: Mapping[str, XidTotal] = field(default_factory=lambda: MappingProxyType({}))
    told: tuple[str, ...] | None = None

    def added_to(self, gpu: GpuReading) -> GpuReading:
        """A reading with these beside what its source has counted since: what is told."""
        earlier = self.by_gpu.get(gpu.identity.uuid)
        if earlier is None or (earlier.errors == 0 and gpu.xid_errors is not None):
            return gpu
        last_xid = earlier.last_xid if gpu.last_xid is None else gpu.last_xid
        return replace(gpu, xid_errors=earlier.errors + (gpu.xid_errors or 0), last_xid=last_xid)

    def after(self, gpus: Sequence[GpuReading]) -> XidTotals:
        """The totals after a cycle in which these were told; the same object where nothing happened."""
        new = {
            gpu.identity.uuid: XidTotal(gpu.xid_errors, gpu.last_xid)
            for gpu in gpus
            if gpu.xid_errors is not None and not self._has(gpu)
        }
        told = tuple(gpu.identity.uuid for gpu in gpus)
        return self if not new and told == self.told else XidTotals({**self.by_gpu, **new}, told)

    def _has(self, gpu: GpuReading) -> bool:
        known = self.by_gpu.get(gpu.identity.uuid)
        return known is not None and (known.errors, known.last_xid) == (gpu.xid_errors, gpu.last_xid)
