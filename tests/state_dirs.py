"""State directories for tests: an agent that was killed leaves what a copy of its directory has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.model import ProcessReport, Report, Snapshot, WorkloadGpu
from otel_gpu.state.awaited import AwaitedStore
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.keeper import SAVE_EVERY_S, Keeper
from otel_gpu.state.prompt import PromptStore
from otel_gpu.state.recovery import Recovered, recover
from otel_gpu.state.store import Store
from otel_gpu.state.unjournalled import Unjournalled
from tests.builders import DRIVER

AGENT: Final = "1.2.3"
BOOT: Final = "11111111-2222-3333-4444-555555555555"
OPTIONS: Final = AttributionOptions()
PATIENCE_S: Final = 30.0
"""What a test's disk may take: a machine that is busy is not a disk that hangs."""


def open_store(path: Path, *, agent: str = AGENT, boot_id: str = BOOT) -> Store:
    """A state directory in use."""
    return Store.open(path, agent=agent, boot_id=boot_id)


def open_keeper(
    path: Path,
    options: AttributionOptions = OPTIONS,
    *,
    agent: str = AGENT,
    boot_id: str = BOOT,
    renewed: bool = False,
    save_every_s: float = SAVE_EVERY_S,
    notes: Sequence[Path] = (),
) -> Keeper:
    """An agent's rules, which take up what is there; ``notes`` are its runtime directories."""
    store = open_store(path, agent=agent, boot_id=boot_id)
    prompt = PromptStore(store, Unjournalled(notes, boot_id), deadline_s=PATIENCE_S)
    return Keeper(options, prompt, ManualClock(), renewed=renewed, save_every_s=save_every_s)


def open_awaiting(path: Path, options: AttributionOptions = OPTIONS, *, notes: Sequence[Path] = ()) -> Keeper:
    """The rules of an agent that found the directory in use."""
    awaited = AwaitedStore(path, partial(open_store, path), "another uses it")
    return Keeper(options, PromptStore(awaited, Unjournalled(notes, BOOT), deadline_s=PATIENCE_S), ManualClock())


def recovered(path: Path, options: AttributionOptions = OPTIONS) -> Recovered | None:
    """What an agent would find there."""
    directory = PrivateDirectory.open(path)
    try:
        return recover(directory, agent=AGENT, boot_id=BOOT, options=options)
    finally:
        directory.close()


def settle(keeper: Keeper) -> None:
    """Wait until what is being saved is: a copy of a directory in motion is no picture of it."""
    assert isinstance(keeper._store, PromptStore)
    inner = keeper._store._store
    store = inner._store if isinstance(inner, AwaitedStore) else inner
    writer = None if store is None else store._writer
    if writer is not None:
        writer.join()


def killed(path: Path, keeper: Keeper, number: int = 0) -> Path:
    """Another directory as an agent that is killed now would leave this one."""
    settle(keeper)
    copy = path.with_name(f"{path.name}-{number}")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(path, copy))


def with_driver(history: Iterable[Snapshot]) -> list[Snapshot]:
    """The same cycles, with a driver that tells its version."""
    return [replace(snapshot, driver=DRIVER) for snapshot in history]


def books(attributor: Attributor) -> str:
    """All that it remembers, in one text."""
    return json.dumps(attributor.to_state())


def counters(answer: Report) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Every counter of an answer, under what identifies it and its start; those of a start never fall."""
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


def _of(kind: str, who: tuple[Any, ...], part: WorkloadGpu | ProcessReport) -> dict[tuple[Any, ...], tuple[int, ...]]:
    totals = part.totals
    if totals is None:
        return {}
    energy, place = totals.energy, (part.gpu_uuid, part.mig_uuid)
    return {
        (kind, *who, *place, totals.since_ns): (
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
