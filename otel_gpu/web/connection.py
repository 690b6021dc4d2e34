"""One client's connection. It never waits: it goes on with what is there, and says what it needs to go further."""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from otel_gpu.web.access_policy import Guard
from otel_gpu.web.feed import Following
from otel_gpu.web.request import Asked
from otel_gpu.web.router import SPEAK_TLS, Answer

_LARGEST_REQUEST_BYTES: Final = 128 * 1024
"""Line and headers together; the parser allows 64 KiB for a line, a hundred times."""

_CHUNK_BYTES: Final = 64 * 1024
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n|\A\r?\n")
_TLS_HANDSHAKE: Final = b"\x16"  # RFC 8446, 5.1: the content type that every client begins with


class Next(Enum):
    """What a connection waits for: its client's bytes, room for ours, an answer, news to tell, nothing more.

    ``REQUEST`` is bytes, too, of another request, which may come or not.
    """

    READABLE = auto()
    WRITABLE = auto()
    ANSWER = auto()
    NEWS = auto()
    REQUEST = auto()
    END = auto()


class Stranger(OSError):
    """A client whose certificate has none of the names that are allowed."""


class Connection:
    """A client from its handshake to the last byte for it, or until it hangs up. OSError, from any step, ends it."""

    def __init__(self, client: socket.socket, guard: Guard, now_s: float) -> None:
        client.settimeout(0)
        self.socket = client
        self.descriptor = client.fileno()
        self.guard = guard
        self.since_s = now_s
        """When the client began what it is at: to ask, or to take in the answer, or a frame that follows it. One that
        has had its answer rests since that began."""
        self.asked: Asked | None = None
        self.following: Following | None = None
        self.told: bytes | None = None
        """The frame that it had last, or is taking in."""
        self.looked_for = 0
        """The events that somebody waits for to go on with it."""
        self.comes_again = False
        """Whether it has been let rest, to ask again."""
        self._stays = False
        self._head = bytearray()
        self._may_speak = guard.tls is None
        self._unsent: list[memoryview] = []

    @property
    def unsent(self) -> list[bytes]:
        """The parts of its answer that are not all taken in yet; each as it is in memory, whole."""
        return [part.obj for part in self._unsent if isinstance(part.obj, bytes)]

    def go_on(self) -> Next:
        """Do what can be done without waiting."""
        try:
            if self.asked is not None:
                return self._write() if self._unsent or self.following is None else self._listen()
            if not self._may_speak:
                self._shake_hands()
            return self._read()
        except BlockingIOError:
            return Next.READABLE if self.asked is None else Next.WRITABLE
        except ssl.SSLWantReadError:
            return Next.READABLE
        except ssl.SSLWantWriteError:
            return Next.WRITABLE

    def answer(self, answer: Answer, now_s: float) -> None:
        """This is what is sent from now on."""
        self._head.clear()
        self._unsent = [memoryview(part) for part in (answer.head, answer.body) if part]
        self.following = answer.following
        self._stays = answer.stays
        self.told = None if answer.following is None else answer.following.told
        self.since_s = now_s

    @property
    def has_had_all(self) -> bool:
        """Whether its answer is all taken in, and it may ask something else."""
        return self.asked is None

    @property
    def has_said_more(self) -> bool:
        """Whether it has said something that no event will tell of, as TLS has read it already."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    @property
    def news(self) -> bytes | None:
        """The newest frame of what it follows, if it has not had that."""
        newest = None if self.following is None else self.following.feed.newest
        return None if newest is self.told else newest

    def tell(self, frame: bytes, now_s: float) -> None:
        """This follows what was sent, once all of that was taken in."""
        self._unsent = [memoryview(frame)]
        self.since_s = now_s

    def close(self) -> None:
        """End it, with TLS's goodbye if it was spoken; theirs is not waited for."""
        with suppress(OSError, ValueError):
            if isinstance(self.socket, ssl.SSLSocket) and self._may_speak:
                self.socket.unwrap()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()

    def _shake_hands(self) -> None:
        """Go on with the handshake. Who speaks plain text is heard out, to be told what is spoken here."""
        if not isinstance(self.socket, ssl.SSLSocket):
            first = self.socket.recv(1, socket.MSG_PEEK)
            if self.guard.tls is None or first not in (b"", _TLS_HANDSHAKE):
                self._may_speak = True
                return
            self.socket = self.guard.tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.socket.do_handshake()
        if not self.guard.allows(self.socket.getpeercert()):
            raise Stranger("its certificate has none of the names allowed")
        self._may_speak = True

    def _read(self) -> Next:
        while True:
            left_bytes = _LARGEST_REQUEST_BYTES - len(self._head)
            if not left_bytes:
                return self._is_asked(too_large=True)
            chunk = self.socket.recv(min(left_bytes, _CHUNK_BYTES))
            searched = max(0, len(self._head) - 3)  # the end may have begun with what came before
            self._head += chunk
            if not self._head:
                return Next.END  # it has gone, and asked nothing
            if not chunk or _END_OF_HEAD.search(self._head, searched):
                return self._is_asked()

    def _is_asked(self, *, too_large: bool = False) -> Next:
        refusal = SPEAK_TLS if self.guard.tls is not None and not isinstance(self.socket, ssl.SSLSocket) else None
        self.asked = Asked(bytes(self._head), too_large=too_large, refusal=refusal)
        return Next.ANSWER

    def _write(self) -> Next:
        while self._unsent:
            # Together where that can be done: a head by itself is a packet more, for which the client wakes up.
            tls = isinstance(self.socket, ssl.SSLSocket)
            sent = self.socket.send(self._unsent[0]) if tls else self.socket.sendmsg(self._unsent)
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]
        if self._stays:
            self.asked = None
            return Next.REQUEST
        return Next.END if self.following is None else Next.NEWS

    def _listen(self) -> Next:
        """Whether one who follows is still there; what it says has no meaning."""
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.socket.recv(_CHUNK_BYTES):
                pass
            return Next.END
        return Next.NEWS
