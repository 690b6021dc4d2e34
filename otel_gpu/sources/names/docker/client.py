"""Read-only client of a Docker or Podman engine. The only module that imports the Docker SDK."""

from __future__ import annotations

import io
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final

import docker
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection
from docker.types import CancellableStream
from requests.adapters import HTTPAdapter

from otel_gpu.bounded_io import (
    MAX_PEM_BYTES,
    Deadline,
    DeadlineReader,
    LineSplitter,
    TooLarge,
    one_line,
    parse_json,
    read_all,
    read_beginning,
    read_file,
)
from otel_gpu.errors import Gone, OtelGpuError, Unavailable
from otel_gpu.sources.names.untrusted import mapping, text
from otel_gpu.sources.unix_socket import NotASocketError, connect, failure_reason, peer

_UNIX: Final = "unix://"
_MAX_ERROR_CHARS: Final = 300
_MAX_ANSWER_BYTES: Final = 8 << 20
"""Largest answer: a list of a thousand containers with 8 KiB each."""
_MAX_EVENT_BYTES: Final = 1 << 20
"""An event contains all labels of its container."""
_MAX_OVERHEAD_BYTES: Final = 1 << 20
"""What an answer may have beside its body: head, sizes of chunks, trailers."""
_CHUNK_BYTES: Final = 64 << 10
_PLAIN: Final = {"Accept-Encoding": "identity"}
"""A compressed answer could grow a thousandfold, so none is accepted."""
_SOCKET_FIXES: Final[Mapping[type[OSError], str]] = {
    PermissionError: "add the agent's user to the socket's group, or use a socket proxy",
    FileNotFoundError: "check that the engine runs and its socket is mounted here",
    NotASocketError: "mount the engine's socket there",
    ConnectionRefusedError: "check that the engine runs",
    BlockingIOError: "check its load",
}


@dataclass(frozen=True, slots=True)
class DockerTls:
    """PEM files for an engine over TCP: the CA's certificate, and the client's certificate and key."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True


class _Answer(HTTPResponse):
    """Reads status, headers and body within the timeout that the socket has when the answer begins."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self._timeout_s = sock.gettimeout()
        self._connection = sock
        self._reader: DeadlineReader | None = None
        if self._timeout_s is not None:
            max_bytes = _MAX_ANSWER_BYTES + _MAX_OVERHEAD_BYTES
            self._reader = DeadlineReader(self.fp.detach(), sock, Deadline(self._timeout_s), max_bytes)
            self.fp = io.BufferedReader(self._reader)

    def allow_more(self) -> None:
        """Count what is read from zero again."""
        if self._reader is not None:
            self._reader.allow_more()


class _EventStream(_Answer):
    """An answer whose body has no end: the timeout is that of the head, and then of each read."""

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        if self._reader is not None:
            self._reader.deadline = None
            self._connection.settimeout(self._timeout_s)


def _connection(kind: Callable[..., Any], answers: type[_Answer], *arguments: Any, **named: Any) -> Any:
    """A connection of this kind whose answers are of this class."""
    connection = kind(*arguments, **named)
    connection.response_class = answers
    return connection


class _OtherServerError(OSError):
    """Another user's process listens on the socket than before."""


class _Connection(UnixHTTPConnection):  # type: ignore[misc]  # the SDK has no types
    """The SDK's connection, which leaks a socket that fails to connect. The listener must be user ``peer_uid``'s."""

    def __init__(self, peer_uid: int | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._peer_uid = peer_uid

    def connect(self) -> None:
        """Connect; on failure close the socket."""
        self.sock = connect(self.unix_socket)
        self.sock.settimeout(self.timeout)
        if peer(self.sock).uid != self._peer_uid:
            self.sock.close()
            raise _OtherServerError("another user's process listens now")


class _UnixAdapter(UnixHTTPAdapter):  # type: ignore[misc]
    def __init__(self, path: str, timeout_s: float, answers: type[_Answer], peer_uid: int | None) -> None:
        super().__init__(path, timeout=timeout_s)
        self._answers = answers
        self._peer_uid = peer_uid

    def get_connection(self, url: str, proxies: Any = None) -> Any:
        pool = super().get_connection(url, proxies)
        connection = partial(_Connection, self._peer_uid)
        new_connection = partial(_connection, connection, self._answers, pool.base_url, pool.socket_path, pool.timeout)
        pool._new_conn = new_connection  # noqa: SLF001 - the only way to give a pool of urllib3 other connections
        return pool


class _TcpAdapter(HTTPAdapter):
    def __init__(self, answers: type[_Answer]) -> None:
        super().__init__()
        self._answers = answers

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **named)
        pool.ConnectionCls = partial(_connection, type(pool).ConnectionCls, self._answers)
        return pool


