"""Whether counters are kept over restarts, and where."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.control.renewal import was_renewed
from otel_gpu.errors import Unavailable
from otel_gpu.host import Host
from otel_gpu.sources.hostfacts import read_boot_id
from otel_gpu.sources.procfs import OWN_PROC
from otel_gpu.state.awaited import AwaitedStore
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.store import InUse, Store
from otel_gpu.version import __version__

log = logging.getLogger(__name__)


def open_keeper(
    config: Config, host: Host, clock: Clock, environment: Mapping[str, str], *, own_proc: Path = OWN_PROC
) -> Keeper | None:
    """Who keeps the counters; ``None`` where nobody does. A simulated host has none to keep unless it is said where.

    Which boot this is, ``own_proc`` tells: the kernel is the same whatever other /proc is looked at.
    """
    wanted = config.state_dir
    path = wanted.place(environment)
    if path is None or (host.simulated_because is not None and wanted.auto):
        return None
    open_store = partial(_open_store, path, own_proc)
    store: Store | AwaitedStore
    try:
        store = open_store()
    except InUse as error:
        log.warning("counters start at 0, and are kept when the other has ended: %s", error)
        store = AwaitedStore(path, open_store, str(error))
    except Unavailable as error:
        level = logging.INFO if wanted.auto else logging.WARNING
        log.log(level, "counters start at 0 with every start of the agent (--state-dir): %s", error)
        return None
    return Keeper(config.attribution, store, clock, renewed=was_renewed(environment))


def _open_store(path: Path, proc: Path) -> Store:
    boot_id = read_boot_id(proc)
    if boot_id is None:
        raise Unavailable(f"{proc}/sys/kernel/random/boot_id does not tell which boot this is")
    return Store.open(path, agent=__version__, boot_id=boot_id)
