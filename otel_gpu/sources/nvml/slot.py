"""The place of one GPU: its thread, what is known of it while it does not answer, and when to ask again."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.model import DriverFacts, GpuIdentity, GpuReading
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.nvml.backoff import Backoff
from otel_gpu.sources.nvml.device import Device
from otel_gpu.sources.nvml.events import XidEvents
from otel_gpu.sources.workers import Pending, Round, TooLate, Worker

_QUICK_S: Final = 0.003
"""A GPU whose last pass took no longer is read by a thread that reads others as well."""


class Asleep(Unavailable):
    """A GPU that is runtime-suspended: it is not asked, because that would wake it."""

    def __init__(self) -> None:
        super().__init__("asleep (runtime-suspended), and not woken")


@dataclass(frozen=True, slots=True)
class Opened:
    """NVML, initialised."""

    api: NvmlApi
    driver: DriverFacts
    device_count: int
    events: XidEvents


class Slot:
    """One index of NVML's."""

    def __init__(self, index: int, opened: Opened, clock: Clock, worker: Worker, bus_id: str | None) -> None:
        """``bus_id`` is where the GPU probably is: so it is known to be asleep before it is first asked."""
        self.index = index
        self.identity: GpuIdentity | None = None
        self.worker = worker
        self._probable_bus_id = bus_id
        self._opened = opened
        self._clock = clock
        self._device: Device | None = None
        self._backoff = Backoff(clock)
        self._last_error: OtelGpuError = Unavailable("not asked yet")
        self._pending: Pending[GpuReading] | None = None
        self._overdue = False
        self._asleep = False
        self._quick = False

    @property
    def bus_id(self) -> str | None:
        """Its address on the PCI bus."""
        return self._probable_bus_id if self.identity is None else self.identity.pci_bus_id

    @property
    def hangs(self) -> bool:
        """Whether a call has not returned: one of this slot's, or of one that had its thread before."""
        return self.worker.stuck

    def start(self, together: Round, *, asleep: bool) -> None:
        """Begin a pass, unless the last one is still to be heard, or the GPU sleeps or is being left alone.

        One that was quick the last time is left to whoever makes the round.
        """
        self._overdue = self._pending is not None
        self._asleep = asleep and self._pending is None
        if self._pending is not None or self._asleep or self._backoff.remaining_s > 0:
            return
        if self._quick:
            self._pending = together.add(self._pass)
        else:
            self._pending = Pending(self._pass)
            self._begin_alone(self._pending)

    def part(self, held_up: Pending[Any] | None, left: Collection[Pending[Any]], reader: Worker) -> Worker:
        """Go on without the others: the round was cut short as it was ``held_up``, and there are some ``left``.

        The thread of who holds it up is that GPU's own from now on. Given back is the one for the next round.
        """
        if self._pending is None:
            return reader
        if self._pending is held_up:
            reader, self.worker = self.worker, reader
        elif self._pending in left:
            self._begin_alone(self._pending)
        return reader

    def _begin_alone(self, pending: Pending[GpuReading]) -> None:
        try:
            self.worker.take(pending)
        except OtelGpuError as error:  # it could not even begin
            self._last_error = error
            self._pending = None

    def finish(self, deadline_s: float, opening_deadline_s: float) -> GpuReading:
        """The figures of the pass, by the deadline; the first one, which brings the GPU up, may take longer.

        What comes too late is not lost: it is this slot's answer next time. So a GPU slower than the deadline gives
        old figures rather than none, and no row of its utilisation is forgotten.
        """
        if self._asleep:
            raise Asleep
        if self._pending is None:
            raise self._last_error
        if self._overdue:
            deadline_s = 0.0  # it had its time: nobody waits for it again
        elif self.identity is None:
            deadline_s = opening_deadline_s
        try:
            reading = self._pending.result(deadline_s)
        except TooLate as error:
            raise TooLate(f"{error}: a call to the driver has not returned; dmesg may say why") from None
        except OtelGpuError as error:
            self._last_error = error
            self._pending = None
            self._device = None  # what answered wrongly is opened anew
            self._backoff.failed()
            raise
        self._pending = None
        self._backoff.worked()
        return reading

    def _pass(self) -> GpuReading:
        began_s = time.monotonic()
        self._quick = False
        if self._device is None:
            self._device = Device(self._opened.api, self._clock, self._opened.events, self.index)
            self.identity = self._device.identity
        reading = self._device.read()
        self._quick = time.monotonic() - began_s <= _QUICK_S
        return reading
