"""Which host is read: this one through NVML and /proc, or a simulated one."""

from __future__ import annotations

from dataclasses import dataclass

from otel_gpu.clock import Clock
from otel_gpu.config import Config, SourceChoice
from otel_gpu.errors import Unavailable
from otel_gpu.sources.base import GpuSource, NameSource, ProcessSource
from otel_gpu.sources.nvml import NvmlSource
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost


@dataclass(frozen=True, slots=True)
class Host:
    """The sources of one host. ``simulated_because`` says why it is not a real one, where it is not."""

    gpus: GpuSource
    processes: ProcessSource
    names: tuple[NameSource, ...]
    simulated_because: str | None = None


def open_host(config: Config, clock: Clock) -> Host:
    """The host the configuration asks for; ``auto`` asks NVML first and simulates if it has no GPU."""
    if config.source is SourceChoice.SIM:
        return _simulated(config, clock, "asked for with --source sim")
    nvml = NvmlSource(clock, deadline_s=config.deadline_s)
    if config.source is SourceChoice.AUTO:
        try:
            nvml.open()
        except Unavailable as error:
            nvml.close()
            return _simulated(config, clock, str(error))
    return Host(nvml, ProcfsSource(config.proc_root, clock), ())


def _simulated(config: Config, clock: Clock, because: str) -> Host:
    host = SimulatedHost(demo_world(config.seed), clock)
    return Host(host.gpu_source(), host.process_source(), (host.name_source(),), because)
