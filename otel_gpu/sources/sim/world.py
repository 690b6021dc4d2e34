"""Frozen specifications of a simulated host, and which of its processes are alive at a time.

Times are world seconds: 0 is the start of the simulation, and a process may have started before. A process's signals
count from its start.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from otel_gpu.model import GpuIdentity, ProcessKey, ProcessKind, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.signals import Signal, Steady, hash64, seed_for, uniform

TICKS_PER_SECOND: Final = 100
"""Clock ticks of ``/proc/<pid>/stat``: USER_HZ, 100 on every Linux this runs on."""

_NOTHING: Final = Steady(0.0)


class Visibility(StrEnum):
    """How the driver's process lists show a process that holds memory."""

    LISTED = "listed"
    NO_FIGURE = "no_figure"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class MigSpec:
    """One MIG instance."""

    gpu_instance_id: int
    compute_instance_id: int
    uuid: str
    profile: str
    sm_count: int
    memory_total_bytes: int
    memory_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU and its power model: static + context (with a resident process) + dynamic, capped at the limit.

    The dynamic part is Σ watts·share · U^(``power_exponent`` - 1): below 1, a little work costs more than its share.
    ``noise_ratio`` is the standard deviation of the dynamic part. ``energy_start_mj`` is the energy counter at world
    time 0; ``None`` is a GPU without one. ``stray_bytes`` are in use by no visible process, for example by a virtual
    machine.
    """

    identity: GpuIdentity
    memory_total_bytes: int
    memory_reserved_bytes: int
    static_w: float
    context_w: float
    power_limit_w: float
    sm_count: int = 108
    power_exponent: float = 1.0
    noise_ratio: float = 0.0
    energy_start_mj: int | None = 0
    idle_sm_clock_mhz: int = 210
    max_sm_clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    ambient_c: float = 27.0
    celsius_per_w: float = 0.11
    sample_period_us: int = 139_000
    ring_size: int = 72
    counter_step_us: int = 100_000
    mig: tuple[MigSpec, ...] | None = None
    stray_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.sample_period_us, self.ring_size, self.counter_step_us, self.sm_count) <= 0:
            raise ValueError(f"GPU {self.identity.index}: periods, ring and SM count must be above 0")
        if not 0 <= self.memory_reserved_bytes <= self.memory_total_bytes:
            raise ValueError(f"GPU {self.identity.index}: more memory reserved than installed")
        if not 0 <= self.stray_bytes <= (0 if self.mig else self.memory_total_bytes - self.memory_reserved_bytes):
            raise ValueError(f"GPU {self.identity.index}: stray memory needs a GPU without MIG, and must fit into it")
        instances = sum(mig.memory_total_bytes - mig.memory_reserved_bytes for mig in self.mig or ())
        if instances > self.memory_total_bytes - self.memory_reserved_bytes:
            raise ValueError(f"GPU {self.identity.index}: its MIG instances have more memory than it has")
        if min(self.static_w, self.context_w, self.power_limit_w, self.noise_ratio) < 0:
            raise ValueError(f"GPU {self.identity.index}: power below 0")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one process does with one GPU (or one MIG instance of it) between its start and its end.

    ``memory`` is in bytes, ``work`` is the SM share wanted (of the instance, under MIG), ``watts`` is the power of that
    work at a share of 1. Without ``context`` the process only has the device file open. Without ``sampled`` it is
    missing in the driver's utilisation samples. ``uvm_factor`` is bytes of ``/dev/nvidia-uvm`` mappings per resident
    byte; ``None`` if not readable.
    """

    gpu: int
    memory: Signal = _NOTHING
    work: Signal = _NOTHING
    watts: Signal = _NOTHING
    visibility: Visibility = Visibility.LISTED
    kinds: tuple[ProcessKind, ...] = (ProcessKind.COMPUTE,)
    context: bool = True
    sampled: bool = True
    opens_uvm: bool = True
    uvm_factor: float | None = 1.0
    gpu_instance_id: int | None = None
    bandwidth_ratio: float = 0.4
    encoder_ratio: float = 0.0
    decoder_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload and its names; ``None`` if no source knows them."""

    ref: WorkloadRef
    names: WorkloadNames | None = None


@dataclass(frozen=True, slots=True)
class GrantSpec:
    """A GPU, or one of its ``replicas``, granted to a workload without a process on it."""

    workload: WorkloadSpec
    gpu: int
    replicas: int
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process, at most one use of each GPU, alive from ``start_s`` until before ``end_s``."""

    pid: int
    name: str
    workload: WorkloadSpec
    uses: tuple[GpuUse, ...]
    start_s: float = 0.0
    end_s: float | None = None
    owner_uid: int = 1000

    @property
    def start_us(self) -> int:
        """Start in world microseconds."""
        return round(self.start_s * 1e6)

    @property
    def end_us(self) -> int | None:
        """End in world microseconds."""
        return None if self.end_s is None else round(self.end_s * 1e6)


