"""Readings of a simulated GPU as a driver reports them: no hidden memory, no truth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from otel_gpu.model import (
    DeviceMemory,
    GpuReading,
    ListedProcess,
    MigReading,
    ProcessKind,
    UtilizationRead,
)
from otel_gpu.sources.sim.device import Device, Holding
from otel_gpu.sources.sim.world import MigSpec, Visibility

_LOOKBACK_US = 1_000_000


class GpuReader:
    """Reads one device repeatedly; keeps the timestamp of one utilisation call for the next."""

    def __init__(self, device: Device, wall_start_us: int) -> None:
        self._device = device
        self._wall_start_us = wall_start_us
        self._latest_us: int | None = None
        self._previous_us: int | None = None

    def read(self, taken_at_ns: int) -> GpuReading:
        """A reading of the device; ``taken_at_ns`` is monotonic time."""
        device, spec = self._device, self._device.spec
        holdings = device.holdings()
        energy_mj = None if spec.energy_start_mj is None else spec.energy_start_mj + device.counter_mj
        reading = GpuReading(
            identity=spec.identity,
            taken_at_ns=taken_at_ns,
            memory=_memory(spec.memory_total_bytes, spec.memory_reserved_bytes, holdings, spec.stray_bytes),
            processes=_listed(holdings, {mig.gpu_instance_id: mig for mig in spec.mig or ()}),
            energy_mj=energy_mj,
            power_w=device.power_w,
            power_limit_w=spec.power_limit_w,
            temperature_c=device.temperature_c,
            sm_clock_mhz=device.sm_clock_mhz,
            memory_clock_mhz=spec.memory_clock_mhz,
            ecc_corrected=0,
            ecc_uncorrected=0,
            xid_errors=0,
            persistence_mode=True,
        )
        if spec.mig is not None:
            # The driver reports no utilisation while MIG is enabled.
            instances = tuple(_instance(index, mig, holdings) for index, mig in enumerate(spec.mig))
            return replace(reading, mig=instances, sm_count=spec.sm_count)
        mean = device.ring.mean(device.now_us - _LOOKBACK_US)
        return replace(
            reading,
            utilization=self._utilization(),
            gpu_ratio=mean.sm_percent / 100,
            memory_controller_ratio=mean.memory_percent / 100,
            encoder_ratio=mean.encoder_percent / 100,
            decoder_ratio=mean.decoder_percent / 100,
        )

    def _utilization(self) -> UtilizationRead:
        now_us = self._device.now_us
        since_us = (now_us if self._previous_us is None else self._previous_us) - _LOOKBACK_US
        if self._latest_us is not None:
            since_us = max(since_us, self._latest_us)
        rows = self._device.ring.rows(since_us)
        self._previous_us = now_us
        self._latest_us = max((row.timestamp_us for row in rows), default=self._latest_us)
        offset_us = self._wall_start_us
        return UtilizationRead(
            since_us=since_us + offset_us,
            read_at_us=now_us + offset_us,
            rows=tuple(row._replace(timestamp_us=row.timestamp_us + offset_us) for row in rows),
        )


def _memory(total_bytes: int, reserved_bytes: int, holdings: Collection[Holding], stray_bytes: int = 0) -> DeviceMemory:
    """As version 2 of the driver's call: ``used`` excludes reserved memory."""
    used_bytes = stray_bytes + sum(holding.memory_bytes for holding in holdings)
    return DeviceMemory(total_bytes, used_bytes, total_bytes - reserved_bytes - used_bytes, reserved_bytes)


def _listed(holdings: Collection[Holding], instances: Mapping[int, MigSpec]) -> tuple[ListedProcess, ...]:
    """The driver's process lists, concatenated; a pid is in the list of each of its kinds."""
    return tuple(
        _entry(holding, kind, instances)
        for kind in ProcessKind
        for holding in holdings
        if kind in holding.use.kinds and holding.use.visibility is not Visibility.HIDDEN
    )


def _entry(holding: Holding, kind: ProcessKind, instances: Mapping[int, MigSpec]) -> ListedProcess:
    use = holding.use
    mig = None if use.gpu_instance_id is None else instances[use.gpu_instance_id]
    return ListedProcess(
        pid=holding.process.pid,
        kind=kind,
        memory_bytes=holding.memory_bytes if use.visibility is Visibility.LISTED else None,
        gpu_instance_id=None if mig is None else mig.gpu_instance_id,
        compute_instance_id=None if mig is None else mig.compute_instance_id,
    )


def _instance(index: int, mig: MigSpec, holdings: Collection[Holding]) -> MigReading:
    own = [holding for holding in holdings if holding.use.gpu_instance_id == mig.gpu_instance_id]
    return MigReading(
        uuid=mig.uuid,
        gpu_instance_id=mig.gpu_instance_id,
        compute_instance_id=mig.compute_instance_id,
        profile=mig.profile,
        sm_count=mig.sm_count,
        memory=_memory(mig.memory_total_bytes, mig.memory_reserved_bytes, own),
        processes=_listed(own, {mig.gpu_instance_id: mig}),
        index=index,
    )
