"""What happened on one GPU since its energy was last told: usually one cycle, several where a reading was missing."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self, TypeVar

from otel_gpu.attribution.energy import Party
from otel_gpu.attribution.places import ProcessAt
from otel_gpu.attribution.plain import number, process_at_from, resident_from, resident_state, whole
from otel_gpu.attribution.presence import Resident
from otel_gpu.model.made import maker

T = TypeVar("T")

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


class _Cycle(NamedTuple):
    """A cycle in which everybody was there all the time, and who did what work in it."""

    present: Mapping[ProcessAt, Resident]
    window_us: int
    work_us: Mapping[ProcessAt, int]


class QuietParties:
    """Those who were there all the time and did not work, as parties: made again when they are others."""

    def __init__(self) -> None:
        self._present: Mapping[ProcessAt, Resident] | None = None
        self._told = False
        self._parties: tuple[Party, ...] = ()

    def of(self, present: Mapping[ProcessAt, Resident], *, told: bool) -> tuple[Party, ...]:
        """The parties that these are, in order; ``told`` says whether it is told that they did not work."""
        if present is not self._present or told is not self._told:
            self._present, self._told = present, told
            self._parties = tuple(
                _party(resident, 1.0, resident.memory_bytes, 0 if told else None) for _, resident in _ordered(present)
            )
        return self._parties


def _ordered(by_process: Mapping[ProcessAt, T]) -> list[tuple[ProcessAt, T]]:
    return sorted(by_process.items(), key=itemgetter(0))


_made: Final = maker(Party)


def _party(resident: Resident, presence: float, memory_bytes: int | None, sm_us: int | None) -> Party:
    hidden = not resident.listed
    return _made(resident.at, resident.ref, presence, memory_bytes, sm_us, hidden, resident.sm_count)


class Span:
    """Adds up cycles until their energy can be divided."""

    def __init__(
        self, at_start: Set[ProcessAt] = frozenset(), *, complete: bool = False, strangers: bool = False
    ) -> None:
        self._stays: dict[ProcessAt, _Stay] = {}
        self._only: _Cycle | None = None
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
        present: Mapping[ProcessAt, Resident],
        parts: Mapping[ProcessAt, float],
        work_us: Mapping[ProcessAt, int] | None,
        *,
        covered_us: int = 0,
        samples: int = 0,
        foreign_us: int = 0,
        foreign: bool = False,
        strangers: bool = False,
        complete: bool = True,
    ) -> None:
        """Add a cycle: who was there, for which ``parts`` of it (all where none is told), and what work each did.

        ``work_us`` is ``None`` where nobody tells. ``complete`` is false where pids of others may be invisible.
        ``present`` must not change after that.
        """
        is_first = self._duration_us == 0 and not self._stays and self._only is None
        self._duration_us += window_us
        self._samples += samples
        self.foreign_us += foreign_us
        self.foreign = self.foreign or foreign
        self.strangers = self.strangers or strangers
        self._told_us += covered_us
        self._told = self._told or work_us is not None
        if is_first and window_us > 0 and not parts:
            self._only = _Cycle(present, window_us, work_us or {})
        else:
            self._add_stays(window_us, present, parts, work_us or {})
        if self._alone:
            self._alone = complete and len(present) == 1 and not parts and present.keys() == self._at_start

    def _add_stays(
        self,
        window_us: int,
        present: Mapping[ProcessAt, Resident],
        parts: Mapping[ProcessAt, float],
        work_us: Mapping[ProcessAt, int],
    ) -> None:
        stays = self._stays_so_far()
        if len(stays) > _MOST_STAYS:
            stays = self._stays = {at: stay for at, stay in stays.items() if at in present}
        for at, resident in present.items():
            stay = stays.get(at)
            if stay is None:
                stay = stays[at] = _Stay(resident)
            stay.resident = resident
            stay.present_us += window_us * parts.get(at, 1.0)
            if resident.memory_bytes is not None:
                stay.memory_bytes = resident.memory_bytes
            stay.sm_us += work_us.get(at, 0)

    def _stays_so_far(self) -> dict[ProcessAt, _Stay]:
        """Everybody's stay; those of a single cycle are made when they are first needed."""
        if self._only is not None:
            present, window_us, work_us = self._only
            for at, resident in present.items():
                self._stays[at] = _Stay(resident, window_us * 1.0, work_us.get(at, 0), resident.memory_bytes)
            self._only = None
        return self._stays

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

    def parties(self, inferred_bytes: Mapping[ProcessAt, int], kept: QuietParties) -> tuple[Party, ...]:
        """Everybody who was there at any time; memory that is only inferred counts for those without a figure.

        If nobody worked they are the ``kept`` ones if they were so in the span before.
        """
        only = self._only
        if only is not None and only.window_us == self._duration_us and not inferred_bytes:
            if not only.work_us:
                return kept.of(only.present, told=self._told)
            work_us = only.work_us
            return tuple(
                [
                    _party(resident, 1.0, resident.memory_bytes, work_us.get(at, 0))
                    for at, resident in _ordered(only.present)
                ]
            )
        duration_us = max(1, self._duration_us)
        return tuple(
            _party(
                stay.resident,
                min(1.0, stay.present_us / duration_us),
                stay.memory_bytes if stay.memory_bytes is not None else inferred_bytes.get(at),
                stay.sm_us if self._told else None,
            )
            for at, stay in _ordered(self._stays_so_far())
        )

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What it holds so far, as plain data."""
        return {
            "stays": [
                [resident_state(stay.resident), stay.present_us, stay.sm_us, stay.memory_bytes]
                for _, stay in sorted(self._stays_so_far().items())
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