class EngineClient:
    """A Docker or Podman engine, read with GET only. Raises ``Unavailable``, and ``Gone`` for a missing container."""

    def __init__(self, base_url: str, *, tls: DockerTls | None, timeout_s: float) -> None:
        self._base_url = base_url
        self._tls = tls
        self._timeout_s = timeout_s
        self._path = Path("/" + base_url.removeprefix(_UNIX).lstrip("/")) if base_url.startswith(_UNIX) else None
        self._where = base_url if self._path is None else str(self._path)
        self.peer_uid: int | None = None
        """The user whose process listens on the socket, for the life of this client; ``None`` over TCP."""
        with self._mapped_errors():
            self._client = self._connected()

    def check(self) -> None:
        """Raise ``Unavailable`` unless the engine answers."""
        with self._mapped_errors():
            self._check_socket()
            self._version(self._client)

    def containers(self) -> Sequence[object]:
        """The running containers: entries of the engine's list."""
        with self._mapped_errors("/containers/json"):
            listed = self._get(self._client, "/containers/json")
        if not isinstance(listed, list):
            raise Unavailable(f"{self._where}: the answer to GET /containers/json is not a list")
        return listed

    def inspect(self, container_id: str) -> object:
        """The inspect document of a container."""
        with self._mapped_errors(f"/containers/{container_id[:12]}/json", not_found=Gone):
            return self._get(self._client, f"/containers/{container_id}/json")

    def events(self, actions: Sequence[str], quiet_s: float) -> Events:
        """Container events from now on. The stream ends after ``quiet_s`` without an event."""
        with self._mapped_errors("/events"):
            # A separate client, because it waits on another thread. The SDK's events() has no timeout for the first
            # answer.
            client = self._new_client(self._client.api_version, _EventStream)
            response = client.get(
                f"{client.base_url}/v{client.api_version}/events",
                params={"filters": json.dumps({"type": ["container"], "event": list(actions)})},
                headers=_PLAIN,
                timeout=(self._timeout_s, quiet_s),
                stream=True,
            )
            try:
                _check_head(response)
            except _Refusal:
                response.close()
                raise
            return Events(response)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _connected(self) -> Any:
        self._check_socket()
        client = self._new_client(DEFAULT_DOCKER_API_VERSION)
        try:
            version = text(mapping(self._version(client)).get("ApiVersion"))
        finally:
            client.close()
        if version is None:
            raise Unavailable(f"{self._where}: the server is not a Docker or Podman engine")
        return self._new_client(version)

    def _version(self, client: Any) -> object:
        return self._get(client, "/version", versioned=False)

    def _get(self, client: Any, path: str, *, versioned: bool = True) -> object:
        """The JSON answer to a GET. The SDK's methods would read an answer of any size."""
        version = f"/v{client.api_version}" if versioned else ""
        url = f"{client.base_url}{version}{path}"
        with closing(client.get(url, headers=_PLAIN, timeout=self._timeout_s, stream=True)) as response:
            _check_head(response)
            return parse_json(read_all(_chunks(response), _MAX_ANSWER_BYTES))

    def _check_socket(self) -> None:
        if self._path is None:
            if not self._base_url.startswith(("tcp://", "http://", "https://")):
                raise Unavailable(f"{self._base_url}: unsupported address; use unix:///path/of.sock or tcp://host:port")
            return
        with closing(connect(self._path)) as connection:
            found = peer(connection).uid
        if self.peer_uid is not None and found != self.peer_uid:
            raise _OtherServerError("another user's process listens now")
        self.peer_uid = found

    def _new_client(self, version: str, answers: type[_Answer] = _Answer) -> Any:
        tls: Any = False
        if self._tls is not None:
            pair = (self._tls.cert, self._tls.key)
            for file in (self._tls.ca, *pair):
                _check_pem(file)
            tls = docker.tls.TLSConfig(
                client_cert=None if None in pair else tuple(str(file) for file in pair),
                ca_cert=None if self._tls.ca is None else str(self._tls.ca),
                verify=self._tls.verify,
            )
        client = docker.APIClient(self._base_url, version=version, timeout=self._timeout_s, tls=tls)
        # Only the configured address and certificates count: requests would obey HTTP_PROXY, .netrc and
        # REQUESTS_CA_BUNDLE, which are meant for other hosts.
        if self._path is not None:
            client.mount("http+docker://", _UnixAdapter(str(self._path), self._timeout_s, answers, self.peer_uid))
        else:
            for scheme in ("http://", "https://"):
                client.mount(scheme, _TcpAdapter(answers))
        client.trust_env = False
        client.max_redirects = 0
        return client

    @contextmanager
    def _mapped_errors(self, path: str = "/version", not_found: type[OtelGpuError] = Unavailable) -> Iterator[None]:
        try:
            yield
        except OtelGpuError:
            raise
        except Exception as error:
            # Every type: the SDK raises arbitrary exceptions for malformed answers.
            causes = list(_causes(error))
            refusal = next((cause for cause in causes if isinstance(cause, _Refusal)), None)
            kind = not_found if refusal is not None and refusal.status == HTTPStatus.NOT_FOUND else Unavailable
            meaning = self._meaning(path, causes) if refusal is None else refusal.meaning(path)
            raise kind(f"{self._where}: {meaning}") from error

    def _meaning(self, path: str, causes: Sequence[BaseException]) -> str:
        for cause in causes:
            if isinstance(cause, _OtherServerError):
                return str(cause)
            if isinstance(cause, ssl.SSLCertVerificationError):
                return f"certificate not trusted: {_line(cause.verify_message)}; check the CA and the host name"
            if isinstance(cause, ssl.SSLError):
                return f"TLS failed: {_line(cause)}"
            for kind, fix in _SOCKET_FIXES.items():
                if isinstance(cause, kind):
                    return f"{failure_reason(cause)}; {fix}"
        meanings: Sequence[tuple[tuple[type[BaseException], ...], str]] = (
            ((TimeoutError,), f"no answer to GET {path} within {self._timeout_s:g} s"),
            ((socket.gaierror,), "host name not found"),
            ((TooLarge,), f"the answer to GET {path} is over {_MAX_ANSWER_BYTES >> 20} MiB"),
            ((json.JSONDecodeError, UnicodeDecodeError), f"the answer to GET {path} is not JSON"),
            ((HTTPException, ConnectionError), f"the answer to GET {path} was cut off"),
        )
        for kinds, meaning in meanings:
            if any(isinstance(cause, kinds) for cause in causes):
                return meaning
        return f"GET {path}: {_line(causes[0])}"


