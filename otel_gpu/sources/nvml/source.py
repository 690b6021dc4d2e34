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
_OPENING_DEADLINE_S: Final = 5.0
"""How long the first pass over a GPU may take: with persistence mode off the driver needs 1 to 3 s to bring it up."""

_RELEASE_S: Final = 1.5
"""How long letting go of the driver may take: an agent told to end has 5 s for everything."""


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

    def __init__(self, index: int, opened: _Opened, clock: Clock, worker: Worker) -> None:
        self.index = index
        self.identity: GpuIdentity | None = None
        self.worker = worker
        self._opened = opened
        self._clock = clock
        self._device: Device | None = None
        self._backoff = _Backoff(clock)
        self._last_reason = ""
        self._pending: Pending[GpuReading] | None = None
        self._overdue = False

    def start(self) -> None:
        """Begin a pass, unless the last one is still to be heard, or the GPU is being left alone."""
        self._overdue = self._pending is not None
        if self._pending is None and self._backoff.remaining_s == 0:
            self._pending = self.worker.start(self._pass)

    def not_started(self, error: OtelGpuError) -> None:
        """The pass could not even begin."""
        self._last_reason = str(error)

    def finish(self, deadline_s: float, opening_deadline_s: float) -> GpuReading:
        """The figures of the pass, by the deadline; the first one, which brings the GPU up, may take longer.

        What comes too late is not lost: it is this slot's answer next time. So a GPU slower than the deadline gives
        old figures rather than none, and no row of its utilisation is forgotten.
        """
        if self._pending is None:
            raise Unavailable(self._last_reason)
        if self._overdue:
            deadline_s = 0.0  # it had its time: nobody waits for it again
        elif self.identity is None:
            deadline_s = opening_deadline_s
        try:
            reading = self._pending.result(deadline_s)
        except OtelGpuError as error:
            if self._pending.finished:
                self._pending = None
                self._device = None  # what answered wrongly is opened anew
                self._backoff.failed()
            self._last_reason = str(error)
            raise
        self._pending = None
        self._backoff.worked()
        return reading

    def _pass(self) -> GpuReading:
        if self._device is None:
            self._device = Device(self._opened.api, self._clock, self._opened.events, self.index)
            self.identity = self._device.identity
        return self._device.read()


class NvmlSource:
    """The GPUs NVML shows. ``read`` returns by its deadline whatever the driver does."""

    def __init__(
        self,
        clock: Clock,
        *,
        deadline_s: float = 2.0,
        init_deadline_s: float = _INIT_DEADLINE_S,
        opening_deadline_s: float = _OPENING_DEADLINE_S,
        event_wait_ms: int = DEFAULT_WAIT_MS,
        api_factory: Callable[[], NvmlApi] = NvmlApi,
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._init_deadline_s = init_deadline_s
        self._opening_deadline_s = opening_deadline_s
        self._event_wait_ms = event_wait_ms
        self._api_factory = api_factory
        self._control = Worker("otel-gpu-nvml")
        self._opening: Pending[_Opened] | None = None
        self._backoff = _Backoff(clock)
        self._last_reason: str | None = None
        self._xid_counts: dict[str, XidCount] = {}
        self._opened: _Opened | None = None
        self._slots: tuple[_Slot, ...] = ()
        self._left: tuple[_Slot, ...] = ()

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
        self._opened = opened
        # A thread that is stuck in the driver keeps its place: a second call behind it would be stuck as well.
        stuck = {slot.index: slot.worker for slot in self._left if slot.worker.stuck}
        self._left = ()
        self._slots = tuple(
            _Slot(index, opened, self._clock, stuck.get(index) or Worker(f"otel-gpu-nvml-{index}"))
            for index in range(opened.device_count)
        )

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
        """Give everything back, in at most ``_RELEASE_S``."""
        opened, self._opened = self._opened, None
        self._left, self._slots = self._slots, ()
        for slot in self._left:
            if not slot.worker.stuck:
                slot.worker.close()
        if opened is None:
            return
        deadline_s = time.monotonic() + _RELEASE_S
        quiet = opened.events.stop(_RELEASE_S / 2)
        if not quiet or any(slot.worker.stuck for slot in self._left):
            return  # shutting NVML down under a call that has not returned is undefined

        def give_back() -> None:
            opened.events.free()
            opened.api.shutdown()

        try:
            self._control.start(give_back).result(deadline_s)
        except OtelGpuError as error:
            log.debug("NVML shutdown: %s", error)

    # -- reading --------------------------------------------------------------------

    def read(self) -> GpuRead:
        """One pass over all GPUs. Those that fail keep their place, without figures and with the reason."""
        try:
            self.open()
        except OtelGpuError as error:
            return GpuRead(state=SourceState.UNAVAILABLE, reason=str(error), errors=1)
        started_s = time.monotonic()
        for slot in self._slots:
            self._start(slot)
        outcomes = [self._finish(slot, started_s) for slot in self._slots]
        read = self._summarise(outcomes)
        failed = next((outcome for outcome in outcomes if isinstance(outcome, DriverFailed)), None)
        if failed is None:
            self._backoff.worked()
        else:
            self._release()  # a later pass initialises and enumerates again
            self._backoff.failed()
            self._last_reason = f"NVML: {failed}"
        return read

    def _start(self, slot: _Slot) -> None:
        try:
            slot.start()
        except OtelGpuError as error:
            slot.not_started(error)

    def _finish(self, slot: _Slot, started_s: float) -> GpuReading | OtelGpuError:
        opening_s = max(self._deadline_s, self._opening_deadline_s)
        try:
            return slot.finish(started_s + self._deadline_s, started_s + opening_s)
        except OtelGpuError as error:
            return error

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
