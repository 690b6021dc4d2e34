"""How much of a host can be seen through a ``/proc``, and what to say of the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from otel_gpu.sources.hostfacts import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    pid_namespace_is_initial,
    shows_own_pids,
    shows_the_host,
)
from otel_gpu.sources.procfs_files import read_file
from otel_gpu.sources.procfs_scan import Fault, FaultKind

_HIDEPID: Final = re.compile(rb"^[^ ]+ [^ ]+ proc [^ ]*\bhidepid=", re.MULTILINE)
_UNSEEN: Final = frozenset({FaultKind.HIDDEN, FaultKind.DENIED})


@dataclass(frozen=True, slots=True)
class Missed:
    """What a reading did not see: files of some, process 1, workloads of so many, when anybody started.

    ``in_own_cgroups`` says that those workloads are told relative to a cgroup namespace of the agent's own.
    """

    faults: Sequence[Fault]
    init: bool
    untold: int
    in_own_cgroups: bool
    start_times: bool


class Outlook:
    """Where the agent looks from. What it is asked once does not change while it runs."""

    def __init__(self, root: Path, own_proc: Path, *, in_pod: bool) -> None:
        """``own_proc`` is the agent's own ``/proc``. ``in_pod`` says that nobody outside a pod is to be seen."""
        self._root = root
        self._own_proc = own_proc
        self._in_pod = in_pod
        self._hidepid: bool | None = None
        self._missed: Missed | None = None
        self._reasons: list[str] = []

    @cached_property
    def are_pids_complete(self) -> bool:
        """Whether everybody has a pid here: nobody leaves the pid namespace that he was born in (pid_namespaces(7))."""
        return pid_namespace_is_initial(self._own_proc) is not False

    @property
    def are_pids_own(self) -> bool:
        """Whether pids are those that the agent, and so the driver, knows."""
        return self.are_pids_complete or shows_own_pids(self._root) is True

    def shows_everybody(self, missed: Missed) -> bool:
        """Whether nobody's open devices were out of sight."""
        hosts = self.are_pids_complete or shows_the_host(self._root)
        return hosts and not missed.init and not any(fault.kind in _UNSEEN for fault in missed.faults)

    def reasons(self, missed: Missed, root_fd: int) -> list[str]:
        """Why what was read is not everything, each with what mends it."""
        if missed != self._missed:
            self._missed, self._reasons = missed, self._found_reasons(missed, root_fd)
        return self._reasons

    def _found_reasons(self, missed: Missed, root_fd: int) -> list[str]:
        count = Counter(fault.kind for fault in missed.faults)
        reasons = []
        contained = self._in_pod and not self.are_pids_complete
        if not contained and not self.are_pids_complete:
            reasons.append(
                "NVML hides others' processes from the agent's own pid namespace: "
                f"run the agent in the host's ({PID_NAMESPACE_FIX})"
            )
        if count[FaultKind.HIDDEN] or (missed.init and self._is_mounted_with_hidepid(root_fd)):
            reasons.append(
                f"processes of other users are hidden: {self._root} is mounted with hidepid: "
                "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or remount it with hidepid=0"
            )
        if not contained and (denied := count[FaultKind.DENIED]):
            reasons.append(
                f"open files of {_processes(denied)} are not readable: run as root with CAP_SYS_PTRACE and "
                "CAP_DAC_READ_SEARCH"
            )
        if missed.untold:
            reasons.append(_untold(missed))
        if missed.start_times:
            reasons.append(f"start times are not known: {self._root}/stat has no readable btime")
        if broken := count[FaultKind.BROKEN]:
            detail = next(fault.detail for fault in missed.faults if fault.kind is FaultKind.BROKEN)
            reasons.append(f"{_processes(broken)} under {self._root} could not be read: {detail}")
        return reasons

    def _is_mounted_with_hidepid(self, root_fd: int) -> bool:
        # Only hidepid hides process 1. Looked up once: while it does, the answer is not going to change.
        if self._hidepid is None:
            try:
                self._hidepid = _HIDEPID.search(read_file("mounts", root_fd)) is not None
            except OSError:
                self._hidepid = False
        return self._hidepid


def _untold(missed: Missed) -> str:
    whose = "its" if missed.untold == 1 else "their"
    untold = f"the workload of {_processes(missed.untold)} cannot be told from {whose} cgroup"
    if not missed.in_own_cgroups:
        return untold
    return f"{untold} in the agent's own cgroup namespace: run the agent in the host's ({CGROUP_NAMESPACE_FIX})"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