@dataclass(frozen=True, slots=True)
class JobStream:
    """An endless stream of jobs: one every ``every_s`` (the start is random within it), each a new workload.

    A job is one of ``templates`` with its own pid, lifetime and workload id: a new container (in a pod if the template
    is) or the next Slurm job; other kinds keep their workload. Pids repeat after ``pid_count``, as the kernel's do.
    """

    name: str
    every_s: float
    shortest_s: float
    longest_s: float
    templates: tuple[ProcessSpec, ...]
    first_pid: int
    pid_count: int = 1000

    def __post_init__(self) -> None:
        if self.every_s <= 0 or not 0 < self.shortest_s <= self.longest_s or not self.templates:
            raise ValueError(f"stream {self.name}: needs a period, lifetimes above 0 and a template")
        if self.pid_count < self.longest_s / self.every_s + 2:
            raise ValueError(f"stream {self.name}: too few pids for the jobs that overlap")


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A host. ``age_s`` is the world time of its first read.

    ``wall_start_ns`` is Unix time at world time 0; with ``None`` the first read is now. ``uptime_s`` is the uptime of
    the machine at world time 0: processes start no earlier.
    """

    seed: int
    gpus: tuple[GpuSpec, ...]
    processes: tuple[ProcessSpec, ...] = ()
    streams: tuple[JobStream, ...] = ()
    grants: tuple[GrantSpec, ...] = ()
    age_s: float = 0.0
    wall_start_ns: int | None = None
    uptime_s: float = 5 * 86_400.0
    driver_version: str = "570.124.06"

    def __post_init__(self) -> None:
        indices = [gpu.identity.index for gpu in self.gpus]
        if len(set(indices)) < len(indices) or len({gpu.identity.uuid for gpu in self.gpus}) < len(indices):
            raise ValueError("two GPUs share an index or a UUID")
        if not {grant.gpu for grant in self.grants} <= set(indices):
            raise ValueError("a grant of a GPU that does not exist")
        for process in (*self.processes, *(t for stream in self.streams for t in stream.templates)):
            self._check_uses(process)
        for process in self.processes:
            if process.start_s <= -self.uptime_s or (process.end_s is not None and process.end_s <= process.start_s):
                raise ValueError(f"process {process.pid}: must start after boot and end after its start")
        twice = [key for key, count in Counter(map(self.key_of, self.processes)).items() if count > 1]
        if twice:
            raise ValueError(f"the same process twice: {twice[0]}")

    def _check_uses(self, process: ProcessSpec) -> None:
        indices = {gpu.identity.index for gpu in self.gpus}
        if len({use.gpu for use in process.uses}) < len(process.uses):
            raise ValueError(f"process {process.pid}: one GPU used twice")
        for use in process.uses:
            if use.gpu not in indices:
                raise ValueError(f"process {process.pid}: no GPU {use.gpu}")
            mig = self.gpu(use.gpu).mig
            instances = {None} if mig is None else {instance.gpu_instance_id for instance in mig}
            if use.gpu_instance_id not in instances:
                raise ValueError(f"process {process.pid}: no instance {use.gpu_instance_id} on GPU {use.gpu}")

    def gpu(self, index: int) -> GpuSpec:
        """The GPU with this index."""
        return next(gpu for gpu in self.gpus if gpu.identity.index == index)

    def key_of(self, process: ProcessSpec) -> ProcessKey:
        """The process's identity in ``/proc``: pid and start in clock ticks since boot."""
        return ProcessKey(process.pid, round((self.uptime_s + process.start_s) * TICKS_PER_SECOND))


# ---------------------------------------------------------------------------- the processes alive at a time


_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # the alphabet of suffixes of pod names in Kubernetes


@dataclass(frozen=True, slots=True)
class Alive:
    """The processes alive from ``since_us`` until before ``until_us``, oldest first, then by pid."""

    processes: tuple[ProcessSpec, ...]
    since_us: int
    until_us: int


