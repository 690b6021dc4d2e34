"""Opens the state directory that was chosen, and the attributor whose counters persist in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import Clock
from otel_gpu.config.values import StateDir
from otel_gpu.control.restart import was_restarted
from otel_gpu.errors import Unavailable
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.sources.proc.source import OWN_PROC
from otel_gpu.state.deadline_store import DeadlineStore, NullStore
from otel_gpu.state.gap_marker import GapMarker, marker_directories
from otel_gpu.state.persistent import PersistentAttributor
from otel_gpu.state.store import CheckpointStore, InUse
from otel_gpu.version import __version__

log = logging.getLogger(__name__)


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
    """An attributor whose counters persist, or that marks that they do not; ``None`` where none have to.

    Those of a simulated host, and of instruments in another service, persist only in a directory that is named. The
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
