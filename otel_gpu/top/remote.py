"""Views of a running agent: its stream ``/api/events``, which the page draws too."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from otel_gpu.bounded_io import Deadline, DeadlineReader, LineSplitter, one_line, parse_json
from otel_gpu.config.groups import DEFAULT_LISTEN
from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.top.latest import LatestView
from otel_gpu.version import __version__
from otel_gpu.view.history import merged
from otel_gpu.view.model import History, decode_view

_PATH: Final = "/api/events"
_VIEW_EVENT: Final = "view"
_DOCUMENT_EVENT: Final = "attribution"
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 40.0
"""An agent sends a comment after 15 s without a cycle; one that ends no line for so long is gone."""

_MAX_LINE_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 64 << 10
_LONGEST_ANSWER: Final = 200
_LONGEST_QUOTE: Final = 40
_TLS_ALERT: Final = "\x15\x03"
"""The beginning of the answer of a TLS server to a request in plain text (RFC 8446, 5.1 and 6)."""

_ALLOWED: Final = f"use http://HOST:PORT or https://HOST:PORT of a running agent, for example http://{DEFAULT_LISTEN}"


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """The address of an agent, and the authorization for it, which is never shown."""

    tls: bool
    host: str
    port: int
    path: str = ""
    authorization: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


def agent_address(url: str, origin: str) -> AgentAddress:
    """The address in a URL from ``origin``. The UsageError for an invalid URL contains no password."""
    try:
        return parse_agent_address(url)
    except ValueError:
        raise UsageError(f"{origin}: {_without_secret(url)!r} is not the URL of an agent; {_ALLOWED}") from None


def parse_agent_address(url: str) -> AgentAddress:
    """The address in a URL; ValueError if it is invalid."""
    parts = urlsplit(url.strip())
    host = parts.hostname or ""
    is_ascii = all(0x20 < ord(character) < 0x7F for character in host + parts.path)  # nothing that could end a request
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment or not is_ascii:
        raise ValueError(url)
    # Users copy the URL of the page or of its JSON.
    path = parts.path.removesuffix("/").removesuffix("/api/attribution").removesuffix(_PATH)
    port = DEFAULT_LISTEN.port if parts.port is None else parts.port
    return AgentAddress(parts.scheme == "https", host, port, path, _authorization(parts))


def _without_secret(url: str) -> str:
    return url if "@" not in url else f"…@{url.rpartition('@')[2]}"


def _authorization(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")


class _Response(http.client.HTTPResponse):
    """Reads the status, the headers and then each line by a deadline: the timeout of a socket limits one read only."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.reader = DeadlineReader(self.fp.detach(), sock, Deadline(_CONNECT_S))
        self.fp = io.BufferedReader(self.reader)

    def chunks(self) -> Iterator[bytes]:
        """What has arrived, until the end of the stream. TimeoutError if a line does not end in time."""
        self.reader.deadline = Deadline(_SILENCE_S)
        while chunk := self.read1(_CHUNK_BYTES):
            if b"\n" in chunk:
                self.reader.deadline = Deadline(_SILENCE_S)
            yield chunk


