"""Rules whose books outlive the agent: what they were shown is on disk before anybody sees what came of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.model import (
    GpuIdentity,
    GpuReading,
    GpuReport,
    ProcessFacts,
    Report,
    Snapshot,
    SourceOutcome,
    WorkloadRef,
)
from otel_gpu.state.prompt import Nowhere, PromptStore
from otel_gpu.state.recovery import Recovered, resumed
from otel_gpu.state.saved import Kept, Shown
from otel_gpu.state.store import Run
from otel_gpu.state.unjournalled import UNREADABLE_NS
from otel_gpu.state.xids import XidTotals

log = logging.getLogger(__name__)

SAVE_EVERY_S: Final = 30.0
_CLOSING_S: Final = 0.5
"""What saving at the end may take, of the 5 s that an agent has to be gone in; what is not done is in the journal."""

_NAME: Final = "state"


class Keeper:
    """An Attributor that goes on where the one before it ended, if that was in this boot and with this driver.

    An agent that started itself anew for another driver keeps its totals, and takes what the GPUs count for new.

    Which driver there is shows in the first cycle that has one. Until then nothing is decided, nothing written and
    nothing counted: only how the GPUs are that are known of is told.
    """

    def __init__(
        self,
        options: AttributionOptions,
        store: PromptStore | Nowhere,
        clock: Clock,
        *,
        renewed: bool = False,
        save_every_s: float = SAVE_EVERY_S,
    ) -> None:
        """``renewed`` says that the agent started itself anew because the driver was upgraded under it."""
        self._renewed = renewed
        self._save_every_ns = round(save_every_s * 1e9)
        self._options = options
        self._store = store
        self._clock = clock
        self._turn = threading.Lock()
        self._recovered = store.recover(options)
        self._attributor = Attributor(options) if self._recovered is None else self._recovered.attributor
        self._shown = Shown() if self._recovered is None else self._recovered.shown
        self._earlier_xids = XidTotals()
        self._xids = XidTotals()
        self._run: Run | None = None
        self._saved_ns = 0
        self._closed = False
        self._restored: Report | None = None

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that were on a GPU and may have ended: /proc has to say."""
        return self._attributor.watched_pids

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads that are held back until their names are known."""
        return self._attributor.held_workloads

    @property
    def known_gpus(self) -> tuple[GpuIdentity, ...]:
        """Before the first cycle, the GPUs that an earlier run of this boot told of last."""
        gpus = self._attributor.known_gpus
        told = None if self._recovered is None else self._recovered.xids.told
        return gpus if told is None else tuple(gpu for gpu in gpus if gpu.uuid in told)

    @property
    def known_processes(self) -> Mapping[int, ProcessFacts]:
        """Whom /proc showed last: before the first cycle, to an earlier run of this boot."""
        return self._shown.processes

    @property
    def restored(self) -> Report | None:
        """The books as they were taken up, before anything was added to them; ``None`` if none were."""
        return self._restored

    def observe(self, snapshot: Snapshot) -> Report:
        """Take in a cycle, on disk first."""
        with self._turn:
            if self._run is None and (self._closed or not _has_driver(snapshot)):
                return _without_books(self._with_outcome(snapshot))
            started_ns = self._clock.monotonic_ns()
            run = self._run = self._begin(snapshot) if self._run is None else _going_on(self._run, snapshot)
            if self._earlier_xids.by_gpu:
                snapshot = replace(snapshot, gpus=tuple(map(self._earlier_xids.added_to, snapshot.gpus)))
            if not self._closed:
                self._store.append(snapshot)
            self._shown, self._xids = Shown(snapshot.processes), self._xids.after(snapshot.gpus)
            written_ns = self._clock.monotonic_ns() - started_ns
            try:
                attribution = self._attributor.observe(self._with_outcome(snapshot, written_ns))
            except Exception:
                if not self._closed:
                    self._store.give_up("a cycle could not be booked")
                raise
            if not self._closed and snapshot.monotonic_ns - self._saved_ns >= self._save_every_ns:
                self._saved_ns = snapshot.monotonic_ns
                self._store.save(self._kept, run)
            return attribution

    def close(self) -> None:
        """Save for the last time."""
        if not self._turn.acquire(timeout=_CLOSING_S):
            return  # a cycle waits for the disk
        try:
            if not self._closed:
                self._closed = True
                self._store.close(self._kept, self._run, _CLOSING_S)
        finally:
            self._turn.release()

    def _kept(self) -> Kept:
        return Kept(self._attributor.to_state(), self._shown, self._xids)

    # -- beginning ------------------------------------------------------------------

    def _begin(self, snapshot: Snapshot) -> Run:
        recovered, self._recovered = self._recovered, None
        self._saved_ns = snapshot.monotonic_ns
        driver_version = None if snapshot.driver is None else snapshot.driver.driver_version
        if recovered is not None:
            books = recovered.attributor.to_state()
            new_driver = recovered.driver_version != driver_version
            because = self._not_taken_up(recovered, books, driver_version, snapshot)
            because = because or self._take_up(recovered, snapshot, wall_ns=books["wall_ns"], new_driver=new_driver)
            if because is None:
                self._earlier_xids = self._xids = recovered.xids
                away_s = (snapshot.monotonic_ns - books["at_ns"]) / 1e9
                log.info("counters go on where they were %.0f s ago, from %s", away_s, self._store.path)
                run = Run(books["ledger"]["epoch_ns"], driver_version, self._options)
                self._store.begin(recovered.number, run, resumed_ns=snapshot.monotonic_ns, new_driver=new_driver)
                return run
            log.info("state in %s is not taken up, counters start at 0: %s", self._store.path, because)
            self._store.discard()
        self._attributor = Attributor(self._options)
        run = Run(snapshot.wall_ns, driver_version, self._options)
        self._store.begin(0, run)
        return run

    def _not_taken_up(
        self, recovered: Recovered, books: dict[str, Any], driver_version: str | None, snapshot: Snapshot
    ) -> str | None:
        if driver_version is None or (recovered.driver_version != driver_version and not self._renewed):
            return f"it is of driver {recovered.driver_version}, and this is {driver_version}"
        if recovered.prices != self._options.prices:
            return "prices have changed, and costs so far would change with them"
        if snapshot.monotonic_ns < books["at_ns"]:
            return "it is of another time namespace"
        told_ns = self._store.unjournalled_ns
        if told_ns == UNREADABLE_NS:
            return "whether figures were told since that are in no journal cannot be read"
        if told_ns is not None and books["at_ns"] <= told_ns:
            return "figures were told since that are in no journal"
        return None

    def _take_up(self, recovered: Recovered, snapshot: Snapshot, *, wall_ns: int, new_driver: bool) -> str | None:
        """Go on with these books; why not, if no rule can."""
        now_ns = snapshot.monotonic_ns
        # The same cycle without a figure to count, as of then: what is told so is what was told last.
        uncounted = map(recovered.xids.added_to, map(_uncounted, snapshot.gpus))
        still = replace(snapshot, wall_ns=wall_ns, gpus=tuple(uncounted))
        taken_up = partial(resumed, recovered.attributor, self._options, now_ns, new_driver=new_driver)
        try:
            self._restored = taken_up().observe(still)
            self._attributor = taken_up()
        except Exception as error:  # it must not keep the agent from starting, time and again
            return f"its books cannot be gone on with: {error}"
        return None

    def _with_outcome(self, snapshot: Snapshot, written_ns: int = 0) -> Snapshot:
        if self._store.state is None:
            return snapshot
        state, reason = self._store.state
        outcome = SourceOutcome(_NAME, state, reason, written_ns / 1e9, errors=int(reason is not None))
        return replace(snapshot, sources=(*snapshot.sources, outcome))


def _has_driver(snapshot: Snapshot) -> bool:
    """Whether a driver answers: GPUs that an earlier run has seen are told of without one."""
    version = None if snapshot.driver is None else snapshot.driver.driver_version
    return version is not None or any(gpu.answered for gpu in snapshot.gpus)


def _without_books(snapshot: Snapshot) -> Report:
    """How the GPUs are, and no counter: one at 0 would stand for one that may be gone on with later."""
    return Report(
        wall_ns=snapshot.wall_ns,
        monotonic_ns=snapshot.monotonic_ns,
        window_s=None,
        gpus=tuple(
            GpuReport(
                GpuReading(gpu.identity, gpu.taken_at_ns, gpu.health, gpu.reason), memory=None, energy=None, mig=None
            )
            for gpu in snapshot.gpus
        ),
        workloads=(),
        processes=(),
        sources=snapshot.sources,
        driver=snapshot.driver,
        epoch_ns=snapshot.wall_ns,
    )


def _going_on(run: Run, snapshot: Snapshot) -> Run:
    """A driver that was loaded anew meanwhile is the one to be found after a restart."""
    version = None if snapshot.driver is None else snapshot.driver.driver_version
    return run if version is None or version == run.driver_version else replace(run, driver_version=version)


def _uncounted(reading: GpuReading) -> GpuReading:
    return replace(
        reading, energy_mj=None, power_w=None, utilization=None, accounting=None, xid_errors=None, last_xid=None
    )
