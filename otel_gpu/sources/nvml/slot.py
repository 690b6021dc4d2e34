"""The slot of one NVML index: its thread, its deadline, and back-off while the GPU does not answer."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.model import DriverFacts, GpuIdentity, GpuReading
from otel_gpu.sources.backoff import TimedBackoff
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.nvml.device import Device
from otel_gpu.sources.nvml.events import XidEvents
from otel_gpu.sources.workers import Pending, Round, TooLate, Worker

_FAST_S: Final = 0.003
"""A GPU whose last read took at most this long is read by a shared thread."""


class Asleep(Unavailable):
    """The GPU is runtime-suspended. It is not read, since that would wake it."""

    def __init__(self) -> None:
        super().__init__("asleep (runtime-suspended), and not woken")


@dataclass(frozen=True, slots=True)
class NvmlSession:
    """An initialised NVML."""

    api: NvmlApi
    driver: DriverFacts
    device_count: int
    events: XidEvents


class Slot:
    """One index of NVML."""

    def __init__(self, index: int, session: NvmlSession, clock: Clock, worker: Worker, bus_id: str | None) -> None:
        """``bus_id`` is the probable PCI address, by which a sleeping GPU is detected before its first read."""
        self.index = index
        self.identity: GpuIdentity | None = None
        self.worker = worker
        self._probable_bus_id = bus_id
        self._session = session
        self._clock = clock
        self._device: Device | None = None
        self._backoff = TimedBackoff(clock)
        self._last_error: OtelGpuError = Unavailable("not read yet")
        self._pending: Pending[GpuReading] | None = None
        self._overdue = False
        self._asleep = False
        self._is_fast = False

    @property
    def bus_id(self) -> str | None:
        """The GPU's PCI address."""
        return self._probable_bus_id if self.identity is None else self.identity.pci_bus_id

    @property
    def hangs(self) -> bool:
        """Whether a call on this slot's thread has not returned, including one of an earlier slot."""
        return self.worker.stuck

    def start(self, shared: Round, *, asleep: bool) -> None:
        """Start a read, unless the last one has not returned, the GPU sleeps, or a back-off has not passed.

        The read of a fast GPU is added to the shared round.
        """
        self._overdue = self._pending is not None
        self._asleep = asleep and self._pending is None
        if self._pending is not None or self._asleep or self._backoff.remaining_s > 0:
            return
        if self._is_fast:
            self._pending = shared.add(self._read)
        else:
            self._pending = Pending(self._read)
            self._start_alone(self._pending)

    def detach(self, blocked: Pending[Any] | None, left: Collection[Pending[Any]], reader: Worker) -> Worker:
        """Leave a shared round that was cut short by the ``blocked`` call; ``left`` are the calls not yet made.

        The thread of the blocked call becomes that GPU's own. Returns the thread for the next round.
        """
        if self._pending is None:
            return reader
        if self._pending is blocked:
            reader, self.worker = self.worker, reader
        elif self._pending in left:
            self._start_alone(self._pending)
        return reader

    def _start_alone(self, pending: Pending[GpuReading]) -> None:
        try:
            self.worker.take(pending)
        except OtelGpuError as error:  # the thread could not be started
            self._last_error = error
            self._pending = None

    def finish(self, deadline_s: float, opening_deadline_s: float) -> GpuReading:
        """The reading, by the deadline; the first one, which initialises the GPU, may take longer.

        A late reading is the result of the next read. So a GPU slower than the deadline has old figures instead of
        none, and no utilisation row is lost.
        """
        if self._asleep:
            raise Asleep
        if self._pending is None:
            raise self._last_error
        if self._overdue:
            deadline_s = 0.0  # it already had its time
        elif self.identity is None:
            deadline_s = opening_deadline_s
        try:
            reading = self._pending.result(deadline_s)
        except TooLate as error:
            raise TooLate(f"{error}: a call to the driver has not returned; dmesg may say why") from None
        except OtelGpuError as error:
            self._last_error = error
            self._pending = None
            self._device = None  # open the device again
            self._backoff.failed()
            raise
        self._pending = None
        self._backoff.worked()
        return reading

    def _read(self) -> GpuReading:
        started_s = time.monotonic()
        self._is_fast = False
        if self._device is None:
            self._device = Device(self._session.api, self._clock, self._session.events, self.index)
            self.identity = self._device.identity
        reading = self._device.read()
        self._is_fast = time.monotonic() - started_s <= _FAST_S
        return reading
