"""Critical GPU errors (XID), counted from the driver's events."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, Final

from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.sources.nvml.api import Handle, NvmlApi, address

DEFAULT_WAIT_MS: Final = 1000
"""Timeout of one wait for events. A wait cannot be interrupted, so that releasing the driver takes as long; each wait
wakes a thread."""


@dataclass(frozen=True, slots=True)
class XidCount:
    """Critical errors of one GPU since the agent first saw it."""

    errors: int = 0
    last_xid: int | None = None


class XidEvents:
    """Counts XID events per GPU on a thread of its own, from the first watched GPU until ``stop``.

    ``counts`` belongs to the caller, so that totals outlive a reload of the driver. The constructor calls the driver
    and may block: construct it under a deadline.
    """

    def __init__(self, api: NvmlApi, counts: dict[str, XidCount], wait_ms: int = DEFAULT_WAIT_MS) -> None:
        self._api = api
        self._wait_ms = wait_ms
        self._counts = counts
        self._lock = threading.Lock()
        self._uuids: dict[int, str] = {}
        try:
            self._event_set: Any = api.new_event_set()
        except OtelGpuError:
            self._event_set = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, handle: Handle, uuid: str) -> None:
        """Count this GPU's events from now on; no effect if the driver does not support events."""
        if self._event_set is None or address(handle) in self._uuids:
            return
        try:
            self._api.watch_xid(handle, self._event_set)
        except OtelGpuError:
            return
        with self._lock:
            self._uuids[address(handle)] = uuid
            self._counts.setdefault(uuid, XidCount())
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name="otel-gpu-xid", daemon=True)
                with contextlib.suppress(RuntimeError):  # without a thread there are no events
                    thread.start()
                    self._thread = thread

    def count(self, uuid: str) -> tuple[int | None, int | None]:
        """Number of events and the last XID; ``None`` if this GPU has no events."""
        count = self._counts.get(uuid)
        if count is None or (count.errors == 0 and (self._thread is None or not self._thread.is_alive())):
            return None, None
        return count.errors, count.last_xid

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread within this time; whether it has ended and ``free`` may be called."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def free(self) -> None:
        """Free the event set before NVML is shut down. May block, as every call to the driver."""
        if self._event_set is not None:
            with contextlib.suppress(OtelGpuError):
                self._api.free_event_set(self._event_set)
            self._event_set = None

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                event = self._api.wait_xid(self._event_set, self._wait_ms)
            except Unavailable:
                self._stop.wait(self._wait_ms / 1000)  # with a lost GPU a wait returns at once: do not spin
                continue
            except OtelGpuError:
                return  # the driver does not support events
            if event is None:
                continue
            handle_address, xid = event
            with self._lock:
                uuid = self._uuids.get(handle_address)
                if uuid is not None:
                    self._counts[uuid] = XidCount(self._counts[uuid].errors + 1, xid)
