"""The last hour of every GPU, for plots: bounded, in memory only, lost at a restart."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from otel_gpu.model import GpuReport, Report
from otel_gpu.view.model import History, Slot, Summary
from otel_gpu.view.text import gpu_power_w

SLOT_S: Final = 15
SLOTS: Final = 3600 // SLOT_S


@dataclass(slots=True)
class _Samples:
    """The samples of one figure so far."""

    total: float = 0.0
    count: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1
            self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def summary(self) -> Summary | None:
        if not self.count:
            return None
        return round(self.total / self.count, 4), round(self.low, 4), round(self.high, 4)


@dataclass(slots=True)
class _GpuSamples:
    """The samples of one GPU in the newest slot so far."""

    utilization: _Samples = field(default_factory=_Samples)
    power_w: _Samples = field(default_factory=_Samples)
    used_bytes: _Samples = field(default_factory=_Samples)

    def add(self, gpu: GpuReport, window_s: float | None) -> None:
        self.utilization.add(gpu.reading.gpu_ratio)
        self.power_w.add(gpu_power_w(gpu, window_s))
        self.used_bytes.add(None if gpu.memory is None else gpu.memory.used_bytes)

    @property
    def slot(self) -> Slot:
        return self.utilization.summary, self.power_w.summary, self.used_bytes.summary


@dataclass(slots=True)
class _Slot:
    """The cycles of ``SLOT_S`` seconds. ``at_s`` is the Unix time of the first."""

    number: int
    at_s: float
    gpus: dict[str, Slot] = field(default_factory=dict)


class Recorder:
    """Records utilisation, power and memory in use of every GPU in slots of ``SLOT_S`` s. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._samples: dict[str, _GpuSamples] = {}

    def observe(self, report: Report) -> None:
        """Add a cycle. Slots follow monotonic time, so a step of the wall clock repeats none."""
        number = report.monotonic_ns // (SLOT_S * 1_000_000_000)
        with self._lock:
            while self._slots and self._slots[0].number <= number - SLOTS:  # some slots may have no cycle
                self._slots.popleft()
            if not self._slots or self._slots[-1].number != number:
                self._slots.append(_Slot(number, report.wall_ns / 1e9))
                self._samples.clear()
            for gpu in report.gpus:
                samples = self._samples.get(gpu.identity.uuid)
                if samples is None:
                    samples = self._samples[gpu.identity.uuid] = _GpuSamples()
                samples.add(gpu, report.window_s)
                self._slots[-1].gpus[gpu.identity.uuid] = samples.slot

    def history(self) -> History:
        """All slots."""
        with self._lock:
            uuids = dict.fromkeys(uuid for slot in self._slots for uuid in slot.gpus)
            return History(
                tuple(slot.at_s for slot in self._slots),
                {uuid: tuple(slot.gpus.get(uuid) for slot in self._slots) for uuid in uuids},
            )


def newest(history: History) -> History:
    """The newest slot alone, and the GPUs in it."""
    gpus = {uuid: slots[-1:] for uuid, slots in history.gpus.items() if slots[-1] is not None}
    return History(history.at[-1:], gpus)


def merged(history: History, update: History) -> History:
    """The history with the slots of an update, which replace slots of the same time; one hour at most."""
    at = sorted({*history.at, *update.at})[-SLOTS:]
    slots = {
        uuid: {
            **dict(zip(history.at, history.gpus.get(uuid, ()), strict=False)),
            **dict(zip(update.at, update.gpus.get(uuid, ()), strict=False)),
        }
        for uuid in {**history.gpus, **update.gpus}
    }
    gpus = {uuid: tuple(of.get(time) for time in at) for uuid, of in slots.items()}
    return History(tuple(at), {uuid: of for uuid, of in gpus.items() if any(slot is not None for slot in of)})
