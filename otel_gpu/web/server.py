"""The HTTP server of all listeners and its event loop: many clients, however slow, with bounded threads and memory.

One thread waits for all connections with a selector. A connection uses a thread only while its response is made: a few
worker threads make responses and send what can be sent without blocking, which is mostly all of it. The event loop
sends the rest. Connections, the memory of responses and the time of each phase have limits, for all listeners together.
At the limit of connections, idle keep-alive connections are closed first, then the one whose phase started
first. At the limit of memory, a request that needs more waits, and slow clients are closed, those with the responses of
old cycles first. So slow clients never keep out others.

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
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import AccessPolicy, AccessPolicyFile
from otel_gpu.web.bodies import Bodies, Body, Postponed
from otel_gpu.web.connection import Connection, Wait
from otel_gpu.web.hosts import loopback_hosts
from otel_gpu.web.response import Response
from otel_gpu.web.router import BUSY, TOO_MANY_STREAMS, EncodedResponse, Route, Router

log = logging.getLogger(__name__)

_EVENTS: Final = {
    Wait.READABLE: selectors.EVENT_READ,
    Wait.WRITABLE: selectors.EVENT_WRITE,
    Wait.FRAME: selectors.EVENT_READ,  # only to see that the client closes the connection
}
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_HEARTBEAT: Final = Body(b":\n\n")
"""A comment (HTML, 9.2.6: server-sent events). It keeps proxies from closing the stream, and reveals closed clients."""

_ACCEPT_RETRY_S: Final = 0.1
"""Delay after accept() has failed and there is no connection to close."""

_START: Final = attrgetter("started_s")
_PROGRESS: Final = attrgetter("progress_s")

_ACCEPT_BATCH: Final = 16
"""Connections accepted at a time, so that the other connections get their turn."""

_BACKLOG: Final = 512
"""Connections that the kernel completes before they are accepted. A client beyond it tries again after a second."""


_SEND_BUFFER_BYTES: Final = 64 * 1024
"""What the kernel keeps of a response for a client that reads nothing. It doubles this (socket(7)); by default it would
take 4 MiB for each connection."""

_WAITING_POLL_S: Final = 0.1
"""How often to look for room for a response. A worker or another thread may have made it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server, for all its listeners together.

    ``client_timeout_s`` is for each of: receiving a whole request, TLS handshake included; sending a whole response or
    frame; waiting for room for a response. A client that still reads its response has ``reader_timeout_s``. One that
    has sent and read nothing for ``stalled_s`` is closed before others at any limit. ``idle_timeout_s`` is for the next
    request of a keep-alive connection; it is longer than a minute, so that a scrape per minute needs no new connection.
    A stream without a new frame gets a comment every ``heartbeat_s``.
    """

    client_timeout_s: float = 5.0
    reader_timeout_s: float = 10.0
    stalled_s: float = 1.0
    idle_timeout_s: float = 90.0
    max_connections: int = 512
    max_threads: int = 16
    max_streams: int = 64
    heartbeat_s: float = 15.0


_RESERVED_DESCRIPTORS: Final = 256
"""Descriptors that connections leave for reading the host, for exporters and for the saved state."""


def limits_within(max_descriptors: int) -> Limits:
    """The limits of a process that may have so many descriptors. Sampling always keeps some of them."""
    available = max(max_descriptors - _RESERVED_DESCRIPTORS, max_descriptors // 4)
    default = Limits()
    return replace(
        default,
        max_connections=max(1, min(default.max_connections, available * 4 // 5)),
        max_streams=max(1, min(default.max_streams, available // 5)),
    )


_NO_HINTS: Final[Mapping[str, str]] = MappingProxyType({})
_DEFAULT_LIMITS: Final = Limits()
_OPEN: Final = AccessPolicy()


@dataclass(frozen=True, slots=True)
class Site:
    """What is served on one listener: its routes, and the access policy in force."""

    listener: socket.socket
    router: Router
    policy: Callable[[], AccessPolicy]


class WebServer:
    """Serves routes on any number of addresses, from ``listen``, which binds each, to ``stop``."""

    def __init__(self, *, limits: Limits = _DEFAULT_LIMITS, bodies: Bodies | None = None) -> None:
        self._bodies = Bodies() if bodies is None else bodies
        self._event_loop = EventLoop(limits, self._bodies)
        self._policies: list[AccessPolicyFile] = []
        self._thread = threading.Thread(target=self._event_loop.run, name="otel-gpu-web", daemon=True)

    def listen(
        self,
        address: Address,
        routes: Mapping[str, Route],
        web_config: Path | None = None,
        *,
        absent: Mapping[str, str] = _NO_HINTS,
        remedy: str = "choose another with --listen HOST:PORT (port 0: any free one)",
        allowed_hosts: Collection[str] = (),
    ) -> WebListener:
        """Bind an address, before ``start``.

        ``web_config`` is a web configuration file: TLS, client certificates, passwords. It is read now, and UsageError
        says what is wrong with it. ``absent`` has hints for paths that are not served; ``remedy`` is the advice if the
        address cannot be bound. ``allowed_hosts`` are further names of this host for clients on loopback.
        """
        policy = _open_policy
        if web_config is not None:
            policy_file = AccessPolicyFile(web_config)
            self._policies.append(policy_file)
            policy = policy_file.current
        try:
            listener = _listen(address)
        except (OSError, OverflowError, TypeError, ValueError) as error:  # bind() raises all of them for a bad host
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {address}: {reason}; {remedy}") from None
        bound_host, port = listener.getsockname()[:2]
        hosts = loopback_hosts(bound_host, address.host, allowed_hosts)
        self._event_loop.add(Site(listener, Router(routes, absent, self._bodies, hosts), policy))
        return WebListener(Address(address.host, port), "http" if policy().tls is None else "https")

    def start(self) -> None:
        """Start to serve requests."""
        for policy in self._policies:
            policy.start()
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and free the addresses."""
        for policy in self._policies:
            policy.stop()
        self._event_loop.close()
        if self._thread.ident is None:
            self._event_loop.run()  # only cleans up
        else:
            self._thread.join()


