"""Which host is read: this one through NVML, /proc and whoever knows names, or a simulated one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpu.agent.scope import OwnPod, find_own_pod
from otel_gpu.clock import Clock
from otel_gpu.config import Config, SourceChoice
from otel_gpu.control.pause_file import PauseFile
from otel_gpu.control.restart import may_restart
from otel_gpu.errors import Unavailable
from otel_gpu.model import GpuIdentity, Pod, Scope
from otel_gpu.sources.base import GpuSource, NameSource, ProcessSource
from otel_gpu.sources.names.candidates import NameOptions
from otel_gpu.sources.names.discovery import SourceDiscovery
from otel_gpu.sources.names.factory import NameSourceFactory, start_all
from otel_gpu.sources.nvml import DEFAULT_WAIT_MS, NvmlSource
from otel_gpu.sources.pause import PausableGpus
from otel_gpu.sources.proc.cgroup import parse_cgroup, parse_cgroup_in_pod
from otel_gpu.sources.proc.deadline import DeadlineProcessSource
from otel_gpu.sources.proc.host import cgroup_namespace_is_initial
from otel_gpu.sources.proc.source import OWN_PROC, ProcfsSource
from otel_gpu.sources.proc.table import STEADY

_OPENING_S: Final = 30.0
_OPENING_IN_A_CYCLE_S: Final = 5.0
"""How long a driver that is being initialised is waited for: by a look at once, and by a cycle, in which others wait
behind it. What comes later is there in the next cycle."""

BRIEF_DEADLINE_S: Final = 10.0
"""A look at all processes at once may take this long; one that takes longer hangs."""

BRIEF_NAMES_S: Final = 1.0
"""So long a look at once waits for names: whoever knows them has answered by then, or will not."""


_HINT: Final = "; without a GPU try: otel-gpu demo"
"""What a driver that is missing says in the end, and is no news on a simulated host."""


@dataclass(frozen=True, slots=True)
class Host:
    """The sources of one host. ``simulated_because`` says why it is not a real one, where it is not.

    ``discovery`` finds further name sources, ``None`` where that is switched off. ``pod`` is the only pod that is
    reported, ``None`` for the whole host.
    ``pausing`` lets go of the GPUs for a while. ``outdated`` is set once only a new process could read them.
    ``recall`` tells it of GPUs that an earlier run of the agent saw.
    """

    gpus: GpuSource
    processes: ProcessSource
    names: tuple[NameSource, ...]
    simulated_because: str | None = None
    discovery: SourceDiscovery | None = None
    pod: Pod | None = None
    pausing: PausableGpus | None = None
    outdated: threading.Event = field(default_factory=threading.Event)
    recall: Callable[[Sequence[GpuIdentity]], None] = lambda _: None


def open_nvml(
    config: Config, clock: Clock, *, briefly: bool = False, on_old_library: Callable[[], None] = lambda: None
) -> NvmlSource:
    """This host's GPUs; ``briefly`` for a look that must not wait for its event thread when it ends."""
    return NvmlSource(
        clock,
        deadline_s=config.deadline_s,
        init_deadline_s=_OPENING_S if briefly else max(config.deadline_s, _OPENING_IN_A_CYCLE_S),
        event_wait_ms=20 if briefly else DEFAULT_WAIT_MS,
        sys_root=config.sys_root,
        on_old_library=on_old_library,
    )


def open_procfs(
    config: Config, clock: Clock, *, briefly: bool = False, pod: Pod | None = None, own_proc: Path = OWN_PROC
) -> ProcessSource:
    """This host's processes; ``briefly`` scans all of them at once, for there will be no next cycle to go on in.

    ``pod`` is the agent's own, if that counts: seen from inside, cgroups there do not tell it.
    """
    parse = parse_cgroup
    if pod is not None and pod.uid is not None and cgroup_namespace_is_initial(own_proc) is False:
        parse = partial(parse_cgroup_in_pod, pod_uid=pod.uid)
    source = partial(
        ProcfsSource, config.proc_root, clock, own_proc=own_proc, in_pod=pod is not None, parse_workload=parse
    )
    if not briefly:
        return DeadlineProcessSource(source(intervals=STEADY), config.deadline_s)
    everybody = source(processes_per_cycle=1 << 22, descriptors_per_cycle=1 << 24)
    return DeadlineProcessSource(everybody, max(BRIEF_DEADLINE_S, config.deadline_s))


def own_pod(config: Config) -> OwnPod | None:
    """The agent's own pod, where only that is told of. UsageError if nothing tells which it is."""
    return find_own_pod(os.environ) if config.scope is Scope.POD else None


def open_host(config: Config, clock: Clock, *, briefly: bool = False) -> Host:
    """The host the configuration asks for; ``auto`` asks NVML first and simulates if it has no GPU."""
    own = own_pod(config)
    pod = None if own is None else own.pod
    if config.source is SourceChoice.SIM:
        return _simulated(config, clock, "asked for with --source sim", pod)
    outdated = threading.Event()

    def on_old_library() -> None:
        if may_restart(os.environ, clock):
            outdated.set()

    nvml = open_nvml(config, clock, briefly=briefly, on_old_library=on_old_library)
    if config.source is SourceChoice.AUTO and (briefly or not _is_left_alone(config, clock)):
        try:
            nvml.open(_OPENING_S)
        except Unavailable as error:
            nvml.close()
            return _simulated(config, clock, str(error).removesuffix(_HINT), pod)
    names, discovery = open_names(config, clock).open_all()
    if briefly:
        start_all(names, {}, clock, BRIEF_NAMES_S)
    gpus = PausableGpus(nvml, clock, holds=nvml.holds)
    processes = open_procfs(config, clock, briefly=briefly, pod=pod)

    def recall(known: Sequence[GpuIdentity]) -> None:
        nvml.recall(known)
        gpus.recall(known)

    return Host(gpus, processes, names, discovery=discovery, pod=pod, pausing=gpus, outdated=outdated, recall=recall)


def _is_left_alone(config: Config, clock: Clock) -> bool:
    """Whether an agent that starts now is paused: then it does not even ask whether there are GPUs."""
    place = config.control_socket.agent_path(os.environ)
    return place is not None and PauseFile(place.parent, clock).load() is not None


def name_options(config: Config) -> NameOptions:
    """The settings of name sources."""
    return NameOptions(
        environment=config.environment.value,
        proc_root=config.proc_root,
        docker_url=None if config.docker_host is None else config.docker_host.url,
        docker_tls_verify=config.docker_tls_verify,
        docker_cert_path=config.docker_cert_path,
        podman_url=None if config.podman_host is None else config.podman_host.url,
        cri_socket=config.cri_socket,
        pod_resources_socket=config.pod_resources_socket,
        kubernetes_api=config.kubernetes_api.value,
        node_name=config.node_name,
        container_labels=config.container_labels,
        pod_labels=config.pod_labels,
    )


def open_names(config: Config, clock: Clock) -> NameSourceFactory:
    """The name sources of this host."""
    return NameSourceFactory(name_options(config), clock, os.environ)


def _simulated(config: Config, clock: Clock, because: str, pod: Pod | None) -> Host:
    # Worlds are of no use to an agent on a real host.
    from otel_gpu.sources.sim.demo import demo_world  # noqa: PLC0415
    from otel_gpu.sources.sim.host import SimulatedHost  # noqa: PLC0415

    host = SimulatedHost(demo_world(config.seed), clock)
    gpus = PausableGpus(host.gpu_source(), clock)
    names = (host.name_source(),)
    return Host(gpus, host.process_source(), names, because, pod=pod, pausing=gpus, recall=gpus.recall)
