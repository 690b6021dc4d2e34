"""Pushing: a thread for each exporter, so that a slow or absent receiver delays nobody but itself."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.export.metrics_data import Batches
from otel_gpu.export.sender import Sender, Trouble
from otel_gpu.metrics.collection import Collection

log = logging.getLogger(__name__)

_FIRST_S: Final = 0.25
"""How soon to look again for the first sample."""

_PATIENCE: Final = 0.3
"""The part of the time to stop in which a request under way may end by itself."""

_SHORTEST_S: Final = 0.1
_NO_RECEIVER: Final = "; start a Collector there, name another with --otlp-endpoint, or choose --exporters none"


class Pusher:
    """Exports what ``collect`` gives: at once when there is something, then every ``interval_s``, at the end once more.

    ``open_sender`` makes a sender whose requests take no longer than the seconds given. One export is made at a time;
    those that were due meanwhile are not made up for. ``monotonic_s`` tells the time.
    """

    def __init__(
        self,
        target: str,
        open_sender: Callable[[float], Sender],
        encoder: Batches,
        collect: Callable[[], Collection | None],
        *,
        interval_s: float,
        export_timeout_s: float,
        request_timeout_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.target = target
        self.exports_ok = 0
        self.exports_failed = 0
        self.trouble: Trouble | None = None
        self._logged: set[str] = set()
        self._open_sender = open_sender
        self._sender = open_sender(min(request_timeout_s, export_timeout_s))
        self._encoder = encoder
        self._collect = collect
        self._interval_s = interval_s
        self._export_timeout_s = export_timeout_s
        self._monotonic_s = monotonic_s
        self._told_ns: int | None = None
        self._stopping = threading.Event()
        self._closed = False
        self._patient_until_s = self._end_s = math.inf
        self._thread = threading.Thread(target=self._run, name=f"otel-gpu-push {target}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def begin_stop(self, timeout_s: float) -> None:
        """Ask for the last export: it has ``timeout_s`` from now, with what is under way."""
        now_s = self._monotonic_s()
        self._patient_until_s, self._end_s = now_s + _PATIENCE * timeout_s, now_s + timeout_s
        self._stopping.set()

    def finish_stop(self) -> bool:
        """Wait for the last export while there is time; false if it is left to itself, with a receiver that hangs."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._patient_until_s - self._monotonic_s()))
        if not self._closed:
            self._closed = True
            self._sender.close()  # ends repetitions; the last export has a sender of its own
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._end_s - self._monotonic_s()))
        if not self._thread.is_alive():
            return True
        log.warning("the last export to %s is given up: there is no answer", self.target)
        return False

    # -- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        due_s: float | None = None
        while not self._stopping.is_set():
            begun_s = self._monotonic_s()
            if not self._export(self._export_timeout_s, last=False) and due_s is None:
                self._stopping.wait(_FIRST_S)
                continue
            due_s = begun_s if due_s is None else due_s
            late_s = self._monotonic_s() - due_s
            due_s += self._interval_s * (1 + late_s // self._interval_s)
            self._stopping.wait(due_s - self._monotonic_s())
        self._export(max(_SHORTEST_S, self._end_s - self._monotonic_s()), last=True)

    def _export(self, timeout_s: float, *, last: bool) -> bool:
        """Export what there is; false if there is nothing, or nothing new."""
        sender = self._sender
        try:
            collection = self._collect()
            if collection is None or collection.time_ns == self._told_ns:
                return False
            if last:
                sender = self._open_sender(timeout_s)
            trouble = self._send(collection, sender, timeout_s, last=last)
        except Exception as error:  # the thread must outlive a bug in one export
            log.debug("export to %s", self.target, exc_info=True)
            trouble = Trouble(type(error).__name__, f"{type(error).__name__}: {error}")
        if sender is not self._sender:
            sender.close()
        if trouble is None or last or not self._stopping.is_set():  # else the last export tells all of it again
            self._note(trouble)
        return True

    def _send(self, collection: Collection, sender: Sender, timeout_s: float, *, last: bool) -> Trouble | None:
        """Send all requests of a collection; the first trouble there was."""
        begun_s = self._monotonic_s()
        trouble: Trouble | None = None
        for batch in self._encoder.batches(collection):
            if self._monotonic_s() - begun_s > timeout_s or (self._stopping.is_set() and not last):
                return trouble or Trouble("late", f"not all requests of an export were made within {timeout_s:g} s")
            delivery = sender.send(batch.data)
            if delivery.taken:
                self._encoder.taken(batch)
            trouble = trouble or delivery.trouble
            if not delivery.taken and not delivery.go_on:
                return trouble
        self._told_ns = collection.time_ns
        return trouble

    def _note(self, trouble: Trouble | None) -> None:
        """Count, with one log line for each kind of trouble until it is over: kinds that alternate are no news."""
        before, self.trouble = self.trouble, trouble
        if trouble is None:
            self.exports_ok += 1
            if before is not None:
                about = {"target": self.target, "state": "ok", "reason": None}
                log.info("export to %s is ok again", self.target, extra={"fields": about})
            self._logged.clear()
            return
        self.exports_failed += 1
        if trouble.kind not in self._logged:
            self._logged.add(trouble.kind)
            hint = _NO_RECEIVER if "onnection refused" in trouble.text else ""
            about = {"target": self.target, "state": "failing", "reason": trouble.text, "kind": trouble.kind}
            log.warning("export to %s fails: %s%s", self.target, trouble.text, hint, extra={"fields": about})
