"""Processes alive at a time: those of a world, and the jobs of its streams."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from otel_gpu.model import WorkloadKind, WorkloadNames
from otel_gpu.sources.sim.signals import hash64, seed_for, uniform
from otel_gpu.sources.sim.world import JobStream, ProcessSpec, WorkloadSpec, WorldSpec

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
