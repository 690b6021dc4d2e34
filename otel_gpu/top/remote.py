"""Cycles of a running agent, as its page has them: ``/api/events``, followed for as long as somebody looks."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final
from urllib.parse import SplitResult, unquote, urlsplit

from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.top.board import Board
from otel_gpu.top.cycle import combine
from otel_gpu.top.hour import Hour
from otel_gpu.version import __version__

PORT: Final = 9464
_PATH: Final = "/api/events"
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 40.0
"""After 15 s without news an agent sends a comment: whoever sends nothing for so long has gone."""

_LONGEST_LINE: Final = 64 << 20
_LONGEST_REMARK: Final = 200
_LONGEST_SAYING: Final = 40
_TLS_ALERT: Final = "\x15\x03"
"""So begins what a server of TLS answers to whoever asks in plain text (RFC 8446, 5.1 and 6)."""

_ALLOWED: Final = f"http://HOST:PORT or https://HOST:PORT of a running agent, such as http://127.0.0.1:{PORT}"


@dataclass(frozen=True, slots=True)
class Agent:
    """Where an agent serves, and with what authorization; that is never shown."""

    tls: bool
    host: str
    port: int
    path: str = ""
    authorization: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


def agent(url: str, origin: str) -> Agent:
    """The agent that a URL means; ``origin`` is who gave it. UsageError names what is allowed, and no password."""
    try:
        return parse_agent(url)
    except ValueError:
        raise UsageError(f"{origin} is {_without_secret(url)!r}; allowed is {_ALLOWED}") from None


def parse_agent(url: str) -> Agent:
    """The agent that a URL means; ValueError if it means none."""
    parts = urlsplit(url.strip())
    port, host = parts.port, parts.hostname or ""
    usual = all(0x20 < ord(character) < 0x7F for character in host + parts.path)  # nothing that could end a request
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment or not usual:
        raise ValueError(url)
    # The page's own address and that of its JSON are what people have at hand.
    path = parts.path.removesuffix("/").removesuffix("/api/attribution").removesuffix(_PATH)
    return Agent(parts.scheme == "https", host, PORT if port is None else port, path, _authorization(parts))


def _without_secret(url: str) -> str:
    return url if "@" not in url else f"…@{url.rpartition('@')[2]}"


def _authorization(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")


class RemoteCycles:
    """Follows an agent on a thread of its own, and again when it was lost. What cannot be at all ends it at once."""

    def __init__(self, target: Agent, board: Board, *, retry_s: float = 2.0) -> None:
        self._agent, self._board, self._retry_s = target, board, retry_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-top", daemon=True)
        self._hour = Hour()
        self._reached = False
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End; a thread that waits for the agent is not waited for."""
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
            except Exception as error:  # a bug is told in a line like everything else
                self._note(Unavailable(f"internal error: {type(error).__name__}: {error}"))
            self._stop.wait(self._retry_s)

    def _note(self, error: OtelGpuError) -> None:
        """An agent that was never reached is most likely another than was meant; one that was will come back."""
        if self._stop.is_set():
            return
        if self._reached:
            self._board.lose(str(error))
        else:
            kind = UsageError if isinstance(error, UsageError) else Unavailable
            self._board.fail(kind(f"the agent at {self._agent}: {error}"))
            self._stop.set()

    def _follow(self) -> None:
        """All cycles until there are no more. Unavailable, or UsageError where waiting would not help, says why."""
        target = self._agent
        connection: http.client.HTTPConnection
        if target.tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(target.host, target.port, timeout=_CONNECT_S, context=context)
        else:
            connection = http.client.HTTPConnection(target.host, target.port, timeout=_CONNECT_S)
        try:
            self._read(self._ask(connection))
        except (OSError, http.client.HTTPException) as error:
            raise _meant(error, tls=target.tls) from None
        finally:
            connection.close()
        raise Unavailable("it has ended the connection")

    def _ask(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        headers = {"Accept": "text/event-stream", "User-Agent": f"otel-gpu/{__version__}"}
        if self._agent.authorization is not None:
            headers["Authorization"] = self._agent.authorization
        connection.request("GET", self._agent.path + _PATH, headers=headers)
        self._socket = connection.sock  # which the connection itself forgets once it is answered
        response = connection.getresponse()
        self._socket.settimeout(_SILENCE_S)
        kind = response.headers.get_content_type()
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            raise UsageError("it wants a user and a password, and has not got them; docs/top.md says how to give them")
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable("it has as many who follow it as it takes")
        if response.status != http.HTTPStatus.OK or kind != "text/event-stream":
            said = response.read(_LONGEST_REMARK).decode("utf-8", "replace").partition("\n")[0] or response.reason
            raise UsageError(f"it is no otel-gpu agent, or an old one: at {_PATH} it answers {response.status}, {said}")
        return response

    def _read(self, response: http.client.HTTPResponse) -> None:
        beside: object = None
        for name, data in events(response):
            if self._stop.is_set():
                return
            if name == "page":
                beside = _parsed(data)
            elif name == "attribution":
                self._tell(_parsed(data), beside)

    def _tell(self, document: object, beside: object) -> None:
        try:
            cycle = combine(document, beside, self._hour)
        except Unavailable as error:
            version = beside.get("version") if isinstance(beside, dict) else None
            if not isinstance(version, str):
                raise Unavailable(
                    f"it is no otel-gpu agent, or one of another version than this ({__version__}): {error}"
                ) from None
            raise Unavailable(
                f"it is otel-gpu {version[:_LONGEST_REMARK]}, this is {__version__}, and {error}; "
                "use top of the agent's version"
            ) from None
        self._reached = True
        self._board.put(cycle)


def _parsed(data: str) -> object:
    """The JSON of an event; what is none is not understood, like everything else that is not as it should be."""
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed


def events(stream: BinaryIO | http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """Names and data of server-sent events (HTML, 9.2.6), as far as an agent sends them: a line of data each."""
    name, data = "", ""
    while line := stream.readline(_LONGEST_LINE):
        if not line.endswith(b"\n"):  # cut off, or longer than any cycle is
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        field_, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field_ == "event":
            name = value
        elif field_ == "data":
            data = value
        elif not text:
            if data:
                yield name, data
            name, data = "", ""


def _meant(error: Exception, *, tls: bool) -> OtelGpuError:
    """What a failure to talk means: the user's to mend, or to be waited for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names other authorities"
        return UsageError(why)
    if isinstance(error, socket.gaierror):
        return UsageError(f"that host is not known ({error.strerror or error})")
    return Unavailable(_why(error, tls=tls))


def _why(error: Exception, *, tls: bool) -> str:
    match error:
        case ssl.SSLError():
            return f"TLS failed ({error.reason or error}); does it serve https?"
        case TimeoutError():
            return "it does not answer"
        case http.client.RemoteDisconnected() | ConnectionResetError():
            return "it has ended the connection without an answer" + ("" if tls else "; does it serve https?")
        case http.client.HTTPException():
            said = str(error)
            return (
                "it serves https" if said.startswith(_TLS_ALERT) else f"it does not speak HTTP: it says {_quoted(said)}"
            )
        case OSError():
            return str(error.strerror or error).lower()
    return str(error)


def _quoted(said: str) -> str:
    """The beginning of what another kind of server says, such that nothing of it acts on a terminal."""
    return ascii(said.strip()[:_LONGEST_SAYING])
