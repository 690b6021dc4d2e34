"""What happened on one GPU since its energy was last told: usually one cycle, several where a reading was missing."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, Self

from otel_gpu.attribution.energy import Party
from otel_gpu.attribution.places import ProcessAt
from otel_gpu.attribution.plain import number, process_at_from, resident_from, resident_state, whole
from otel_gpu.attribution.presence import Resident

PRESENCE_UNKNOWN = 0.5
"""Part of a cycle that somebody was there who came or went in it, at a time nobody knows."""

_MOST_STAYS: Final = 4096
"""So many came and went without a word about energy: those who left are no longer remembered."""


@dataclass(slots=True)
class _Stay:
    resident: Resident
    present_us: float = 0.0
    sm_us: int = 0
    memory_bytes: int | None = None


class Span:
    """Adds up cycles until their energy can be divided."""

    def __init__(
        self, at_start: Set[ProcessAt] = frozenset(), *, complete: bool = False, strangers: bool = False
    ) -> None:
        self._stays: dict[ProcessAt, _Stay] = {}
        self._duration_us = 0
        self._told_us = 0
        self._told = False
        self._samples = 0
        self.foreign_us = 0
        self.foreign = False
        self.strangers = strangers
        self._at_start = at_start
        self._alone = complete
        self.away = False

    @property
    def duration_us(self) -> int:
        """How long it lasts by now."""
        return self._duration_us

    @property
    def told_us(self) -> int:
        """How much of it figures of work speak of."""
        return self._told_us

    @property
    def samples(self) -> int:
        """The driver's samples behind its figures of work."""
        return self._samples

    def add(
        self,
        window_us: int,
        present: Mapping[ProcessAt, tuple[Resident, float]],
        work_us: Mapping[ProcessAt, int] | None,
        *,
        covered_us: int = 0,
        samples: int = 0,
        foreign_us: int = 0,
        foreign: bool = False,
        strangers: bool = False,
        complete: bool = True,
    ) -> None:
        """Add a cycle: who was there for which part of it, and what work each did (``None``: nobody tells).

        ``complete`` is false where pids of others may be invisible.
        """
        self._duration_us += window_us
        self._samples += samples
        self.foreign_us += foreign_us
        self.foreign = self.foreign or foreign
        self.strangers = self.strangers or strangers
        self._told_us += covered_us
        self._told = self._told or work_us is not None
        if len(self._stays) > _MOST_STAYS:
            self._stays = {at: stay for at, stay in self._stays.items() if at in present}
        for at, (resident, part) in present.items():
            stay = self._stays.get(at)
            if stay is None:
                stay = self._stays[at] = _Stay(resident)
            stay.resident = resident
            stay.present_us += window_us * part
            if resident.memory_bytes is not None:
                stay.memory_bytes = resident.memory_bytes
            if work_us:
                stay.sm_us += work_us.get(at, 0)
        if self._alone:
            whole = {at for at, (_, part) in present.items() if part >= 1}
            self._alone = complete and len(present) == 1 and whole == present.keys() == self._at_start

    def gap(self, window_us: int) -> None:
        """Add a cycle in which the GPU did not answer: nobody knows who was there."""
        self._duration_us += window_us
        self._alone = False

    def be_away(self, window_us: int) -> None:
        """Add the time between two runs of the agent: who is there at both ends shows when the next cycle is added."""
        self._duration_us += window_us
        self.away = True

    @property
    def alone(self) -> bool:
        """One process all the time, at both ends and in between, and none that could be invisible.

        Where the agent was away, so far as both ends of that can tell.
        """
        return self._alone and not self.foreign and not self.strangers

    def parties(self, inferred_bytes: Mapping[ProcessAt, int]) -> tuple[Party, ...]:
        """Everybody who was there at any time; memory that is only inferred counts for those without a figure."""
        duration_us = max(1, self._duration_us)
        return tuple(
            Party(
                at=at,
                workload=stay.resident.ref,
                presence=min(1.0, stay.present_us / duration_us),
                memory_bytes=stay.memory_bytes if stay.memory_bytes is not None else inferred_bytes.get(at),
                sm_us=stay.sm_us if self._told else None,
                hidden=not stay.resident.listed,
                sm_count=stay.resident.sm_count,
            )
            for at, stay in sorted(self._stays.items())
        )

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What it holds so far, as plain data."""
        return {
            "stays": [
                [resident_state(stay.resident), stay.present_us, stay.sm_us, stay.memory_bytes]
                for _, stay in sorted(self._stays.items())
            ],
            "at_start": sorted(self._at_start),
            **{name: getattr(self, name) for name in _COUNTS},
            **{name: getattr(self, name) for name in _FLAGS},
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            for resident_data, present_us, sm_us, memory_bytes in data["stays"]:
                resident = resident_from(resident_data)
                held = None if memory_bytes is None else whole(memory_bytes)
                restored._stays[resident.at] = _Stay(resident, number(present_us), whole(sm_us), held)
            restored._at_start = frozenset(process_at_from(at) for at in data["at_start"])
            for name in _COUNTS:
                setattr(restored, name, whole(data[name]))
            for name in _FLAGS:
                setattr(restored, name, data[name] is True)
        except (KeyError, TypeError) as error:
            raise ValueError("not a state of an interval") from error
        return restored


_COUNTS: Final = ("_duration_us", "_told_us", "_samples", "foreign_us")
_FLAGS: Final = ("_told", "foreign", "strangers", "_alone", "away")
