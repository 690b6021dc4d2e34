"""One cycle as instruments read it: its Attribution, laid out once by what has points of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Final, Generic, NamedTuple

from otel_gpu.metrics.layout import DeviceTags, KeptStanding, Layout, Told
from otel_gpu.metrics.rows import Found, MovedRows, Rows, Standing, Use
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.metrics.tags import Attributes, Tags
from otel_gpu.model import Attribution, GpuAttribution, GpuHealth, Moved, ProcessAttribution, Totals, WorkloadGpu

NONE: Final[Attributes] = Tags({})


class Residents:
    """Who is on which GPU: found out for all of them once somebody asks, which in most cycles nobody does."""

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution

    @cached_property
    def by_gpu(self) -> Mapping[str, Sequence[ProcessAttribution]]:
        """By the UUID of the GPU."""
        found: dict[str, list[ProcessAttribution]] = {}
        for process in self._attribution.processes:
            if process.active:
                found.setdefault(process.gpu_uuid, []).append(process)
        return found


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. ``places`` are the attributes of the GPU itself, under "", and of its MIG instances by UUID.

    ``tells_energy`` and ``tells_work`` are false where 0 would only mean that nobody counts. ``everybody`` are all who
    are on GPUs, whether exported or not.
    """

    gpu: GpuAttribution
    attributes: Tags
    places: Mapping[str, Tags]
    tells_energy: bool
    tells_work: bool
    everybody: Residents

    @property
    def residents(self) -> Sequence[ProcessAttribution]:
        """All who are on it."""
        return self.everybody.by_gpu.get(self.gpu.identity.uuid, ())

    def place(self, mig_uuid: str | None) -> Tags:
        """The attributes of an instance, or of the GPU itself where there is no such instance."""
        return self.places.get(mig_uuid or "", self.places[""])


@dataclass(frozen=True, slots=True)
class Reading:
    """What a collection reads. Made once for a cycle, so that no instrument has to look anything up.

    ``seats`` are the attributes of its GPUs, and the same object from cycle to cycle while there are the same; so are
    the names of its ``sources``.
    """

    attribution: Attribution
    stats: SelfStats
    currency: str
    seats: tuple[DeviceTags, ...]
    devices: tuple[Device, ...]
    workloads: Rows[WorkloadGpu]
    processes: Rows[ProcessAttribution]
    agent: Tags = field(default_factory=lambda: Tags({}))
    sources: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        attribution: Attribution,
        stats: SelfStats,
        *,
        currency: str = "",
        process_level: bool = True,
        held_too: bool = False,
        layout: Layout | None = None,
    ) -> Reading:
        """Lay out a cycle; ``currency`` is that of its costs. Who is held back has rows only ``held_too``.

        ``layout`` is what earlier cycles have left.
        """
        layout = layout or Layout()
        gpus = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
        still_since_ns, later = attribution.still_since_ns, attribution.later
        plan = layout.still_plan(still_since_ns, held_too=held_too) or layout.plan(
            tuple(gpus.values()),
            attribution.workloads,
            attribution.processes if process_level else (),
            held_too=held_too,
            still_since_ns=still_since_ns,
        )
        everybody = repeat(Residents(attribution))
        devices = dict(zip(gpus, map(_device, gpus.values(), plan.devices, everybody), strict=True))
        of_parts = _Level(plan.workloads, lambda: _parts(attribution), None if later is None else later.moved_parts)
        told = later if plan.processes.numbers else None  # without metrics of processes nothing of them is made
        of_processes = _Level(
            plan.processes, lambda: attribution.processes, None if told is None else told.moved_processes
        )
        return cls(
            attribution=attribution,
            stats=stats,
            currency=currency,
            seats=plan.devices,
            devices=tuple(devices.values()),
            workloads=of_parts.rows(devices, layout.standing("workload"), still_since_ns),
            processes=of_processes.rows(devices, layout.standing("process"), still_since_ns),
            agent=layout.agent,
            sources=layout.sources(tuple([source.name for source in attribution.sources])),
        )


def _device(gpu: GpuAttribution, tags: DeviceTags, everybody: Residents) -> Device:
    counted = gpu.counted
    return Device(gpu, tags.attributes, tags.places, counted.energy, counted.work, everybody)


def _parts(attribution: Attribution) -> list[WorkloadGpu]:
    return [part for workload in attribution.workloads for part in workload.gpus]


class _Level(NamedTuple, Generic[Use]):
    """Workloads or processes: which of the lines are rows, all of them, and what is new where little is."""

    told: Told
    uses: Callable[[], Sequence[Use]]
    moved: Moved | None

    def rows(self, devices: Mapping[str, Device], kept: KeptStanding, still_since_ns: int) -> Rows[Use]:
        """The rows, in columns: there are hundreds of them, and few GPUs."""
        told, moved = self.told, None
        chosen: Sequence[Use] = Found(len(told.numbers), self._chosen)
        totals: Sequence[Totals | None] = Found(len(told.numbers), lambda: [use.totals for use in chosen])
        if self.moved is not None:
            moved = MovedRows(self.moved, told.numbers)
        else:  # all of it will be looked at
            chosen, totals = tuple(chosen), tuple(totals)
        standing = kept.of(told, still_since_ns, lambda: _standing(chosen, totals, devices))
        return Rows(told.seats, chosen, totals, *standing, moved)

    def _chosen(self) -> list[Use]:
        uses = self.uses()
        return [uses[number] for number in self.told.numbers]


def _standing(
    uses: Sequence[WorkloadGpu | ProcessAttribution], totals: Sequence[Totals | None], devices: Mapping[str, Device]
) -> Standing:
    on = [devices.get(use.gpu_uuid) for use in uses]
    return Standing(
        tuple([None if own is None else own.since_ns for own in totals]),
        [
            own is not None and ((device is not None and device.tells_energy) or bool(own.energy.total_mj))
            for own, device in zip(totals, on, strict=True)
        ],
        [
            (device is not None and device.tells_work) or (own is not None and own.compute_us > 0)
            for own, device in zip(totals, on, strict=True)
        ],
        [device is None or device.gpu.reading.health is not GpuHealth.PAUSED for device in on],
        [number for number, use in enumerate(uses) if isinstance(use, WorkloadGpu) and use.possible],
    )
