"""All GPUs of the host: each has its own thread and deadline, and none waits for another."""

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
from otel_gpu.sources.backoff import TimedBackoff
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.sources.nvml.errors import DriverFailed, NoAccess, VersionMismatch
from otel_gpu.sources.nvml.events import DEFAULT_WAIT_MS, XidCount, XidEvents
from otel_gpu.sources.nvml.inventory import GpuInventory, UnidentifiedGpu
from otel_gpu.sources.nvml.slot import NvmlSession, Slot
from otel_gpu.sources.nvml.system import PciBus, library_was_replaced
from otel_gpu.sources.workers import Pending, Round, Worker

log = logging.getLogger(__name__)

_INIT_DEADLINE_S: Final = 30.0
_OPENING_DEADLINE_S: Final = 5.0
"""For the first read of a GPU: without persistence mode the driver needs 1 to 3 s to initialise it."""

_RELEASE_S: Final = 1.5
_EVENTS_STOP_S: Final = 1.2
"""For the release of the driver, and the part of it for the event thread: the agent has 5 s to terminate."""

_ROUND_S: Final = 0.05
"""For the shared round of fast GPUs; after that each remaining one is read on its own thread."""

_READER: Final = "otel-gpu-nvml-all"
_SYS: Final = Path("/sys")
_Outcomes = Sequence[GpuReading | OtelGpuError]