class RemoteViews:
    """Follows an agent on a thread of its own, and reconnects. An agent that was never reached is a failure."""

    def __init__(self, target: AgentAddress, latest: LatestView, *, retry_s: float = 2.0) -> None:
        self._agent, self._latest, self._retry_s = target, latest, retry_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-top", daemon=True)
        self._history = History((), {})
        self._reached = False
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End. A connection that waits for the agent is shut down."""
        self._stop.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except OtelGpuError as error:
                self._note(error)
            except Exception as error:  # a bug is reported in one line too
                self._note(Unavailable(f"internal error: {type(error).__name__}: {error}"))
            self._stop.wait(self._retry_s)

    def _note(self, error: OtelGpuError) -> None:
        """A wrong URL is likely for an agent that was never reached; one that was reached will come back."""
        if self._stop.is_set():
            return
        if self._reached:
            self._latest.lose(str(error))
        else:
            kind = UsageError if isinstance(error, UsageError) else Unavailable
            self._latest.fail(kind(f"the agent at {self._agent}: {error}"))
            self._stop.set()

    def _follow(self) -> None:
        """Read views until the connection ends. Raises Unavailable, or UsageError where a retry would not help."""
        target = self._agent
        connection: http.client.HTTPConnection
        if target.tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(target.host, target.port, timeout=_CONNECT_S, context=context)
        else:
            connection = http.client.HTTPConnection(target.host, target.port, timeout=_CONNECT_S)
        connection.response_class = _Response
        try:
            self._read(self._request(connection))
        except (OSError, http.client.HTTPException) as error:
            raise _classified(error, tls=target.tls) from None
        finally:
            connection.close()
        raise Unavailable("it closed the connection")

    def _request(self, connection: http.client.HTTPConnection) -> _Response:
        headers = {"Accept": "text/event-stream", "User-Agent": f"otel-gpu/{__version__}"}
        if self._agent.authorization is not None:
            headers["Authorization"] = self._agent.authorization
        connection.request("GET", self._agent.path + _PATH, headers=headers)
        self._socket = connection.sock  # the connection drops it with the response
        response = connection.getresponse()
        assert isinstance(response, _Response)
        kind = response.headers.get_content_type()
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            raise UsageError("it requires a user and a password; docs/top.md shows how to give them")
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable("it has the maximum number of clients")
        if response.status != http.HTTPStatus.OK or kind != "text/event-stream":
            answer = response.read(_LONGEST_ANSWER).decode("utf-8", "replace").partition("\n")[0] or response.reason
            returned = f"{_PATH} returns {response.status}, {one_line(answer)}"
            raise UsageError(f"not an otel-gpu agent, or an old one: {returned}")
        return response

    def _read(self, response: _Response) -> None:
        has_view = False
        for name, data in events(response.chunks()):
            if self._stop.is_set():
                return
            if name == _DOCUMENT_EVENT and has_view:  # the same cycle for programs
                continue
            self._receive(name, _parsed(data))
            has_view = True

    def _receive(self, event: str, plain: object) -> None:
        try:
            view = decode_view(plain if event == _VIEW_EVENT else None)
        except ValueError as error:
            version = plain.get("version") if isinstance(plain, dict) else None
            if not isinstance(version, str):
                raise Unavailable(
                    f"not an otel-gpu agent, or another version than this top ({__version__}): {error}"
                ) from None
            raise Unavailable(
                f"the agent is otel-gpu {one_line(version)}, this top is {__version__}, "
                f"and its data is not understood ({error}); use top of the agent's version"
            ) from None
        self._history = merged(self._history, view.history)
        self._reached = True
        self._latest.put(view._replace(history=self._history))


def _parsed(data: bytes) -> object:
    """The JSON of an event; ``None`` if it is invalid."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Names and data of server-sent events (HTML, 9.2.6). An agent sends each with one line of data, its last line.

    Raises Unavailable for a line that is longer than any view.
    """
    name, lines = "", LineSplitter(_MAX_LINE_BYTES)
    for line in (line for chunk in chunks for line in lines.feed(chunk)):
        if line is None:
            raise Unavailable(f"not an otel-gpu agent: it sends a line of over {_MAX_LINE_BYTES >> 20} MiB")
        field_, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field_ == b"event":
            name = value.decode("utf-8", "replace")
        elif field_ == b"data":
            yield name, value
            name = ""


def _classified(error: Exception, *, tls: bool) -> OtelGpuError:
    """The error for a failed connection: UsageError if the user must fix it, else Unavailable."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE sets other authorities"
        return UsageError(why)
    if isinstance(error, socket.gaierror):
        return UsageError(f"unknown host ({error.strerror or error})")
    return Unavailable(_why(error, tls=tls))


def _why(error: Exception, *, tls: bool) -> str:
    match error:
        case ssl.SSLError():
            return f"TLS failed ({error.reason or error}); does it serve https?"
        case TimeoutError():
            return "no response"
        case http.client.RemoteDisconnected() | ConnectionResetError():
            return "it closed the connection without a response" + ("" if tls else "; does it serve https?")
        case http.client.HTTPException():
            answer = str(error)
            quoted = repr(one_line(answer, _LONGEST_QUOTE))
            return "it serves https" if answer.startswith(_TLS_ALERT) else f"not an HTTP server: it sends {quoted}"
        case OSError():
            return str(error.strerror or error).lower()
    return str(error)
