"""A connection to one receiver: a request goes out, its answer comes back, and the next one uses it again.

Python's clients build a dozen objects for a request and parse its answer as if it were a mail, which took longer than
sending it. What a Collector says comes in one piece and in a few lines: that is read here. Any other answer (in pieces,
chunked, compressed, with cookies, none at all) is read by Python's client, from its first byte.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.util.connection import is_connection_dropped

from otel_gpu.export.otlp_deadline import TimelyResponse, left_s

LARGEST_ANSWER_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 8 << 10

_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ((?!204|304)[2-5][0-9][0-9]) ([^\r\n]*)\r\n"  # those two have no body, whatever they say
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n"  # RFC 9110, 5.1 and 5.5, without what is not ASCII
)
_FAILURES: Final = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
_ODD: Final = frozenset({"transfer-encoding", "content-encoding", "set-cookie"})


class NoAnswer(Exception):
    """No connection, or nothing on it that is HTTP; the only argument is the reason. The request may be repeated."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered. Names of headers are in lower case. ``raw`` is there where Python's client read it."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    keep: bool = False
    raw: urllib3.HTTPResponse | None = None


class Line:
    """Sends requests one at a time. ``connect`` opens a connection within so many seconds."""

    def __init__(self, connect: Callable[[float], HTTPConnection]) -> None:
        self._connect = connect
        self._kept: HTTPConnection | None = None
        self._closed = False

    def post(self, head: bytes, body: bytes, timeout_s: float) -> Answer:
        """Send a request, and read at most the beginning of its answer: all within the time.

        NoAnswer is raised until an answer has begun; what fails after that is raised as it is.
        """
        until_s = time.monotonic() + timeout_s
        try:
            connection = self._connection(until_s)
        except _FAILURES as error:
            raise NoAnswer(error) from error
        answer = None
        try:
            answer = _asked(connection.sock, head, body, until_s)
            return answer
        finally:
            self._put_back(connection, keep=answer is not None and answer.keep)

    def close(self) -> None:
        """Let go of the connection, at once or when the request under way has been answered."""
        self._closed = True
        self._drop()

    def _connection(self, until_s: float) -> HTTPConnection:
        """The one that is kept, unless the receiver has hung up meanwhile."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if not is_connection_dropped(kept):
                return kept
            kept.close()
        return self._connect(left_s(until_s))

    def _put_back(self, connection: HTTPConnection, *, keep: bool) -> None:
        if not keep:
            connection.close()
            return
        self._kept = connection
        if self._closed:
            self._drop()

    def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def _asked(sock: socket.socket, head: bytes, body: bytes, until_s: float) -> Answer:
    is_sent = True
    try:
        try:
            _send(sock, head, body, until_s)
        except BrokenPipeError:  # who refuses by the head alone says so, and hangs up before all of the body has come
            is_sent = False
        sock.settimeout(left_s(until_s))
        begun = sock.recv(_PIECE_BYTES)
        found = plain_answer(begun) or _opened(sock, begun, until_s)
    except _FAILURES as error:
        raise NoAnswer(error) from error
    answer = found if isinstance(found, Answer) else _read(found)
    return answer if is_sent else replace(answer, keep=False)


def plain_answer(data: bytes) -> Answer | None:
    """An answer that is whole, and like most; None if it takes more to understand it."""
    found = _HEAD.match(data)
    if found is None:
        return None
    headers: dict[str, str] = {}
    lines = found[3].decode("ascii").split("\r\n")
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    if len(headers) < len(lines) - 1 or not _ODD.isdisjoint(headers):  # a name comes twice, or one needs more
        return None
    body = data[found.end() :]
    if headers.get("content-length") != str(len(body)):
        return None
    keep = headers.get("connection", "keep-alive").lower() == "keep-alive"
    return Answer(int(found[1]), found[2].decode("latin-1").strip(), headers, body, keep)


def _send(sock: socket.socket, head: bytes, body: bytes, until_s: float) -> None:
    """All of it by one deadline: a socket's own timeout may be for each piece (TLS).

    Head and body go out by one call, which wakes the receiver once; over TLS there is no such call.
    """
    rest = [memoryview(head), memoryview(body)]
    while rest:
        sock.settimeout(left_s(until_s))
        sent_bytes = sock.send(rest[0]) if isinstance(sock, ssl.SSLSocket) else sock.sendmsg(rest)
        while rest and sent_bytes >= len(rest[0]):
            sent_bytes -= len(rest.pop(0))
        if sent_bytes:
            rest[0] = rest[0][sent_bytes:]


def _opened(sock: socket.socket, already: bytes, until_s: float) -> TimelyResponse:
    """An answer whose first bytes are there already, up to its body."""
    sock.settimeout(left_s(until_s))
    response = TimelyResponse(sock, method="POST", already=already)
    try:
        response.begin()
    except BaseException:
        response.close()
        raise
    return response


def _read(response: TimelyResponse) -> Answer:
    """The beginning of an answer's body, as it was before it was compressed."""
    raw = urllib3.HTTPResponse(
        body=response,
        headers=urllib3.HTTPHeaderDict(response.headers.items()),
        status=response.status,
        preload_content=False,
        original_response=response,
        request_method="POST",
    )
    try:
        body = raw.read(LARGEST_ANSWER_BYTES, decode_content=True)
        headers = {name.lower(): value for name, value in raw.headers.items()}
        keep = response.isclosed() and not response.will_close  # it closes itself at its end
        return Answer(response.status, response.reason or "", headers, body, keep, raw)
    finally:
        response.close()
