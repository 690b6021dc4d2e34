"""The time and the processes of one cycle, as every rule sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.attribution.keys import ProcessOnDevice
from otel_gpu.model import Grant, ProcessFacts


class LedgerTime(NamedTuple):
    """The time of a cycle in the ledger, which never goes back.

    ``now_ns`` is monotonic. ``window_start_ns`` and ``wall_ns`` are Unix time, the start and the end of the window.
    """

    now_ns: int
    window_start_ns: int
    wall_ns: int


class Cycle(NamedTuple):
    """One cycle. ``window_us`` is the time since the cycle before, 0 for the first.

    ``wall_s`` (Unix time) and ``now_s`` (monotonic) are the clocks as read, ``time`` is the ledger's.
    ``pids_complete`` is false where the driver may hide processes from the agent. ``may_infer`` is false where memory
    and energy without a visible user must not be given to visible ones.
    """

    wall_s: float
    now_s: float
    window_us: int
    time: LedgerTime
    processes: Mapping[int, ProcessFacts]
    grants: tuple[Grant, ...] = ()
    pids_complete: bool = True
    may_infer: bool = True

    def age_s(self, since_s: float | None) -> float:
        """Seconds since a moment in Unix time; 0 where it is not known."""
        return 0.0 if since_s is None else max(0.0, self.wall_s - since_s)

    def is_alive(self, at: ProcessOnDevice) -> bool:
        """Whether /proc shows this very process."""
        facts = self.processes.get(at.process.pid)
        return facts is not None and facts.alive and facts.key == at.process
