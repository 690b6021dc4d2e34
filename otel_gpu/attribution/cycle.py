"""One cycle as every rule sees it: when it was, and which processes there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_gpu.attribution.lines import Moment
from otel_gpu.attribution.places import ProcessAt
from otel_gpu.model import Grant, ProcessFacts


@dataclass(frozen=True, slots=True)
class Cycle:
    """``window_us`` is 0 for the first; ``complete`` is false where pids may be invisible.

    ``infers`` is false where those who are seen must not be given what those who are not may have used.
    ``wall_s`` and ``now_s`` are the clocks as read; ``moment`` is the time of the books, which never goes back.
    """

    wall_s: float
    now_s: float
    window_us: int
    complete: bool
    moment: Moment
    processes: Mapping[int, ProcessFacts]
    grants: tuple[Grant, ...] = ()
    infers: bool = True

    def granted(self, gpu_uuid: str) -> tuple[Grant, ...]:
        """Who was given this GPU, or an instance of it."""
        if not self.grants:
            return ()
        return tuple(grant for grant in self.grants if grant.gpu_uuid == gpu_uuid and not grant.possible)

    def age_s(self, since_s: float | None) -> float:
        """How long ago that was; 0 where it is not known."""
        return 0.0 if since_s is None else max(0.0, self.wall_s - since_s)

    def alive(self, at: ProcessAt) -> bool:
        """Whether /proc shows this very process."""
        facts = self.processes.get(at.key.pid)
        return facts is not None and facts.alive and facts.key == at.key
