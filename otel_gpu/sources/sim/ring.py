"""The driver's ring of utilisation samples, and the rows it computes from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_gpu.model import UtilizationRow


class Engines(NamedTuple):
    """Utilisation of the GPU's engines in whole percent."""

    sm_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int


IDLE_ENGINES: Final = Engines(0, 0, 0, 0)


class Sample(NamedTuple):
    """One sample of the driver at a world time in µs: utilisation of the engines, and the pids credited with it.

    The whole utilisation of an engine is credited to the one pid that works at that instant, if there is one.
    """

    taken_us: int
    whole: Engines
    credits: tuple[tuple[int, Engines], ...]


class SampleRing:
    """The latest ``size`` samples; older ones are overwritten."""

    def __init__(self, size: int) -> None:
        self._samples: deque[Sample] = deque(maxlen=size)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def add(self, sample: Sample) -> None:
        """Store the next sample."""
        self._samples.append(sample)

    def rows(self, since_us: int) -> tuple[UtilizationRow, ...]:
        """One row per pid seen after ``since_us``. Timestamps are world time.

        As in the driver, a value is the pid's sum over the number of *all* samples in the window, in whole percent, and
        the timestamp is that of the pid's latest sample.
        """
        window = [sample for sample in self._samples if sample.taken_us > since_us]
        sums: dict[int, list[int]] = {}
        newest: dict[int, int] = {}
        for sample in window:
            for pid, engines in sample.credits:
                sums[pid] = [a + b for a, b in zip(sums.get(pid, (0, 0, 0, 0)), engines, strict=True)]
                newest[pid] = sample.taken_us
        return tuple(
            UtilizationRow(pid, newest[pid], *(total // len(window) for total in totals))
            for pid, totals in sums.items()
        )

    def mean(self, since_us: int) -> Engines:
        """Mean utilisation of the engines after ``since_us``, in whole percent."""
        window = [sample.whole for sample in self._samples if sample.taken_us > since_us]
        if not window:
            return IDLE_ENGINES
        return Engines(*(round(sum(engine) / len(window)) for engine in zip(*window, strict=True)))
