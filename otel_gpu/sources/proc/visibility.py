"""How much of a host's processes a procfs shows, and the reasons to report for the rest."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from otel_gpu.model import UnreadableReason
from otel_gpu.sources.proc.files import read_file
from otel_gpu.sources.proc.host import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    pid_namespace_is_initial,
    shows_own_pids,
    shows_the_host,
)
from otel_gpu.sources.proc.table import Fault

_HIDEPID: Final = re.compile(rb"^[^ ]+ [^ ]+ proc [^ ]*\bhidepid=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReadGaps:
    """What one cycle could not read.

    ``unidentified`` is the number of processes without a known workload. ``cgroups_are_relative``: their cgroup
    paths are relative to a cgroup namespace of the agent. ``devices_error`` is why open device nodes could not be
    verified. ``are_too_many_stuck``: too many reads have not returned to read all processes.
    """

    faults: Sequence[Fault]
    init_is_hidden: bool
    unidentified: int
    cgroups_are_relative: bool
    start_times_are_unknown: bool
    devices_error: str | None = None
    are_too_many_stuck: bool = False


class ProcVisibility:
    """The agent's view of the host's processes, which does not change while it runs.

    ``own_proc`` is the agent's own ``/proc``. With ``in_pod`` the agent reports its own pod only.
    """

    def __init__(self, root: Path, own_proc: Path, *, in_pod: bool) -> None:
        self._root = root
        self._own_proc = own_proc
        self._in_pod = in_pod
        self._hidepid: bool | None = None

    @cached_property
    def are_pids_complete(self) -> bool:
        """Whether every process has a pid here. A process never leaves its pid namespace (pid_namespaces(7))."""
        return pid_namespace_is_initial(self._own_proc) is not False

    @property
    def are_pids_own(self) -> bool:
        """Whether pids are of the agent's pid namespace, as the pids that the driver returns."""
        return self.are_pids_complete or shows_own_pids(self._root) is True

    def shows_all(self, gaps: ReadGaps) -> bool:
        """Whether the open devices of every process could be read."""
        if gaps.init_is_hidden or gaps.devices_error is not None or gaps.are_too_many_stuck:
            return False
        has_all_pids = self.are_pids_complete or shows_the_host(self._root)
        return has_all_pids and not any(fault.hides_devices for fault in gaps.faults)

    def reasons(self, gaps: ReadGaps) -> list[str]:
        """Why the processes are incomplete, each reason with its fix.

        What one process may cause by itself, such as a read that does not return, is not among them: it is counted in
        ``ProcessRead.unreadable``, and the others are not affected.
        """
        count = Counter([fault.reason for fault in gaps.faults])
        reasons = []
        contained = self._in_pod and not self.are_pids_complete
        if not contained and not self.are_pids_complete:
            reasons.append(
                "NVML does not show processes outside the agent's pid namespace: "
                f"run the agent in the host's pid namespace ({PID_NAMESPACE_FIX})"
            )
        if count[UnreadableReason.HIDDEN] or (gaps.init_is_hidden and self._is_mounted_with_hidepid()):
            reasons.append(
                f"processes of other users are hidden: {self._root} is mounted with hidepid: "
                "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or remount it with hidepid=0"
            )
        if not contained and (denied := count[UnreadableReason.DENIED]):
            reasons.append(
                f"open files of {_processes(denied)} are not readable: run as root with CAP_SYS_PTRACE and "
                "CAP_DAC_READ_SEARCH"
            )
        if gaps.cgroups_are_relative:
            reasons.append(
                f"the workload of {_processes(gaps.unidentified)} is unknown: the cgroup does not identify it in the "
                f"agent's cgroup namespace: run the agent in the host's cgroup namespace ({CGROUP_NAMESPACE_FIX})"
            )
        if gaps.start_times_are_unknown:
            reasons.append(f"start times are unknown: {self._root}/stat has no readable btime")
        if gaps.devices_error is not None:
            reasons.append(f"open GPUs are unknown: the driver's device numbers cannot be read: {gaps.devices_error}")
        if gaps.are_too_many_stuck:
            reasons.append("reads of many processes have not returned: new processes without a GPU are not read")
        return reasons

    def _is_mounted_with_hidepid(self) -> bool:
        # Only hidepid hides process 1. Read once: while process 1 is hidden, the mount is the same.
        if self._hidepid is None:
            try:
                self._hidepid = _HIDEPID.search(read_file(os.fspath(self._root / "mounts"))) is not None
            except OSError:
                self._hidepid = False
        return self._hidepid


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
