"""Lines of a journal back to Snapshots, one after the other: a number stands for what that line has in full.

What several lines tell in this way is one object in their Snapshots, as it was when they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from otel_gpu.model import GpuReading, Snapshot
from otel_gpu.state.codec import loaded, reader_with

_Read = Callable[[Any], Any]

_STANDING: Final = ("processes", "names", "driver", "names_pending", "grants")
_STANDING_OF_GPU: Final = ("identity", "processes", "mig")
"""The fields that a number may stand for."""


class CycleReader:
    """Reads the lines of one file, all of them and in their order: of each place it keeps what was in full last."""

    def __init__(self) -> None:
        self._line = _Line()
        gpus = _Gpus(self._line)
        self._read = reader_with(Snapshot, {**_places(_STANDING, self._line), "gpus": gpus.reader})

    def of(self, number: int, text: bytes) -> Snapshot:
        """The cycle of the next line; ValueError if that is not what was written."""
        self._line.number = number
        return self._read(loaded(text))


class _Line:
    """The line that is being read."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class _Gpus:
    """Reads GPUs, each by its place: a number stands for what that line has at the same place."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._gpus: list[Callable[[Any], GpuReading]] = []

    def reader(self, read: _Read) -> _Read:
        """As ``read``, which would have all of them in full."""
        return lambda data: tuple(self._each(data)) if isinstance(data, list) else read(data)

    def _each(self, data: list[Any]) -> Iterable[GpuReading]:
        count, known = len(data), self._gpus
        if len(known) != count:  # who is not in a line is not referred to after it
            self._gpus = known = [*known[:count], *(self._gpu() for _ in range(count - len(known)))]
        return (gpu(each) for gpu, each in zip(known, data, strict=True))

    def _gpu(self) -> Callable[[Any], GpuReading]:
        return reader_with(GpuReading, _places(_STANDING_OF_GPU, self._line))


class _Place:
    """What stands at one place of the lines."""

    __slots__ = ("_found", "_found_in", "_line", "_read")

    def __init__(self, line: _Line, read: _Read) -> None:
        self._line = line
        self._read = read
        self._found: Any = None
        self._found_in: int | None = None
        """The last line that has it in full; ``None`` if nothing stood there then."""

    def of(self, data: Any) -> Any:
        """What it is in this line: as told there, or as in the one that it names."""
        if type(data) is not int:
            self._found = self._read(data)
            self._found_in = self._line.number if isinstance(data, list) else None
        elif data != self._found_in:
            raise ValueError(f"cycle {self._line.number} refers to one that does not have it in full")
        return self._found


def _places(names: Iterable[str], line: _Line) -> dict[str, Callable[[_Read], _Read]]:
    """What reads each of these fields, by its name."""
    return dict.fromkeys(names, lambda read: _Place(line, read).of)
