"""Cycles as text, one after the other: what is the same object as in an earlier line of the file is not written again.

Of a cycle most is as it was: who runs, in which containers, under which names. In its place stands the number of the
line that has it in full: the last one that has anything there in full, in the same file. So a line can be read with its
file alone, and whoever reads one after the other has to keep no more than what was written in full last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from operator import attrgetter, is_
from typing import Any, Final

from otel_gpu.model import GpuReading, ListedProcess, ProcessFacts, Snapshot, UtilizationRead
from otel_gpu.state.codec import to_json

_NAMES: Final = tuple(field.name for field in fields(GpuReading) if field.init)
_BEFORE: Final = _NAMES[2 : _NAMES.index("processes")]
_BETWEEN: Final = _NAMES[_NAMES.index("energy_mj") + 1 : _NAMES.index("mig")]
_AFTER: Final = _NAMES[_NAMES.index("mig") + 1 :]
"""The figures in a reading: after its identity and time and before its lists; after lists, rows and energy and before
its instances; and after those."""
_PARTS: Final = (slice(0, len(_BEFORE)), slice(len(_BEFORE), -len(_AFTER)), slice(-len(_AFTER), None))
_FIGURES: Final[Callable[[GpuReading], tuple[Any, ...]]] = attrgetter(*_BEFORE, *_BETWEEN, *_AFTER)
_BOOLEANS: Final = ("false", "true")
_NOTHING: Final = object()
"""What no cycle has."""
_SHORT: Final = 20
"""So many characters are written again: the number of a line takes as much."""


class CycleText:
    """Writes Snapshots as ``to_json`` does, but for what stands in the file, and how sources did: no rule needs that.

    Who writes the lines says what became of them: nothing is taken to be in the file before it is ``written``.
    """

    def __init__(self) -> None:
        self._processes = _Place(partial(_facts_text, _Texts()))
        self._names = _Place(lambda names: to_json(list(names.items())))
        self._driver, self._pending, self._grants = _Place(to_json), _Place(to_json), _Place(to_json)
        self._gpus: list[_GpuText] = []
        self._in_full: list[_Place] = []
        """What the last text has in full."""

    def of(self, snapshot: Snapshot) -> str:
        """The text of the next cycle. What is not in it is forgotten."""
        in_full = self._in_full = []
        count, known = len(snapshot.gpus), self._gpus
        if len(known) != count:
            self._gpus = known = [*known[:count], *(_GpuText() for _ in range(count - len(known)))]
        gpus = ",".join([text.of(gpu, in_full) for text, gpu in zip(known, snapshot.gpus, strict=True)])
        processes, names = self._processes.of(snapshot.processes, in_full), self._names.of(snapshot.names, in_full)
        driver, pending = self._driver.of(snapshot.driver, in_full), self._pending.of(snapshot.names_pending, in_full)
        grants = self._grants.of(snapshot.grants, in_full)
        complete, infers = _BOOLEANS[snapshot.pids_complete], _BOOLEANS[snapshot.infers]
        return (
            f"[{snapshot.wall_ns},{snapshot.monotonic_ns},[{gpus}],{processes},{names},[],{driver},"
            f"{complete},{pending},{grants},{infers}]"
        )

    def written(self, number: int) -> None:
        """The last text is in the file, whole, as the line of this number."""
        for place in self._in_full:
            place.stands_in(number)
        self._in_full = []

    def begin_file(self) -> None:
        """What comes is for another file, in which there is nothing yet."""
        self._in_full = []
        for place in (self._processes, self._names, self._driver, self._pending, self._grants):
            place.stands_nowhere()
        for gpu in self._gpus:
            gpu.stands_nowhere()


class _Place:
    """What stands at one place of the lines, for as long as it is the same object."""

    __slots__ = ("_data", "_make", "_said", "_text")

    def __init__(self, make: Callable[[Any], str]) -> None:
        self._make = make
        self._data: object = _NOTHING
        self._text = ""
        self._said: str | None = None
        """What the next line says of it; ``None`` where that has to have it in full."""

    def of(self, data: object, in_full: list[_Place]) -> str:
        """What the next line says of it; noted in ``in_full`` if that is everything."""
        if data is not self._data:
            self._text = self._make(data)
            self._data = data  # last: what could not be written is written the next time
            self.stands_nowhere()
        if self._said is not None:
            return self._said
        in_full.append(self)
        return self._text

    def of_equal(self, data: object, in_full: list[_Place]) -> str:
        """The same, for what is made anew in each cycle: if it says the same it counts as the same object."""
        return self.of(self._data if data == self._data else data, in_full)

    def stands_in(self, number: int) -> None:
        """The line of this number has it in full."""
        self._said = str(number)

    def stands_nowhere(self) -> None:
        """No line has it."""
        self._said = self._text if len(self._text) <= _SHORT else None


class _GpuText:
    """Writes the readings of the GPU at one place."""

    def __init__(self) -> None:
        self._identity, self._mig = _Place(to_json), _Place(to_json)
        self._processes = _Place(partial(_listed_text, _Texts()))
        self._figures = _Figures()

    def of(self, gpu: GpuReading, in_full: list[_Place]) -> str:
        """One reading."""
        energy_mj = "null" if gpu.energy_mj is None else gpu.energy_mj
        before, between, after = self._figures.of(_FIGURES(gpu))
        return (
            f"[{self._identity.of(gpu.identity, in_full)},{gpu.taken_at_ns},{before},"
            f"{self._processes.of(gpu.processes, in_full)},{_rows(gpu.utilization)},{energy_mj},{between},"
            f"{self._mig.of_equal(gpu.mig, in_full)},{after}]"
        )

    def stands_nowhere(self) -> None:
        """No line has anything of it."""
        for place in (self._identity, self._processes, self._mig):
            place.stands_nowhere()


class _Figures:
    """The texts of figures, part by part, of which most are what they were."""

    def __init__(self) -> None:
        self._figures: tuple[Any, ...] = ()
        self._texts = [""] * len(_PARTS)

    def of(self, figures: tuple[Any, ...]) -> list[str]:
        """Of each part, without the brackets."""
        before = self._figures
        if not _are_same(figures, before):
            self._texts = [
                text if _are_same(figures[part], before[part]) else to_json(figures[part])[1:-1]
                for part, text in zip(_PARTS, self._texts, strict=True)
            ]
            self._figures = figures
        return self._texts


class _Texts:
    """The texts of several, of whom most are the objects that they were in the cycle before."""

    def __init__(self) -> None:
        # By address. The object is held on to, so that nothing else can be there.
        self._kept: dict[int, tuple[object, str]] = {}

    def of(self, several: Iterable[object]) -> list[str]:
        """One after the other. Who is not among them is forgotten."""
        before = self._kept
        kept: dict[int, tuple[object, str]] = {}
        for each in several:
            kept[id(each)] = before.get(id(each)) or kept.get(id(each)) or (each, to_json(each))
        self._kept = kept
        return [kept[id(each)][1] for each in several]


def _facts_text(texts: _Texts, processes: Mapping[int, ProcessFacts]) -> str:
    facts = texts.of(processes.values())
    return f"[{','.join([f'[{pid},{text}]' for pid, text in zip(processes, facts, strict=True)])}]"


def _listed_text(texts: _Texts, processes: tuple[ListedProcess, ...] | None) -> str:
    return "null" if processes is None else f"[{','.join(texts.of(processes))}]"


def _are_same(figures: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """1 and 1.0 are the same figure, and not the same text."""
    return figures == before and all(map(is_, map(type, figures), map(type, before)))


def _rows(read: UtilizationRead | None) -> str:
    if read is None:
        return "null"
    rows = [  # integers, all of them, which need no encoder
        f"[{row.pid},{row.timestamp_us},{row.sm_percent},{row.memory_percent},"
        f"{row.encoder_percent},{row.decoder_percent}]"
        for row in read.rows
    ]
    return f"[{read.since_us},{read.read_at_us},[{','.join(rows)}]]"