class Roster:
    """Lookup of the processes alive at a time. The last answer is kept: it is valid until a process starts or ends."""

    _NEVER_US = 1 << 62

    def __init__(self, world: WorldSpec) -> None:
        self._processes = tuple(
            (process, process.start_us, self._NEVER_US if process.end_us is None else process.end_us)
            for process in world.processes
        )
        self._streams = tuple((stream, seed_for(world.seed, stream.name)) for stream in world.streams)
        self._jobs: dict[tuple[int, int], ProcessSpec] = {}
        self._last = Alive((), 0, 0)

    def at(self, time_us: int) -> Alive:
        """The processes alive at this world time, and until when that remains so."""
        if not self._last.since_us <= time_us < self._last.until_us:
            self._last = self._find(time_us)
        return self._last

    def _find(self, time_us: int) -> Alive:
        jobs, until_us = self._jobs_at(time_us)
        alive = list(jobs.values())
        for process, start_us, end_us in self._processes:
            if start_us <= time_us < end_us:
                alive.append(process)
                until_us = min(until_us, end_us)
            elif time_us < start_us:
                until_us = min(until_us, start_us)
        alive.sort(key=lambda process: (process.start_us, process.pid))
        self._jobs = jobs
        return Alive(tuple(alive), time_us, until_us)

    def _jobs_at(self, time_us: int) -> tuple[dict[tuple[int, int], ProcessSpec], int]:
        jobs: dict[tuple[int, int], ProcessSpec] = {}
        until_us = self._NEVER_US
        for place, (stream, seed) in enumerate(self._streams):
            for number in _numbers_around(stream, time_us / 1e6):
                start_s, end_s = _lifetime(stream, number, seed)
                start_us, end_us = round(start_s * 1e6), round(end_s * 1e6)
                if start_us <= time_us < end_us:
                    jobs[place, number] = self._jobs.get((place, number)) or job(stream, number, seed)
                    until_us = min(until_us, end_us)
                elif time_us < start_us:
                    until_us = min(until_us, start_us)
        return jobs, until_us


def _numbers_around(stream: JobStream, time_s: float) -> range:
    """Numbers of the jobs that may be alive now, and of the next one."""
    first = math.floor((time_s - stream.longest_s) / stream.every_s) - 1
    return range(first, math.floor(time_s / stream.every_s) + 2)


def _lifetime(stream: JobStream, number: int, seed: int) -> tuple[float, float]:
    start_s = round(stream.every_s * (number + uniform(seed, 1, number)), 2)
    length_s = stream.shortest_s + (stream.longest_s - stream.shortest_s) * uniform(seed, 2, number)
    return start_s, start_s + round(length_s, 2)


def job(stream: JobStream, number: int, seed: int) -> ProcessSpec:
    """Job ``number`` of a stream, a function of the seed. A job below 0 started before world time 0."""
    start_s, end_s = _lifetime(stream, number, seed)
    template = stream.templates[hash64(seed, 3, number) % len(stream.templates)]
    return replace(
        template,
        pid=stream.first_pid + number % stream.pid_count,
        workload=_own_workload(template.workload, seed, number),
        start_s=start_s,
        end_s=end_s,
    )


def _own_workload(template: WorkloadSpec, seed: int, number: int) -> WorkloadSpec:
    ref, names = template.ref, template.names
    if ref.kind is WorkloadKind.SLURM_JOB:
        return WorkloadSpec(replace(ref, id=str(int(ref.id) + number)), names)
    if ref.kind is not WorkloadKind.CONTAINER:
        return template
    own = hash64(seed, 4, number)
    pod_uid = None if ref.pod_uid is None else uuid_text(own)
    return WorkloadSpec(replace(ref, id=container_id(own), pod_uid=pod_uid), _own_names(names, pod_uid, own))


def _own_names(names: WorkloadNames | None, pod_uid: str | None, seed: int) -> WorkloadNames | None:
    if names is None:
        return None
    if names.pod is None:
        return names._replace(container=f"{names.container}-{suffix(seed)}")
    return names._replace(pod=f"{names.pod}-{suffix(seed)}", pod_uid=pod_uid)


def container_id(seed: int) -> str:
    """A container id of 64 hex digits."""
    return "".join(f"{hash64(seed, 5, part):016x}" for part in range(4))


def uuid_text(seed: int) -> str:
    """A version 4 UUID."""
    high, low = hash64(seed, 6, 0), hash64(seed, 6, 1)
    digits = f"{high >> 16:012x}4{high & 0xFFF:03x}{low & 0x3FFFFFFFFFFFFFFF | 1 << 63:016x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def suffix(seed: int) -> str:
    """Five letters for the end of a pod's name."""
    return "".join(_SUFFIX_LETTERS[hash64(seed, 7, place) % len(_SUFFIX_LETTERS)] for place in range(5))
