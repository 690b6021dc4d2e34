"""A simulated host with known truth: GPUs, processes and workloads that start, work, idle and end.

``SimulatedHost`` offers the same sources as a real host. Everything follows from a ``WorldSpec`` and the clock, so the
number and order of reads never change what happens.
"""

from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import WorldSpec

__all__ = ["SimulatedHost", "WorldSpec", "demo_world"]
