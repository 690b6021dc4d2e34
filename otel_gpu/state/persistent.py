"""An attributor whose counters persist in a state directory: every cycle is in the journal before it is exported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.config.values import StateDir
from otel_gpu.control.restart import was_restarted
from otel_gpu.errors import Unavailable
from otel_gpu.model import (
    NO_PROCESSES,
    GpuIdentity,
    GpuReading,
    GpuReport,
    ProcessFacts,
    Report,
    Snapshot,
    SourceOutcome,
    WorkloadRef,
)
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.sources.proc.source import OWN_PROC
from otel_gpu.state.checkpoint import CheckpointData, XidTotals
from otel_gpu.state.deadline_store import DeadlineStore, NullStore
from otel_gpu.state.gap_marker import UNREADABLE_NS, GapMarker, marker_directories
from otel_gpu.state.recovery import RecoveredState, resume
from otel_gpu.state.store import CheckpointStore, InUse, Run
from otel_gpu.version import __version__

log = logging.getLogger(__name__)

CHECKPOINT_EVERY_S: Final = 30.0
_CLOSING_S: Final = 0.5
"""For the last checkpoint, of the 5 s in which an agent has to end. The journal has what is not written by then."""

SOURCE_NAME: Final = "state"
"""Its name among the sources of a Report."""


class PersistentAttributor:
    """An Attributor that resumes the state of an earlier run, if that was in this boot and with this driver.

    After a restart of the agent's own, because of another driver, totals persist and hardware counters start again.

    The driver is known from the first cycle in which it responds. Until then no state is chosen, written or counted: a
    Report has the health of known GPUs only.
    """

    def __init__(
        self,
        options: AttributionOptions,
        store: DeadlineStore | NullStore,
        clock: Clock,
        *,
        renewed: bool = False,
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    ) -> None:
        """``renewed`` says that the agent restarted itself because the driver was upgraded."""
        self._renewed = renewed
        self._checkpoint_every_ns = round(checkpoint_every_s * 1e9)
        self._options = options
        self._store = store
        self._clock = clock
        self._turn = threading.Lock()
        recovered = self._recovered = store.recover(options)
        self._attributor = Attributor(options) if recovered is None else recovered.attributor
        self._processes = NO_PROCESSES if recovered is None else recovered.processes
        self._earlier_xids = XidTotals()
        self._xids = XidTotals()
        self._run: Run | None = None
        self._checkpoint_ns = 0
        self._closed = False
        self._restored: Report | None = None

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that were on a GPU and may have ended: /proc has to be read for them."""
        return self._attributor.watched_pids

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads that are held back until their names are known."""
        return self._attributor.held_workloads

    @property
    def known_gpus(self) -> tuple[GpuIdentity, ...]:
        """All GPUs in the ledger; before the first cycle, those that an earlier run of this boot reported last."""
        gpus = self._attributor.known_gpus
        reported = None if self._recovered is None else self._recovered.xids.reported
        return gpus if reported is None else tuple(gpu for gpu in gpus if gpu.uuid in reported)

    @property
    def known_processes(self) -> Mapping[int, ProcessFacts]:
        """Processes of the last cycle; before the first one, of an earlier run of this boot."""
        return self._processes

    @property
    def restored(self) -> Report | None:
        """The state that was resumed, before anything was added to it; ``None`` if none was."""
        return self._restored

    def observe(self, snapshot: Snapshot) -> Report:
        """Write a cycle to the journal, then attribute it."""
        with self._turn:
            if self._run is None and (self._closed or not _has_driver(snapshot)):
                return _without_counters(self._with_outcome(snapshot))
            started_ns = self._clock.monotonic_ns()
            run = self._run = self._begin(snapshot) if self._run is None else _with_driver_of(self._run, snapshot)
            snapshot = replace(snapshot, gpus=tuple(map(self._earlier_xids.added_to, snapshot.gpus)))
            if not self._closed:
                self._store.append(snapshot)
            self._processes, self._xids = snapshot.processes, self._xids.after(snapshot.gpus)
            written_ns = self._clock.monotonic_ns() - started_ns
            try:
                report = self._attributor.observe(self._with_outcome(snapshot, written_ns))
            except Exception:
                if not self._closed:
                    self._store.invalidate("a cycle could not be attributed")
                raise
            if not self._closed and self._is_checkpoint_due(snapshot):
                self._checkpoint_ns = snapshot.monotonic_ns
                self._store.checkpoint(self.to_checkpoint, run)
            return report

    def close(self) -> None:
        """Write the last checkpoint."""
        if not self._turn.acquire(timeout=_CLOSING_S):
            return  # a cycle waits for the disk
        try:
            if not self._closed:
                self._closed = True
                self._store.close(self.to_checkpoint, self._run, _CLOSING_S)
        finally:
            self._turn.release()

    def to_checkpoint(self) -> CheckpointData:
        """All that persists."""
        return CheckpointData(self._attributor.to_state(), self._processes, self._xids)

    def _is_checkpoint_due(self, snapshot: Snapshot) -> bool:
        is_time = snapshot.monotonic_ns - self._checkpoint_ns >= self._checkpoint_every_ns
        return is_time or self._store.is_checkpoint_due

    # -- start ----------------------------------------------------------------------

    def _begin(self, snapshot: Snapshot) -> Run:
        """Resume the recovered state, or discard it and start at 0."""
        recovered, self._recovered = self._recovered, None
        self._checkpoint_ns = snapshot.monotonic_ns
        driver_version = None if snapshot.driver is None else snapshot.driver.driver_version
        if recovered is not None:
            state = recovered.attributor.to_state()
            new_driver = recovered.driver_version != driver_version
            reason = self._why_not_resumed(recovered, state["at_ns"], driver_version, snapshot.monotonic_ns)
            reason = reason or self._resume(recovered, snapshot, wall_ns=state["wall_ns"], new_driver=new_driver)
            if reason is None:
                self._earlier_xids = self._xids = recovered.xids
                away_s = (snapshot.monotonic_ns - state["at_ns"]) / 1e9
                log.info("counters continue from %.0f s ago, with the state in %s", away_s, self._store.path)
                run = Run(state["ledger"]["epoch_ns"], driver_version, self._options)
                self._store.begin(recovered.number, run, resumed_ns=snapshot.monotonic_ns, new_driver=new_driver)
                return run
            log.info("state in %s is not used, counters start at 0: %s", self._store.path, reason)
            self._store.discard()
        self._attributor = Attributor(self._options)
        run = Run(snapshot.wall_ns, driver_version, self._options)
        self._store.begin(0, run)
        return run

    def _why_not_resumed(
        self, recovered: RecoveredState, at_ns: int, driver_version: str | None, now_ns: int
    ) -> str | None:
        """Why a state whose last cycle was at ``at_ns`` (monotonic) must not be resumed; ``None`` if it may."""
        if driver_version is None or (recovered.driver_version != driver_version and not self._renewed):
            return f"it is of driver {recovered.driver_version}, and this is {driver_version}"
        if recovered.prices != self._options.prices:
            return "prices have changed, and costs so far would change with them"
        if now_ns < at_ns:
            return "it is of another time namespace"
        gap_ns = self._store.gap_ns
        if gap_ns == UNREADABLE_NS:
            return "the marker of figures that are in no journal cannot be read"
        if gap_ns is not None and at_ns <= gap_ns:
            return "figures were exported since that are in no journal"
        return None

    def _resume(self, recovered: RecoveredState, snapshot: Snapshot, *, wall_ns: int, new_driver: bool) -> str | None:
        """Continue with this state; the reason if the rules cannot."""
        # The first cycle at the time of the last one, without counters: its Report is what was exported last.
        uncounted = map(recovered.xids.added_to, map(_without_readings, snapshot.gpus))
        last = replace(snapshot, wall_ns=wall_ns, gpus=tuple(uncounted))
        resumed = partial(resume, recovered.attributor, self._options, snapshot.monotonic_ns, new_driver=new_driver)
        try:
            self._restored = resumed().observe(last)
            self._attributor = resumed()
        except Exception as error:  # damage of any kind must not keep the agent from starting
            return f"attribution cannot continue from it: {error}"
        return None

    def _with_outcome(self, snapshot: Snapshot, written_ns: int = 0) -> Snapshot:
        if self._store.state is None:
            return snapshot
        state, reason = self._store.state
        outcome = SourceOutcome(SOURCE_NAME, state, reason, written_ns / 1e9, errors=int(reason is not None))
        return replace(snapshot, sources=(*snapshot.sources, outcome))


def _has_driver(snapshot: Snapshot) -> bool:
    """Whether a driver responds. Known GPUs of an earlier run are reported without one."""
    version = None if snapshot.driver is None else snapshot.driver.driver_version
    return version is not None or any(gpu.answered for gpu in snapshot.gpus)


def _without_counters(snapshot: Snapshot) -> Report:
    """The health of GPUs. A counter at 0 would fall behind one that may be resumed later."""
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
        unreadable=snapshot.unreadable,
    )


def _with_driver_of(run: Run, snapshot: Snapshot) -> Run:
    """The run with the driver of this cycle: one that was loaded meanwhile is the one to expect after a restart."""
    version = None if snapshot.driver is None else snapshot.driver.driver_version
    return run if version is None or version == run.driver_version else replace(run, driver_version=version)


def _without_readings(reading: GpuReading) -> GpuReading:
    return replace(
        reading, energy_mj=None, power_w=None, utilization=None, accounting=None, xid_errors=None, last_xid=None
    )


# ---------------------------------------------------------------------------- the state directory


def open_attributor(
    options: AttributionOptions,
    state_dir: StateDir,
    clock: Clock,
    environment: Mapping[str, str],
    *,
    simulated: bool,
    own_proc: Path = OWN_PROC,
    release_memory: Callable[[], None] = lambda: None,
) -> PersistentAttributor | None:
    """An attributor whose counters persist, or that marks that they do not; ``None`` if they need not.

    Counters of a simulated host, and of instruments in another service, persist only in a directory that is named. The
    ``environment`` of instruments is empty. The boot id is read from ``own_proc``: the kernel is the same whatever
    /proc processes are read from. ``release_memory`` is called after each checkpoint.
    """
    if state_dir.auto and (simulated or not environment):
        return None
    boot_id = read_boot_id(own_proc)
    directories = () if simulated or boot_id is None else marker_directories(environment)
    marker = GapMarker(directories, boot_id)
    path = state_dir.place(environment)
    if path is not None:
        open_directory = partial(_open_directory, path, boot_id, own_proc, release_memory)
        store: DeadlineStore | NullStore = _open_store(path, open_directory, marker, is_chosen=not state_dir.auto)
    elif directories:
        marker.failure_level = logging.DEBUG  # no counters were to be saved
        store = NullStore(marker)
    else:
        return None
    return PersistentAttributor(options, store, clock, renewed=was_restarted(environment))


def _open_store(
    path: Path, open_directory: Callable[[], CheckpointStore], marker: GapMarker, *, is_chosen: bool
) -> DeadlineStore:
    store = DeadlineStore(path, open_directory, marker)
    try:
        store.open()
    except InUse as error:
        log.warning("counters start at 0, and are saved once the other agent has ended: %s", error)
    except Unavailable as error:
        level = logging.WARNING if is_chosen else logging.INFO
        log.log(level, "counters start at 0, and are saved once the directory can be used (--state-dir): %s", error)
        if not is_chosen:
            marker.failure_level = logging.DEBUG
    return store


def _open_directory(path: Path, boot_id: str | None, proc: Path, release_memory: Callable[[], None]) -> CheckpointStore:
    if boot_id is None:
        raise Unavailable(f"{proc}/sys/kernel/random/boot_id has no boot id")
    return CheckpointStore.open(path, agent=__version__, boot_id=boot_id, release_memory=release_memory)
