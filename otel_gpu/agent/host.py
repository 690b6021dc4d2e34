"""The sources of a host: NVML, /proc and name sources, or a simulated host."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_gpu.clock import Clock
from otel_gpu.config import Config, Scope, SourceChoice
from otel_gpu.control.pause_file import PauseFile
from otel_gpu.control.restart import may_restart
from otel_gpu.errors import Unavailable
from otel_gpu.model import GpuIdentity, Pod
from otel_gpu.sources.base import GpuSource, NameSource, ProcessSource
from otel_gpu.sources.names.candidates import NameOptions
from otel_gpu.sources.names.discovery import SourceDiscovery
from otel_gpu.sources.names.factory import NameSourceFactory, start_all
from otel_gpu.sources.pause import PausableGpus
from otel_gpu.sources.proc.cgroup import parse_cgroup, parse_cgroup_in_pod
from otel_gpu.sources.proc.host import OwnPod, cgroup_namespace_is_initial, find_own_pod
from otel_gpu.sources.proc.source import OWN_PROC, ProcfsSource
from otel_gpu.sources.proc.table import STEADY
from otel_gpu.version import __version__
from otel_gpu.view.builder import Subject

if TYPE_CHECKING:
    from otel_gpu.sources.nvml import NvmlSource

_INIT_S: Final = 30.0
"""Time limit for the initialisation of the driver in a one-shot command and with ``--source auto``."""

_INIT_IN_CYCLE_S: Final = 5.0
"""The same in a cycle of the agent, which waits meanwhile. A driver that takes longer is read in a later cycle."""

ONE_SHOT_PROCESSES_S: Final = 10.0
"""Time limit for reading all processes in a one-shot command."""

ONE_SHOT_NAMES_S: Final = 1.0
"""How long a one-shot command waits for names. A name source that works answers within this time."""


@dataclass(frozen=True, slots=True)
class Host:
    """The sources of one host. ``simulated_because`` is the reason for a simulated host, ``None`` for a real one.

    ``discovery`` finds further name sources, unless it is switched off. Reports cover ``pod`` only, or the whole host.
    ``pausable`` are the GPUs for ``otel-gpu pause``. ``outdated`` is set once only a new process could read them.
    ``recall`` lists GPUs of an earlier run of the agent.
    """

    gpus: GpuSource
    processes: ProcessSource
    names: tuple[NameSource, ...]
    simulated_because: str | None = None
    discovery: SourceDiscovery | None = None
    pod: Pod | None = None
    pausable: PausableGpus | None = None
    outdated: threading.Event = field(default_factory=threading.Event)
    recall: Callable[[Sequence[GpuIdentity]], None] = lambda _: None


def view_subject(config: Config, host: Host, host_name: str) -> Subject:
    """What views of this host show."""
    prices = config.attribution.options.prices
    return Subject(
        version=__version__,
        host_name=host_name,
        interval_s=config.sampling.interval_s,
        simulated_because=host.simulated_because,
        currency=None if prices is None else prices.currency,
    )


def open_nvml(
    config: Config, clock: Clock, *, one_shot: bool = False, on_old_library: Callable[[], None] = lambda: None
) -> NvmlSource:
    """The GPUs of this host. With ``one_shot`` the end does not wait for the event thread."""
    # Imported here: a simulated host does not need nvidia-ml-py.
    from otel_gpu.sources.nvml import DEFAULT_WAIT_MS, NvmlSource  # noqa: PLC0415

    return NvmlSource(
        clock,
        deadline_s=config.sampling.deadline_s,
        init_deadline_s=_INIT_S if one_shot else max(config.sampling.deadline_s, _INIT_IN_CYCLE_S),
        event_wait_ms=20 if one_shot else DEFAULT_WAIT_MS,
        sys_root=config.sampling.sys_root,
        on_old_library=on_old_library,
    )


def open_procfs(
    config: Config, clock: Clock, *, one_shot: bool = False, pod: Pod | None = None, own_proc: Path = OWN_PROC
) -> ProcessSource:
    """The processes of this host. With ``one_shot`` all are read at once, because there is no next cycle.

    ``pod`` is the agent's own with scope ``pod``: cgroups that are seen from inside a pod do not show it.
    """
    parse = parse_cgroup
    if pod is not None and pod.uid is not None and cgroup_namespace_is_initial(own_proc) is False:
        parse = partial(parse_cgroup_in_pod, pod_uid=pod.uid)
    source = partial(
        ProcfsSource, config.sampling.proc_root, clock, own_proc=own_proc, in_pod=pod is not None, parse_workload=parse
    )
    if not one_shot:
        return source(intervals=STEADY, deadline_s=config.sampling.deadline_s)
    deadline_s = max(ONE_SHOT_PROCESSES_S, config.sampling.deadline_s)
    return source(processes_per_cycle=1 << 22, descriptors_per_cycle=1 << 24, deadline_s=deadline_s)


def own_pod(config: Config) -> OwnPod | None:
    """The agent's own pod with scope ``pod``, else ``None``. UsageError if it is unknown."""
    return find_own_pod(os.environ) if config.sampling.scope is Scope.POD else None


