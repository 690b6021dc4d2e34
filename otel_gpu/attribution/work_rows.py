"""What the driver's rows say of the lines of one GPU."""

from __future__ import annotations

from otel_gpu.attribution.cycle_shown import GpuCycle
from otel_gpu.attribution.shown import Shown


class WorkRows:
    """What the driver's rows say of everybody's work in a cycle."""

    __slots__ = ("_crowded", "_pids", "_tells", "_work")

    def __init__(self, result: GpuCycle | None) -> None:
        compute = None if result is None else result.compute
        self._crowded = result is not None and result.crowded
        self._tells = compute is not None and compute.tells
        self._work = frozenset() if compute is None else frozenset(compute.work)
        self._pids = self._work | compute.untold if compute is not None and compute.untold else self._work

    def of_everybody(self) -> tuple[bool | None, bool] | None:
        """The same of everybody, where nobody is missing and there are no rows."""
        return None if self._pids else (False if self._tells else None, self._crowded)

    def of(self, shown: Shown) -> tuple[bool | None, bool]:
        """Whether anybody of a line showed work, and whether anybody else on the GPU did, or may have.

        ``None`` where the driver does not tell, or somebody is missing.
        """
        pids, rows = shown.pids, self._pids
        if not rows:
            return None if not self._tells or not pids or shown.is_missing else False, self._crowded
        others_worked = self._crowded or not rows <= pids
        if not self._tells or not pids:
            return None, others_worked
        if not rows.isdisjoint(pids):
            return None if self._work.isdisjoint(pids) else True, others_worked
        return None if shown.is_missing else False, others_worked