class NvmlSource:
    """The GPUs NVML shows. ``read`` returns by its deadline whatever the driver does.

    ``on_old_library`` is called if the driver was upgraded and only a new process can load its library. A GPU that is
    asleep according to ``/sys`` is not read.
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
        self._initialising_deadline_s = opening_deadline_s
        self._event_wait_ms = event_wait_ms
        self._api_factory = api_factory
        self._on_old_library = on_old_library
        self._bus = PciBus(sys_root)
        self._bus_ids: tuple[str, ...] | None = None
        self._control = Worker("otel-gpu-nvml")
        self._reader = Worker(_READER)
        self._initialising: Pending[NvmlSession] | None = None
        self._backoff = TimedBackoff(clock)
        self._last_reason: str | None = None
        self._xid_counts: dict[str, XidCount] = {}
        self._inventory = GpuInventory(clock, self._xid_counts)
        self._session: NvmlSession | None = None
        self._slots: tuple[Slot, ...] = ()
        self._released_slots: tuple[Slot, ...] = ()
        self._released: list[NvmlSession] = []

    @property
    def name(self) -> str:
        """The name of the source."""
        return "nvml"

    @property
    def unidentified(self) -> tuple[UnidentifiedGpu, ...]:
        """GPUs of the last read that were never identified and so have no reading."""
        return self._inventory.unidentified

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Add GPUs of an earlier run of the agent, so that one that is lost since then is reported."""
        self._inventory.recall(gpus)

    # -- opening --------------------------------------------------------------------

    def open(self, deadline_s: float | None = None) -> None:
        """Initialise NVML if it is not. Raises Unavailable if that fails or takes longer than ``deadline_s``.

        The default is the deadline of a read.
        """
        if self._session is not None:
            return
        if self._backoff.remaining_s > 0 and self._last_reason is not None:
            raise Unavailable(self._last_reason)
        bus_ids = self._bus.gpus()
        try:
            if self._initialising is None:
                self._initialising = self._control.start(self._initialise)
            session = self._initialising.result(self._initialising.started_s + (deadline_s or self._init_deadline_s))
        except OtelGpuError as error:
            if not self._control.stuck:
                self._initialising = None
            self._fail(f"NVML: {error}", error)
            raise Unavailable(self._last_reason) from None
        self._initialising = None
        self._session, self._bus_ids = session, bus_ids
        # NVML enumerates GPUs in order of their addresses. Undocumented: it only serves to find sleeping GPUs.
        known_ids = bus_ids if bus_ids is not None and len(bus_ids) == session.device_count else ()
        # A thread that is stuck in the driver stays in use: a second call would be stuck as well.
        stuck = {slot.index: slot.worker for slot in self._released_slots if slot.hangs}
        self._released_slots = tuple(
            slot for slot in self._released_slots if slot.hangs and slot.index >= session.device_count
        )
        self._slots = tuple(
            Slot(
                index,
                session,
                self._clock,
                stuck.get(index) or Worker(f"otel-gpu-nvml-{index}"),
                known_ids[index] if known_ids else None,
            )
            for index in range(session.device_count)
        )

    def _initialise(self) -> NvmlSession:
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
        return NvmlSession(api, driver, count, XidEvents(api, self._xid_counts, self._event_wait_ms))

    def _fail(self, reason: str, cause: OtelGpuError) -> None:
        """Record a failure of NVML as a whole and start a back-off."""
        self._last_reason = reason
        if not self._control.stuck:
            self._backoff.failed()
        if isinstance(cause, VersionMismatch) and library_was_replaced():
            self._on_old_library()

    # -- release --------------------------------------------------------------------

    def close(self) -> None:
        """Release the driver and end the threads; a later read opens it again.

        A call that is stuck in the driver keeps its part. Once it has returned, another ``close`` releases the rest.
        """
        self._release()
        if self._initialising is not None and self._initialising.finished:
            with contextlib.suppress(OtelGpuError):
                self._released.append(self._initialising.result(0.0))
            self._initialising = None
            self._shut_down()
        if not self._control.stuck:
            self._control.close()
            self._control = Worker("otel-gpu-nvml")
        self._backoff.worked()

    def holds(self) -> bool:
        """Whether the closed source still holds the driver, because a call has not returned."""
        return bool(self._released or self._released_slots) or self._initialising is not None or self._control.stuck

    def _release(self) -> None:
        """Release everything, in at most ``_RELEASE_S``."""
        session, self._session = self._session, None
        self._bus.close_files()
        self._reader.close()
        self._reader = Worker(_READER)
        self._released_slots, self._slots = (*self._released_slots, *self._slots), ()
        if session is not None:
            self._released.append(session)
        self._shut_down()

    def _shut_down(self) -> None:
        for slot in self._released_slots:
            if not slot.hangs:
                slot.worker.close()
        self._released_slots = tuple(slot for slot in self._released_slots if slot.hangs)
        deadline_s = time.monotonic() + _RELEASE_S
        stopped = [session.events.stop(_EVENTS_STOP_S) for session in self._released]
        if not self._released or not all(stopped) or self._released_slots:
            return  # shutting NVML down under a call that has not returned is undefined
        released, self._released = self._released, []

        def shut_down() -> None:
            for session in released:
                session.events.free()
                session.api.shutdown()

        try:
            self._control.start(shut_down).result(deadline_s)
        except OtelGpuError as error:
            log.debug("NVML shutdown: %s", error)

    # -- reading --------------------------------------------------------------------

    def read(self) -> GpuRead:
        """Read all GPUs. One that fails stays in the read, without figures and with the reason."""
        bus_ids = self._bus.gpus()
        if self._session is not None and None not in (bus_ids, self._bus_ids) and bus_ids != self._bus_ids:
            self._release()  # a GPU was added or removed: NVML enumerates them when it is initialised
        if self._session is None and bus_ids and all(map(self._bus.is_asleep, bus_ids)):
            return self._inventory.build_all_asleep(len(bus_ids))
        try:
            self.open()
        except OtelGpuError as error:
            return self._inventory.build_unavailable(str(error))
        started_s = time.monotonic()
        shared = Round()
        for slot in self._slots:
            # Without the driver in /sys there are no states of its GPUs.
            bus_id = None if bus_ids is None else slot.bus_id
            slot.start(shared, asleep=bus_id is not None and self._bus.is_asleep(bus_id))
        if shared:
            self._run_shared(shared)
        deadline_s = started_s + self._deadline_s
        opening_deadline_s = max(deadline_s, started_s + self._initialising_deadline_s)
        outcomes = [_finished(slot, deadline_s, opening_deadline_s) for slot in self._slots]
        driver = self._session.driver if self._session is not None else None
        failed = self._driver_failure(outcomes)
        if failed is not None:
            read = self._inventory.build_driver_failure(self._slots, outcomes, driver, f"NVML: {failed}")
        else:
            read = self._inventory.build_read(self._slots, outcomes, driver)
        if failed is None and read.state is not SourceState.UNAVAILABLE:
            self._backoff.worked()
        elif failed is not None or not any(slot.hangs for slot in self._slots):
            # No GPU answers: a later read initialises and enumerates again.
            self._release()
            self._fail(read.reason or "NVML: no GPU answers", failed or Unavailable("no GPU answers"))
        return read

    def _run_shared(self, shared: Round) -> None:
        """Read fast GPUs on one thread; if one of them blocks, the others continue on their own threads."""
        timeout_s = min(_ROUND_S, self._deadline_s / 2)
        try:
            self._reader.start(shared.run).result(time.monotonic() + timeout_s)
        except OtelGpuError:
            blocked, left = shared.cut()
            for slot in self._slots:
                self._reader = slot.detach(blocked, left, self._reader)

    def _driver_failure(self, outcomes: _Outcomes) -> OtelGpuError | None:
        """An error of the driver instead of one GPU: reported as such, or all GPUs are inaccessible."""
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
