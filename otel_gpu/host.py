"""Which host is read: this one through NVML, /proc and whoever knows names, or a simulated one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.config import Config, SourceChoice
from otel_gpu.errors import Unavailable
from otel_gpu.naming_sources import NameSources, begin
from otel_gpu.sources.base import GpuSource, NameSource, ProcessSource
from otel_gpu.sources.bounded import BoundedProcessSource
from otel_gpu.sources.late import Lookout
from otel_gpu.sources.nvml import DEFAULT_WAIT_MS, NvmlSource
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost

BRIEF_DEADLINE_S: Final = 10.0
"""A look at all processes at once may take this long; one that takes longer hangs."""

BRIEF_NAMES_S: Final = 1.0
"""So long a look at once waits for names: whoever knows them has answered by then, or will not."""


@dataclass(frozen=True, slots=True)
class Host:
    """The sources of one host. ``simulated_because`` says why it is not a real one, where it is not.

    ``lookout`` finds more who know names, where that is wanted.
    """

    gpus: GpuSource
    processes: ProcessSource
    names: tuple[NameSource, ...]
    simulated_because: str | None = None
    lookout: Lookout | None = None


def open_nvml(config: Config, clock: Clock, *, briefly: bool = False) -> NvmlSource:
    """This host's GPUs; ``briefly`` for a look that must not wait for its event thread when it ends."""
    return NvmlSource(clock, deadline_s=config.deadline_s, event_wait_ms=20 if briefly else DEFAULT_WAIT_MS)


def open_procfs(config: Config, clock: Clock, *, briefly: bool = False) -> ProcessSource:
    """This host's processes; ``briefly`` scans all of them at once, for there will be no next cycle to go on in."""
    if not briefly:
        return BoundedProcessSource(ProcfsSource(config.proc_root, clock), config.deadline_s)
    everybody = ProcfsSource(config.proc_root, clock, processes_per_cycle=1 << 22, descriptors_per_cycle=1 << 24)
    return BoundedProcessSource(everybody, max(BRIEF_DEADLINE_S, config.deadline_s))


def open_host(config: Config, clock: Clock, *, briefly: bool = False) -> Host:
    """The host the configuration asks for; ``auto`` asks NVML first and simulates if it has no GPU."""
    if config.source is SourceChoice.SIM:
        return _simulated(config, clock, "asked for with --source sim")
    nvml = open_nvml(config, clock, briefly=briefly)
    if config.source is SourceChoice.AUTO:
        try:
            nvml.open()
        except Unavailable as error:
            nvml.close()
            return _simulated(config, clock, str(error))
    names, lookout = open_names(config, clock).open_all()
    if briefly:
        begin(names, {}, clock, BRIEF_NAMES_S)
    return Host(nvml, open_procfs(config, clock, briefly=briefly), names, lookout=lookout)


def open_names(config: Config, clock: Clock) -> NameSources:
    """Whoever knows names on this host."""
    return NameSources(config, clock, os.environ)


def _simulated(config: Config, clock: Clock, because: str) -> Host:
    host = SimulatedHost(demo_world(config.seed), clock)
    return Host(host.gpu_source(), host.process_source(), (host.name_source(),), because)
