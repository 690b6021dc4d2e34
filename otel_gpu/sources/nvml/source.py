"""All GPUs of the host, side by side: each has its own thread and deadline, and none waits for another."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.model import DriverFacts, GpuHealth, GpuIdentity, GpuReading, SourceState
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.nvml.device import Device
from otel_gpu.sources.nvml.events import DEFAULT_WAIT_MS, XidCount, XidEvents
from otel_gpu.sources.nvml.faults import DriverFailed
from otel_gpu.sources.workers import Pending, Worker

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 60.0
_INIT_DEADLINE_S: Final = 30.0
"""With persistence mode off the driver takes 1 to 3 s per GPU to come up."""


class _Backoff:
    """When something that failed may be tried again: after 1, 2, 4 … 60 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._not_before_ns = 0

    @property
    def remaining_s(self) -> float:
        """How long to leave it alone; 0 when it may be tried."""
        return max(0, self._not_before_ns - self._clock.monotonic_ns()) / 1e9

    def failed(self) -> None:
        """It failed again: wait twice as long as last time."""
        self._pause_s = min(max(1.0, self._pause_s * 2), _LONGEST_PAUSE_S)
        self._not_before_ns = self._clock.monotonic_ns() + round(self._pause_s * 1e9)

    def worked(self) -> None:
        """It works: the next failure starts from the shortest pause."""
        self._pause_s = 0.0
        self._not_before_ns = 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """NVML, initialised."""

    api: NvmlApi
    driver: DriverFacts
    device_count: int
    events: XidEvents


class _Slot:
    """The place of one GPU: its thread, its device once opened, and what is known of it while it does not answer."""

    def __init__(self, index: int, opened: _Opened, clock: Clock) -> None:
        self.index = index
        self.identity: GpuIdentity | None = None
        self.worker = Worker(f"otel-gpu-nvml-{index}")
        self._opened = opened
        self._clock = clock
        self._device: Device | None = None
        self._backoff = _Backoff(clock)
        self._last_reason = ""

    def start(self) -> Pending[GpuReading]:
        """Begin a pass; Unavailable if the last one has not returned or the GPU is being left alone."""
        if self._backoff.remaining_s > 0:
            raise Unavailable(self._last_reason)
        return self.worker.start(self._pass)

    def _pass(self) -> GpuReading:
        if self._device is None:
            self._device = Device(self._opened.api, self._clock, self._opened.events, self.index)
            self.identity = self._device.identity
        return self._device.read()

    def succeeded(self) -> None:
        """The pass returned figures."""
        self._backoff.worked()

    def failed(self, reason: str) -> None:
        """The pass did not; a device that answered wrongly is opened anew next time."""
        self._last_reason = reason
        if not self.worker.stuck:
            self._device = None
            self._backoff.failed()


