"""MIG instances of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from otel_gpu.errors import OtelGpuError, Unavailable, Unsupported
from otel_gpu.model import MigReading
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.figures import Figures

T = TypeVar("T")

MIG_MODE: Final = "mig mode"


@dataclass(frozen=True, slots=True)
class _Instance:
    """What stays the same about an instance: it is destroyed and made anew, never altered."""

    uuid: str
    gpu_instance_id: int | None
    compute_instance_id: int | None
    profile: str | None
    sm_count: int | None


class MigReader:
    """Reads the instances of one GPU. Their static facts are asked once for each UUID."""

    def __init__(self, api: NvmlApi) -> None:
        self._api = api
        self._known: dict[str, tuple[_Instance, Figures]] = {}
        self._largest_sms: int | None = None

    def largest_sms(self, parent: Handle, figures: Figures) -> int | None:
        """Multiprocessors of the largest instance the GPU can have: asked once."""
        if self._largest_sms is None:
            self._largest_sms = figures.ask("largest mig", self._api.largest_instance_sms, parent)
        return self._largest_sms

    def read(self, parent: Handle, figures: Figures, *, every_s: float) -> tuple[MigReading, ...] | None:
        """The instances in the order of their indices; ``None`` if the GPU is not partitioned, asked ``every_s``."""
        if not figures.ask(MIG_MODE, self._api.mig_enabled, parent, every_s=every_s):
            self._known.clear()
            return None
        count = figures.ask("mig device count", self._api.max_mig_devices, parent) or 0
        readings = []
        for index in range(count):
            # Indices have holes; and an instance that is refused, or destroyed meanwhile, is not its GPU's fault.
            reading = figures.ask(f"mig {index}", self._read_at, parent, index, figures)
            if reading is not None:
                readings.append(reading)
        alive = {reading.uuid for reading in readings}
        self._known = {uuid: known for uuid, known in self._known.items() if uuid in alive}
        return tuple(readings)

    def _read_at(self, parent: Handle, index: int, parent_figures: Figures) -> MigReading:
        try:
            handle = self._api.mig_handle(parent, index)
            uuid = self._api.uuid(handle)
        except Unsupported as error:
            # Refused now is not refused for ever: another instance may stand here after the next change.
            raise Unavailable(str(error)) from None
        if uuid not in self._known:
            self._known[uuid] = (self._describe(handle, uuid), Figures())
        instance, figures = self._known[uuid]
        figures.begin(parent_figures.now_ns)
        reading = MigReading(
            uuid=uuid,
            gpu_instance_id=instance.gpu_instance_id,
            compute_instance_id=instance.compute_instance_id,
            profile=instance.profile,
            sm_count=instance.sm_count,
            memory=figures.memory(self._api, handle),
            processes=figures.processes(self._api, handle),
            index=index,
        )
        if figures.missing is not None:
            parent_figures.miss(f"mig {index}", figures.missing)
        return reading

    def _describe(self, handle: Handle, uuid: str) -> _Instance:
        ids, attributes, name = (
            _or_none(lambda: self._api.mig_instance_ids(handle)),
            _or_none(lambda: self._api.mig_attributes(handle)),
            _or_none(lambda: self._api.name(handle)),
        )
        return _Instance(
            uuid=uuid,
            gpu_instance_id=ids[0] if ids else None,
            compute_instance_id=ids[1] if ids else None,
            profile=_profile(name, attributes),
            sm_count=attributes[0] if attributes else None,
        )


def _profile(name: str | None, attributes: tuple[int, int, int] | None) -> str | None:
    """``1g.10gb``: the driver's own word where its name says it ("NVIDIA A100 MIG 1g.10gb"), else what it comes to."""
    _, marker, stated = (name or "").rpartition(" MIG ")
    if marker:
        return stated
    if attributes is None:
        return None
    _, slices, memory_mib = attributes
    return f"{slices}g.{round(memory_mib / 1024)}gb"


def _or_none(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except OtelGpuError:
        return None
