"""CPU time per cycle for the names of 500 containers on GPUs. ``python -m bench.names``

The servers run in a process of their own, so that only the agent's cost is counted: reading the sources, resolving
names and grants, observing the names, and the threads of the sources meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from otel_gpu.attribution.naming import WAIT_CYCLES, Namings
from otel_gpu.clock import SystemClock
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameSource
from otel_gpu.sources.names.cri import CriSource
from otel_gpu.sources.names.docker import DockerSource
from otel_gpu.sources.names.podresources import PodResourcesSource
from otel_gpu.sources.names.resolver import NameResolver, pids_by_workload
from tests import docker_api, kubelet_servers
from tests.builders import facts, gpu

CONTAINERS: Final = 500
LIMIT_MS: Final = 1.0
CYCLE_S: Final = 5.0
_GPU: Final = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"


def serve(directory: Path, ready: Event, stop: Event) -> None:
    """Run a Docker engine, a container runtime and a kubelet, each with ``CONTAINERS`` containers."""
    engine = docker_api.DockerApi()
    for number in range(CONTAINERS):
        engine.run(number, f"job-{number}")
    runtime = kubelet_servers.Runtime(
        directory / "cri.sock",
        [kubelet_servers.container(n, pod=f"pod-{n // 2}", name=f"main-{n % 2}") for n in range(CONTAINERS)],
    )
    kubelet = kubelet_servers.Kubelet(directory / "kubelet.sock")
    kubelet.allocatable = [kubelet_servers.devices("nvidia.com/gpu", *(f"{_GPU}::{n}" for n in range(CONTAINERS // 2)))]
    kubelet.pods = [
        kubelet_servers.pod(
            f"pod-{n}",
            kubelet_servers.given("main-0", kubelet_servers.devices("nvidia.com/gpu", f"{_GPU}::{n}")),
            kubelet_servers.given("main-1"),
        )
        for n in range(CONTAINERS // 2)
    ]
    with docker_api.serving_docker(engine, directory / "docker.sock"):
        runtime.start()
        kubelet.start()
        ready.set()
        stop.wait()
        runtime.stop()
        kubelet.stop()


@contextmanager
def servers() -> Iterator[Path]:
    """Run the servers in another process; the directory of their sockets."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    with TemporaryDirectory(prefix="og-") as name:
        process = context.Process(target=serve, args=(Path(name), ready, stop))
        process.start()
        try:
            ready.wait()
            yield Path(name)
        finally:
            stop.set()
            process.join()


def cpu_ms_per_cycle(sources: Sequence[NameSource], refs: Sequence[WorkloadRef], cycles: int) -> float:
    """CPU time of this process per cycle, user and system, over that many cycles in real time."""
    resolver, namings, gpus = NameResolver(), Namings(), (gpu(0), gpu(1))
    processes = {number: facts(number, ref) for number, ref in enumerate(refs, start=1)}

    def cycle() -> None:
        workloads = pids_by_workload(processes.values())
        named = resolver.resolve([source.read(workloads) for source in sources], workloads, gpus)
        namings.observe(refs, named.names, pending=named.pending)
        assert len(named.names) == len(refs), f"{len(named.names)} of {len(refs)} are known"

    for source in sources:
        source.read(pids_by_workload(processes.values()))
        source.wait(60)
    for _ in range(WAIT_CYCLES + 1):  # a new workload may change its names in its first cycles
        cycle()
        time.sleep(1)
    started_s = time.process_time()
    for _ in range(cycles):
        cycle()
        time.sleep(CYCLE_S)
    return (time.process_time() - started_s) / cycles * 1e3


def main() -> int:
    """Measure and print; 1 if a cost exceeds ``LIMIT_MS``."""
    parser = argparse.ArgumentParser(description="CPU time per cycle for the names of 500 containers on GPUs")
    parser.add_argument("--cycles", type=int, default=12, help="cycles of 5 s to measure (default 12)")
    cycles = parser.parse_args().cycles
    clock = SystemClock()
    worst_ms = 0.0
    with servers() as directory:
        docker = DockerSource("docker", f"unix://{directory}/docker.sock", clock=clock)
        kubelet = PodResourcesSource(str(directory / "kubelet.sock"), clock=clock)
        cri = CriSource(str(directory / "cri.sock"), clock=clock, expected=kubelet.granted)
        worlds: dict[str, tuple[list[NameSource], list[str]]] = {
            "docker": ([docker], [docker_api.container_id(n) for n in range(CONTAINERS)]),
            "cri and pod-resources": ([cri, kubelet], [kubelet_servers.container_id(n) for n in range(CONTAINERS)]),
        }
        for name, (sources, ids) in worlds.items():
            print(f"{name}: {cycles * CYCLE_S:g} s …", file=sys.stderr)
            refs = [WorkloadRef(WorkloadKind.CONTAINER, id_) for id_ in ids]
            cost_ms = cpu_ms_per_cycle(sources, refs, cycles)
            worst_ms = max(worst_ms, cost_ms)
            print(f"{name:24}{cost_ms:6.2f} ms CPU per cycle, {CONTAINERS} containers, no change")
            for source in sources:
                source.close()
    print(f"{'at most':24}{LIMIT_MS:6.2f} ms")
    return int(worst_ms > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