def _check_pem(path: Path | None) -> None:
    """Unavailable for a path that the SDK would not name in its error, or that OpenSSL would not finish to read."""
    try:
        if path is not None:
            read_file(path, MAX_PEM_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
    except TooLarge as error:
        reason = f"it is {error}"
    else:
        return
    raise Unavailable(f"{path}: {reason}; the directory of docker-cert-path needs ca.pem, cert.pem and key.pem")


class Events:
    """A stream of events, one JSON object per line. One thread reads it; another may close it."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._answer: _EventStream = response.raw._original_response  # noqa: SLF001 - the only way to it
        # Each read returns what has arrived. The reads of requests wait for the requested size.
        self._stream = CancellableStream(iter(partial(self._answer.read1, _CHUNK_BYTES), b""), response)

    def __iter__(self) -> Iterator[bytes | None]:
        """Lines until the stream ends for any reason; ``None`` for a line that is too long."""
        splitter = LineSplitter(_MAX_EVENT_BYTES)
        # A response that is closed while it is read raises arbitrary exceptions.
        with suppress(Exception):
            for chunk in self._stream:
                for line in splitter.feed(chunk):
                    # A stream has no end. What comes between the ends of two lines is limited.
                    self._answer.allow_more()
                    yield line

    def close(self) -> None:
        """End the stream and the iteration over it."""
        # The SDK looks for the socket in the response, and does not find it if the stream has just ended.
        with suppress(Exception):
            self._stream.close()

    def release(self) -> None:
        """Release the connection; called by the reading thread."""
        with suppress(Exception):
            self._response.close()


# ---------------------------------------------------------------------------- errors


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes: libraries wrap each other's."""
    queue: list[BaseException | None] = [error]
    seen: set[int] = set()
    while queue:
        cause = queue.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        queue += [cause.__context__, cause.__cause__, *(arg for arg in cause.args if isinstance(arg, BaseException))]


class _Refusal(Exception):
    """An answer with an HTTP status that is an error."""

    def __init__(self, status: int, explanation: str) -> None:
        super().__init__(status, explanation)
        self.status = status
        self._explanation = explanation

    def meaning(self, path: str) -> str:
        if self.status == HTTPStatus.FORBIDDEN:
            return f"GET {path} is forbidden; allow GET on version, containers and events in the proxy"
        explanation = f": {_line(self._explanation)}" if self._explanation.strip() else ""
        return f"GET {path}: HTTP status {self.status}{explanation}"


def _chunks(response: Any) -> Iterator[bytes]:
    """The body in chunks. Not ``iter_content``, which would decompress it."""
    chunks: Iterator[bytes] = response.raw.stream(_CHUNK_BYTES, decode_content=False)
    return chunks


def _check_head(response: Any) -> None:
    """Raise unless the status is good and the body is not compressed."""
    if not response.ok:
        raise _refusal(response)
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise _Refusal(response.status_code, f"the answer is encoded as {encoding}, which was not requested")


def _refusal(response: Any) -> _Refusal:
    """The status of an answer and its explanation: the ``message`` in its JSON, or the text itself."""
    body = read_beginning(_chunks(response), _CHUNK_BYTES)
    try:
        explanation = text(mapping(parse_json(body)).get("message")) or ""
    except ValueError:
        explanation = body.decode("utf-8", "replace")
    return _Refusal(response.status_code, explanation)


def _line(error: object) -> str:
    return one_line(str(error), _MAX_ERROR_CHARS) or type(error).__name__


# ---------------------------------------------------------------------------- events on a thread


_MAX_QUEUED: Final = 10_000
_MAX_QUEUED_BYTES: Final = 8 << 20
_MAX_EVENTS_PER_S: Final = 500.0
"""Longest queue, and the highest rate of a stream after that many events. Beyond it the stream is closed: a new list
costs less than that many events."""


class EventListener:
    """Queues events from ``start`` until ``close`` or the end of the stream. Calls ``wake`` for each event."""

    def __init__(
        self, engine: EngineClient, actions: tuple[str, ...], *, quiet_s: float, wake: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._actions = actions
        self._quiet_s = quiet_s
        self._wake = wake
        self._lines: deque[bytes | None] = deque()
        self._received_bytes = 0  # changed by the thread only
        self._taken_bytes = 0  # changed by its owner only
        self._opened = threading.Event()
        self._closing = False
        self._ended = False
        self._events: Events | None = None
        self._error: OtelGpuError | None = None
        # Daemon: it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="otel-gpu-events", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended. Events may remain to be taken."""
        return self._ended

    def start(self, timeout_s: float) -> None:
        """Start the thread and wait until the engine has accepted: from then on no event is missed."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the container's limit of pids counts threads
            raise Unavailable(f"cannot start a thread: {error}") from error
        if not self._opened.wait(timeout_s):
            raise Unavailable(f"no answer to GET /events within {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def take(self) -> list[bytes | None]:
        """The queued events, one line each; ``None`` for a line that was too long."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._taken_bytes += sum([len(line or b"") for line in lines])
        return lines

    def close(self, timeout_s: float = 0.5) -> None:
        """Stop the thread; waits at most ``timeout_s`` for it."""
        self._closing = True
        if self._events is not None:
            self._events.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            events = self._engine.events(self._actions, self._quiet_s)
        except OtelGpuError as error:
            self._error = error
        else:
            self._events = events
            self._opened.set()
            self._queue(events)
            events.release()
        self._ended = True
        self._opened.set()
        self._wake()

    def _queue(self, events: Events) -> None:
        started_s = time.monotonic()
        for number, line in enumerate(() if self._closing else events):
            queued_bytes = self._received_bytes - self._taken_bytes
            is_flood = number > _MAX_QUEUED + _MAX_EVENTS_PER_S * (time.monotonic() - started_s)
            if self._closing or is_flood or len(self._lines) >= _MAX_QUEUED or queued_bytes >= _MAX_QUEUED_BYTES:
                return
            self._received_bytes += len(line or b"")
            self._lines.append(line)
            self._wake()
