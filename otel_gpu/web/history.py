"""The last hour of every GPU, for plots: in memory, bounded, gone with the agent."""

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


class Spread(NamedTuple):
    """One figure in one slot: the mean of its samples, the lowest and the highest of them."""

    mean: float
    low: float
    high: float


class Figures(NamedTuple):
    """Of one GPU in one slot: ratio 0 to 1, watts, bytes in use; what was not known is ``None``."""

    utilization: Spread | None
    power_w: Spread | None
    used_bytes: Spread | None


@dataclass(slots=True)
class _Samples:
    """What was known of one figure."""

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
    def spread(self) -> Spread | None:
        if not self.count:
            return None
        return Spread(round(self.total / self.count, 4), round(self.low, 4), round(self.high, 4))


@dataclass(slots=True)
class _Sum:
    """What came of one GPU in the newest slot."""

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
    def figures(self) -> Figures:
        return Figures(self.utilization.spread, self.power_w.spread, self.used_bytes.spread)


@dataclass(slots=True)
class _Slot:
    """The cycles of ``SLOT_S`` seconds. ``at_s`` (Unix time) is that of the first."""

    number: int
    at_s: float
    gpus: dict[str, Figures] = field(default_factory=dict)


class History:
    """Utilisation, power and memory in use by slots of ``SLOT_S`` s, with their peaks. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._sums: dict[str, _Sum] = {}

    def observe(self, attribution: Report) -> None:
        """Take in a cycle. Slots are by monotonic time: a wall clock that steps makes none twice."""
        number = attribution.monotonic_ns // (SLOT_S * 1_000_000_000)
        with self._lock:
            while self._slots and self._slots[0].number <= number - SLOTS:  # cycles may be rarer than slots
                self._slots.popleft()
            if not self._slots or self._slots[-1].number != number:
                self._sum_up()
                self._slots.append(_Slot(number, attribution.wall_ns / 1e9))
                self._sums.clear()
            for gpu in attribution.gpus:
                known = self._sums.get(gpu.identity.uuid)
                if known is None:
                    known = self._sums[gpu.identity.uuid] = _Sum()
                known.add(gpu, attribution.window_s)

    def document(self, *, newest_only: bool = False) -> Object:
        """Times, and beside each what is known of each GPU by its UUID: ``Figures``."""
        with self._lock:
            self._sum_up()
            slots = list(self._slots)[-1:] if newest_only else list(self._slots)
            uuids = dict.fromkeys(uuid for slot in slots for uuid in slot.gpus)
            return {
                "at": [slot.at_s for slot in slots],
                "gpus": {uuid: [slot.gpus.get(uuid) for slot in slots] for uuid in uuids},
            }

    def _sum_up(self) -> None:
        """Put down what came in the newest slot: when somebody asks, and when it is over."""
        if self._slots:
            self._slots[-1].gpus.update((uuid, known.figures) for uuid, known in self._sums.items())
