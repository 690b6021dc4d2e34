"""A simulated host with known truth: GPUs, processes and workloads that live, work, idle, come and go.

``SimulatedHost`` offers the same sources as a real one. What it shows follows from a ``WorldSpec`` and the
clock alone, so looking more or less often, or in another order, never changes what happens.
"""

from otel_gpu.sources.sim.demo import demo_world
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import WorldSpec

__all__ = ["SimulatedHost", "WorldSpec", "demo_world"]
