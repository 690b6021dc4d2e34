"""Workloads and processes on their places, in columns: who they are stays, what they do is of one cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Generic, NamedTuple, TypeVar, overload

from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.tags import Tags
from otel_gpu.model import ProcessReport, Totals, WorkloadGpu

Use = TypeVar("Use", WorkloadGpu, ProcessReport)


@dataclass(frozen=True, slots=True)
class Row(Generic[Use]):
    """A workload's or process's use of one place, with the attributes of all its points.

    ``watched`` is false while the agent is paused: that somebody was there when it let go says nothing of now.
    """

    identity: WorkloadIdentity
    attributes: Tags
    use: Use
    tells_energy: bool
    tells_work: bool
    watched: bool = True


class Seats(NamedTuple):
    """Who the rows are of. While nobody comes or goes it is the same object in every cycle."""

    identities: tuple[WorkloadIdentity, ...]
    attributes: tuple[Tags, ...]


class Standing(NamedTuple):
    """What of rows does not follow from what they have used. ``starts`` is when each began to count, and the same
    object while that is the same.

    ``possible`` are the numbers of those who could use a GPU, and neither were given it nor have used it.
    """

    starts: tuple[int | None, ...]
    tells_energy: Sequence[bool]
    tells_work: Sequence[bool]
    watched: Sequence[bool]
    possible: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Row[Use]], Generic[Use]):
    """All rows of a level; what follows ``totals`` is as ``Standing`` has it."""

    seats: Seats
    uses: Sequence[Use]
    totals: Sequence[Totals | None]
    starts: tuple[int | None, ...]
    tells_energy: Sequence[bool]
    tells_work: Sequence[bool]
    watched: Sequence[bool]
    possible: Sequence[int] = ()

    @classmethod
    def of(cls, row: Row[Use]) -> Rows[Use]:
        """One row alone."""
        totals = row.use.totals
        return cls(
            Seats((row.identity,), (row.attributes,)),
            (row.use,),
            (totals,),
            (None if totals is None else totals.since_ns,),
            (row.tells_energy,),
            (row.tells_work,),
            (row.watched,),
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.uses)

    def __iter__(self) -> Iterator[Row[Use]]:
        """One after the other."""
        who, flags = self.seats, (self.tells_energy, self.tells_work, self.watched)
        return map(Row, who.identities, who.attributes, self.uses, *flags)

    @overload
    def __getitem__(self, number: int) -> Row[Use]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Row[Use]]: ...
    def __getitem__(self, number: int | slice) -> Row[Use] | Sequence[Row[Use]]:
        """One of them, or some."""
        return tuple(self)[number]

    def only(self, wanted: Callable[[Row[Use]], bool]) -> Rows[Use]:
        """Those of whom that is true."""
        chosen = list(map(wanted, self))
        return Rows(
            Seats(tuple(compress(self.seats.identities, chosen)), tuple(compress(self.seats.attributes, chosen))),
            tuple(compress(self.uses, chosen)),
            tuple(compress(self.totals, chosen)),
            tuple(compress(self.starts, chosen)),
            tuple(compress(self.tells_energy, chosen)),
            tuple(compress(self.tells_work, chosen)),
            tuple(compress(self.watched, chosen)),
            [new for new, old in enumerate(compress(range(len(self)), chosen)) if old in self.possible],
        )
