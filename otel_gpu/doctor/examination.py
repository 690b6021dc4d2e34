"""One examination of this host: everything looked at once, each within a time of its own, as the agent would look."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from otel_gpu.agent.host import open_names, open_nvml, open_procfs, own_pod
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.doctor.clock import examine_clock, read_synchronised
from otel_gpu.doctor.devices import examine_devices
from otel_gpu.doctor.exports import REQUEST_S, export_checks
from otel_gpu.doctor.findings import Finding, degraded
from otel_gpu.doctor.gpus import examine_gpus, examine_modes, listed_pids
from otel_gpu.doctor.keeping import examine_control, examine_state
from otel_gpu.doctor.names import Asked, examine_names, judged
from otel_gpu.doctor.place import examine_capabilities, examine_node, examine_proc
from otel_gpu.doctor.pod import examine_pod
from otel_gpu.errors import OtelGpuError
from otel_gpu.model import WorkloadRef
from otel_gpu.setup import GpuAccounting, accounting
from otel_gpu.sources.names.factory import close_all, start_all
from otel_gpu.sources.names.resolver import pids_by_workload
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.workers import Pending, Worker

log = logging.getLogger(__name__)

_ANSWERS_S: Final = 3.0
"""How long whoever knows names is waited for, all together."""

_BESIDE_S: Final = REQUEST_S + 2.0
"""What receivers, addresses, files and sockets have, all together: they are looked at beside everything else."""

_LATE_FIX: Final = "something does not answer: a name server, a firewall that drops, a disk or a network file system"

Check = tuple[str, Callable[[], Finding]]


def examine_host(config: Config, clock: Clock, environment: Mapping[str, str]) -> list[Finding]:
    """Look at everything an agent with this configuration and environment would need. Nothing is changed by that."""
    own = own_pod(config)
    beside = Beside(
        [
            ("clock", lambda: examine_clock(clock, synchronised=read_synchronised())),
            *export_checks(config),
            ("state", lambda: examine_state(config.state_dir, environment, config.proc_root, clock)),
            ("control", lambda: examine_control(config.control_socket, environment)),
        ]
    )
    nvml = open_nvml(config, clock, one_shot=True)
    try:
        gpus = nvml.read()
        modes = _accounting(config) if gpus.gpus else ()
    finally:
        nvml.close()
    pod = None if own is None else own.pod
    processes = open_procfs(config, clock, one_shot=True, pod=pod).read(listed_pids(gpus))
    workloads = pids_by_workload(processes.processes.values())
    asked = judged(_asked(config, clock, workloads), workloads, gpus.gpus)
    return [
        *examine_gpus(gpus, config.proc_root, nvml.nameless),
        examine_devices(gpus, config.proc_root),
        *examine_modes(gpus, modes),
        *(examine_node() if own is None else examine_pod(own, gpus, processes)),
        *examine_proc(gpus, processes),
        examine_capabilities(in_pod=own is not None),
        *examine_names(config.environment, asked, workloads),
        *beside.findings(),
    ]


class Beside:
    """Checks that may wait for somebody, each on a thread of its own; they have ``deadline_s`` together."""

    def __init__(self, checks: Iterable[Check], deadline_s: float = _BESIDE_S) -> None:
        self._until_s = time.monotonic() + deadline_s
        self._checks = [(subject, _begun(subject, check)) for subject, check in checks]

    def findings(self) -> list[Finding]:
        """What was found, in the order of the checks; what does not end in time is a finding too."""
        return [self._finding(subject, check) for subject, check in self._checks]

    def _finding(self, subject: str, check: Pending[Finding] | OtelGpuError) -> Finding:
        try:
            if isinstance(check, OtelGpuError):
                raise check
            return check.result(self._until_s)
        except OtelGpuError as error:
            return degraded(subject, str(error), _LATE_FIX)


def _begun(subject: str, check: Callable[[], Finding]) -> Pending[Finding] | OtelGpuError:
    worker = Worker(f"otel-gpu-doctor {subject}")
    try:
        pending = worker.start(check)
    except OtelGpuError as error:
        return error
    worker.close()  # its thread ends with the check
    return pending


def _accounting(config: Config) -> Sequence[GpuAccounting]:
    """Accounting mode of every GPU, while NVML is open and answers."""
    try:
        return accounting(NvmlApi(), deadline_s=config.deadline_s)
    except OtelGpuError as error:
        log.debug("accounting: %s", error)
        return ()


def _asked(config: Config, clock: Clock, workloads: Mapping[WorkloadRef, Collection[int]]) -> list[Asked]:
    """Everybody who could tell names, with what he tells of these workloads and others."""
    names = open_names(config, clock)
    candidates = names.candidates({ref.kind for ref in workloads})
    sources = {candidate.name: names.open(candidate) for candidate in candidates if candidate.used}
    try:
        answered = dict(zip(sources, start_all(sources.values(), workloads, clock, _ANSWERS_S), strict=True))
        return [
            Asked(each, sources[each.name].read(workloads) if answered.get(each.name) else None) for each in candidates
        ]
    finally:
        close_all(sources.values())