def open_host(config: Config, clock: Clock, *, one_shot: bool = False) -> Host:
    """The configured host. With ``auto`` it is simulated if NVML cannot be opened."""
    own = own_pod(config)
    pod = None if own is None else own.pod
    if config.sampling.source is SourceChoice.SIM:
        return _simulated(config, clock, "requested with --source sim", pod)
    outdated = threading.Event()

    def on_old_library() -> None:
        if may_restart(os.environ, clock):
            outdated.set()

    nvml = open_nvml(config, clock, one_shot=one_shot, on_old_library=on_old_library)
    if config.sampling.source is SourceChoice.AUTO and (one_shot or not _starts_paused(config, clock)):
        try:
            nvml.open(_INIT_S)
        except Unavailable as error:
            from otel_gpu.sources.nvml.errors import DEMO_HINT  # noqa: PLC0415 - as in open_nvml

            nvml.close()
            return _simulated(config, clock, str(error).removesuffix(DEMO_HINT), pod)
    names, discovery = open_names(config, clock).open_all()
    if one_shot:
        start_all(names, {}, clock, ONE_SHOT_NAMES_S)
    gpus = PausableGpus(nvml, clock, holds=nvml.holds)
    processes = open_procfs(config, clock, one_shot=one_shot, pod=pod)

    def recall(known: Sequence[GpuIdentity]) -> None:
        nvml.recall(known)
        gpus.recall(known)

    return Host(gpus, processes, names, discovery=discovery, pod=pod, pausable=gpus, outdated=outdated, recall=recall)


def _starts_paused(config: Config, clock: Clock) -> bool:
    """Whether a saved pause is not over. Then the agent does not open the driver, not even to look for GPUs."""
    path = config.state.control_socket.agent_path(os.environ)
    return path is not None and PauseFile(path.parent, clock).load() is not None


def name_options(config: Config) -> NameOptions:
    """The settings of name sources."""
    names = config.names
    return NameOptions(
        environment=names.environment.value,
        proc_root=config.sampling.proc_root,
        docker_url=None if names.docker.host is None else names.docker.host.url,
        docker_tls_verify=names.docker.tls_verify,
        docker_cert_path=names.docker.cert_path,
        podman_url=None if names.podman_host is None else names.podman_host.url,
        cri_socket=names.cri_socket,
        pod_resources_socket=names.pod_resources_socket,
        kubernetes_api=names.kubernetes_api.value,
        node_name=names.node_name,
        container_labels=names.container_labels,
        pod_labels=names.pod_labels,
    )


def open_names(config: Config, clock: Clock) -> NameSourceFactory:
    """The name sources of this host."""
    return NameSourceFactory(name_options(config), clock, os.environ)


def _simulated(config: Config, clock: Clock, because: str, pod: Pod | None) -> Host:
    # Imported here: an agent on a real host does not need them.
    from otel_gpu.sources.sim.demo import demo_world  # noqa: PLC0415
    from otel_gpu.sources.sim.host import SimulatedHost  # noqa: PLC0415

    host = SimulatedHost(demo_world(config.sampling.seed), clock)
    gpus = PausableGpus(host.gpu_source(), clock)
    names = (host.name_source(),)
    return Host(gpus, host.process_source(), names, because, pod=pod, pausable=gpus, recall=gpus.recall)
