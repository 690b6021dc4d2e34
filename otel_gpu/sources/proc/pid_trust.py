"""Decide whether a pid from the driver and the same pid in ``/proc`` mean the same process.

On the host, and in a container that shares the host's pid namespace, they do. In a private pid namespace, what the
driver returns depends on its version:

| driver         | process lists                        | utilisation rows       |
|----------------|--------------------------------------|------------------------|
| before 535.113 | host pids                            | host pids              |
| 535.113        | the caller's namespace only, 0 bytes | host pids              |
| 565.57         | the caller's namespace only          | host pids              |
| 570.86         | the caller's namespace only          | the caller's namespace |

A host pid looked up among a container's pids, or the reverse, finds another process and bills the wrong workload.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from otel_gpu.model import DriverFacts, GpuReading, ListedProcess, ProcessFacts
from otel_gpu.sources.base import ProcessRead

_LISTS_IN_CALLERS_NAMESPACE: Final = (565, 57)
_ROWS_IN_CALLERS_NAMESPACE: Final = (570, 86)
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])")


class PidTrust(NamedTuple):
    """Which of the driver's pids may be matched with ``/proc``: those of process lists, those of utilisation rows."""

    lists: bool
    rows: bool


def parse_driver_version(text: str) -> tuple[int, int] | None:
    """Branch and release of a driver version such as ``570.86.15``; ``None`` if the text is not one."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def pid_trust(driver: DriverFacts | None, read: ProcessRead) -> PidTrust:
    """Which pids of this driver may be matched with this ``/proc``; none if the driver's version is not known."""
    if read.pids_complete:
        return PidTrust(lists=True, rows=True)
    version = parse_driver_version((driver.driver_version if driver is not None else None) or "")
    if version is None or not read.pids_are_own:
        return PidTrust(lists=False, rows=False)
    return PidTrust(lists=version >= _LISTS_IN_CALLERS_NAMESPACE, rows=version >= _ROWS_IN_CALLERS_NAMESPACE)


def driver_pids(gpus: Iterable[GpuReading]) -> frozenset[int]:
    """Every pid in the driver's process lists and utilisation rows."""
    pids: set[int] = set()
    for gpu in gpus:
        for entries in (gpu.processes, *(mig.processes for mig in gpu.mig or ())):
            pids.update([entry.pid for entry in entries or ()])
        if gpu.utilization is not None:
            pids.update([row.pid for row in gpu.utilization.rows])
    return frozenset(pids)


def measured_pids(gpus: Iterable[GpuReading]) -> frozenset[int]:
    """The pids in the driver's process lists with a figure in every entry: nothing has to be inferred of these."""
    measured: set[int] = set()
    unmeasured: set[int] = set()
    for gpu in gpus:
        for entries in (gpu.processes, *(mig.processes for mig in gpu.mig or ())):
            for entry in entries or ():
                (unmeasured if entry.memory_bytes is None else measured).add(entry.pid)
    return frozenset(measured - unmeasured)


def without_utilization(gpus: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """Readings without utilisation rows. Beside rows with pids of another namespace, every process here looks idle."""
    return tuple(replace(gpu, utilization=None) for gpu in gpus)


def separate_pids(
    gpus: tuple[GpuReading, ...], processes: Mapping[int, ProcessFacts]
) -> tuple[tuple[GpuReading, ...], dict[int, ProcessFacts]]:
    """Readings and processes that have no pid in common.

    Only processes that have a GPU device open are kept: that does not depend on the driver's pids. List entries with
    the pid of such a process are dropped. From 535.113 on they have 0 bytes; before, the same pid is a coincidence and
    its bytes are not those of the process.
    """
    holders = {
        pid: facts for pid, facts in processes.items() if facts.gpu_minors_open or facts.mig_access or facts.uvm_open
    }

    def without_holders(entries: tuple[ListedProcess, ...] | None) -> tuple[ListedProcess, ...] | None:
        return None if entries is None else tuple(entry for entry in entries if entry.pid not in holders)

    readings = tuple(
        replace(
            gpu,
            processes=without_holders(gpu.processes),
            mig=None
            if gpu.mig is None
            else tuple(replace(mig, processes=without_holders(mig.processes)) for mig in gpu.mig),
        )
        for gpu in gpus
    )
    return readings, holders
