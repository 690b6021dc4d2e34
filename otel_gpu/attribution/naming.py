"""The names a workload is exported under. They never change: new names start new accounts.

A container runtime may learn a workload's names late, or rename it. A series whose labels changed would break in two,
and sums over both would count twice. So a new workload is held back for up to two cycles while its names are looked
up. Names that come later, or change, end the accounts under the old names; their successors start at zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_gpu.attribution.saved_values import boolean, optional, parts, restoring, text, whole
from otel_gpu.model import WorkloadKey, WorkloadNames, WorkloadRef

WAIT_CYCLES: Final = 2
"""Cycles for which a workload is held back while its names are looked up."""

_NO_NAMES: Final = WorkloadNames()


@dataclass(slots=True)
class _Naming:
    """The present names of a workload. ``number`` counts its namings, ``cycles`` the cycles it was seen in."""

    number: int = 0
    cycles: int = 0
    names: WorkloadNames | None = None
    is_waiting: bool = False

    @property
    def is_exported(self) -> bool:
        """Whether an earlier cycle exported it under these names: it is not held back again."""
        return self.cycles > 1 and not self.is_waiting


class Namings:
    """The names of every workload in the ledger, and those it had before."""

    def __init__(self) -> None:
        self._present: dict[WorkloadKey, _Naming] = {}
        self._former: dict[tuple[WorkloadKey, int], WorkloadNames | None] = {}

    def observe(
        self,
        workloads: Iterable[WorkloadRef],
        names: Mapping[WorkloadKey, WorkloadNames],
        *,
        pending: Collection[WorkloadKey] = (),
    ) -> None:
        """Take over the names of a cycle for these workloads. The names of those ``pending`` are being looked up.

        A workload that left while it was held back is released like the others: its last figures must be exported.
        """
        waiting = {key for key, naming in self._present.items() if naming.is_waiting}
        for key in waiting.union(ref.key for ref in workloads):
            naming = self._present.setdefault(key, _Naming())
            naming.cycles = min(naming.cycles + 1, WAIT_CYCLES + 1)
            found = names.get(key)
            if found is not None and (merged := _merged(naming.names, found)) != (naming.names or _NO_NAMES):
                if naming.is_exported and _identifying(merged) != _identifying(naming.names or _NO_NAMES):
                    self._former[key, naming.number] = naming.names
                    naming.number += 1
                naming.names = merged
            naming.is_waiting = key in pending and naming.cycles <= WAIT_CYCLES and not naming.is_exported

    def number(self, ref: WorkloadRef) -> int:
        """The number of a workload's present naming: 0 for the first."""
        naming = self._present.get(ref.key)
        return 0 if naming is None else naming.number

    def names(self, ref: WorkloadRef, number: int) -> WorkloadNames | None:
        """The names of a workload under this number; ``None`` where they are unknown."""
        naming = self._present.get(ref.key)
        if naming is not None and naming.number == number:
            return naming.names
        return self._former.get((ref.key, number))

    def is_waiting(self, ref: WorkloadRef) -> bool:
        """Whether a workload is held back while its names are looked up."""
        naming = self._present.get(ref.key)
        return naming is not None and naming.is_waiting

    def keep(self, exported: Iterable[tuple[WorkloadRef, int]]) -> None:
        """Drop the names of all workloads but these."""
        kept = {(ref.key, number) for ref, number in exported}
        keys = {key for key, _ in kept}
        self._present = {key: naming for key, naming in self._present.items() if key in keys}
        self._former = {key: names for key, names in self._former.items() if key in kept}

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All names, as plain data."""
        return {
            "known": [
                [*key, naming.number, naming.cycles, _names_state(naming.names), naming.is_waiting]
                for key, naming in sorted(self._present.items(), key=lambda item: item[0])
            ],
            "former": [
                [*key, number, _names_state(names)]
                for (key, number), names in sorted(self._former.items(), key=lambda item: item[0])
            ],
        }

    @classmethod
    def from_state(cls, data: Any) -> Namings:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        with restoring("names"):
            for kind, id_, number, cycles, names, is_waiting in data["known"]:
                naming = _Naming(whole(number), whole(cycles), optional(_names_from, names), boolean(is_waiting))
                restored._present[text(kind), text(id_)] = naming
            for kind, id_, number, names in data["former"]:
                restored._former[(text(kind), text(id_)), whole(number)] = optional(_names_from, names)
        return restored


def _identifying(names: WorkloadNames) -> WorkloadNames:
    """The names that are labels of every series. What a workload says of itself is not."""
    return names._replace(title=None, declared=())


def _merged(known: WorkloadNames | None, found: WorkloadNames) -> WorkloadNames:
    """The names found now, completed by those known, whose source may be unavailable. Empty names remove all known."""
    if known is None or found in (known, _NO_NAMES):
        return found
    # Sources spell one image in several ways, and a container's image never changes: the first spelling stays.
    merged = found.over(known)
    return merged if known.image is None else merged._replace(image=known.image)


def _names_state(names: WorkloadNames | None) -> list[Any] | None:
    """Names, as a list; without declared text where there is none, as earlier versions did."""
    if names is None:
        return None
    return list(names) if names.declared else list(names[:-1])


def _names_from(data: Any) -> WorkloadNames:
    *names, extra, declared = parts(data, len(WorkloadNames._fields) - 1, added=1)
    texts = (tuple((text(key), text(value)) for key, value in each) for each in (extra, declared or ()))
    return WorkloadNames._make((*(optional(text, each) for each in names), *texts))
