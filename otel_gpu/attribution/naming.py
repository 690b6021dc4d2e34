"""Under which names a workload is told of. They do not change: with new names, a new entry begins.

Whoever runs a workload may tell its names late, or rename it. A series that changed its labels would break in two, and
sums over both would count twice. So a name is waited for, for two cycles; and where it comes later or changes, what was
told under the old names ends, and its successor starts at zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Final, NamedTuple

from otel_gpu.model import WorkloadKey, WorkloadNames, WorkloadRef

WAIT_CYCLES: Final = 2
"""Cycles a workload is held back for while its names are looked up."""

_NO_NAMES: Final = WorkloadNames()
_FIELDS: Final = tuple(field.name for field in fields(WorkloadNames))


@dataclass(slots=True)
class _Known:
    number: int = 0
    cycles: int = 0
    names: WorkloadNames | None = None
    waiting: bool = False
    told: WorkloadNames | None = None


class _Observed(NamedTuple):
    """What a cycle told, and of whom."""

    identities: frozenset[WorkloadKey]
    told: Mapping[WorkloadKey, WorkloadNames]


class Namings:
    """The names of every workload in the books, and how often they have changed."""

    def __init__(self) -> None:
        self._known: dict[WorkloadKey, _Known] = {}
        self._former: dict[tuple[WorkloadKey, int], WorkloadNames | None] = {}
        self._waiting: frozenset[WorkloadKey] = frozenset()
        self._settled: _Observed | None = None
        self.changes = 0
        """How often a workload got other names or was forgotten: while it is the same, so is everybody's number."""

    def observe(
        self,
        workloads: Iterable[WorkloadRef],
        told: Mapping[WorkloadKey, WorkloadNames],
        *,
        pending: Collection[WorkloadKey] = (),
    ) -> None:
        """Take up what a cycle tells of these; of those ``pending`` more may come. ``told`` must not change after that.

        Who left while it was held back is released like everybody: its last figures have to be told.
        """
        observed = _Observed(frozenset([ref.key for ref in workloads]), told)
        if observed == self._settled:  # mostly the same mapping, which is then not looked into
            return
        waiting: set[WorkloadKey] = set()
        settled = True
        for identity in self._waiting.union(observed.identities):
            known = self._known.setdefault(identity, _Known())
            known.cycles = min(known.cycles + 1, WAIT_CYCLES + 1)
            is_news = self._take_up(identity, known, told.get(identity))
            known.waiting = known.number == 0 and identity in pending and known.cycles <= WAIT_CYCLES
            if known.waiting:
                waiting.add(identity)
            settled = settled and not is_news and known.cycles > WAIT_CYCLES
        self._waiting = frozenset(waiting)
        self._settled = observed if settled else None

    def _take_up(self, identity: WorkloadKey, known: _Known, told: WorkloadNames | None) -> bool:
        """Whether it has another name now: who was told under the last one may be nobody, which ``keep`` finds out."""
        if told is None or told is known.told:  # the same object for as long as nothing has changed
            return False
        known.told = told
        names = _merged(known.names, told)
        if names == (known.names or _NO_NAMES):
            return False
        if known.cycles > 1 and not known.waiting:
            self._former[identity, known.number] = known.names
            known.number += 1
            self.changes += 1
        known.names = names
        return True

    def number(self, ref: WorkloadRef) -> int:
        """Which of its names a workload has now: 0 for the first."""
        known = self._known.get(ref.key)
        return 0 if known is None else known.number

    def names(self, ref: WorkloadRef, number: int) -> WorkloadNames | None:
        """The names a workload had under this number; ``None`` where nobody told."""
        known = self._known.get(ref.key)
        if known is not None and known.number == number:
            return known.names
        return self._former.get((ref.key, number))

    def waiting(self, ref: WorkloadRef) -> bool:
        """Whether its names are still being looked up."""
        known = self._known.get(ref.key)
        return known is not None and known.waiting

    @property
    def anybody_waits(self) -> bool:
        """Whether any workload's names are still being looked up."""
        return bool(self._waiting)

    @property
    def settled(self) -> object:
        """Stands for all names as they are, while they stay so; ``None`` where the next cycle may change them."""
        return self._settled

    @property
    def are_settled(self) -> bool:
        """Whether a cycle that tells the same of the same workloads would change nothing."""
        return self._settled is not None

    def keep(self, shown: Iterable[tuple[WorkloadRef, int]]) -> None:
        """Forget everybody but these."""
        kept = {(ref.key, number) for ref, number in shown}
        identities = {identity for identity, _ in kept}
        if not self._known.keys() <= identities:
            self._known = {identity: known for identity, known in self._known.items() if identity in identities}
            self.changes += 1
            self._waiting = self._waiting & self._known.keys()
            self._settled = None
        self._former = {key: names for key, names in self._former.items() if key in kept}

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "known": [
                [*identity, known.number, known.cycles, _names_state(known.names), known.waiting]
                for identity, known in sorted(self._known.items())
            ],
            "former": [
                [*identity, number, _names_state(names)] for (identity, number), names in sorted(self._former.items())
            ],
        }

    @classmethod
    def from_state(cls, data: Any) -> Namings:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            for kind, id_, number, cycles, names, waiting in data["known"]:
                _check(kind, id_, number, cycles)
                restored._known[kind, id_] = _Known(number, cycles, _names_from(names), bool(waiting))
            restored._waiting = frozenset(identity for identity, known in restored._known.items() if known.waiting)
            for kind, id_, number, names in data["former"]:
                _check(kind, id_, number, 0)
                restored._former[(kind, id_), number] = _names_from(names)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("not a state of names") from error
        return restored


def _merged(known: WorkloadNames | None, told: WorkloadNames) -> WorkloadNames:
    """What is told now; what is no longer told stays: whoever told it may be away. No names at all take all away."""
    if known is None or told == _NO_NAMES:
        return told
    # Sources spell one image in several ways; a container's never changes, so the first one told stays.
    merged = told.over(known)
    return merged if known.image is None else replace(merged, image=known.image)


def _check(kind: Any, id_: Any, number: Any, cycles: Any) -> None:
    if not (isinstance(kind, str) and isinstance(id_, str) and type(number) is int and type(cycles) is int):
        raise ValueError("names: a workload that is none")
    if number < 0 or cycles < 0:
        raise ValueError("names: a number below 0")


def _names_state(names: WorkloadNames | None) -> list[Any] | None:
    return None if names is None else list(astuple(names))


def _names_from(data: Any) -> WorkloadNames | None:
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != len(_FIELDS):
        raise ValueError("names: names that are none")
    *names, extra = data
    extra = tuple((key, value) for key, value in extra)
    if not all(each is None or isinstance(each, str) for each in names):
        raise ValueError("names: a name that is no text")
    if not all(isinstance(text, str) for attribute in extra for text in attribute):
        raise ValueError("names: an attribute that is no text")
    return WorkloadNames(**dict(zip(_FIELDS, (*names, extra), strict=True)))
