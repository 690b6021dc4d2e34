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
from otel_gpu.state.awaited import AwaitedStore, Opening
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.prompt import START_S, Nowhere, PromptStore
from otel_gpu.state.store import InUse, Store
from otel_gpu.state.unjournalled import Unjournalled, note_places
from otel_gpu.version import __version__

log = logging.getLogger(__name__)


def open_keeper(
    config: Config, host: Host, clock: Clock, environment: Mapping[str, str], *, own_proc: Path = OWN_PROC
) -> Keeper | None:
    """Who keeps the counters, or notes that nobody does; ``None`` where there are none to keep.

    Of a simulated host there are none unless it is said where, and of instruments in another service: their
    ``environment`` is empty. Which boot this is, ``own_proc`` tells: the kernel is the same whatever other /proc is
    looked at.
    """
    wanted = config.state_dir
    path = wanted.place(environment)
    simulated = host.simulated_because is not None
    if wanted.auto and (simulated or not environment):
        return None
    store = _open(path, environment, own_proc, quietly=wanted.auto, simulated=simulated)
    if store is None:
        return None
    return Keeper(config.attribution, store, clock, renewed=was_renewed(environment))


def _open(
    path: Path | None, environment: Mapping[str, str], proc: Path, *, quietly: bool, simulated: bool
) -> PromptStore | Nowhere | None:
    boot_id = read_boot_id(proc)
    places = () if simulated or boot_id is None else note_places(environment)
    unjournalled = Unjournalled(places, boot_id)
    # Who keeps nothing because nobody wants it has no need to hear that this cannot be noted.
    unheard = Unjournalled(places, boot_id, if_not=logging.DEBUG)
    if path is None:
        return Nowhere(unheard) if places else None
    opening = Opening(path, partial(_open_store, path, proc, boot_id))
    try:
        return PromptStore(opening.first(START_S), unjournalled)
    except InUse as error:
        because = str(error)
        log.warning("counters start at 0, and are kept when the other has ended: %s", error)
    except Unavailable as error:
        because = str(error)
        unjournalled = unheard if quietly else unjournalled
        level = logging.INFO if quietly else logging.WARNING
        log.log(level, "counters start at 0, and are kept when it can be used (--state-dir): %s", error)
    return PromptStore(AwaitedStore(path, opening.again, because), unjournalled)


def _open_store(path: Path, proc: Path, boot_id: str | None) -> Store:
    if boot_id is None:
        raise Unavailable(f"{proc}/sys/kernel/random/boot_id does not tell which boot this is")
    return Store.open(path, agent=__version__, boot_id=boot_id)
