"""``otel-gpu doctor``: all checks of this host, with the agent's own sources and settings.

Checks that may block run concurrently.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from otel_gpu.agent.host import open_names, open_nvml, open_procfs, own_pod
from otel_gpu.cli.logs import show_progress
from otel_gpu.cli.stdio import stdout_paint, terminal_size, write
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import Config, SourceChoice
from otel_gpu.doctor.clock import check_clock, read_synchronised
from otel_gpu.doctor.directories import check_control_socket, check_state_directory
from otel_gpu.doctor.endpoints import PROBE_TIMEOUT_S, endpoint_checks
from otel_gpu.doctor.findings import Finding, degraded, is_blind, to_json, to_text
from otel_gpu.doctor.gpus import check_device_files, check_gpus, check_modes, listed_pids
from otel_gpu.doctor.names import SourceAnswer, check_names, with_conflicts
from otel_gpu.doctor.series import check_series
from otel_gpu.doctor.visibility import check_capabilities, check_node_scope, check_pod_scope, check_proc
from otel_gpu.errors import OtelGpuError, UsageError
from otel_gpu.model import WorkloadRef
from otel_gpu.sources.names.factory import close_all, start_all
from otel_gpu.sources.names.resolver import pids_by_workload
from otel_gpu.sources.nvml.accounting import GpuAccounting, accounting
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.workers import Pending, Worker

log = logging.getLogger(__name__)

_DONE: Final = 0
_BLIND: Final = 1

_NAMES_DEADLINE_S: Final = 3.0
"""For the answers of all name sources together."""

_CONCURRENT_DEADLINE_S: Final = PROBE_TIMEOUT_S + 2.0
"""For all checks of endpoints, directories and the clock together."""

_NO_ANSWER_FIX: Final = "look at name servers, firewalls that drop packets, disks and network file systems"

Check = tuple[str, Callable[[], Finding]]
"""A subject and the function that checks it."""


def doctor(config: Config, *, form: str) -> int:
    """Check this host and print the findings as text or JSON."""
    if config.sampling.source is SourceChoice.SIM:
        raise UsageError("doctor checks this host; a simulated host (--source sim) has nothing to check")
    with show_progress("examining this host"):
        findings = check_host(config, SystemClock(), dict(os.environ))
    if form == "json":
        write(sys.stdout, to_json(findings) + "\n")
    else:
        write(sys.stdout, to_text(findings, stdout_paint(), terminal_size()[0] if sys.stdout.isatty() else None))
    return _BLIND if is_blind(findings) else _DONE


def check_host(config: Config, clock: Clock, environment: Mapping[str, str]) -> list[Finding]:
    """Check everything an agent with this configuration and environment needs. Nothing is changed."""
    own = own_pod(config)
    concurrent = ConcurrentChecks(
        [
            ("clock", lambda: check_clock(clock, synchronised=read_synchronised())),
            *endpoint_checks(config),
            (
                "state",
                lambda: check_state_directory(config.state.directory, environment, config.sampling.proc_root, clock),
            ),
            ("control", lambda: check_control_socket(config.state.control_socket, environment)),
        ]
    )
    nvml = open_nvml(config, clock, one_shot=True)
    try:
        gpus = nvml.read()
        accounting_modes = _read_accounting(config) if gpus.gpus else ()
    finally:
        nvml.close()
    pod = None if own is None else own.pod
    processes = open_procfs(config, clock, one_shot=True, pod=pod).read(listed_pids(gpus))
    workloads = pids_by_workload(processes.processes.values())
    answers = with_conflicts(_read_names(config, clock, workloads), workloads, gpus.gpus)
    return [
        *check_gpus(gpus, config.sampling.proc_root, nvml.unidentified),
        check_device_files(gpus, config.sampling.proc_root),
        *check_modes(gpus, accounting_modes),
        *(check_node_scope() if own is None else check_pod_scope(own, gpus, processes)),
        *check_proc(gpus, processes),
        check_capabilities(in_pod=own is not None),
        check_series(gpus, process_metrics=config.export.process_metrics),
        *check_names(config.names.environment, answers, workloads),
        *concurrent.findings(),
    ]


class ConcurrentChecks:
    """Checks that may block, each on a thread of its own; all of them together have ``deadline_s``."""

    def __init__(self, checks: Iterable[Check], deadline_s: float = _CONCURRENT_DEADLINE_S) -> None:
        self._until_s = time.monotonic() + deadline_s
        self._checks = [(subject, _start(subject, check)) for subject, check in checks]

    def findings(self) -> list[Finding]:
        """The findings in the order of the checks. A check that misses the deadline is a finding too."""
        return [self._finding(subject, check) for subject, check in self._checks]

    def _finding(self, subject: str, check: Pending[Finding] | OtelGpuError) -> Finding:
        try:
            if isinstance(check, OtelGpuError):
                raise check
            return check.result(self._until_s)
        except OtelGpuError as error:
            return degraded(subject, str(error), _NO_ANSWER_FIX)


def _start(subject: str, check: Callable[[], Finding]) -> Pending[Finding] | OtelGpuError:
    worker = Worker(f"otel-gpu-doctor {subject}")
    try:
        pending = worker.start(check)
    except OtelGpuError as error:
        return error
    worker.close()  # its thread ends with the check
    return pending


def _read_accounting(config: Config) -> Sequence[GpuAccounting]:
    """Accounting mode of every GPU, while NVML is open."""
    try:
        return accounting(NvmlApi(), deadline_s=config.sampling.deadline_s)
    except OtelGpuError as error:
        log.debug("accounting: %s", error)
        return ()


def _read_names(config: Config, clock: Clock, workloads: Mapping[WorkloadRef, Collection[int]]) -> list[SourceAnswer]:
    """Every possible name source, with the answer of those that are used."""
    names = open_names(config, clock)
    candidates = names.candidates({ref.kind for ref in workloads})
    sources = {candidate.name: names.open(candidate) for candidate in candidates if candidate.used}
    try:
        answered = dict(zip(sources, start_all(sources.values(), workloads, clock, _NAMES_DEADLINE_S), strict=True))
        return [
            SourceAnswer(each, sources[each.name].read(workloads) if answered.get(each.name) else None)
            for each in candidates
        ]
    finally:
        close_all(sources.values())
