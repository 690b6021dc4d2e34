"""One cycle as instruments read it: its Report, laid out once by what has points of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Final

from otel_gpu.metrics.layout import DeviceTags, Layout, Told
from otel_gpu.metrics.rows import Rows, Standing, Use
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.metrics.tags import Attributes, Tags
from otel_gpu.model import GpuHealth, GpuReport, ProcessReport, Report, Totals, WorkloadGpu

NONE: Final[Attributes] = Tags({})


class Residents:
    """Who is on which GPU: found out for all of them once somebody asks, which in most cycles nobody does."""

    def __init__(self, attribution: Report) -> None:
        self._attribution = attribution

    @cached_property
    def by_gpu(self) -> Mapping[str, Sequence[ProcessReport]]:
        """By the UUID of the GPU."""
        found: dict[str, list[ProcessReport]] = {}
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

    gpu: GpuReport
    attributes: Tags
    places: Mapping[str, Tags]
    tells_energy: bool
    tells_work: bool
    everybody: Residents

    @property
    def residents(self) -> Sequence[ProcessReport]:
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

    attribution: Report
    stats: SelfStats
    currency: str
    seats: tuple[DeviceTags, ...]
    devices: tuple[Device, ...]
    workloads: Rows[WorkloadGpu]
    processes: Rows[ProcessReport]
    agent: Tags = field(default_factory=lambda: Tags({}))
    sources: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        attribution: Report,
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
        plan = layout.plan(
            tuple(gpus.values()),
            attribution.workloads,
            attribution.processes if process_level else (),
            held_too=held_too,
        )
        everybody = repeat(Residents(attribution))
        devices = dict(zip(gpus, map(_device, gpus.values(), plan.devices, everybody), strict=True))
        return cls(
            attribution=attribution,
            stats=stats,
            currency=currency,
            seats=plan.devices,
            devices=tuple(devices.values()),
            workloads=_rows(plan.workloads, _parts(attribution), devices),
            processes=_rows(plan.processes, attribution.processes, devices),
            agent=layout.agent,
            sources=layout.sources(tuple([source.name for source in attribution.sources])),
        )


def _device(gpu: GpuReport, tags: DeviceTags, everybody: Residents) -> Device:
    counted = gpu.counted
    return Device(gpu, tags.attributes, tags.places, counted.energy, counted.work, everybody)


def _parts(attribution: Report) -> list[WorkloadGpu]:
    return [part for workload in attribution.workloads for part in workload.gpus]


def _rows(told: Told, lines: Sequence[Use], devices: Mapping[str, Device]) -> Rows[Use]:
    """The rows of a level, in columns."""
    uses = tuple([lines[number] for number in told.numbers])
    totals = tuple([use.totals for use in uses])
    return Rows(told.seats, uses, totals, *_standing(uses, totals, devices))


def _standing(
    uses: Sequence[WorkloadGpu | ProcessReport], totals: Sequence[Totals | None], devices: Mapping[str, Device]
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
