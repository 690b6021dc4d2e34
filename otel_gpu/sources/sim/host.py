"""A simulated host: a world that follows a clock, and the sources that read it."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from otel_gpu.clock import Clock
from otel_gpu.model import (
    DeviceMemory,
    DriverFacts,
    GpuReading,
    ListedProcess,
    MigAccess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    UtilizationRead,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import (
    Claim,
    GpuRead,
    GpuSource,
    NameRead,
    NameSource,
    ProcessRead,
    ProcessSource,
    WorkloadInfo,
)
from otel_gpu.sources.sim.device import MAX_STEPS, HeldMemory, SimulatedDevice
from otel_gpu.sources.sim.truth import Truth
from otel_gpu.sources.sim.world import (
    TICKS_PER_SECOND,
    MigSpec,
    ProcessSpec,
    Roster,
    Visibility,
    WorkloadSpec,
    WorldSpec,
)


class Now(NamedTuple):
    """One instant of a simulated host: monotonic time, world time, and the processes alive."""

    monotonic_ns: int
    world_us: int
    processes: tuple[ProcessSpec, ...]


class SimulatedHost:
    """A running world. Monotonic time since construction drives it; wall time may step."""

    def __init__(self, spec: WorldSpec, clock: Clock) -> None:
        age_ns = round(spec.age_s * 1e9)
        self.spec = spec
        self.devices = tuple(SimulatedDevice(spec, gpu) for gpu in spec.gpus)
        self.wall_start_ns = clock.wall_ns() - age_ns if spec.wall_start_ns is None else spec.wall_start_ns
        self._clock = clock
        self._origin_ns = clock.monotonic_ns() - age_ns
        self._world_us = 0
        self._roster = Roster(spec)
        self._lock = threading.Lock()

    @property
    def boot_time_s(self) -> int:
        """Boot time in whole Unix seconds: ``btime`` of ``/proc/stat``."""
        return math.floor(self.wall_start_ns / 1e9 - self.spec.uptime_s)

    @contextmanager
    def now(self) -> Iterator[Now]:
        """The world at the clock's current time, locked against further advances."""
        with self._lock:
            monotonic_ns = self._clock.monotonic_ns()
            self._world_us = max(self._world_us, (monotonic_ns - self._origin_ns) // 1000)
            for device in self.devices:
                device.advance(self._world_us)
            yield Now(monotonic_ns, self._world_us, self._roster.at(self._world_us).processes)

    def gpu_source(self) -> GpuSource:
        """A source of driver readings, with its own utilisation timestamps."""
        return SimulatedGpus(self)

    def process_source(self) -> ProcessSource:
        """A source of processes, as ``/proc`` shows them."""
        return SimulatedProcesses(self)

    def name_source(self) -> NameSource:
        """A source of names, as container runtimes report them."""
        return SimulatedNames(self)

    def truth(self, at_s: float | None = None) -> Truth:
        """The truth until now, or until a world time in seconds, which is replayed from the start."""
        if at_s is not None:
            return replay(self.spec, at_s)
        with self.now() as now:
            return Truth(now.world_us / 1e6, tuple(device.truth() for device in self.devices))


def replay(spec: WorldSpec, at_s: float) -> Truth:
    """The truth of a world at a world time in seconds, without strides."""
    at_us = round(at_s * 1e6)
    devices = tuple(SimulatedDevice(spec, gpu) for gpu in spec.gpus)
    for device in devices:
        for stop_us in range(0, at_us, device.spec.sample_period_us * MAX_STEPS):
            device.advance(stop_us)
        device.advance(at_us)
    return Truth(at_us / 1e6, tuple(device.truth() for device in devices))


class SimulatedGpus:
    """The driver of a simulated host."""

    name = "sim"

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._readers = tuple(GpuReader(device, host.wall_start_ns // 1000) for device in host.devices)

    def read(self) -> GpuRead:
        """Read every GPU once."""
        spec = self._host.spec
        with self._host.now() as now:
            gpus = tuple(reader.read(now.monotonic_ns) for reader in self._readers)
        return GpuRead(gpus, DriverFacts(spec.driver_version))

    def close(self) -> None:
        """Release nothing: it has no resources."""


class SimulatedProcesses:
    """``/proc`` of a simulated host."""

    name = "procfs"

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:  # noqa: ARG002 - all is known
        """The given processes that are alive, and all others with an open GPU device."""
        with self._host.now() as now:
            mapped = self._mapped_bytes()
        found = (process for process in now.processes if process.uses or process.pid in pids)
        return ProcessRead({process.pid: self._facts(process, mapped) for process in found})

    def _mapped_bytes(self) -> Mapping[ProcessKey, int]:
        """Size of each process's ``/dev/nvidia-uvm`` mappings, for all its GPUs."""
        mapped: dict[ProcessKey, int] = {}
        for device in self._host.devices:
            for process, use, memory_bytes in device.holdings():
                if use.opens_uvm and use.uvm_factor is not None:
                    key = self._host.spec.key_of(process)
                    mapped[key] = mapped.get(key, 0) + int(memory_bytes * use.uvm_factor)
        return mapped

    def _facts(self, process: ProcessSpec, mapped: Mapping[ProcessKey, int]) -> ProcessFacts:
        spec = self._host.spec
        key = spec.key_of(process)
        gpus = [(spec.gpu(use.gpu), use) for use in process.uses]
        uvm_open = any(use.opens_uvm for use in process.uses)
        readable = uvm_open and all(use.uvm_factor is not None for use in process.uses)
        return ProcessFacts(
            key=key,
            name=process.name,
            start_time_s=self._host.boot_time_s + key.start_ticks / TICKS_PER_SECOND,
            owner_uid=process.owner_uid,
            workload=process.workload.ref,
            gpu_minors_open=frozenset(gpu.identity.minor for gpu, _ in gpus if gpu.identity.minor is not None),
            # A process that uses a compute instance also opens the capability of the GPU instance.
            mig_access=frozenset(
                MigAccess(gpu.identity.minor, mig.gpu_instance_id, compute_instance_id)
                for gpu, use in gpus
                for mig in gpu.mig or ()
                if mig.gpu_instance_id == use.gpu_instance_id and gpu.identity.minor is not None
                for compute_instance_id in (None, mig.compute_instance_id)
            ),
            uvm_open=uvm_open,
            uvm_mapping_bytes=mapped.get(key, 0) if readable else None,
        )


class SimulatedNames:
    """The container runtimes of a simulated host."""

    name = "names"

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._granted = {
            grant.workload.ref.id: WorkloadInfo(
                grant.workload.ref,
                grant.workload.names or WorkloadNames(),
                since_s=host.wall_start_ns / 1e9 + grant.since_s,
                claims=(Claim(host.spec.gpu(grant.gpu).identity.uuid, grant.replicas),),
            )
            for grant in host.spec.grants
        }
        self._running: frozenset[WorkloadSpec] = frozenset()
        self._known: Mapping[str, WorkloadInfo] = self._granted

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """Names of all workloads that run now or were granted a GPU, whatever ``workloads`` contains."""
        del workloads
        with self._host.now() as now:
            running = frozenset(process.workload for process in now.processes)
        if running != self._running:
            self._running = running
            self._known = self._granted | {
                spec.ref.id: WorkloadInfo(spec.ref, spec.names)
                for spec in sorted(running, key=lambda spec: spec.ref.id)
                if spec.names is not None
            }
        return NameRead(self._known)

    def wait(self, timeout_s: float) -> bool:
        """Names are always known."""
        del timeout_s
        return True

    def close(self) -> None:
        """Release nothing: it has no resources."""


# ---------------------------------------------------------------------------- readings as a driver reports them


_LOOKBACK_US = 1_000_000


class GpuReader:
    """Reads one device repeatedly; keeps the timestamp of one utilisation call for the next."""

    def __init__(self, device: SimulatedDevice, wall_start_us: int) -> None:
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


def _memory(
    total_bytes: int, reserved_bytes: int, holdings: Collection[HeldMemory], stray_bytes: int = 0
) -> DeviceMemory:
    """As version 2 of the driver's call: ``used`` excludes reserved memory."""
    used_bytes = stray_bytes + sum(holding.memory_bytes for holding in holdings)
    return DeviceMemory(total_bytes, used_bytes, total_bytes - reserved_bytes - used_bytes, reserved_bytes)


def _listed(holdings: Collection[HeldMemory], instances: Mapping[int, MigSpec]) -> tuple[ListedProcess, ...]:
    """The driver's process lists, concatenated; a pid is in the list of each of its kinds."""
    return tuple(
        _entry(holding, kind, instances)
        for kind in ProcessKind
        for holding in holdings
        if kind in holding.use.kinds and holding.use.visibility is not Visibility.HIDDEN
    )


def _entry(holding: HeldMemory, kind: ProcessKind, instances: Mapping[int, MigSpec]) -> ListedProcess:
    use = holding.use
    mig = None if use.gpu_instance_id is None else instances[use.gpu_instance_id]
    return ListedProcess(
        pid=holding.process.pid,
        kind=kind,
        memory_bytes=holding.memory_bytes if use.visibility is Visibility.LISTED else None,
        gpu_instance_id=None if mig is None else mig.gpu_instance_id,
        compute_instance_id=None if mig is None else mig.compute_instance_id,
    )


def _instance(index: int, mig: MigSpec, holdings: Collection[HeldMemory]) -> MigReading:
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
