"""Whether a pid that the driver names and the same pid in ``/proc`` are one process.

On the host, and in a container that shares the host's pid namespace, they are. What a driver tells an agent in a pid
namespace of its own depends on its version:

| driver         | lists                            | utilisation rows |
|----------------|----------------------------------|------------------|
| before 535.113 | host pids                        | host pids        |
| 535.113        | only the caller's own, 0 bytes   | host pids        |
| 565.57         | only the caller's own            | host pids        |
| 570.86         | only the caller's own            | the caller's own |

A host pid looked up among a container's pids, or the other way round, finds somebody else, and bills him.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Final, NamedTuple

from otel_gpu.model import DriverFacts, GpuReading, ListedProcess, ProcessFacts
from otel_gpu.sources.base import ProcessRead

_LISTS_ARE_OWN: Final = (565, 57)
_ROWS_ARE_OWN: Final = (570, 86)
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])")


class Trust(NamedTuple):
    """Which of the driver's pids are ``/proc``'s: those of its process lists, those of its utilisation rows."""

    lists: bool
    rows: bool


def parse_driver_version(text: str) -> tuple[int, int] | None:
    """Branch and release of a driver version such as ``570.86.15``; ``None`` if it is none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def trust(driver: DriverFacts | None, read: ProcessRead) -> Trust:
    """What may be matched between this driver and this reading of ``/proc``; nothing where that is not known."""
    if read.pids_complete:
        return Trust(lists=True, rows=True)
    version = parse_driver_version((driver.driver_version if driver is not None else None) or "")
    if version is None or not read.pids_are_own:
        return Trust(lists=False, rows=False)
    return Trust(lists=version >= _LISTS_ARE_OWN, rows=version >= _ROWS_ARE_OWN)


class NamedPids:
    """Every pid the driver speaks of. Lists are mostly those of the cycle before, and are not gone through again."""

    def __init__(self) -> None:
        self._lists: list[object] = []
        self._listed: frozenset[int] = frozenset()
        self._gpus: Sequence[GpuReading] | None = None
        self._named: frozenset[int] = frozenset()

    def of(self, gpus: Sequence[GpuReading]) -> frozenset[int]:
        """Those of this cycle: by lists and by rows. ``gpus`` must not change after that: a cycle asks twice."""
        if gpus is self._gpus:
            return self._named
        lists: list[object] = [each for gpu in gpus for each in (gpu.processes, gpu.mig)]
        if len(lists) != len(self._lists) or not all(map(is_, lists, self._lists)):
            self._lists, self._listed = lists, _listed_pids(gpus)
        working = [row.pid for gpu in gpus if gpu.utilization is not None for row in gpu.utilization.rows]
        self._named = self._listed.union(working) if working else self._listed
        self._gpus = gpus
        return self._named


def _listed_pids(gpus: Iterable[GpuReading]) -> frozenset[int]:
    pids: set[int] = set()
    for gpu in gpus:
        pids.update([process.pid for process in gpu.processes or ()])
        pids.update([process.pid for mig in gpu.mig or () for process in mig.processes or ()])
    return frozenset(pids)


def without_rows(gpus: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """GPUs whose utilisation is not told: beside rows of pids that are nobody's here, everybody here looks idle."""
    return tuple(replace(gpu, utilization=None) for gpu in gpus)


def kept_apart(
    gpus: tuple[GpuReading, ...], processes: Mapping[int, ProcessFacts]
) -> tuple[tuple[GpuReading, ...], dict[int, ProcessFacts]]:
    """Readings and processes of which none has a pid in common.

    Of the processes those stay that have a GPU open, which needs no driver's word. An entry with the pid of one of
    them goes: from 535.113 on it says 0 bytes, and before, where it is a coincidence, its bytes are nobody's.
    """
    holders = {
        pid: facts for pid, facts in processes.items() if facts.gpu_minors_open or facts.mig_access or facts.uvm_open
    }

    def others(entries: tuple[ListedProcess, ...] | None) -> tuple[ListedProcess, ...] | None:
        return None if entries is None else tuple(entry for entry in entries if entry.pid not in holders)

    readings = tuple(
        replace(
            gpu,
            processes=others(gpu.processes),
            mig=None if gpu.mig is None else tuple(replace(mig, processes=others(mig.processes)) for mig in gpu.mig),
        )
        for gpu in gpus
    )
    return readings, holders
