"""Pushes collections, on a thread per receiver: a slow or absent receiver delays no other work."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.config.groups import ExportConfig, Exporter, Temporality
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES, split_by_size
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.sender import ExportFailure, Sender
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection

log = logging.getLogger(__name__)

_FIRST_S: Final = 0.25
"""How often to look for the first collection."""

_PATIENCE: Final = 0.3
"""The share of the time to stop in which a request in progress may end on its own."""

_SHORTEST_S: Final = 0.1
_NO_RECEIVER: Final = "; start a Collector there, name another with --otlp-endpoint, or choose --exporters none"


class Pusher:
    """Exports what ``collect`` returns: the first collection at once, then every ``interval_s``, and once at the end.

    ``open_sender`` opens a sender whose requests take at most the seconds given. ``deltas`` makes counters deltas.
    One export runs at a time. Exports that were due in the meantime are skipped.
    """

    def __init__(
        self,
        target: str,
        open_sender: Callable[[float], Sender],
        collect: Callable[[], Collection | None],
        resources: Resources,
        *,
        deltas: Deltas | None = None,
        largest_bytes: float = LARGEST_REQUEST_BYTES,
        interval_s: float,
        export_timeout_s: float,
        request_timeout_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.target = target
        self.exports_ok = 0
        self.exports_failed = 0
        self.failure: ExportFailure | None = None
        self._logged_kinds: set[str] = set()
        self._open_sender = open_sender
        self._sender = open_sender(min(request_timeout_s, export_timeout_s))
        self._collect = collect
        self._resources = resources
        self._deltas = deltas
        self._largest_bytes = largest_bytes
        self._interval_s = interval_s
        self._export_timeout_s = export_timeout_s
        self._monotonic_s = monotonic_s
        self._exported_ns: int | None = None
        self._stopping = threading.Event()
        self._is_closed = False
        self._patient_until_s = self._end_s = math.inf
        self._thread = threading.Thread(target=self._run, name=f"otel-gpu-push {target}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin_stop(self, timeout_s: float) -> None:
        """Ask for the last export. It has ``timeout_s`` from now, together with a request in progress."""
        now_s = self._monotonic_s()
        self._patient_until_s, self._end_s = now_s + _PATIENCE * timeout_s, now_s + timeout_s
        self._stopping.set()

    def finish_stop(self) -> bool:
        """Wait for the last export until its time is over; false if it was abandoned because the receiver hangs."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._patient_until_s - self._monotonic_s()))
        if not self._is_closed:
            self._is_closed = True
            self._sender.close()  # ends retries; the last export has a sender of its own
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._end_s - self._monotonic_s()))
        if not self._thread.is_alive():
            return True
        log.warning("the last export to %s is abandoned: no answer", self.target)
        return False

    # -- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        due_s: float | None = None
        while not self._stopping.is_set():
            begun_s = self._monotonic_s()
            if not self._export(self._export_timeout_s, is_last=False) and due_s is None:
                self._stopping.wait(_FIRST_S)
                continue
            now_s = self._monotonic_s()
            due_s = next_due_s(begun_s if due_s is None else due_s, now_s, self._interval_s)
            self._stopping.wait(due_s - now_s)
        self._export(max(_SHORTEST_S, self._end_s - self._monotonic_s()), is_last=True)

    def _export(self, timeout_s: float, *, is_last: bool) -> bool:
        """Export the newest collection; false if there is none, or none since the last export."""
        sender = self._sender
        try:
            collection = self._collect()
            if collection is None or collection.time_ns == self._exported_ns:
                return False
            if is_last:
                sender = self._open_sender(timeout_s)
            failure = self._send(collection, sender, timeout_s, is_last=is_last)
        except Exception as error:  # the thread must survive a bug in one export
            log.debug("export to %s", self.target, exc_info=True)
            failure = ExportFailure(type(error).__name__, f"{type(error).__name__}: {error}")
        if sender is not self._sender:
            sender.close()
        if failure is None or is_last or not self._stopping.is_set():  # else the last export sends all of it again
            self._record(failure)
        return True

    def _send(self, collection: Collection, sender: Sender, timeout_s: float, *, is_last: bool) -> ExportFailure | None:
        """Send all requests of a collection; returns the first failure."""
        begun_s = self._monotonic_s()
        failure: ExportFailure | None = None
        deltas = self._deltas
        points = collection if deltas is None else deltas.growth(collection)
        for batch in split_by_size(points, self._resources, self._largest_bytes):
            if self._monotonic_s() - begun_s > timeout_s or (self._stopping.is_set() and not is_last):
                return failure or ExportFailure("late", f"an export took more than {timeout_s:g} s")
            result = sender.send(batch)
            if result.accepted and deltas is not None:
                deltas.accept(batch)
            failure = failure or result.failure
            if not result.accepted and not result.try_next:
                return failure
        self._exported_ns = collection.time_ns
        return failure

    def _record(self, failure: ExportFailure | None) -> None:
        """Count an export, and log each kind of failure once until an export succeeds."""
        before, self.failure = self.failure, failure
        if failure is None:
            self.exports_ok += 1
            if before is not None:
                fields = {"target": self.target, "state": "ok", "reason": None}
                log.info("export to %s is ok again", self.target, extra={"fields": fields})
            self._logged_kinds.clear()
            return
        self.exports_failed += 1
        if failure.kind not in self._logged_kinds:
            self._logged_kinds.add(failure.kind)
            hint = _NO_RECEIVER if "onnection refused" in failure.text else ""
            fields = {"target": self.target, "state": "failing", "reason": failure.text, "kind": failure.kind}
            log.warning("export to %s fails: %s%s", self.target, failure.text, hint, extra={"fields": fields})


