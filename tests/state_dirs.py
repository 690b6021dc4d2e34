"""State directories for tests. A copy of the directory is the state that a killed agent leaves."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.model import ProcessReport, Report, Snapshot, WorkloadGpu
from otel_gpu.sources.workers import Worker
from otel_gpu.state.deadline_store import DeadlineStore
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.gap_marker import GapMarker
from otel_gpu.state.persistent import CHECKPOINT_EVERY_S, PersistentAttributor
from otel_gpu.state.recovery import RecoveredState, recover
from otel_gpu.state.store import CheckpointStore
from tests.builders import DRIVER

AGENT: Final = "1.2.3"
BOOT: Final = "11111111-2222-3333-4444-555555555555"
OPTIONS: Final = AttributionOptions()
PATIENT_S: Final = 30.0
"""Deadline for the disk in tests: a machine that is busy is not a disk that hangs."""

_workers: WeakSet[Worker] = WeakSet()
"""Those of all agents that were opened."""


class StatefulAgent(PersistentAttributor):
    """The attributor of an agent with a state directory, and the parts that a test controls."""

    def __init__(
        self,
        path: Path,
        options: AttributionOptions = OPTIONS,
        *,
        agent: str = AGENT,
        boot_id: str = BOOT,
        renewed: bool = False,
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
        markers: Sequence[Path] = (),
        deadline_s: float = PATIENT_S,
        start_s: float = PATIENT_S,
        may_wait: bool = False,
    ) -> None:
        """``markers`` are runtime directories. With ``may_wait`` the directory need not be usable yet."""
        self.journal_worker, self.writer = Worker("otel-gpu-journal"), Worker("otel-gpu-checkpoint")
        _workers.update((self.journal_worker, self.writer))
        open_store = partial(CheckpointStore.open, path, agent=agent, boot_id=boot_id, writer=self.writer)
        self.store = DeadlineStore(
            path,
            open_store,
            GapMarker(markers, boot_id),
            deadline_s=deadline_s,
            start_s=start_s,
            worker=self.journal_worker,
        )
        try:
            self.store.open()
        except Unavailable:
            if not may_wait:
                raise
        super().__init__(options, self.store, ManualClock(), renewed=renewed, checkpoint_every_s=checkpoint_every_s)

    @property
    def attribution(self) -> str:
        """The attribution state, in one text."""
        return json.dumps(self.to_checkpoint().attribution)

    def settle(self) -> None:
        """Wait until all writes are done."""
        wait_until_idle(self.journal_worker)
        wait_until_idle(self.writer)


def wait_until_idle(worker: Worker) -> None:
    """Wait until the call of a worker has returned."""
    ends_s = time.monotonic() + PATIENT_S
    while worker.stuck:
        assert time.monotonic() < ends_s, "the call does not return"
        time.sleep(0.001)


def end_threads() -> None:
    """End the threads of all agents, also of those that count as killed."""
    while _workers:
        _workers.pop().close()


def recovered(path: Path, options: AttributionOptions = OPTIONS) -> RecoveredState | None:
    """The state that an agent recovers from a directory."""
    directory = PrivateDirectory.open(path)
    try:
        return recover(directory, agent=AGENT, boot_id=BOOT, options=options)
    finally:
        directory.close()


def killed(path: Path, agent: StatefulAgent, number: int = 0) -> Path:
    """Another directory, as an agent that is killed now would leave this one."""
    agent.settle()  # a copy of a directory that changes is no picture of it
    copy = path.with_name(f"{path.name}-{number}")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(path, copy))


def with_driver(history: Iterable[Snapshot]) -> list[Snapshot]:
    """The same cycles, with a driver that reports its version."""
    return [replace(snapshot, driver=DRIVER) for snapshot in history]


def attribution(attributor: Attributor) -> str:
    """Its state, in one text."""
    return json.dumps(attributor.to_state())


def counters(answer: Report) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Every counter of a report by identity and start; a counter does not fall for the same start."""
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for gpu in answer.gpus:
        if gpu.totals is not None:
            totals = gpu.totals
            sums = totals.attributed_mj, totals.idle_mj, totals.unattributed_mj
            found["gpu", gpu.identity.uuid, answer.epoch_ns] = sums
        if gpu.reading.xid_errors is not None:
            found["xid", gpu.identity.uuid, answer.epoch_ns] = (gpu.reading.xid_errors,)
    for workload in answer.workloads:
        for part in workload.gpus:
            found |= _of("workload", (*workload.ref.key, workload.naming), part)
    for process in answer.processes:
        found |= _of("process", (*process.key, process.naming), process)
    return found


def _of(
    kind: str, identity: tuple[Any, ...], part: WorkloadGpu | ProcessReport
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    totals = part.totals
    if totals is None:
        return {}
    energy, place = totals.energy, (part.gpu_uuid, part.mig_uuid)
    return {
        (kind, *identity, *place, totals.since_ns): (
            energy.measured_mj or 0,
            energy.estimated_mj or 0,
            energy.inferred_mj or 0,
            totals.compute_us,
            totals.busy_us,
            totals.idle_us,
            totals.allocated_us,
            totals.unknown_us,
            totals.idle_byte_us,
            totals.idle_mj,
        )
    }


def fallen(before: dict[tuple[Any, ...], tuple[int, ...]], after: dict[tuple[Any, ...], tuple[int, ...]]) -> list[Any]:
    """Counters of the same start that are lower than they were."""
    return [
        (key, before[key], after[key])
        for key in before.keys() & after.keys()
        if any(new < old for old, new in zip(before[key], after[key], strict=True))
    ]
