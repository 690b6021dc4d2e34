"""The HTTP server and its event loop: many clients, however slow, with bounded threads, memory and time.

One thread waits for all connections with a selector. A connection uses a thread only while its response is made: a few
worker threads make responses and send what can be sent without blocking, which is mostly all of it. The event loop
sends the rest. Connections, buffered response bytes and the time of each phase have limits. At a limit, idle keep-alive
connections are closed first, then the one whose phase started first, so that slow clients never keep out others.

Clients of an event stream do not count as connections. They have a limit of their own, and a time limit only while a
frame is being sent. If several frames become ready meanwhile, only the latest is sent.

A keep-alive connection stays registered with the selector from its second request on, and the worker that has sent its
response does not wake up the event loop. A scrape by Prometheus then costs one wake-up.
"""

from __future__ import annotations

import errno
import logging
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import AccessPolicy, AccessPolicyFile
from otel_gpu.web.connection import Connection, Wait
from otel_gpu.web.router import TOO_MANY_STREAMS, EncodedResponse, Route, Router

log = logging.getLogger(__name__)

_EVENTS: Final = {
    Wait.READABLE: selectors.EVENT_READ,
    Wait.WRITABLE: selectors.EVENT_WRITE,
    Wait.FRAME: selectors.EVENT_READ,  # only to see that the client closes the connection
}
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_HEARTBEAT: Final = b":\n\n"
"""A comment (HTML, 9.2.6: server-sent events). It keeps proxies from closing the stream, and reveals closed clients."""

_ACCEPT_RETRY_S: Final = 0.1
"""Delay after accept() has failed and there is no connection to close."""

_ACCEPT_BATCH: Final = 16
"""Connections accepted at a time, so that the other connections get their turn."""

_BACKLOG: Final = 512
"""Connections that the kernel completes before they are accepted. A client beyond it tries again after a second."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server.

    ``client_timeout_s`` is for each of: receiving a whole request, TLS handshake included; sending a whole response or
    frame. While ``max_unsent_bytes`` are being sent, no further responses are made, and ``busy_client_timeout_s`` is
    the timeout for sending. ``idle_timeout_s`` is for the next request of a keep-alive connection; it is longer than a
    minute, so that a scrape per minute needs no new connection. A stream without a new frame gets a comment every
    ``heartbeat_s``.
    """

    client_timeout_s: float = 5.0
    busy_client_timeout_s: float = 1.0
    idle_timeout_s: float = 90.0
    max_connections: int = 256
    max_unsent_bytes: int = 32 << 20
    max_threads: int = 16
    max_streams: int = 64
    heartbeat_s: float = 15.0


_NO_HINTS: Final[Mapping[str, str]] = MappingProxyType({})
_DEFAULT_LIMITS: Final = Limits()
_OPEN: Final = AccessPolicy()


class WebServer:
    """Serves routes on one address, from construction, which binds it, to ``stop``.

    ``web_config`` is a web configuration file: TLS, client certificates, passwords. It is read at construction, and
    UsageError says what is wrong with it. ``absent`` has hints for paths that are not served; ``remedy`` is the advice
    if the address cannot be bound.
    """

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        web_config: Path | None = None,
        *,
        absent: Mapping[str, str] = _NO_HINTS,
        remedy: str = "choose another with --listen HOST:PORT (port 0: any free one)",
        limits: Limits = _DEFAULT_LIMITS,
    ) -> None:
        policy = _open_policy if web_config is None else AccessPolicyFile(web_config).current
        self._scheme = "http" if policy().tls is None else "https"
        try:
            listener = _listen(address)
        except (OSError, OverflowError, TypeError, ValueError) as error:  # bind() raises all of them for a bad host
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {address}: {reason}; {remedy}") from None
        self.address = Address(address.host, listener.getsockname()[1])
        self._event_loop = EventLoop(listener, Router(routes, absent), policy, limits)
        self._thread = threading.Thread(target=self._event_loop.run, name="otel-gpu-web", daemon=True)

    @property
    def url(self) -> str:
        """The URL for a browser on this host."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)  # noqa: S104
        return f"{self._scheme}://{Address(host, self.address.port)}"

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and free the address."""
        self._event_loop.close()
        if self._thread.ident is None:
            self._event_loop.run()  # only cleans up
        else:
            self._thread.join()


