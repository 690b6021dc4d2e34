"""Shares of a GPU: each workload's part of its figures, and the remainder that no workload has. They sum to the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from otel_gpu.attribution.apportion import apportion
from otel_gpu.compat.fields import MIB, held_bytes, identity_label, newest, scaled
from otel_gpu.compat.schema import RenderContext
from otel_gpu.metrics.rows import GpuRow, UseRow
from otel_gpu.model import GpuReading, MemorySplit, MigReading, WorkloadGpu

N = TypeVar("N", int, float)


class Extent(Enum):
    """How much of a GPU's gauges a share has. Counters do not depend on it.

    ``WHOLE``: the workload is alone on the GPU and has all of it, as with dcgm-exporter. ``PART``: other workloads are
    on it too; the remainder is what is left. ``NOTHING``: the workload has left, or the share is the remainder of a GPU
    that one workload has alone.
    """

    WHOLE = "whole"
    PART = "part"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a workload did on a GPU in the last window; ``None`` where unknown."""

    sm_ratio: float | None
    bandwidth_ratio: float | None
    energy_mj: int | None

    @classmethod
    def of(cls, use: WorkloadGpu) -> Claims:
        """The claims of one workload."""
        return cls(use.sm_ratio, use.bandwidth_ratio, use.energy.total_mj)

    @classmethod
    def sum(cls, claims: Sequence[Claims]) -> Claims:
        """The sum of the known claims."""
        return cls(
            _sum(each.sm_ratio for each in claims),
            _sum(each.bandwidth_ratio for each in claims),
            _sum(each.energy_mj for each in claims),
        )


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Bytes in use, and the part of the free bytes that is counted with them."""

    used_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A workload's share of a GPU, or without ``row`` and ``own`` the remainder. ``all`` is the sum of all claims."""

    context: RenderContext
    device: GpuRow
    extent: Extent
    all: Claims
    memory: MemoryShare = MemoryShare()
    row: UseRow[WorkloadGpu] | None = None
    own: Claims | None = None


def shares(context: RenderContext) -> Iterator[Share]:
    """The share of every workload on every GPU, including workloads that have left, and the remainder of each GPU."""
    rows: dict[str, list[UseRow[WorkloadGpu]]] = {}
    for row in newest(context.rows.workloads):
        if not row.use.possible:
            rows.setdefault(row.use.gpu_uuid, []).append(row)
    for device in context.rows.gpus:
        yield from _device_shares(context, device, rows.get(device.gpu.identity.uuid, ()))


def _device_shares(context: RenderContext, device: GpuRow, rows: Sequence[UseRow[WorkloadGpu]]) -> Iterator[Share]:
    present = [row for row in rows if row.use.active]
    all_visible = not _may_have_unseen_users(context, device)
    alone = all_visible and len(present) == 1 and present[0].use.mig_uuid is None
    together = Claims.sum([Claims.of(row.use) for row in present])
    memories, remainder = _memories(device, present, all_visible=all_visible)
    for row in rows:
        if row.use.active:
            extent = Extent.WHOLE if alone else Extent.PART
            yield Share(context, device, extent, together, memories.pop(0), row, Claims.of(row.use))
        else:
            yield Share(context, device, Extent.NOTHING, together, row=row)
    extent = Extent.NOTHING if alone else Extent.PART if present else Extent.WHOLE
    yield Share(context, device, extent, together, remainder)


def _may_have_unseen_users(context: RenderContext, device: GpuRow) -> bool:
    """Whether a workload may use the GPU that is not reported: in a sidecar, or while names are resolved."""
    attribution = context.rows.report
    return attribution.pod is not None or any(
        part.gpu_uuid == device.gpu.identity.uuid and part.active and not part.possible
        for workload in attribution.workloads
        if workload.awaiting_names
        for part in workload.gpus
    )


# ---------------------------------------------------------------------------- memory

_REMAINDER: Final = -1
"""The key of the remainder among the places of workloads."""


