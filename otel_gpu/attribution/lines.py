"""Lines of the books, of processes or of workloads: bounded, and exact whatever is forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from otel_gpu.attribution.idle import IdleState
from otel_gpu.attribution.places import Line, Place, ProcessAt, ProcessLine, WorkloadAt, WorkloadLine
from otel_gpu.attribution.sums import Sums
from otel_gpu.model import WorkloadRef

FINAL_NS: Final = 30_000_000_000
"""How long what has ended stays in any case, so that every reader has had its final values: two exports and more."""

_REMEMBERED: Final = 2000
"""How many of those that were forgotten are told from newcomers, should they return."""

LineT = TypeVar("LineT", ProcessLine, WorkloadLine)


@dataclass(frozen=True, slots=True)
class Moment:
    """When something is booked: ``now_ns`` monotonic, the others Unix time, the start and the end of the window."""

    now_ns: int
    window_start_ns: int
    wall_ns: int


@dataclass(slots=True, eq=False)
class Entry:
    """One line: whose it is and what it comes to. ``since_ns`` is Unix time, the others monotonic.

    ``drew_ns`` is the cycle in which energy was last booked: who has any of it in an answer is in that answer.
    ``idle`` is how far it is decided what it does; ``None`` while nobody of it is there. An entry that is ``forgotten``
    is no longer in the books: whoever holds on to it has to look its line up again. It is the same as itself only.
    """

    line: Line
    ref: WorkloadRef
    since_ns: int
    name: str | None = None
    start_time_s: float | None = None
    ended_ns: int | None = None
    drew_ns: int | None = None
    sums: Sums = field(default_factory=Sums)
    idle: IdleState | None = None
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """Who was forgotten, by when; of those forgotten up to ``before_ns`` only the time is known."""

    at: Mapping[ProcessAt | WorkloadAt, int]
    before_ns: int


class Lines(Generic[LineT]):
    """All lines of one kind. Ended ones stay for the retention; at the cap, the oldest of them make room sooner.

    What a forgotten line came to is kept in ``retired``, by GPU: lines and retired together are all that was booked.
    """

    def __init__(self, cap: int, retention_ns: int) -> None:
        self.entries: dict[LineT, Entry] = {}
        self.overflow: set[LineT] = set()
        self.retired: dict[str, Sums] = {}
        self.changes = 0
        """How often a line was opened or forgotten: while it is the same, they are the same lines."""
        self._cap = cap
        self._retention_ns = retention_ns
        self._gone: dict[ProcessAt | WorkloadAt, int] = {}
        self._gone_before_ns = 0
        self._making_room: list[LineT] | None = None
        self._grouped_at = 0
        self._by_gpu: dict[str, list[Entry]] = {}
        """The lines of each GPU, as of so many changes."""

    def has_room(self, moment: Moment, *, successor: bool = False) -> bool:
        """Whether one more line may be opened; makes room if it can.

        The ``successor`` of one that was renamed may go beyond the cap: its predecessor has only just ended.
        """
        if len(self.entries) - len(self.overflow) < self._cap * (2 if successor else 1):
            return True
        if self._making_room is None:
            self._making_room = sorted(
                (line for line in self.entries.keys() - self.overflow if self._had_its_time(line, moment)),
                key=lambda line: (self.entries[line].ended_ns or 0, line),
                reverse=True,
            )
        while self._making_room:
            line = self._making_room.pop()
            entry = self.entries.get(line)
            if entry is not None and entry.ended_ns is not None:  # not back since
                self.forget(line, moment)
                return True
        return False

    def _had_its_time(self, line: LineT, moment: Moment) -> bool:
        entry = self.entries[line]
        ended_ns = entry.ended_ns
        return ended_ns is not None and moment.now_ns - ended_ns >= FINAL_NS and entry.drew_ns != moment.now_ns

    def open(self, line: LineT, ref: WorkloadRef, since_ns: int, moment: Moment) -> Entry:
        """A new line, counting from ``since_ns`` (Unix time)."""
        entry = self.entries[line] = Entry(line, ref, self._since_ns(line, since_ns, moment))
        self.changes += 1
        return entry

    def open_overflow(self, line: LineT, ref: WorkloadRef, epoch_ns: int, moment: Moment) -> Entry:
        """The line of those for whom there is no room, made when first needed."""
        entry = self.entries.get(line)
        if entry is None:
            entry = self.open(line, ref, epoch_ns, moment)
            self.overflow.add(line)
        entry.ended_ns = None
        return entry

    def _since_ns(self, line: LineT, since_ns: int, moment: Moment) -> int:
        """Not from the future; and who was told of before counts from now on: what it had used is told no more."""
        since_ns = min(since_ns, moment.wall_ns)
        gone_ns = self._gone.get(line.at)
        if gone_ns is None and since_ns <= self._gone_before_ns:
            gone_ns = self._gone_before_ns
        if gone_ns is not None:
            since_ns = max(moment.window_start_ns, gone_ns + 1)
        return max(since_ns, moment.window_start_ns) if line.naming > 0 else since_ns

    def sweep(self, moment: Moment, places: Collection[Place]) -> None:
        """Forget what ended longer ago than the retention; overflow only with the place it is of."""
        over = [
            line
            for line, entry in self.entries.items()
            if entry.ended_ns is not None
            and moment.now_ns - entry.ended_ns > self._retention_ns
            and entry.drew_ns != moment.now_ns
            and (line not in self.overflow or line.at.place not in places)
        ]
        for line in sorted(over):  # in an order that a restart does not change
            self.forget(line, moment)
        self._making_room = None

    @property
    def anybody_ended(self) -> bool:
        """Whether any line has ended."""
        return any(entry.ended_ns is not None for entry in self.entries.values())

    def forget(self, line: LineT, moment: Moment) -> None:
        """Drop a line; what it came to stays in the sum of all."""
        entry = self.entries.pop(line)
        entry.forgotten = True
        self.changes += 1
        self.overflow.discard(line)
        self.retired.setdefault(line.at.place.gpu_uuid, Sums()).add(entry.sums)
        self._gone.pop(line.at, None)
        self._gone[line.at] = moment.wall_ns
        while len(self._gone) > _REMEMBERED:
            self._gone_before_ns = max(self._gone_before_ns, self._gone.pop(next(iter(self._gone))))

    def booked_mj(self) -> dict[str, int]:
        """All energy ever booked here, by GPU."""
        booked = {uuid: sums.energy_mj for uuid, sums in self.retired.items()}
        if self._grouped_at != self.changes:
            self._grouped_at, self._by_gpu = self.changes, {}
            for line, entry in self.entries.items():
                self._by_gpu.setdefault(line.at.place.gpu_uuid, []).append(entry)
        for uuid, group in self._by_gpu.items():
            lines_mj = sum([(s := entry.sums).measured_mj + s.estimated_mj + s.inferred_mj for entry in group])
            booked[uuid] = booked.get(uuid, 0) + lines_mj
        return booked

    # -- state ----------------------------------------------------------------------

    @property
    def gone(self) -> Gone:
        """Who was forgotten and when (Unix time), the longest ago first; and since when nobody is missing there."""
        return Gone(dict(self._gone), self._gone_before_ns)

    def restore(self, entries: dict[LineT, Entry], overflow: set[LineT], retired: dict[str, Sums], gone: Gone) -> None:
        """Take up the lines of an earlier run."""
        self.entries, self.overflow, self.retired = entries, overflow, retired
        self.changes += 1
        self._gone, self._gone_before_ns = dict(gone.at), gone.before_ns
