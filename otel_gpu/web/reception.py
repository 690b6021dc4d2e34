"""Receives clients, however many come and however slow they are: one thread waits for all of them.

A client costs no thread until its request is whole, nor while it takes in the answer; answers are made by a few threads
of their own, which also send what can be sent without waiting: mostly all of it. Everything else is bounded too:
connections, the bytes kept for them, and how long each may keep us waiting. Where a bound is reached, whoever has kept
us waiting longest is cut off, so that slow clients never keep out others; before them, those who have been answered and
may ask again, of whom some never will. Who follows a feed costs no thread either. It keeps us waiting only while it
takes in a frame; how many follow has a bound of its own. A frame that comes while another is taken in waits, and of
several the newest counts.

Who asks again and again, as Prometheus does, costs as little as can be: from its second request on, its events are
looked for all the time, and the thread that has answered it wakes nobody up to say so.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from otel_gpu.web.access_policy import Guard
from otel_gpu.web.connection import Connection, Next
from otel_gpu.web.limits import Limits
from otel_gpu.web.router import TOO_MANY_FOLLOW, Answer, Site

log = logging.getLogger(__name__)

_EVENTS: Final = {
    Next.READABLE: selectors.EVENT_READ,
    Next.WRITABLE: selectors.EVENT_WRITE,
    Next.NEWS: selectors.EVENT_READ,  # of one who follows, only that it goes
}
_NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_HEARTBEAT: Final = b":\n\n"
"""A comment (HTML, 9.2.6: server-sent events): it keeps proxies from hanging up, and finds out who has gone."""

_NOBODY_ANSWERS_S: Final = 0.1
"""How long nobody is received after accept() has failed and nobody could be let go."""


class Reception:
    """Serves a site to whoever connects to ``listener``, which it owns, from ``run`` to ``close``."""

    def __init__(self, listener: socket.socket, site: Site, guard: Callable[[], Guard], limits: Limits) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._site = site
        self._guard = guard
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._ending = self._ended = False
        # Those who keep us waiting, longest first: whoever begins something goes to the end.
        self._waiting: dict[Connection, None] = {}
        self._resting: dict[Connection, None] = {}  # those who were answered and may ask again, likewise
        self._followers: dict[Connection, None] = {}  # those who follow a feed and have taken in what there was
        self._asked: deque[Connection] = deque()
        self._being_answered = 0
        self._counting = threading.Lock()
        self._jobs: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[Connection, Answer | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._was_full = False

    def run(self) -> None:
        """Receive until ``close``, then let go of everybody."""
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._receive)
            self._selector.register(self._woken, selectors.EVENT_READ, self._woken_up)
            while not self._ending:
                events = self._selector.select(self._until_next_s())
                self._take_back()  # who asks again may have been answered since
                for key, _ in events:
                    key.data()
                self._take_back()  # whoever was looked away from has been answered before, or else wakes us up
                self._tell_news()
                self._let_go()
                self._let_answer()  # last: those who went may have made room
        finally:
            self._end()

    def close(self) -> None:
        """End ``run``, from any thread."""
        self._ending = True
        self._wake_up()

    @property
    def _connections(self) -> int:
        return len(self._waiting) + len(self._resting) + len(self._asked) + self._being_answered

    # -- clients come ---------------------------------------------------------------

    def _receive(self) -> None:
        """Accept whoever has come, a few at a time: others want their turn."""
        for _ in range(16):
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # accept(2): gone already, or nothing is left to receive it with
                log.debug("a client could not be received: %s", error)
                if error.errno in _NOTHING_LEFT and not self._cut_off_slowest():
                    time.sleep(_NOBODY_ANSWERS_S)
                return
            if self._connections >= self._limits.most_connections and not self._make_room():
                client.close()
                continue
            try:
                guard = self._guard()
            except Exception as error:  # whoever cannot be guarded against is not let in
                log.debug("a client is refused: %s: %s", type(error).__name__, error)
                client.close()
                continue
            connection = Connection(client, guard, time.monotonic())
            self._waiting[connection] = None
            self._go_on(connection)  # it may have asked already

    def _make_room(self) -> bool:
        if not self._resting:
            log.log(
                logging.DEBUG if self._was_full else logging.WARNING,
                "%d connections are open; for each more, the slowest is cut off; told once",
                self._limits.most_connections,
            )
            self._was_full = True
        return self._cut_off_slowest()

    def _cut_off_slowest(self) -> bool:
        """End the connection that nobody has used or that has kept us waiting longest; False if there is none."""
        slowest = next(iter(self._resting), None) or next(iter(self._waiting), None)
        if slowest is not None:
            self._part(slowest, "others need its place")
        return slowest is not None

    # -- clients ask and take in ----------------------------------------------------

    def _go_on(self, connection: Connection) -> None:
        if connection not in self._waiting and connection not in self._resting and connection not in self._followers:
            # It is being answered, and what it says meanwhile can wait. Or it was let go of since this event was
            # reported: nobody looks for it any more, and its descriptor may be another's.
            self._look_away(connection)
            return
        try:
            if connection in self._resting:
                self._begin_anew(connection)
            following = connection.go_on()
        except Exception as error:  # a client can break anything; that is its own loss
            self._part(connection, str(error) or type(error).__name__)
            return
        if following is Next.END:
            self._part(connection)
        elif following is Next.ANSWER:
            if not connection.comes_again:
                self._look_away(connection)
            del self._waiting[connection]
            self._asked.append(connection)
        elif following is Next.REQUEST:
            self._let_rest(connection)
        else:
            if following is Next.NEWS and connection in self._waiting:
                del self._waiting[connection]
                self._followers[connection] = None
            self._look_for(connection, _EVENTS[following])

    def _let_rest(self, connection: Connection) -> None:
        """It has had its answer, and may ask again."""
        self._waiting.pop(connection, None)
        self._resting[connection] = None
        connection.comes_again = True
        self._look_for(connection, selectors.EVENT_READ)
        if connection.has_said_more:
            self._go_on(connection)

    def _begin_anew(self, connection: Connection) -> None:
        """It asks again, or goes. What it was let in by must still hold."""
        del self._resting[connection]
        connection.since_s = time.monotonic()
        self._waiting[connection] = None
        if self._guard() is not connection.guard:
            raise ConnectionAbortedError("the web configuration has changed since it came")

    def _look_for(self, connection: Connection, events: int) -> None:
        """Go on with it when this happens."""
        if not connection.looked_for:
            self._selector.register(connection.descriptor, events, partial(self._go_on, connection))
        elif events != connection.looked_for:
            self._selector.modify(connection.descriptor, events, partial(self._go_on, connection))
        connection.looked_for = events

    def _look_away(self, connection: Connection) -> None:
        if connection.looked_for:
            self._selector.unregister(connection.descriptor)
            connection.looked_for = 0

    def _part(self, connection: Connection, reason: str = "") -> None:
        if reason:
            log.debug("a client is let go: %s", reason)
        for each in (self._waiting, self._resting, self._followers):
            each.pop(connection, None)
        self._look_away(connection)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.following is not None:
            connection.following.feed.leave(connection)
        connection.close()

    def _let_go(self) -> None:
        """End whoever has taken too long."""
        now_s, crowded = time.monotonic(), self._is_crowded()
        for connection in [each for each in self._waiting if self._until_s(each, crowded=crowded) <= now_s]:
            self._part(connection, "it took too long")
        while self._resting and (longest := next(iter(self._resting))).since_s + self._limits.resting_client_s <= now_s:
            self._part(longest, "it asks nothing more")

    def _until_next_s(self) -> float | None:
        """Seconds until somebody has taken too long, or been told nothing for too long; None if there is nobody."""
        now_s, crowded = time.monotonic(), self._is_crowded()
        times_s = [self._until_s(each, crowded=crowded) for each in self._waiting]
        times_s += [each.since_s + self._limits.heartbeat_s for each in self._followers]
        times_s += [each.since_s + self._limits.resting_client_s for each in islice(self._resting, 1)]
        if self._being_answered:  # nobody may tell that it rests
            times_s.append(now_s + self._limits.resting_client_s)
        return max(0.0, min(times_s) - now_s) if times_s else None

    def _until_s(self, connection: Connection, *, crowded: bool) -> float:
        hurried = crowded and connection.asked is not None
        return connection.since_s + (self._limits.hurried_client_s if hurried else self._limits.slowest_client_s)

    def _is_crowded(self) -> bool:
        """Whether answers on their way take up as much memory as they may. A body that goes to many counts once."""
        bodies = {id(part): len(part) for connection in self._waiting for part in connection.unsent}
        return sum(bodies.values()) >= self._limits.most_bytes

    # -- answers --------------------------------------------------------------------

    def _let_answer(self) -> None:
        while self._asked and self._being_answered < self._limits.most_threads and not self._is_crowded():
            if self._being_answered == len(self._threads):
                thread = threading.Thread(target=self._answer, name="otel-gpu-web-answer", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread is to be had: those that there are go on
                    if not self._threads:
                        self._part(self._asked.popleft())
                    return
                self._threads.append(thread)
            with self._counting:
                self._being_answered += 1
            self._jobs.put(self._asked.popleft())

    def _answer(self) -> None:
        """Make answers, in a thread of its own, and send what the client takes at once."""
        while (connection := self._jobs.get()) is not None:
            answer: Answer | None = None
            following = Next.END
            try:
                if connection.asked is not None:
                    answer = self._site.answer(connection.asked, connection.guard)
                    following = self._send(connection, answer)
            except Exception as error:  # a bug in one answer must not take the others along; or the client has gone
                log.debug("a request has no answer, or nobody takes it: %s: %s", type(error).__name__, error)
            over = following is Next.END
            if over and not connection.looked_for:
                connection.close()
                with self._counting:
                    self._being_answered -= 1
                woken = bool(self._asked)  # whoever is put there after this sees that a thread is free
            else:
                self._answered.put((connection, None if over else answer))
                woken = following is not Next.REQUEST or not connection.looked_for or bool(self._asked)
            if woken:
                self._wake_up()
            if self._ended:
                self._drop_answers()

    def _send(self, connection: Connection, answer: Answer) -> Next:
        """Send what can be sent without waiting. Who follows is told nothing before it is known whether it may."""
        if self._ended:
            return Next.END
        if answer.following is not None:
            return Next.NEWS
        connection.answer(answer, time.monotonic())
        return connection.go_on()

    def _take_back(self) -> None:
        """Go on with those whose answer is made and who have not taken in all, may ask again, or follow."""
        while not self._answered.empty():
            connection, answer = self._answered.get_nowait()
            with self._counting:
                self._being_answered -= 1
            if answer is None:
                self._part(connection)
                continue
            if connection.has_had_all:
                self._let_rest(connection)
                continue
            if answer.following is not None:
                if self._follow_already() >= self._limits.most_followers:
                    answer = self._refusal(connection)
                connection.answer(answer, time.monotonic())
                if connection.following is not None:
                    connection.following.feed.join(connection, self._wake_up)
            self._waiting[connection] = None
            self._go_on(connection)

    # -- those who follow -----------------------------------------------------------

    def _follow_already(self) -> int:
        return len(self._followers) + sum(each.following is not None for each in self._waiting)

    def _refusal(self, connection: Connection) -> Answer:
        """What is said to one follower too many. Whether it may ask at all was found out before."""
        if connection.asked is None:
            return Answer(b"")
        return self._site.answer(replace(connection.asked, refusal=TOO_MANY_FOLLOW), connection.guard)

    def _tell_news(self) -> None:
        """Tell those who have taken in all there was what is new, or that we are still here."""
        now_s = time.monotonic()
        for connection in list(self._followers):
            news = connection.news
            if news is not None:
                connection.told = news
            elif now_s < connection.since_s + self._limits.heartbeat_s:
                continue
            connection.tell(_HEARTBEAT if news is None else news, now_s)
            del self._followers[connection]
            self._waiting[connection] = None
            self._go_on(connection)

    # -- coming and going -----------------------------------------------------------

    def _wake_up(self) -> None:
        with suppress(OSError):  # it is full of such calls, or nobody listens any more
            self._waker.send(b"\0")

    def _woken_up(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _drop_answers(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._answered.get_nowait()[0].close()

    def _end(self) -> None:
        self._ended = True  # from here on, whoever has made an answer drops it himself
        self._drop_answers()
        for connection in (*self._waiting, *self._resting, *self._followers, *self._asked):
            self._close(connection)
        for _ in self._threads:
            self._jobs.put(None)
        self._selector.close()
        for each in (self._listener, self._woken, self._waker):
            each.close()