@dataclass(frozen=True, slots=True)
class WebListener:
    """A bound address. ``address`` has the port in use."""

    address: Address
    scheme: str

    @property
    def url(self) -> str:
        """The URL for a browser on this host."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)  # noqa: S104
        return f"{self.scheme}://{Address(host, self.address.port)}"


class EventLoop:
    """Accepts connections on the listeners of its sites, which it owns, and serves them from ``run`` to ``close``."""

    def __init__(self, limits: Limits, bodies: Bodies) -> None:
        self._sites: list[Site] = []
        self._limits = limits
        self._bodies = bodies
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
        self._waiting: deque[Connection] = deque()  # complete requests whose response is postponed
        self._in_progress = 0
        self._in_progress_lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Connection, EncodedResponse | Postponed | None]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._limit_logged = False

    def add(self, site: Site) -> None:
        """Serve a site, too. Before ``run``."""
        site.listener.settimeout(0)
        self._sites.append(site)

    def run(self) -> None:
        """Serve until ``close``, then close every connection."""
        try:
            for site in self._sites:
                self._selector.register(site.listener, selectors.EVENT_READ, partial(self._accept, site))
            self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._clear_wakeups)
            while not self._closing:
                events = self._selector.select(self._next_timeout_s())
                self._collect_results()  # a keep-alive connection may have its response and its next request by now
                for key, _ in events:
                    key.data()
                self._collect_results()  # those of connections that were unregistered, whose workers send no wake-up
                self._send_frames()
                self._close_expired()
                self._resume_waiting()
                self._start_responses()
        finally:
            self._shut_down()

    def close(self) -> None:
        """End ``run``, from any thread."""
        self._closing = True
        self._wake_up()

    # -- accepting ------------------------------------------------------------------

    def _accept(self, site: Site) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                client, _address = site.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # accept(2): the client has gone, or no resources are left
                log.debug("accept failed: %s", error)
                if error.errno in _OUT_OF_RESOURCES and not self._evict():
                    time.sleep(_ACCEPT_RETRY_S)
                return
            count = len(self._active) + len(self._idle) + len(self._pending) + len(self._waiting) + self._in_progress
            if count >= self._limits.max_connections and not self._make_room():
                client.close()
                continue
            connection = Connection(client, site.router, site.policy, time.monotonic())
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
        """Close the connection that is idle longest, else the slowest; ``False`` if there is none.

        A client that sends and reads nothing is slower than any that does.
        """
        stalled_s = time.monotonic() - self._limits.stalled_s
        stalled = [each for each in self._active if each.progress_s <= stalled_s]
        victim = next(iter(self._idle), None) or min(stalled, key=_PROGRESS, default=next(iter(self._active), None))
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
        if not connection.has_current_policy:
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
        now_s = time.monotonic()
        for connection in [each for each in self._active if self._deadline_s(each) <= now_s]:
            self._drop(connection, "timed out")
        idle_since_s = time.monotonic() - self._limits.idle_timeout_s
        while self._idle and (oldest := next(iter(self._idle))).started_s <= idle_since_s:
            self._drop(oldest, "idle for too long")

    def _next_timeout_s(self) -> float | None:
        """Seconds until a connection expires or a stream needs a heartbeat; ``None`` if there is none."""
        now_s = time.monotonic()
        deadlines_s = [self._deadline_s(each) for each in self._active]
        deadlines_s += [each.started_s + self._limits.heartbeat_s for each in self._streaming]
        deadlines_s += [each.started_s + self._limits.idle_timeout_s for each in islice(self._idle, 1)]
        if self._in_progress:  # a worker may leave a connection idle without a wake-up
            deadlines_s.append(now_s + self._limits.idle_timeout_s)
        if self._waiting:
            deadlines_s.append(now_s + _WAITING_POLL_S)
        return max(0.0, min(deadlines_s) - now_s) if deadlines_s else None

    def _deadline_s(self, connection: Connection) -> float:
        """When a connection expires in its phase. A client that still reads its response has more time."""
        deadline_s = connection.started_s + self._limits.client_timeout_s
        if connection.body is None:
            return deadline_s
        still_reads_until_s = connection.progress_s + self._limits.stalled_s
        return max(deadline_s, min(still_reads_until_s, connection.started_s + self._limits.reader_timeout_s))

    def _resume_waiting(self) -> None:
        """Let postponed requests try again, the oldest first, once there is room for one; reject those that expire."""
        oldest_s = time.monotonic() - self._limits.client_timeout_s
        for expired in [each for each in self._waiting if each.started_s <= oldest_s]:
            self._waiting.remove(expired)
            self._begin_sending(expired, self._rejection(expired, BUSY))
        if not self._waiting or self._bodies.is_busy:
            return
        needed_bytes = min(each.needed_bytes or 0 for each in self._waiting)
        while not self._bodies.has_room(needed_bytes):
            if not self._drop_slowest_receiver():
                return
        self._pending.extendleft(sorted(self._waiting, key=_START, reverse=True))
        self._waiting.clear()

    def _drop_slowest_receiver(self) -> bool:
        """Close a client that receives a response, for another response that waits; ``False`` if there is none.

        First come clients that have read nothing for a while: of these, those that receive an old cycle, then the one
        that began first. Clients that still read are closed only after ``client_timeout_s``.
        """
        now_s = time.monotonic()
        receiving = [each for each in self._active if each.body is not None]
        stalled = [each for each in receiving if each.progress_s <= now_s - self._limits.stalled_s]
        late = [each for each in receiving if each.started_s <= now_s - self._limits.client_timeout_s]
        victim = min(stalled or late, key=self._receiver_order, default=None)
        if victim is not None:
            self._drop(victim, "replaced by a new response")
        return victim is not None

    def _receiver_order(self, connection: Connection) -> tuple[bool, float]:
        is_newest = connection.body is not None and self._bodies.is_newest(connection.body)
        return is_newest, connection.started_s

    # -- worker threads -------------------------------------------------------------

    def _start_responses(self) -> None:
        """Give pending requests to workers, within the limits."""
        while self._pending and self._in_progress < self._limits.max_threads:
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
            if self._respond(connection):
                self._wake_up()
            if self._closed:
                self._drop_results()

    def _respond(self, connection: Connection) -> bool:
        """Make a response; true if the event loop needs a wake-up. Nothing here refers to the response afterwards."""
        response: EncodedResponse | Postponed | None = None
        wait = Wait.CLOSE
        try:
            if connection.request is not None:
                response = connection.router.handle(connection.request, connection.policy)
                if response.stream is not None:  # the event loop starts it, because it counts streams
                    wait = Wait.FRAME
                elif not self._closed:
                    connection.start_response(response, time.monotonic())
                    wait = connection.advance()
        except Postponed as error:
            response, wait = error.with_traceback(None), Wait.RESPONSE
        except Exception as error:  # a bug must not end the worker; or the client has closed the connection
            log.debug("no response sent: %s: %s", type(error).__name__, error)
        is_over = wait is Wait.CLOSE
        if is_over and not connection.watched_events:
            connection.close()
            with self._in_progress_lock:
                self._in_progress -= 1
            # A request that is added later sees that this worker is free.
            return bool(self._pending or self._waiting)
        self._results.put((connection, None if is_over else response))
        return wait is not Wait.IDLE or not connection.watched_events or bool(self._pending or self._waiting)

    def _collect_results(self) -> None:
        """Take back the connections that workers are done with: partly sent, idle, streaming, waiting or over."""
        while not self._results.empty():
            connection, response = self._results.get_nowait()
            with self._in_progress_lock:
                self._in_progress -= 1
            if response is None:
                self._drop(connection)
            elif isinstance(response, Postponed):
                if connection.needed_bytes is None:  # it waits from now on, however often it tries
                    connection.started_s = time.monotonic()
                connection.needed_bytes = response.needed_bytes
                self._waiting.append(connection)
            elif connection.is_idle:
                self._set_idle(connection)
            elif response.stream is not None:
                too_many = self._stream_count() >= self._limits.max_streams
                self._begin_sending(connection, self._rejection(connection, TOO_MANY_STREAMS) if too_many else response)
            else:
                self._active[connection] = None
                self._advance(connection)

    def _begin_sending(self, connection: Connection, response: EncodedResponse) -> None:
        """Send a response from the event loop."""
        connection.start_response(response, time.monotonic())
        if connection.stream is not None:
            connection.stream.feed.subscribe(connection, self._wake_up)
        self._active[connection] = None
        self._advance(connection)

    def _rejection(self, connection: Connection, response: Response) -> EncodedResponse:
        """A response instead of that of the route. The request has passed the access policy before."""
        if connection.request is None:
            return EncodedResponse(b"")
        return connection.router.handle(replace(connection.request, rejection=response), connection.policy)

    # -- streams --------------------------------------------------------------------

    def _stream_count(self) -> int:
        return len(self._streaming) + sum(each.stream is not None for each in self._active)

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
        for connection in (*self._active, *self._idle, *self._streaming, *self._pending, *self._waiting):
            self._close_connection(connection)
        for _ in self._workers:
            self._jobs.put(None)
        self._selector.close()
        for each in (*(site.listener for site in self._sites), self._wake_receiver, self._wake_sender):
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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
