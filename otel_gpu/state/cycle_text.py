"""Cycles as text, one after the other: what is the same object as in the cycle before is not written out again.

Of a cycle most is as it was: who runs, in which containers, under which names. It stands in every line all the same, so
that each line can be read by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter, is_
from typing import Any, Final

from otel_gpu.model import GpuReading, ListedProcess, ProcessFacts, Snapshot, UtilizationRead, UtilizationRow
from otel_gpu.state.codec import to_json

_NAMES: Final = tuple(field.name for field in fields(GpuReading) if field.init)
_LISTS_AT: Final = _NAMES.index("processes")
_BEFORE: Final[Callable[[GpuReading], tuple[Any, ...]]] = attrgetter(*_NAMES[2:_LISTS_AT])
_AFTER: Final[Callable[[GpuReading], tuple[Any, ...]]] = attrgetter(*_NAMES[_LISTS_AT + 3 :])
"""What stands in a reading after its identity and time and before its lists; and after lists, rows and energy."""
_ROW: Final[Callable[[UtilizationRow], object]] = attrgetter(*(field.name for field in fields(UtilizationRow)))


class CycleText:
    """Writes Snapshots as ``to_json`` does, but for how their sources did: no rule looks at that."""

    def __init__(self) -> None:
        # By address. The object is held on to, so that nothing else can be there.
        self._last: dict[int, tuple[object, str]] = {}
        self._now: dict[int, tuple[object, str]] = {}
        self._processes: Mapping[int, ProcessFacts] | None = None
        self._processes_text = ""
        self._facts = _Texts()
        self._gpus: dict[str, _GpuText] = {}

    def of(self, snapshot: Snapshot) -> str:
        """The text of the next cycle. What is not in it is forgotten."""
        self._last, self._now = self._now, {}
        self._gpus = {gpu.identity.uuid: self._gpus.get(gpu.identity.uuid) or _GpuText() for gpu in snapshot.gpus}
        gpus = ",".join([self._gpu(gpu) for gpu in snapshot.gpus])
        if snapshot.processes is not self._processes:
            facts = self._facts.of(snapshot.processes.values())
            self._processes_text = ",".join(
                [f"[{pid},{text}]" for pid, text in zip(snapshot.processes, facts, strict=True)]
            )
            self._processes = snapshot.processes
        names = self._kept(snapshot.names, lambda names: list(names.items()))
        driver, pending, grants = map(self._kept, (snapshot.driver, snapshot.names_pending, snapshot.grants))
        complete, infers = to_json(snapshot.pids_complete), to_json(snapshot.infers)
        self._last = {}
        return (
            f"[{snapshot.wall_ns},{snapshot.monotonic_ns},[{gpus}],[{self._processes_text}],{names},[],{driver},"
            f"{complete},{pending},{grants},{infers}]"
        )

    def _gpu(self, gpu: GpuReading) -> str:
        return f"[{self._kept(gpu.identity)},{self._gpus[gpu.identity.uuid].of(gpu)}]"

    def _kept(self, data: object, plain: Callable[[Any], object] | None = None) -> str:
        """Its text, made by way of what is ``plain`` to JSON if it is not that itself."""
        found = self._last.get(id(data)) or self._now.get(id(data))
        if found is None:
            found = data, to_json(data if plain is None else plain(data))
        self._now[id(data)] = found
        return found[1]


class _GpuText:
    """Writes the readings of one GPU, but for who it is."""

    def __init__(self) -> None:
        self._processes: tuple[ListedProcess, ...] | None = None
        self._processes_text = "null"
        self._listed = _Texts()
        self._before = _Figures()
        self._after = _Figures()

    def of(self, gpu: GpuReading) -> str:
        """What stands in a reading after its identity."""
        if gpu.processes is not self._processes:
            self._processes_text = "null" if gpu.processes is None else f"[{','.join(self._listed.of(gpu.processes))}]"
            self._processes = gpu.processes  # last: what could not be written is written the next time
        energy_mj = "null" if gpu.energy_mj is None else gpu.energy_mj
        return (
            f"{gpu.taken_at_ns},{self._before.of(_BEFORE(gpu))},{self._processes_text},{_rows(gpu.utilization)},"
            f"{energy_mj},{self._after.of(_AFTER(gpu))}"
        )


class _Figures:
    """The text of figures of which most are what they were."""

    def __init__(self) -> None:
        self._figures: tuple[Any, ...] = ()
        self._text = ""

    def of(self, figures: tuple[Any, ...]) -> str:
        """Without the brackets. 1 and 1.0 are the same figure, and not the same text."""
        if figures != self._figures or not all(map(is_, map(type, figures), map(type, self._figures))):
            self._figures, self._text = figures, to_json(figures)[1:-1]
        return self._text


class _Texts:
    """The texts of several, of whom most are the objects that they were in the cycle before."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, str]] = {}

    def of(self, several: Iterable[object]) -> list[str]:
        """One after the other. Who is not among them is forgotten."""
        before = self._kept
        kept: dict[int, tuple[object, str]] = {}
        for each in several:
            kept[id(each)] = before.get(id(each)) or kept.get(id(each)) or (each, to_json(each))
        self._kept = kept
        return [kept[id(each)][1] for each in several]


def _rows(read: UtilizationRead | None) -> str:
    if read is None:
        return "null"
    rows = to_json(list(map(_ROW, read.rows))) if read.rows else "[]"
    return f"[{read.since_us},{read.read_at_us},{rows}]"