class EventLoop:
    """Accepts connections on ``listener``, which it owns, and serves them from ``run`` to ``close``."""

    def __init__(
        self, listener: socket.socket, router: Router, policy: Callable[[], AccessPolicy], limits: Limits
    ) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._router = router
        self._policy = policy
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0)
        self._wake_sender.settimeout(0)
        self._closing = self._closed = False
        # Connections that receive a request or send a response, oldest phase first: a new phase goes to the end.
        self._active: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}  # keep-alive connections between requests, in the same order
        self._streaming: dict[Connection, None] = {}  # streams that wait for their next frame
        self._pending: deque[Connection] = deque()  # complete requests without a worker
        self._in_progress = 0
        self._in_progress_lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Connection, EncodedResponse | None]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._limit_logged = False

    def run(self) -> None:
        """Serve until ``close``, then close every connection."""
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._clear_wakeups)
            while not self._closing:
                events = self._selector.select(self._next_timeout_s())
                self._collect_results()  # a keep-alive connection may have its response and its next request by now
                for key, _ in events:
                    key.data()
                self._collect_results()  # those of connections that were unregistered, whose workers send no wake-up
                self._send_frames()
                self._close_expired()
                self._start_responses()  # last: closed connections may have freed memory
        finally:
            self._shut_down()

    def close(self) -> None:
        """End ``run``, from any thread."""
        self._closing = True
        self._wake_up()

    # -- accepting ------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # accept(2): the client has gone, or no resources are left
                log.debug("accept failed: %s", error)
                if error.errno in _OUT_OF_RESOURCES and not self._evict():
                    time.sleep(_ACCEPT_RETRY_S)
                return
            count = len(self._active) + len(self._idle) + len(self._pending) + self._in_progress
            if count >= self._limits.max_connections and not self._make_room():
                client.close()
                continue
            try:
                policy = self._policy()
            except Exception as error:  # without a policy no client is accepted
                log.debug("connection rejected: %s: %s", type(error).__name__, error)
                client.close()
                continue
            connection = Connection(client, policy, time.monotonic())
            self._active[connection] = None
            self._advance(connection)  # the request may already be there

    def _make_room(self) -> bool:
        if not self._idle:
            log.log(
                logging.DEBUG if self._limit_logged else logging.WARNING,
                "limit of %d connections reached; each new one closes the slowest (logged once)",
                self._limits.max_connections,
            )
            self._limit_logged = True
        return self._evict()

    def _evict(self) -> bool:
        """Close the connection that is idle longest, else the slowest; ``False`` if there is none."""
        victim = next(iter(self._idle), None) or next(iter(self._active), None)
        if victim is not None:
            self._drop(victim, "replaced by a new connection")
        return victim is not None

    # -- receiving requests, sending responses --------------------------------------

    def _advance(self, connection: Connection) -> None:
        if connection not in self._active and connection not in self._idle and connection not in self._streaming:
            # A worker has it, and its input can wait. Or it was closed after this event was reported: then it is no
            # longer registered, and its descriptor may belong to another connection.
            self._unwatch(connection)
            return
        try:
            if connection in self._idle:
                self._begin_request(connection)
            wait = connection.advance()
        except Exception as error:  # whatever a client causes affects its own connection only
            self._drop(connection, str(error) or type(error).__name__)
            return
        if wait is Wait.CLOSE:
            self._drop(connection)
        elif wait is Wait.RESPONSE:
            if not connection.is_reused:
                self._unwatch(connection)
            del self._active[connection]
            self._pending.append(connection)
        elif wait is Wait.IDLE:
            self._set_idle(connection)
        else:
            if wait is Wait.FRAME and connection in self._active:
                del self._active[connection]
                self._streaming[connection] = None
            self._watch(connection, _EVENTS[wait])

    def _set_idle(self, connection: Connection) -> None:
        """Wait for the next request of a connection whose response is sent."""
        self._active.pop(connection, None)
        self._idle[connection] = None
        connection.is_reused = True
        self._watch(connection, selectors.EVENT_READ)
        if connection.has_buffered_input:
            self._advance(connection)

    def _begin_request(self, connection: Connection) -> None:
        """Start the next request of an idle connection, unless the access policy has changed since it was accepted."""
        del self._idle[connection]
        connection.started_s = time.monotonic()
        self._active[connection] = None
        if self._policy() is not connection.policy:
            raise ConnectionAbortedError("the web configuration has changed")

    def _watch(self, connection: Connection, events: int) -> None:
        """Advance the connection at these events."""
        if not connection.watched_events:
            self._selector.register(connection.descriptor, events, partial(self._advance, connection))
        elif events != connection.watched_events:
            self._selector.modify(connection.descriptor, events, partial(self._advance, connection))
        connection.watched_events = events

    def _unwatch(self, connection: Connection) -> None:
        if connection.watched_events:
            self._selector.unregister(connection.descriptor)
            connection.watched_events = 0

    def _drop(self, connection: Connection, reason: str = "") -> None:
        if reason:
            log.debug("connection closed: %s", reason)
        for group in (self._active, self._idle, self._streaming):
            group.pop(connection, None)
        self._unwatch(connection)
        self._close_connection(connection)

    def _close_connection(self, connection: Connection) -> None:
        if connection.stream is not None:
            connection.stream.feed.unsubscribe(connection)
        connection.close()

    # -- time and memory limits -----------------------------------------------------

    def _close_expired(self) -> None:
        now_s, is_full = time.monotonic(), self._is_memory_full()
        for connection in [each for each in self._active if self._deadline_s(each, is_full=is_full) <= now_s]:
            self._drop(connection, "timed out")
        while self._idle and (oldest := next(iter(self._idle))).started_s + self._limits.idle_timeout_s <= now_s:
            self._drop(oldest, "idle for too long")

    def _next_timeout_s(self) -> float | None:
        """Seconds until a connection expires or a stream needs a heartbeat; ``None`` if there is none."""
        now_s, is_full = time.monotonic(), self._is_memory_full()
        deadlines_s = [self._deadline_s(each, is_full=is_full) for each in self._active]
        deadlines_s += [each.started_s + self._limits.heartbeat_s for each in self._streaming]
        deadlines_s += [each.started_s + self._limits.idle_timeout_s for each in islice(self._idle, 1)]
        if self._in_progress:  # a worker may leave a connection idle without a wake-up
            deadlines_s.append(now_s + self._limits.idle_timeout_s)
        return max(0.0, min(deadlines_s) - now_s) if deadlines_s else None

    def _deadline_s(self, connection: Connection, *, is_full: bool) -> float:
        is_busy = is_full and connection.request is not None
        return connection.started_s + (self._limits.busy_client_timeout_s if is_busy else self._limits.client_timeout_s)

    def _is_memory_full(self) -> bool:
        """Whether unsent responses have reached their limit. A body shared by several connections counts once."""
        sizes = {id(part): len(part) for connection in self._active for part in connection.unsent_parts}
        return sum(sizes.values()) >= self._limits.max_unsent_bytes

    # -- worker threads -------------------------------------------------------------

    def _start_responses(self) -> None:
        """Give pending requests to workers, within the limits."""
        while self._pending and self._in_progress < self._limits.max_threads and not self._is_memory_full():
            if self._in_progress == len(self._workers):
                thread = threading.Thread(target=self._work, name="otel-gpu-web-worker", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no further thread is allowed: the existing ones continue
                    if not self._workers:
                        self._drop(self._pending.popleft())
                    return
                self._workers.append(thread)
            with self._in_progress_lock:
                self._in_progress += 1
            self._jobs.put(self._pending.popleft())

    def _work(self) -> None:
        """Make responses, in a worker thread, and send what can be sent without blocking."""
        while (connection := self._jobs.get()) is not None:
            response: EncodedResponse | None = None
            wait = Wait.CLOSE
            try:
                if connection.request is not None:
                    response = self._router.handle(connection.request, connection.policy)
                    if response.stream is not None:  # the event loop starts it, because it counts streams
                        wait = Wait.FRAME
                    elif not self._closed:
                        connection.start_response(response, time.monotonic())
                        wait = connection.advance()
            except Exception as error:  # a bug must not end the worker; or the client has closed the connection
                log.debug("no response sent: %s: %s", type(error).__name__, error)
            is_over = wait is Wait.CLOSE
            if is_over and not connection.watched_events:
                connection.close()
                with self._in_progress_lock:
                    self._in_progress -= 1
                needs_wakeup = bool(self._pending)  # a request that is added later sees that this worker is free
            else:
                self._results.put((connection, None if is_over else response))
                needs_wakeup = wait is not Wait.IDLE or not connection.watched_events or bool(self._pending)
            if needs_wakeup:
                self._wake_up()
            if self._closed:
                self._drop_results()

    def _collect_results(self) -> None:
        """Take back the connections that workers are done with: partly sent, idle, streaming or over."""
        while not self._results.empty():
            connection, response = self._results.get_nowait()
            with self._in_progress_lock:
                self._in_progress -= 1
            if response is None:
                self._drop(connection)
                continue
            if connection.is_idle:
                self._set_idle(connection)
                continue
            if response.stream is not None:
                if self._stream_count() >= self._limits.max_streams:
                    response = self._reject_stream(connection)
                connection.start_response(response, time.monotonic())
                if connection.stream is not None:
                    connection.stream.feed.subscribe(connection, self._wake_up)
            self._active[connection] = None
            self._advance(connection)

    # -- streams --------------------------------------------------------------------

    def _stream_count(self) -> int:
        return len(self._streaming) + sum(each.stream is not None for each in self._active)

    def _reject_stream(self, connection: Connection) -> EncodedResponse:
        """The response to one stream too many. The request has passed the access policy before."""
        if connection.request is None:
            return EncodedResponse(b"")
        return self._router.handle(replace(connection.request, rejection=TOO_MANY_STREAMS), connection.policy)

    def _send_frames(self) -> None:
        """Send the latest frame, or a heartbeat, to the streams that wait for one."""
        now_s = time.monotonic()
        for connection in list(self._streaming):
            frame = connection.next_frame
            if frame is not None:
                connection.last_frame = frame
            elif now_s < connection.started_s + self._limits.heartbeat_s:
                continue
            connection.start_frame(_HEARTBEAT if frame is None else frame, now_s)
            del self._streaming[connection]
            self._active[connection] = None
            self._advance(connection)

    # -- wake-ups and shutdown ------------------------------------------------------

    def _wake_up(self) -> None:
        with suppress(OSError):  # the buffer is full of wake-ups, or the loop has ended
            self._wake_sender.send(b"\0")

    def _clear_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_receiver.recv(4096):
                pass

    def _drop_results(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._results.get_nowait()[0].close()

    def _shut_down(self) -> None:
        self._closed = True  # from here on, a worker drops its own result
        self._drop_results()
        for connection in (*self._active, *self._idle, *self._streaming, *self._pending):
            self._close_connection(connection)
        for _ in self._workers:
            self._jobs.put(None)
        self._selector.close()
        for each in (self._listener, self._wake_receiver, self._wake_sender):
            each.close()


def _open_policy() -> AccessPolicy:
    return _OPEN


def _listen(address: Address) -> socket.socket:
    """A listening socket. The address may have been in use a moment ago."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by accepted sockets: the end of a response does not wait for the acknowledgement of its beginning.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
