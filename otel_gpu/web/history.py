"""The last hour of every GPU, for plots. It is bounded, kept in memory only and lost at a restart."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from otel_gpu.export.table_figures import gpu_power_w
from otel_gpu.model import GpuReport, Report

SLOT_S: Final = 15
SLOTS: Final = 3600 // SLOT_S

Object = dict[str, Any]


class Summary(NamedTuple):
    """The samples of one figure in one slot."""

    mean: float
    low: float
    high: float


class GpuSlot(NamedTuple):
    """The figures of one GPU in one slot: ratio from 0 to 1, watts, bytes in use. An unknown figure is ``None``."""

    utilization: Summary | None
    power_w: Summary | None
    used_bytes: Summary | None


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
        return Summary(round(self.total / self.count, 4), round(self.low, 4), round(self.high, 4))


@dataclass(slots=True)
class _GpuSamples:
    """The samples of one GPU in the newest slot so far."""

    utilization: _Samples = field(default_factory=_Samples)
    power_w: _Samples = field(default_factory=_Samples)
    used_bytes: _Samples = field(default_factory=_Samples)

    def add(self, gpu: GpuReport, window_s: float | None) -> None:
        self.utilization.add(gpu.reading.gpu_ratio)
        self.power_w.add(gpu_power_w(gpu, window_s))
        memory = gpu.memory
        if memory is not None:
            self.used_bytes.add(memory.limit_bytes - memory.free_bytes - (memory.reserved_bytes or 0))

    @property
    def slot(self) -> GpuSlot:
        return GpuSlot(self.utilization.summary, self.power_w.summary, self.used_bytes.summary)


@dataclass(slots=True)
class _Slot:
    """The cycles of ``SLOT_S`` seconds. ``at_s`` is the Unix time of the first."""

    number: int
    at_s: float
    gpus: dict[str, GpuSlot] = field(default_factory=dict)


class History:
    """Utilisation, power and memory in use of every GPU, in slots of ``SLOT_S`` s. Any thread may use it."""

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
                self._summarize()
                self._slots.append(_Slot(number, report.wall_ns / 1e9))
                self._samples.clear()
            for gpu in report.gpus:
                samples = self._samples.get(gpu.identity.uuid)
                if samples is None:
                    samples = self._samples[gpu.identity.uuid] = _GpuSamples()
                samples.add(gpu, report.window_s)

    def document(self, *, newest_only: bool = False) -> Object:
        """The times of the slots, and for each GPU by UUID a ``GpuSlot`` or ``None`` per time."""
        with self._lock:
            self._summarize()
            slots = list(self._slots)[-1:] if newest_only else list(self._slots)
            uuids = dict.fromkeys(uuid for slot in slots for uuid in slot.gpus)
            return {
                "at": [slot.at_s for slot in slots],
                "gpus": {uuid: [slot.gpus.get(uuid) for slot in slots] for uuid in uuids},
            }

    def _summarize(self) -> None:
        """Write the samples so far to the newest slot."""
        if self._slots:
            self._slots[-1].gpus.update((uuid, samples.slot) for uuid, samples in self._samples.items())