def _memories(
    device: GpuRow, rows: Sequence[UseRow[WorkloadGpu]], *, all_visible: bool
) -> tuple[list[MemoryShare], MemoryShare]:
    """The memory of each workload on a GPU, in order, and the remainder. Each MIG instance is divided on its own."""
    pools: dict[str | None, MemorySplit | None] = {None: device.gpu.memory}
    pools |= {mig.uuid: mig.memory for mig in device.gpu.mig or ()}
    by_pool: dict[str | None, dict[int, int | None]] = {}
    for number, row in enumerate(rows):
        by_pool.setdefault(row.use.mig_uuid, {})[number] = held_bytes(row.use)
    found: dict[int, MemoryShare] = {}
    for mig_uuid, held in by_pool.items():
        alone = all_visible and len(held) == 1 and (mig_uuid is not None or len(rows) == 1)
        found |= _divide_pool(pools.get(mig_uuid), held, alone=alone)
    parts = [found[number] for number in range(len(rows))]
    return parts, _remaining_memory(device.gpu.memory, parts)


def _divide_pool(pool: MemorySplit | None, held: Mapping[int, int | None], *, alone: bool) -> dict[int, MemoryShare]:
    """Used is what each workload holds, scaled down if the lists claim more than is used.

    Free memory has no owner. It is divided in proportion to used memory, so that used / (used + free) equals the GPU's
    on every series. A workload that holds nothing has no series of free memory: 0 / (0 + 0) is not a number.
    """
    if pool is None:
        return {number: MemoryShare(bytes_) for number, bytes_ in held.items()}
    whole = pool.used_bytes
    if alone:
        return dict.fromkeys(held, MemoryShare(whole, pool.free_bytes))
    used = {number: bytes_ for number, bytes_ in held.items() if bytes_ is not None}
    if sum(used.values()) > whole:
        used, _ = apportion(whole, used)
    weights = {**used, _REMAINDER: whole - sum(used.values())}
    free, _ = apportion(pool.free_bytes, {number: bytes_ for number, bytes_ in weights.items() if bytes_ > 0} or used)
    return {number: MemoryShare(used.get(number), free.get(number)) for number in held}


def _remaining_memory(whole: MemorySplit | None, parts: Sequence[MemoryShare]) -> MemoryShare:
    """What is left of a GPU's memory; ``None`` if nothing is left, unless no workload has a part."""
    if whole is None:
        return MemoryShare()
    used, free = _sum(part.used_bytes for part in parts), _sum(part.free_bytes for part in parts)
    return MemoryShare(_difference(whole.used_bytes, used), _difference(whole.free_bytes, free))


def _difference(whole: int, assigned: int | None) -> int | None:
    return whole if assigned is None else max(0, whole - assigned) or None


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


# ---------------------------------------------------------------------------- labels


def gpu_index(share: Share) -> str:
    """The GPU's index."""
    return str(share.device.gpu.identity.index)


def gpu_uuid(share: Share) -> str:
    """The GPU's UUID."""
    return share.device.gpu.identity.uuid


def pci_bus_id(share: Share) -> str:
    """The PCI address as NVML and DCGM write it: eight digits of domain, upper case."""
    domain, separator, rest = (share.device.gpu.identity.pci_bus_id or "").partition(":")
    return f"{domain:0>8}:{rest}".upper() if separator else ""


def device_node(share: Share) -> str:
    """Its file name in /dev, with the minor number, which may differ from the index."""
    identity = share.device.gpu.identity
    return f"nvidia{identity.index if identity.minor is None else identity.minor}"


def gpu_name(share: Share) -> str:
    """The GPU's name, with its vendor."""
    return share.device.gpu.identity.name


def mig_profile(share: Share) -> str:
    """The profile of the workload's MIG instance."""
    return "" if share.row is None else share.row.use.mig_profile or ""


def mig_instance(share: Share) -> str:
    """The GPU instance id of the workload's MIG instance."""
    found = _instance(share)
    return "" if found is None or found.gpu_instance_id is None else str(found.gpu_instance_id)


def host_name(share: Share) -> str:
    """The name of the node or host."""
    return share.context.host_name


def driver_version(share: Share) -> str:
    """The driver's version."""
    driver = share.context.rows.report.driver
    return "" if driver is None else driver.driver_version or ""


def pod(share: Share) -> str:
    """The workload's pod."""
    return "" if share.row is None else identity_label(share.row, "k8s.pod.name")


