"""All GPUs of the host, side by side: each has its own thread and deadline, and none waits for another."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.model import GpuIdentity, GpuReading, SourceState
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml import library
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.nvml.backoff import Backoff
from otel_gpu.sources.nvml.events import DEFAULT_WAIT_MS, XidCount, XidEvents
from otel_gpu.sources.nvml.faults import DriverFailed, NoAccess, VersionsDiffer
from otel_gpu.sources.nvml.roll import Nameless, Roll
from otel_gpu.sources.nvml.slot import Opened, Slot
from otel_gpu.sources.sysfs import PciBus
from otel_gpu.sources.workers import Pending, Round, Worker

log = logging.getLogger(__name__)

_INIT_DEADLINE_S: Final = 30.0
_OPENING_DEADLINE_S: Final = 5.0
"""How long the first pass over a GPU may take: with persistence mode off the driver needs 1 to 3 s to bring it up."""

_RELEASE_S: Final = 1.5
_QUIET_S: Final = 1.2
"""How long letting go of the driver may take, and of that the end of a wait for events: an agent told to end has 5 s
for everything."""

_PATIENCE_S: Final = 0.05
"""How long those that were quick the last time are waited for together; then each of them goes on by itself."""

_READER: Final = "otel-gpu-nvml-all"
_SYS: Final = Path("/sys")
_Outcomes = Sequence[GpuReading | OtelGpuError]


class NvmlSource:
    """The GPUs NVML shows. ``read`` returns by its deadline whatever the driver does.

    ``on_old_library`` is called when the driver was upgraded and only another process could go on. A GPU that is
    asleep, as ``/sys`` says, is not asked.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        deadline_s: float = 2.0,
        init_deadline_s: float = _INIT_DEADLINE_S,
        opening_deadline_s: float = _OPENING_DEADLINE_S,
        event_wait_ms: int = DEFAULT_WAIT_MS,
        api_factory: Callable[[], NvmlApi] = NvmlApi,
        sys_root: Path = _SYS,
        on_old_library: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._init_deadline_s = init_deadline_s
        self._opening_deadline_s = opening_deadline_s
        self._event_wait_ms = event_wait_ms
        self._api_factory = api_factory
        self._on_old_library = on_old_library
        self._bus = PciBus(sys_root)
        self._on_bus: tuple[str, ...] | None = None
        self._control = Worker("otel-gpu-nvml")
        self._reader = Worker(_READER)
        self._opening: Pending[Opened] | None = None
        self._backoff = Backoff(clock)
        self._last_reason: str | None = None
        self._xid_counts: dict[str, XidCount] = {}
        self._roll = Roll(clock, self._xid_counts)
        self._opened: Opened | None = None
        self._slots: tuple[Slot, ...] = ()
        self._left: tuple[Slot, ...] = ()
        self._leaving: list[Opened] = []

    @property
    def name(self) -> str:
        """Its name among the sources."""
        return "nvml"

    @property
    def nameless(self) -> tuple[Nameless, ...]:
        """GPUs that the last pass over them counted and nobody has identified: no reading can tell of those."""
        return self._roll.nameless

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Know GPUs from an earlier run of the agent: one that is lost since then is told of by its name."""
        self._roll.recall(gpus)

    # -- opening --------------------------------------------------------------------

    def open(self, deadline_s: float | None = None) -> None:
        """Initialise NVML if it is not; Unavailable with the reason if that fails or takes longer than ``deadline_s``.

        By default that is as long as a reading waits for it.
        """
        if self._opened is not None:
            return
        if self._backoff.remaining_s > 0 and self._last_reason is not None:
            raise Unavailable(self._last_reason)
        on_bus = self._bus.gpus()
        try:
            if self._opening is None:
                self._opening = self._control.start(self._initialise)
            opened = self._opening.result(self._opening.started_s + (deadline_s or self._init_deadline_s))
        except OtelGpuError as error:
            if not self._control.stuck:
                self._opening = None
            self._fail(f"NVML: {error}", error)
            raise Unavailable(self._last_reason) from None
        self._opening = None
        self._opened, self._on_bus = opened, on_bus
        # NVML counts GPUs in the order of their addresses. That is no promise, so it only tells who may be asleep.
        bus_ids = on_bus if on_bus is not None and len(on_bus) == opened.device_count else ()
        # A thread that is stuck in the driver keeps its place: a second call behind it would be stuck as well.
        stuck = {slot.index: slot.worker for slot in self._left if slot.hangs}
        self._left = tuple(slot for slot in self._left if slot.hangs and slot.index >= opened.device_count)
        self._slots = tuple(
            Slot(
                index,
                opened,
                self._clock,
                stuck.get(index) or Worker(f"otel-gpu-nvml-{index}"),
                bus_ids[index] if bus_ids else None,
            )
            for index in range(opened.device_count)
        )

    def _initialise(self) -> Opened:
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
        return Opened(api, driver, count, XidEvents(api, self._xid_counts, self._event_wait_ms))

    def _fail(self, reason: str, cause: OtelGpuError) -> None:
        """NVML as a whole does not work: leave it alone for a while."""
        self._last_reason = reason
        if not self._control.stuck:
            self._backoff.failed()
        if isinstance(cause, VersionsDiffer) and library.was_replaced():
            self._on_old_library()

    # -- letting go -----------------------------------------------------------------

    def close(self) -> None:
        """Let go of the driver and end the threads; reading again takes hold of it again.

        What is stuck in the driver is left to it. Once that has returned, closing again lets go of the rest.
        """
        self._release()
        if self._opening is not None and self._opening.finished:
            with contextlib.suppress(OtelGpuError):
                self._leaving.append(self._opening.result(0.0))
            self._opening = None
            self._give_back()
        if not self._control.stuck:
            self._control.close()
            self._control = Worker("otel-gpu-nvml")
        self._backoff.worked()

    def holds(self) -> bool:
        """Whether, closed, it still has hold of the driver: a call has not returned."""
        return bool(self._leaving or self._left) or self._opening is not None or self._control.stuck

    def _release(self) -> None:
        """Give everything back, in at most ``_RELEASE_S``."""
        opened, self._opened = self._opened, None
        self._bus.close_files()
        self._reader.close()
        self._reader = Worker(_READER)
        self._left, self._slots = (*self._left, *self._slots), ()
        if opened is not None:
            self._leaving.append(opened)
        self._give_back()

    def _give_back(self) -> None:
        for slot in self._left:
            if not slot.hangs:
                slot.worker.close()
        self._left = tuple(slot for slot in self._left if slot.hangs)
        deadline_s = time.monotonic() + _RELEASE_S
        quiet = [opened.events.stop(_QUIET_S) for opened in self._leaving]
        if not self._leaving or not all(quiet) or self._left:
            return  # shutting NVML down under a call that has not returned is undefined
        leaving, self._leaving = self._leaving, []

        def give_back() -> None:
            for opened in leaving:
                opened.events.free()
                opened.api.shutdown()

        try:
            self._control.start(give_back).result(deadline_s)
        except OtelGpuError as error:
            log.debug("NVML shutdown: %s", error)

    # -- reading --------------------------------------------------------------------

    def read(self) -> GpuRead:
        """One pass over all GPUs. Those that fail keep their place, without figures and with the reason."""
        on_bus = self._bus.gpus()
        if self._opened is not None and None not in (on_bus, self._on_bus) and on_bus != self._on_bus:
            self._release()  # a GPU came or went: NVML enumerates them when it is initialised
        if self._opened is None and on_bus and all(map(self._bus.is_asleep, on_bus)):
            return self._roll.all_asleep(len(on_bus))
        try:
            self.open()
        except OtelGpuError as error:
            return self._roll.absent(str(error))
        started_s = time.monotonic()
        together = Round()
        for slot in self._slots:
            # Where /sys does not have the driver, it has none of its GPUs either.
            bus_id = None if on_bus is None else slot.bus_id
            slot.start(together, asleep=bus_id is not None and self._bus.is_asleep(bus_id))
        if together:
            self._go_round(together)
        deadline_s = started_s + self._deadline_s
        opening_deadline_s = max(deadline_s, started_s + self._opening_deadline_s)
        outcomes = [_finished(slot, deadline_s, opening_deadline_s) for slot in self._slots]
        driver = self._opened.driver if self._opened is not None else None
        failed = self._driver_failure(outcomes)
        if failed is not None:
            read = self._roll.failed(self._slots, outcomes, driver, f"NVML: {failed}")
        else:
            read = self._roll.call(self._slots, outcomes, driver)
        if failed is None and read.state is not SourceState.UNAVAILABLE:
            self._backoff.worked()
        elif failed is not None or not any(slot.hangs for slot in self._slots):
            # Nobody answers: a later pass initialises and enumerates again.
            self._release()
            self._fail(read.reason or "NVML: no GPU answers", failed or Unavailable("no GPU answers"))
        return read

    def _go_round(self, together: Round) -> None:
        """Read the quick ones, by one thread; what is held up by one of them is given to each one's own."""
        patience_s = min(_PATIENCE_S, self._deadline_s / 2)
        try:
            self._reader.start(together.run).result(time.monotonic() + patience_s)
        except OtelGpuError:
            held_up, left = together.cut()
            for slot in self._slots:
                self._reader = slot.part(held_up, left, self._reader)

    def _driver_failure(self, outcomes: _Outcomes) -> OtelGpuError | None:
        """What is wrong with all GPUs rather than with one: the driver says so, or none can be reached."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, OtelGpuError)]
        if not errors:
            return None
        failed = next((error for error in errors if isinstance(error, DriverFailed)), None)
        if failed is None and len(errors) == len(outcomes) and all(isinstance(error, NoAccess) for error in errors):
            return errors[0]
        return failed


def _finished(slot: Slot, deadline_s: float, opening_deadline_s: float) -> GpuReading | OtelGpuError:
    try:
        return slot.finish(deadline_s, opening_deadline_s)
    except OtelGpuError as error:
        return error
