"""Critical errors (XID) of GPUs across restarts. A source counts them from 0 at every start of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from otel_gpu.model import GpuReading


@dataclass(frozen=True, slots=True)
class XidTotal:
    """Critical errors of one GPU since the ledger began, and the code of the last one."""

    errors: int
    last_xid: int | None

    def __post_init__(self) -> None:
        """Reject a negative count with ValueError."""
        if self.errors < 0:
            raise ValueError("a negative number of errors")


@dataclass(frozen=True, slots=True)
class XidTotals:
    """Totals by GPU UUID. ``reported`` are the UUIDs of all GPUs in the last cycle.

    The ledger never forgets a GPU. ``reported`` keeps one that was removed long ago from being reported as missing
    after every start.
    """

    by_gpu: Mapping[str, XidTotal] = field(default_factory=lambda: MappingProxyType({}))
    reported: tuple[str, ...] | None = None

    def added_to(self, gpu: GpuReading) -> GpuReading:
        """A reading whose XID count includes these totals."""
        earlier = self.by_gpu.get(gpu.identity.uuid)
        if earlier is None:
            return gpu
        last_xid = earlier.last_xid if gpu.last_xid is None else gpu.last_xid
        return replace(gpu, xid_errors=earlier.errors + (gpu.xid_errors or 0), last_xid=last_xid)

    def after(self, gpus: Sequence[GpuReading]) -> XidTotals:
        """The totals after a cycle that reported these readings."""
        new = {gpu.identity.uuid: XidTotal(gpu.xid_errors, gpu.last_xid) for gpu in gpus if gpu.xid_errors is not None}
        return XidTotals({**self.by_gpu, **new}, tuple(gpu.identity.uuid for gpu in gpus))
