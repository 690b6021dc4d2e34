"""One cycle as instruments read it: its Attribution, laid out once by what has points of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from otel_gpu.metrics.layout import DeviceTags, Layout, Told
from otel_gpu.metrics.rows import Rows, Use
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.metrics.tags import Attributes, Tags
from otel_gpu.model import Attribution, GpuAttribution, GpuHealth, ProcessAttribution, WorkloadGpu

NONE: Final[Attributes] = Tags({})


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. ``places`` are the attributes of the GPU itself, under "", and of its MIG instances by UUID.

    ``tells_energy`` and ``tells_work`` are false where 0 would only mean that nobody counts. ``residents`` are all who
    are on it, whether exported or not.
    """

    gpu: GpuAttribution
    attributes: Tags
    places: Mapping[str, Tags]
    tells_energy: bool
    tells_work: bool
    residents: Sequence[ProcessAttribution] = ()

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
        processes = attribution.processes if process_level else ()
        gpus = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
        plan = layout.plan(tuple(gpus.values()), attribution.workloads, processes, held_too=held_too)
        residents: dict[str, list[ProcessAttribution]] = {uuid: [] for uuid in gpus}
        for process in attribution.processes:
            if process.active and process.gpu_uuid in residents:
                residents[process.gpu_uuid].append(process)
        devices = dict(zip(gpus, map(_device, gpus.values(), plan.devices, residents.values()), strict=True))
        parts = [part for workload in attribution.workloads for part in workload.gpus]
        possible = [number for number, old in enumerate(plan.workloads.numbers) if parts[old].possible]
        return cls(
            attribution=attribution,
            stats=stats,
            currency=currency,
            seats=plan.devices,
            devices=tuple(devices.values()),
            workloads=_rows(plan.workloads, parts, devices, partial(layout.starts, "workload"), possible),
            processes=_rows(plan.processes, processes, devices, partial(layout.starts, "process")),
            agent=layout.agent,
            sources=layout.sources(tuple([source.name for source in attribution.sources])),
        )


def _device(gpu: GpuAttribution, tags: DeviceTags, residents: Sequence[ProcessAttribution]) -> Device:
    counted = gpu.counted
    return Device(gpu, tags.attributes, tags.places, counted.energy, counted.work, residents)


def _rows(
    told: Told,
    uses: Sequence[Use],
    devices: Mapping[str, Device],
    kept: Callable[[tuple[int | None, ...]], tuple[int | None, ...]],
    possible: Sequence[int] = (),
) -> Rows[Use]:
    """The rows of a level, in columns: there are hundreds of them, and few GPUs."""
    chosen = [uses[number] for number in told.numbers]
    totals = [use.totals for use in chosen]
    on = [devices.get(use.gpu_uuid) for use in chosen]
    return Rows(
        told.seats,
        chosen,
        totals,
        kept(tuple([None if own is None else own.since_ns for own in totals])),
        [
            own is not None and ((device is not None and device.tells_energy) or bool(own.energy.total_mj))
            for own, device in zip(totals, on, strict=True)
        ],
        [
            (device is not None and device.tells_work) or (own is not None and own.compute_us > 0)
            for own, device in zip(totals, on, strict=True)
        ],
        [device is None or device.gpu.reading.health is not GpuHealth.PAUSED for device in on],
        possible,
    )