class NvmlSource:
    """The GPUs NVML shows. ``read`` returns by its deadline whatever the driver does."""

    def __init__(
        self,
        clock: Clock,
        *,
        deadline_s: float = 2.0,
        init_deadline_s: float = _INIT_DEADLINE_S,
        event_wait_ms: int = DEFAULT_WAIT_MS,
        api_factory: Callable[[], NvmlApi] = NvmlApi,
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._init_deadline_s = init_deadline_s
        self._event_wait_ms = event_wait_ms
        self._api_factory = api_factory
        self._control = Worker("otel-gpu-nvml")
        self._opening: Pending[_Opened] | None = None
        self._backoff = _Backoff(clock)
        self._last_reason: str | None = None
        self._xid_counts: dict[str, XidCount] = {}
        self._opened: _Opened | None = None
        self._slots: tuple[_Slot, ...] = ()

    @property
    def name(self) -> str:
        """Its name among the sources."""
        return "nvml"

    # -- opening --------------------------------------------------------------------

    def open(self) -> None:
        """Initialise NVML if it is not; Unavailable with the reason if that fails or takes too long."""
        if self._opened is not None:
            return
        if self._backoff.remaining_s > 0 and self._last_reason is not None:
            raise Unavailable(self._last_reason)
        try:
            if self._opening is None:
                self._opening = self._control.start(self._initialise)
            opened = self._opening.result(self._opening.started_s + self._init_deadline_s)
        except OtelGpuError as error:
            if not self._control.stuck:
                self._opening = None
                self._backoff.failed()
            self._last_reason = f"NVML: {error}"
            raise Unavailable(self._last_reason) from None
        self._opening = None
        self._backoff.worked()
        self._opened = opened
        self._slots = tuple(_Slot(index, opened, self._clock) for index in range(opened.device_count))

    def _initialise(self) -> _Opened:
        api = self._api_factory()
        driver = api.init()
        try:
            count = api.device_count()
            if count == 0:
                raise Unavailable("no GPU is visible: check nvidia-smi -L and NVIDIA_VISIBLE_DEVICES")
        except OtelGpuError:
            with contextlib.suppress(OtelGpuError):
                api.shutdown()
            raise
        return _Opened(api, driver, count, XidEvents(api, self._xid_counts, self._event_wait_ms))

    def close(self) -> None:
        """Let go of the driver and end the threads. A thread stuck in the driver is left to it."""
        self._release()
        self._control.close()

    def _release(self) -> None:
        opened, self._opened = self._opened, None
        slots, self._slots = self._slots, ()
        for slot in slots:
            slot.worker.close()
        if opened is None:
            return
        opened.events.close()
        if any(slot.worker.stuck for slot in slots):
            return  # shutting NVML down under a call that has not returned is undefined
        try:
            self._control.start(opened.api.shutdown).result(time.monotonic() + self._deadline_s)
        except OtelGpuError as error:
            log.debug("NVML shutdown: %s", error)

    # -- reading --------------------------------------------------------------------

    def read(self) -> GpuRead:
        """One pass over all GPUs. Those that fail keep their place, without figures and with the reason."""
        try:
            self.open()
        except OtelGpuError as error:
            return GpuRead(state=SourceState.UNAVAILABLE, reason=str(error), errors=1)
        deadline_s = time.monotonic() + self._deadline_s
        pending = [self._start(slot) for slot in self._slots]
        outcomes = [self._finish(slot, call, deadline_s) for slot, call in zip(self._slots, pending, strict=True)]
        read = self._summarise(outcomes)
        if any(isinstance(outcome, DriverFailed) for outcome in outcomes):
            self._release()  # the next pass initialises and enumerates again
        return read

    def _start(self, slot: _Slot) -> Pending[GpuReading] | OtelGpuError:
        try:
            return slot.start()
        except OtelGpuError as error:
            return error

    def _finish(
        self, slot: _Slot, call: Pending[GpuReading] | OtelGpuError, deadline_s: float
    ) -> GpuReading | OtelGpuError:
        if isinstance(call, OtelGpuError):
            return call
        try:
            reading = call.result(deadline_s)
        except OtelGpuError as error:
            slot.failed(str(error))
            return error
        slot.succeeded()
        return reading

    def _summarise(self, outcomes: list[GpuReading | OtelGpuError]) -> GpuRead:
        driver = self._opened.driver if self._opened is not None else None
        gpus: list[GpuReading] = []
        reasons: list[str] = []
        answered = 0
        for slot, outcome in zip(self._slots, outcomes, strict=True):
            if isinstance(outcome, GpuReading):
                answered += 1
                gpus.append(outcome)
                if outcome.reason is not None:
                    reasons.append(f"GPU {slot.index}: {outcome.reason}")
                continue
            reasons.append(f"GPU {slot.index}: {outcome}")
            if slot.identity is not None:
                taken_at_ns = self._clock.monotonic_ns()
                gpus.append(GpuReading(slot.identity, taken_at_ns, health=GpuHealth.FAILED, reason=str(outcome)))
        state = SourceState.OK if not reasons else SourceState.DEGRADED if answered else SourceState.UNAVAILABLE
        return GpuRead(tuple(gpus), driver, state, "; ".join(reasons) or None, len(reasons))
