"""``python -m bench.limits.agent GPUS PROCESSES_PER_GPU ARGUMENT…``: ``otel-gpu`` on a simulated host of this size."""

from __future__ import annotations

import sys

from bench.limits.world import Size, large_world
from otel_gpu.cli.dispatch import main
from otel_gpu.sources.sim import demo

if __name__ == "__main__":
    gpus, processes_per_gpu, *arguments = sys.argv[1:]
    world = large_world(Size(int(gpus), int(processes_per_gpu)))
    demo.demo_world = lambda seed: world  # noqa: ARG005 - the host of --source sim
    sys.exit(main(arguments))
