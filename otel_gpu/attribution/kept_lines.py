"""Lines of answers between which only idle time and energy are new: all else of them is as the first one told it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.order import Order
from otel_gpu.attribution.shown import GpuBooks, Shown
from otel_gpu.attribution.sums import Sums
from otel_gpu.model import (
    GpuAttribution,
    MethodEnergy,
    Moved,
    ProcessAttribution,
    Totals,
    WorkloadAttribution,
    WorkloadGpu,
)
from otel_gpu.model.made import maker

_process: Final = maker(ProcessAttribution)
_workload: Final = maker(WorkloadAttribution)
_workload_gpu: Final = maker(WorkloadGpu)

# Read by C, since it is read of everybody in every cycle.
_SHOWN: Final[Callable[[object], tuple[Any, ...]]] = attrgetter(*Moved._fields[:2])
_SUMS: Final[Callable[[Sums], tuple[Any, ...]]] = attrgetter(*Moved._fields[2:])


class _Lines(NamedTuple):
    """Where what is new of lines stands. Of who has ended nothing is: what was told of it tells that, too."""

    shown: Sequence[Shown | ProcessAttribution | WorkloadGpu]
    sums: Sequence[Sums]

    def moved(self) -> Moved:
        """What is new of them in this cycle."""
        if not self.sums:
            return Moved()
        return Moved(*zip(*map(_SHOWN, self.shown), strict=True), *zip(*map(_SUMS, self.sums), strict=True))


class KeptLines:
    """Knows the lines of such answers, after the first of them was composed in this ``order``."""

    def __init__(
        self,
        order: Order,
        books: Mapping[str, GpuBooks],
        gpus: Sequence[GpuAttribution],
        processes: tuple[ProcessAttribution, ...],
        workloads: tuple[WorkloadAttribution, ...],
    ) -> None:
        def lines(entries: Sequence[Entry], told: Sequence[ProcessAttribution | WorkloadGpu]) -> _Lines:
            shown = [
                (books[was.gpu_uuid].shown.get(entry) if was.gpu_uuid in books else None) or was
                for entry, was in zip(entries, told, strict=True)
            ]
            return _Lines(shown, [entry.sums for entry in entries])

        parts = [part for workload in workloads for part in workload.gpus]
        self._processes = lines([line.entry for _, found in order.processes for line in found], processes)
        self._parts = lines([entry for ordered in order.workloads for _, _, entry in ordered.lines], parts)
        self._first = _First(processes, workloads, {gpu.identity.uuid: gpu.identity.name for gpu in gpus})

    def go_on(self, prices: Prices | None) -> NewLines:
        """Those of one more cycle."""
        return NewLines(self._first, self._processes.moved(), self._parts.moved(), prices)


class _First(NamedTuple):
    """What the first of these answers told, and what its GPUs are called."""

    processes: tuple[ProcessAttribution, ...]
    workloads: tuple[WorkloadAttribution, ...]
    gpu_names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewLines:
    """The lines of one such answer, to be made if anybody asks for them."""

    _first: _First
    moved_processes: Moved
    moved_parts: Moved
    _prices: Prices | None

    def processes(self) -> tuple[ProcessAttribution, ...]:
        """The processes of this cycle."""
        news = zip(*self.moved_processes, strict=True)
        return tuple(
            [
                _process(
                    was.key,
                    was.name,
                    was.start_time_s,
                    was.workload,
                    was.gpu_uuid,
                    was.mig_uuid,
                    was.memory_bytes,
                    was.sm_ratio,
                    was.bandwidth_ratio,
                    energy,
                    was.state,
                    idle_s,
                    was.idle_bytes,
                    _totals(was.totals, sums),
                    was.active,
                    was.naming,
                    was.gpu_index,
                    was.mig_profile,
                )
                for was, (energy, idle_s, *sums) in zip(self._first.processes, news, strict=True)
            ]
        )

    def workloads(self) -> tuple[WorkloadAttribution, ...]:
        """The workloads of this cycle."""
        news = zip(*self.moved_parts, strict=True)
        return tuple(
            [
                _workload(
                    was.ref, was.names, tuple([self._part(p, *next(news)) for p in was.gpus]), was.naming, was.held
                )
                for was in self._first.workloads
            ]
        )

    def _part(self, was: WorkloadGpu, energy: MethodEnergy, idle_s: float | None, *sums: int) -> WorkloadGpu:
        totals, prices = _totals(was.totals, sums), self._prices
        gpu_name = self._first.gpu_names.get(was.gpu_uuid, "")
        return _workload_gpu(
            was.gpu_uuid,
            was.mig_uuid,
            was.measured_bytes,
            was.inferred_bytes,
            was.confidence,
            was.sm_ratio,
            was.bandwidth_ratio,
            energy,
            was.state,
            idle_s,
            was.idle_bytes,
            totals,
            was.active,
            () if prices is None or totals is None else costs(totals, gpu_name, prices),
            was.gpu_index,
            was.mig_profile,
            was.allocation,
        )


def _totals(was: Totals | None, sums: Sequence[int]) -> Totals | None:
    """Totals with new sums, which are in the order of ``Moved``."""
    measured_mj, estimated_mj, inferred_mj, idle_us, idle_byte_us, idle_mj, billed_idle_us = sums
    return was and was._replace(
        energy=MethodEnergy(measured_mj, estimated_mj, inferred_mj),
        idle_us=idle_us,
        idle_byte_us=idle_byte_us,
        idle_mj=idle_mj,
        billed_idle_us=billed_idle_us,
    )
