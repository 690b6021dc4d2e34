"""Lines of answers between which only idle time and energy are new: all else of them is as the first one told it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.attribution.energy import Division
from otel_gpu.attribution.idle_run import GoneOn, IdleRun
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.moved_columns import MovedColumns, Seat, seat
from otel_gpu.attribution.order import Order
from otel_gpu.attribution.shown import GpuBooks
from otel_gpu.attribution.stillness import GpuView
from otel_gpu.model import (
    Attribution,
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


class _Audited(NamedTuple):
    """A GPU whose books are looked at in every cycle: what its processes and its workloads had when the run began.

    ``in_processes`` and ``in_workloads`` are those whose energy their lines have, by number, ``each_once`` says that
    either is everybody once, as it has to be: then their lines drew what everybody drew.
    """

    uuid: str
    run: IdleRun
    processes_mj: int
    workloads_mj: int
    in_processes: Sequence[int]
    in_workloads: Sequence[int]
    each_once: bool

    def error_mj(self, attributed_mj: int) -> int:
        """How far processes or workloads miss what the GPU has attributed, the larger of both."""
        drawn_mj = self.run.gone_on.drawn_mj
        if self.each_once:
            of_processes_mj = of_workloads_mj = sum(drawn_mj)
        else:
            of_processes_mj = sum([drawn_mj[number] for number in self.in_processes])
            of_workloads_mj = sum([drawn_mj[number] for number in self.in_workloads])
        missing_mj = attributed_mj - self.processes_mj - of_processes_mj
        missing_of_workloads_mj = attributed_mj - self.workloads_mj - of_workloads_mj
        return missing_mj if abs(missing_mj) >= abs(missing_of_workloads_mj) else missing_of_workloads_mj


class KeptLines:
    """Knows the lines of such answers, after the ``first`` of them was composed in this ``order``."""

    def __init__(self, ledger: Ledger, order: Order, first: Attribution) -> None:
        self._ledger = ledger
        self._order = order
        names = {gpu.identity.uuid: gpu.identity.name for gpu in first.gpus}
        self._first = _First(first.processes, first.workloads, names)
        self._gpus: list[_Audited] = []
        self._columns: _Columns | None = None

    def go_on(self, views: Sequence[GpuView], prices: Prices | None) -> NewLines:
        """Those of one more cycle."""
        columns = self._columns
        if columns is None or True in [gpu.run.is_settled for gpu in self._gpus]:
            columns = self._columns = self._begun(views)
        return NewLines(self._first, columns, [gpu.run.gone_on for gpu in self._gpus], prices)

    def _begun(self, views: Sequence[GpuView]) -> _Columns:
        """From here on nothing is booked before somebody asks: what goes on is counted from what is booked by now."""
        order, seats = self._order, _seats(views)
        processes = [line.entry for _, found in order.processes for line in found]
        workloads = [entry for ordered in order.workloads for _, _, entry in ordered.lines]
        parts = [part for workload in self._first.workloads for part in workload.gpus]
        columns = _Columns(MovedColumns(processes, self._first.processes, seats), MovedColumns(workloads, parts, seats))
        processes_mj, workloads_mj = self._ledger.processes.booked_mj(), self._ledger.workloads.booked_mj()
        self._gpus = [
            _audited(uuid, books, division, processes_mj.get(uuid, 0), workloads_mj.get(uuid, 0))
            for uuid, books, division in _resting(views)
        ]
        return columns

    def energy_errors_mj(self) -> dict[str, int]:
        """As the ledger tells it, of who goes on: what every line drew since it was booked is added up."""
        devices = self._ledger.devices
        return {gpu.uuid: gpu.error_mj(devices[gpu.uuid].attributed_mj) for gpu in self._gpus}


class _Columns(NamedTuple):
    """What is new of processes, and of the parts of workloads."""

    processes: MovedColumns
    parts: MovedColumns


class _First(NamedTuple):
    """What the first of these answers told, and what its GPUs are called."""

    processes: tuple[ProcessAttribution, ...]
    workloads: tuple[WorkloadAttribution, ...]
    gpu_names: Mapping[str, str]


class NewLines:
    """The lines of one such answer, to be made if anybody asks for them."""

    __slots__ = ("_columns", "_first", "_gone_on", "_moved_parts", "_moved_processes", "_prices")

    def __init__(self, first: _First, columns: _Columns, gone_on: Sequence[GoneOn], prices: Prices | None) -> None:
        self._first = first
        self._columns = columns
        self._gone_on = gone_on
        self._prices = prices
        self._moved_processes: Moved | None = None
        self._moved_parts: Moved | None = None

    @property
    def moved_processes(self) -> Moved:
        """What is new of processes; made by whoever comes first, to others it comes to the same."""
        if self._moved_processes is None:
            self._moved_processes = self._columns.processes.after(self._gone_on)
        return self._moved_processes

    @property
    def moved_parts(self) -> Moved:
        """What is new of workloads."""
        if self._moved_parts is None:
            self._moved_parts = self._columns.parts.after(self._gone_on)
        return self._moved_parts

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
                    was.ref, was.names, tuple([self._part(p, next(news)) for p in was.gpus]), was.naming, was.held
                )
                for was in self._first.workloads
            ]
        )

    def _part(self, was: WorkloadGpu, news: tuple[Any, ...]) -> WorkloadGpu:
        energy, idle_s, *sums = news
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
    """As they were, with these instead: see ``Moved``."""
    measured_mj, estimated_mj, inferred_mj, idle_us, idle_byte_us, idle_mj, billed_idle_us = sums
    return was and was._replace(
        energy=MethodEnergy(measured_mj, estimated_mj, inferred_mj),
        idle_us=idle_us,
        idle_byte_us=idle_byte_us,
        idle_mj=idle_mj,
        billed_idle_us=billed_idle_us,
    )


def _audited(uuid: str, books: GpuBooks, division: Division, processes_mj: int, workloads_mj: int) -> _Audited:
    """From here on what goes on is not booked before somebody asks."""
    in_processes = [number for shown in books.seated if not shown.staff for number in shown.members]
    in_workloads = [number for shown in books.workloads for number in shown.members]
    each_once = sorted(in_processes) == sorted(in_workloads) == list(range(len(division.parts_mj)))
    run = books.run_on(division.method, division.parts_mj)
    return _Audited(uuid, run, processes_mj, workloads_mj, in_processes, in_workloads, each_once)


def _resting(views: Sequence[GpuView]) -> Iterator[tuple[str, GpuBooks, Division]]:
    """GPUs of which an answer says that nothing happens."""
    for view in views:
        if view.cycle is None or view.cycle.division is None:
            raise ValueError("a GPU of which something else is told")
        yield view.reading.identity.uuid, view.books, view.cycle.division


def _seats(views: Sequence[GpuView]) -> dict[Entry, Seat]:
    """Where each line's part of what goes on is found, GPU after GPU."""
    seats: dict[Entry, Seat] = {}
    first, first_payer = 0, 0
    for gpu, (_, books, division) in enumerate(_resting(views)):
        payers = [shown for _, lines in books.payers for shown in lines]
        payer_of = {shown: first_payer + number for number, shown in enumerate(payers)}
        for shown in books.seated:
            members = [first + number for number in shown.members]
            seats[shown.entry] = seat(gpu, members, payer_of.get(shown), shown.held_bytes or 0, division.method)
        first += len(division.parts_mj)
        first_payer += len(payers)
    return seats
