"""Cycles as text, one after the other: what is the same object as in the cycle before is not written out again.

Of a cycle most is as it was: who runs, in which containers, under which names. It stands in every line all the same, so
that each line can be read by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from otel_gpu.model import GpuReading, ListedProcess, Snapshot
from otel_gpu.state.codec import to_json

_NAMES: Final = tuple(field.name for field in fields(GpuReading) if field.init)
_LISTS_AT: Final = _NAMES.index("processes")
_BEFORE: Final[Callable[[GpuReading], object]] = attrgetter(*_NAMES[1:_LISTS_AT])
_AFTER: Final[Callable[[GpuReading], object]] = attrgetter(*_NAMES[_LISTS_AT + 1 :])
"""What stands in a reading between its identity and its list of processes, and after that."""


class CycleText:
    """Writes Snapshots as ``to_json`` does, but for how their sources did: no rule looks at that."""

    def __init__(self) -> None:
        # By address. The object is held on to, so that nothing else can be there.
        self._last: dict[int, tuple[object, str]] = {}
        self._now: dict[int, tuple[object, str]] = {}

    def of(self, snapshot: Snapshot) -> str:
        """The text of the next cycle. What is not in it is forgotten."""
        self._last, self._now = self._now, {}
        gpus = ",".join(map(self._gpu, snapshot.gpus))
        processes = ",".join([f"[{pid},{self._kept(facts)}]" for pid, facts in snapshot.processes.items()])
        names = self._kept(snapshot.names, lambda names: list(names.items()))
        driver, pending, grants = map(self._kept, (snapshot.driver, snapshot.names_pending, snapshot.grants))
        complete, infers = to_json(snapshot.pids_complete), to_json(snapshot.infers)
        self._last = {}
        return (
            f"[{snapshot.wall_ns},{snapshot.monotonic_ns},[{gpus}],[{processes}],{names},[],{driver},{complete},"
            f"{pending},{grants},{infers}]"
        )

    def _gpu(self, gpu: GpuReading) -> str:
        before, after = to_json(_BEFORE(gpu)), to_json(_AFTER(gpu))
        return f"[{self._kept(gpu.identity)},{before[1:-1]},{self._listed(gpu.processes)},{after[1:-1]}]"

    def _listed(self, processes: tuple[ListedProcess, ...] | None) -> str:
        return "null" if processes is None else f"[{','.join(map(self._kept, processes))}]"

    def _kept(self, data: object, plain: Callable[[Any], object] | None = None) -> str:
        """Its text, made by way of what is ``plain`` to JSON if it is not that itself."""
        found = self._last.get(id(data)) or self._now.get(id(data))
        if found is None:
            found = data, to_json(data if plain is None else plain(data))
        self._now[id(data)] = found
        return found[1]
