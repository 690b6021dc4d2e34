"""The checkpoint file, ``state``: all that persists of a run, after one cycle.

Five lines: a SHA-256 of the others, the head, the attribution state, the processes of the last cycle, and XID totals.
The last two lines were added later: files without them load.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from otel_gpu.attribution.cost import Prices
from otel_gpu.bounded_io import parse_json
from otel_gpu.model import NO_PROCESSES, GpuReading, ProcessFacts
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.journal import read_head

CHECKPOINT_FORMAT: Final = 1
_PLAIN: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """What a checkpoint belongs to. ``number`` is that of its cycle, ``epoch_ns`` (Unix time) when the ledger began.

    ``prices`` are those that costs were computed with. ``journal`` is the file that continues from here; ``None`` after
    a clean stop.
    """

    format: int
    agent: str
    boot_id: str
    driver_version: str | None
    epoch_ns: int
    number: int
    prices: Prices | None
    journal: str | None


@dataclass(frozen=True, slots=True)
class XidTotal:
    """Critical errors (XID) of one GPU since the ledger began, and the code of the last one."""

    errors: int
    last_xid: int | None

    def __post_init__(self) -> None:
        """Reject a negative count with ValueError."""
        if self.errors < 0:
            raise ValueError("a negative number of errors")


@dataclass(frozen=True, slots=True)
class XidTotals:
    """Totals by GPU UUID: a source counts from 0 at every start. ``reported`` are the GPUs of the last cycle, by UUID.

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


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """What persists: the plain data of ``Attributor.to_state``, the processes of the last cycle, and XID totals."""

    attribution: Any
    processes: Mapping[int, ProcessFacts] = field(default_factory=lambda: NO_PROCESSES)
    xids: XidTotals = field(default_factory=XidTotals)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A parsed checkpoint file."""

    head: CheckpointHead
    data: CheckpointData


@dataclass(frozen=True, slots=True)
class _Processes:
    """The line with the processes."""

    processes: Mapping[int, ProcessFacts]


def checkpoint_text(head: CheckpointHead, data: CheckpointData) -> bytes:
    """The content of the file."""
    lines = to_json(head), _PLAIN.encode(data.attribution), to_json(_Processes(data.processes)), to_json(data.xids), ""
    content = "\n".join(lines).encode("ascii")
    return b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode("ascii"), content)


def parse_checkpoint(text: bytes) -> Checkpoint:
    """Parse the content of a file; ValueError if it cannot be trusted."""
    checksum, _, content = text.partition(b"\n")
    if checksum != hashlib.sha256(content).hexdigest().encode("ascii"):
        raise ValueError("it does not match its checksum")
    head, attribution, *more = [*content.split(b"\n"), b""]
    processes, xids, *rest = [*more, b"", b""]
    if any(rest):
        raise ValueError("it has more lines than this version knows")
    data = CheckpointData(
        parse_json(attribution),
        from_json(_Processes, processes).processes if processes else NO_PROCESSES,
        from_json(XidTotals, xids) if xids else XidTotals(),
    )
    return Checkpoint(read_head(CheckpointHead, CHECKPOINT_FORMAT, head), data)