def namespace(share: Share) -> str:
    """The namespace of the workload's pod."""
    return "" if share.row is None else identity_label(share.row, "k8s.namespace.name")


def container(share: Share) -> str:
    """The container's name. Another kind of workload has its own name here, or all would be one series."""
    return "" if share.row is None else identity_label(share.row, "gpu.workload.name")


def _instance(share: Share) -> MigReading | None:
    uuid = None if share.row is None else share.row.use.mig_uuid
    return next((mig for mig in share.device.gpu.reading.mig or () if mig.uuid == uuid), None)


# ---------------------------------------------------------------------------- divided values


def _divided(
    whole: Callable[[GpuRow], float | None],
    claimed: Callable[[Claims], float | None],
    measure: Callable[[GpuRow, float], float | None] = lambda _, together: together,
) -> Callable[[Share], float | None]:
    """A function for a share's part of ``whole``: ``whole`` times its claim over ``measure`` (the sum of claims).

    The remainder is what is left. It has a series if it is not 0, or if the GPU would have none.
    """

    def value(share: Share) -> float | None:
        total, together = whole(share.device), claimed(share.all)
        if total is None or share.extent is Extent.NOTHING:
            return None
        if share.extent is Extent.WHOLE:
            return total
        measured = None if together is None else measure(share.device, together)
        if together is None or measured is None:
            return total if share.row is None else None
        if share.own is None:
            return (total - total * (together / measured) if measured else total) or None
        own = claimed(share.own)
        if own is None:
            return None
        return total * (own / measured) if measured else 0.0

    return value


def _drawn_mj(device: GpuRow, together: float) -> float | None:
    """Energy of the GPU in the window, including idle and unattributed energy, which no workload claims."""
    energy = device.gpu.energy
    return None if energy is None else max(energy.delta_mj, together)


gpu_percent = _divided(lambda device: scaled(device.gpu.reading.gpu_ratio, 100), lambda claims: claims.sm_ratio)
memory_controller_percent = _divided(
    lambda device: scaled(device.gpu.reading.memory_controller_ratio, 100), lambda claims: claims.bandwidth_ratio
)
power_watts = _divided(lambda device: device.gpu.reading.power_w, lambda claims: claims.energy_mj, _drawn_mj)


def used_mib(share: Share) -> float | None:
    """Measured and inferred MiB; of the remainder, MiB that no workload explains."""
    return None if share.extent is Extent.NOTHING else scaled(share.memory.used_bytes, 1 / MIB)


def free_mib(share: Share) -> float | None:
    """MiB free, divided in proportion to MiB in use."""
    return None if share.extent is Extent.NOTHING else scaled(share.memory.free_bytes, 1 / MIB)


def energy_mj(share: Share) -> float | None:
    """Millijoules since the ledger began; of the remainder, idle and unattributed energy.

    The remainder is not the difference to the GPU's counter: that would jump when a workload starts, ends or is
    dropped, and Prometheus would count the jump.
    """
    if share.row is None:
        device = share.device.gpu.totals
        return device.idle_mj + device.unattributed_mj if device is not None and share.device.gpu.has_energy else None
    totals = share.row.use.totals
    return None if totals is None or not share.row.has_energy else totals.energy.total_mj or 0


# ---------------------------------------------------------------------------- undivided values


def _undivided(read: Callable[[GpuReading], float | None]) -> Callable[[Share], float | None]:
    """The GPU's figure on the series of every workload that is on it; on the remainder if there is none."""

    def value(share: Share) -> float | None:
        has_series = share.extent is Extent.WHOLE or (share.extent is Extent.PART and share.row is not None)
        return read(share.device.gpu.reading) if has_series else None

    return value


def _last_xid(reading: GpuReading) -> float | None:
    return 0 if reading.last_xid is None and reading.xid_errors == 0 else reading.last_xid


temperature = _undivided(lambda reading: reading.temperature_c)
sm_clock = _undivided(lambda reading: reading.sm_clock_mhz)
memory_clock = _undivided(lambda reading: reading.memory_clock_mhz)
last_xid = _undivided(_last_xid)
