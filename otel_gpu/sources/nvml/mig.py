"""MIG instances of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from otel_gpu.errors import OtelGpuError, Unavailable, Unsupported
from otel_gpu.model import MigReading
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.queries import DeviceQueries

T = TypeVar("T")

MIG_MODE: Final = "mig mode"


@dataclass(frozen=True, slots=True)
class _Instance:
    """Constant facts of an instance: an instance is destroyed and created, never changed."""

    uuid: str
    gpu_instance_id: int | None
    compute_instance_id: int | None
    profile: str | None
    sm_count: int | None


class MigReader:
    """A reader of one GPU's instances. Constant facts are read once per UUID."""

    def __init__(self, api: NvmlApi) -> None:
        self._api = api
        self._instances: dict[str, tuple[_Instance, DeviceQueries]] = {}
        self._largest_sms: int | None = None

    def largest_sms(self, parent: Handle, queries: DeviceQueries) -> int | None:
        """Multiprocessors of the largest possible instance, read once."""
        if self._largest_sms is None:
            self._largest_sms = queries.query("largest mig", self._api.largest_instance_sms, parent)
        return self._largest_sms

    def read(self, parent: Handle, queries: DeviceQueries, *, every_s: float) -> tuple[MigReading, ...] | None:
        """The instances in order of their indices; ``None`` without MIG mode, which is read ``every_s``."""
        if not queries.query(MIG_MODE, self._api.mig_enabled, parent, every_s=every_s):
            self._instances.clear()
            return None
        count = queries.query("mig device count", self._api.max_mig_devices, parent) or 0
        readings = []
        for index in range(count):
            # Indices may be unused; an instance that is refused or destroyed meanwhile is no fault of the GPU.
            reading = queries.query(f"mig {index}", self._read_at, parent, index, queries)
            if reading is not None:
                readings.append(reading)
        alive = {reading.uuid for reading in readings}
        self._instances = {uuid: instance for uuid, instance in self._instances.items() if uuid in alive}
        return tuple(readings)

    def _read_at(self, parent: Handle, index: int, parent_queries: DeviceQueries) -> MigReading:
        try:
            handle = self._api.mig_handle(parent, index)
            uuid = self._api.uuid(handle)
        except Unsupported as error:
            # Not unsupported for good: another instance may have this index later.
            raise Unavailable(str(error)) from None
        if uuid not in self._instances:
            self._instances[uuid] = (self._describe(handle, uuid), DeviceQueries())
        instance, queries = self._instances[uuid]
        queries.begin(parent_queries.now_ns)
        reading = MigReading(
            uuid=uuid,
            gpu_instance_id=instance.gpu_instance_id,
            compute_instance_id=instance.compute_instance_id,
            profile=instance.profile,
            sm_count=instance.sm_count,
            memory=queries.memory(self._api, handle),
            processes=queries.processes(self._api, handle),
            index=index,
        )
        if queries.missing is not None:
            parent_queries.add_missing(f"mig {index}", queries.missing)
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
    """``1g.10gb``: from the driver's name ("NVIDIA A100 MIG 1g.10gb"), else computed from the attributes."""
    _, marker, stated = (name or "").rpartition(" MIG ")
    if marker:
        return stated
    if attributes is None:
        return None
    _, slices, memory_mib = attributes
    return f"{slices}g.{round(memory_mib / 1024)}gb"


def _or_none(function: Callable[[], T]) -> T | None:
    try:
        return function()
    except OtelGpuError:
        return None