def next_due_s(due_s: float, now_s: float, interval_s: float) -> float:
    """When the export after the one that was due at ``due_s`` is due: whole intervals later, after ``now_s``."""
    return due_s + interval_s * (1 + (now_s - due_s) // interval_s)


# ---------------------------------------------------------------------------- all exporters that push

LAST_EXPORT_S: Final = 2.5
"""Time limit for the last exports together, so that the agent ends within 5 s also while a sample is running."""


class ExportPipeline:
    """One pusher per exporter. Constructing it opens no connection."""

    def __init__(
        self,
        config: ExportConfig,
        resources: Resources,
        collect: Callable[[], Collection | None],
        monotonic_s: Callable[[], float],
        *,
        restored: Callable[[], Collection | None] = lambda: None,
    ) -> None:
        """``restored`` returns what an earlier run had counted, once it is known that its counters are continued."""
        self._config = config
        self._restored = restored
        self._resources = resources
        self._collect = collect
        self._monotonic_s = monotonic_s
        self.pushers = tuple(
            self._pusher(exporter) for exporter in config.exporters if exporter is not Exporter.PROMETHEUS
        )

    def start(self) -> None:
        """Start all pushers."""
        for pusher in self.pushers:
            pusher.start()

    def stop(self, timeout_s: float = LAST_EXPORT_S) -> None:
        """Make the last exports, all at the same time, within ``timeout_s``."""
        for pusher in self.pushers:
            pusher.begin_stop(timeout_s)
        for pusher in self.pushers:
            pusher.finish_stop()

    def _pusher(self, exporter: Exporter) -> Pusher:
        config = self._config
        is_otlp = exporter is Exporter.OTLP
        has_deltas = is_otlp and config.otlp.temporality is Temporality.DELTA
        return Pusher(
            str(config.otlp.target) if is_otlp else exporter.value,
            self._open_otlp if is_otlp else self._open_console,
            self._collect,
            self._resources,
            deltas=Deltas(self._restored) if has_deltas else None,
            largest_bytes=LARGEST_REQUEST_BYTES if is_otlp else math.inf,
            interval_s=config.interval_s,
            export_timeout_s=config.timeout_s,
            request_timeout_s=config.otlp.timeout_s,
            monotonic_s=self._monotonic_s,
        )

    # Senders are imported where they are chosen: protobuf and the clients take memory.

    def _open_otlp(self, timeout_s: float) -> Sender:
        from otel_gpu.export.otlp import open_otlp  # noqa: PLC0415

        return open_otlp(self._config, self._resources, timeout_s)

    def _open_console(self, _: float) -> Sender:
        from otel_gpu.export.otlp import ConsoleSender  # noqa: PLC0415

        return ConsoleSender(sys.stdout, self._resources)
