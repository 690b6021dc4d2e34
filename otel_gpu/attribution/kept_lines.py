"""Lines of answers between which only idle time and energy are new: all else of them is as the first one told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.order import Order
from otel_gpu.attribution.shown import GpuBooks, Shown
from otel_gpu.attribution.sums import Sums
from otel_gpu.model import GpuAttribution, ProcessAttribution, WorkloadAttribution, WorkloadGpu
from otel_gpu.model.made import maker

_process: Final = maker(ProcessAttribution)
_workload: Final = maker(WorkloadAttribution)
_workload_gpu: Final = maker(WorkloadGpu)

_Process: TypeAlias = tuple[Shown | None, Sums, int, ProcessAttribution]
_Part: TypeAlias = tuple[Shown | None, Sums, int, WorkloadGpu, str]
"""What is shown of a line, its sums, since when they count, what was told of it first, and what its GPU is called.

Nothing is shown of who has ended: there is nothing new of it."""


class KeptLines:
    """Makes the lines of such answers, after the first of them was composed in this ``order``."""

    def __init__(
        self,
        order: Order,
        books: Mapping[str, GpuBooks],
        gpus: Sequence[GpuAttribution],
        processes: Sequence[ProcessAttribution],
        workloads: Sequence[WorkloadAttribution],
    ) -> None:
        names = {gpu.identity.uuid: gpu.identity.name for gpu in gpus}

        def shown(entry: Entry, gpu_uuid: str) -> Shown | None:
            return books[gpu_uuid].shown.get(entry) if gpu_uuid in books else None

        entries = [line.entry for _, lines in order.processes for line in lines]
        self._processes: list[_Process] = [
            (shown(entry, was.gpu_uuid), entry.sums, entry.since_ns, was)
            for entry, was in zip(entries, processes, strict=True)
        ]
        self._workloads: list[tuple[WorkloadAttribution, list[_Part]]] = [
            (
                workload,
                [
                    (shown(entry, was.gpu_uuid), entry.sums, entry.since_ns, was, names.get(was.gpu_uuid, ""))
                    for (_, _, entry), was in zip(ordered.lines, workload.gpus, strict=True)
                ],
            )
            for ordered, workload in zip(order.workloads, workloads, strict=True)
        ]

    def processes(self) -> tuple[ProcessAttribution, ...]:
        """The processes of one more cycle."""
        return tuple(
            [
                was
                if shown is None
                else _process(
                    was.key,
                    was.name,
                    was.start_time_s,
                    was.workload,
                    was.gpu_uuid,
                    was.mig_uuid,
                    was.memory_bytes,
                    was.sm_ratio,
                    was.bandwidth_ratio,
                    shown.energy,
                    was.state,
                    shown.idle_s,
                    was.idle_bytes,
                    sums.frozen(since_ns),
                    was.active,
                    was.naming,
                    was.gpu_index,
                    was.mig_profile,
                )
                for shown, sums, since_ns, was in self._processes
            ]
        )

    def workloads(self, prices: Prices | None) -> tuple[WorkloadAttribution, ...]:
        """The workloads of one more cycle."""
        return tuple(
            [
                _workload(was.ref, was.names, tuple([_part(each, prices) for each in parts]), was.naming, was.held)
                for was, parts in self._workloads
            ]
        )


def _part(part: _Part, prices: Prices | None) -> WorkloadGpu:
    shown, sums, since_ns, was, gpu_name = part
    if shown is None:
        return was
    totals = sums.frozen(since_ns)
    return _workload_gpu(
        was.gpu_uuid,
        was.mig_uuid,
        was.measured_bytes,
        was.inferred_bytes,
        was.confidence,
        was.sm_ratio,
        was.bandwidth_ratio,
        shown.energy,
        was.state,
        shown.idle_s,
        was.idle_bytes,
        totals,
        was.active,
        () if prices is None else costs(totals, gpu_name, prices),
        was.gpu_index,
        was.mig_profile,
        was.allocation,
    )
