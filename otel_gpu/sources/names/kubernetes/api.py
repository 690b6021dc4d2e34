"""Client of the Kubernetes API over HTTPS, with the standard library: GET and watch, and the meaning of failures.

The bearer token is in a file that the kubelet renews. TLS is always verified, against the cluster's CA. Each request
has a connection of its own: there is one every few minutes.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote, urlencode

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
from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.version import __version__

MAX_ANSWER_BYTES: Final = 8 << 20
"""Largest list. The pods of most nodes take a few MiB; a larger list is read in pages."""

ANSWER_TIMEOUTS: Final = 6
"""A list must be complete within this many timeouts: a busy server is slow, and no cycle waits for it."""

TOKEN_MAX_AGE_S: Final = 60.0
"""The token is read again after this time, as the API reference advises, and at once when it is refused."""

MIN_RETRY_AFTER_S: Final = 1.0
MAX_RETRY_AFTER_S: Final = 60.0
"""Bounds of the pause that a busy server asks for."""

MAX_LINE_BYTES: Final = 4 << 20
"""Longest line of a watch: a pod. etcd limits objects to 1.5 MiB; as JSON they may be twice as long."""

_CHUNK_BYTES: Final = 64 << 10
_MAX_STATUS_BYTES: Final = 64 << 10
_MAX_MESSAGE_CHARS: Final = 240
_MAX_TOKEN_BYTES: Final = 64 << 10
_RBAC_FIX: Final = "apply the ClusterRole with list and watch on pods and bind it to the agent's service account"


class TooLargeAnswer(Unavailable):
    """The answer is over ``MAX_ANSWER_BYTES``."""


class Busy(Unavailable):
    """The server asks for a pause of ``wait_s``."""

    def __init__(self, text: str, wait_s: float) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server, its CA file and the token file."""

    host: str
    port: int
    ca_file: Path
    token_file: Path

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def in_cluster(environment: Mapping[str, str], service_account: Path) -> ApiServer | None:
    """The API server from a pod's variables and service account; ``None`` if either is missing."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "").strip().removeprefix("[").removesuffix("]")
    port = environment.get("KUBERNETES_SERVICE_PORT", "").strip()
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        return None
    token_file = service_account / "token"
    try:
        mounted = token_file.is_file()
    except OSError:  # it may exist; reading it gives the reason
        mounted = True
    return ApiServer(host, int(port), service_account / "ca.crt", token_file) if mounted else None


class _Answer(http.client.HTTPResponse):
    """Reads status, headers and body until a deadline."""

    def __init__(self, connection: socket.socket, *, method: str, deadline: Deadline) -> None:
        super().__init__(connection, method=method)
        self.reader = DeadlineReader(self.fp.detach(), connection, deadline)
        self.fp = io.BufferedReader(self.reader)


class ApiClient:
    """Sends one request at a time to an API server. Every failure is an ``Unavailable`` that says what to do.

    Another thread may call ``close``, which ends a request in progress.
    """

    def __init__(self, server: ApiServer, clock: Clock, timeout_s: float) -> None:
        self._server = server
        self._clock = clock
        self._timeout_s = timeout_s
        self._token: str | None = None
        self._token_read_s = 0.0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def get(self, path: str, query: Mapping[str, str | int]) -> object:
        """The JSON answer. Raises ``Gone`` for an expired version, ``Busy`` when the server asks for a pause."""
        deadline = self._deadline(self._timeout_s * ANSWER_TIMEOUTS)
        with self._ok_response(path, query, deadline) as answer:
            try:
                body = read_all(self._chunks(answer, deadline), MAX_ANSWER_BYTES)
            except TooLarge as error:
                raise TooLargeAnswer(f"{self._server.url}{path}: the answer is {error}") from None
        try:
            return parse_json(body)
        except ValueError:
            cut = f", cut after {len(body):,} bytes" if answer.length else ""
            raise Unavailable(
                f"{self._server.url}{path}: the answer is not JSON{cut}; is this the API server?"
            ) from None

    def stream(
        self, path: str, query: Mapping[str, str | int], max_s: float
    ) -> Generator[tuple[bytes | None, ...], None, None]:
        """Batches of lines, ``None`` for a line that is too long. The first batch is empty: the server has accepted.

        Ends when the server ends the stream. Raises when the connection is cut or stays open beyond ``max_s``.
        """
        deadline = self._deadline(max_s)
        lines = LineSplitter(MAX_LINE_BYTES)
        with self._ok_response(path, query, self._deadline(self._timeout_s * ANSWER_TIMEOUTS)) as answer:
            yield ()
            for chunk in self._chunks(answer, deadline):
                if batch := tuple(lines.feed(chunk)):
                    yield batch

    def close(self) -> None:
        """End the request in progress and send no more."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown, which removes the TLS layer while another thread reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    # ------------------------------------------------------------------------ requests

    @contextlib.contextmanager
    def _ok_response(self, path: str, query: Mapping[str, str | int], deadline: Deadline) -> Iterator[_Answer]:
        """A response with status 200, open for reading."""
        target = f"{path}?{urlencode(query, quote_via=quote, errors='replace')}"
        token = self._bearer(renew=False)
        with contextlib.ExitStack() as stack, self._mapped_errors():
            answer = stack.enter_context(self._response(target, token, deadline))
            if answer.status == http.HTTPStatus.UNAUTHORIZED and (renewed := self._bearer(renew=True)) != token:
                stack.pop_all().close()
                answer = stack.enter_context(self._response(target, renewed, deadline))
            if answer.status != http.HTTPStatus.OK:
                self._refused(answer, read_beginning(self._chunks(answer, deadline), _MAX_STATUS_BYTES))
            if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
                raise Unavailable(f"{self._server.url}: the answer is encoded as {one_line(encoding)}")
            yield answer

    @contextlib.contextmanager
    def _response(self, target: str, token: str, deadline: Deadline) -> Iterator[_Answer]:
        """One request, and the head of its response."""
        server = self._server
        context = self._tls()
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=self._timeout_s, context=context)
        try:
            connection.connect()
            self._hold(connection.sock)
            connection.sock.settimeout(deadline.left_s())
            headers = {
                "Accept": "application/json",
                "Authorization": f"Bearer {token}",
                "Connection": "close",
                "User-Agent": f"otel-gpu/{__version__}",
            }
            connection.request("GET", target, headers=headers)
            # Not getresponse(): it has the timeout of the socket for each read.
            with _Answer(connection.sock, method="GET", deadline=deadline) as answer:
                answer.begin()
                yield answer
        finally:
            self._hold(None)
            connection.close()

    def _chunks(self, answer: _Answer, deadline: Deadline) -> Iterator[bytes]:
        """The body in chunks, up to a deadline."""
        answer.reader.deadline = deadline
        while chunk := answer.read1(_CHUNK_BYTES):
            yield chunk
            deadline.left_s()  # a connection that always has something to read times out here

    def _hold(self, connected: socket.socket | None) -> None:
        with self._lock:
            self._socket = connected
            if self._closed and connected is not None:
                raise Unavailable("closed")

    def _tls(self) -> ssl.SSLContext:
        # Not create_default_context: since Python 3.13 it requires parts of RFC 5280 that many clusters' CAs lack.
        # A certificate in the file is trusted even if it is not a root, as in Go and kubectl.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        pem = _read_mounted("CA file", self._server.ca_file, MAX_PEM_BYTES)
        try:
            context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError):  # ValueError: an empty file
            raise Unavailable(f"CA file {self._server.ca_file}: it contains no PEM certificate") from None
        return context

    def _bearer(self, *, renew: bool) -> str:
        now_s = self._now_s()
        if self._token is None or renew or now_s - self._token_read_s >= TOKEN_MAX_AGE_S:
            self._token, self._token_read_s = _read_token(self._server.token_file), now_s
        return self._token

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, self._clock.monotonic_ns)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    # ------------------------------------------------------------------------ errors

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        """Map errors of a connection to ``Unavailable``."""
        server = self._server
        address = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            said = one_line(error.verify_message or "certificate verify failed")
            raise Unavailable(
                f"{server.url}: its certificate is not trusted: {said}; the CA file is {server.ca_file}"
            ) from None
        except TimeoutError:
            raise Unavailable(f"{server.url}: no answer in time; check its load, and firewalls") from None
        except socket.gaierror as error:
            raise Unavailable(f"{server.url}: no such host ({error.strerror}); the address is from {address}") from None
        except ConnectionRefusedError:
            raise Unavailable(f"{server.url}: connection refused; check {address} and NetworkPolicies") from None
        except http.client.HTTPException as error:
            cut = isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected)
            not_http = f"the answer is not HTTP: {type(error).__name__}; is this the API server?"
            what = "the connection was cut" if cut else not_http
            raise Unavailable(f"{server.url}: {what}") from None
        except ssl.SSLError as error:
            raise Unavailable(f"{server.url}: TLS failed: {one_line(error.reason or str(error))}") from None
        except (OSError, ValueError) as error:  # ValueError: an invalid host, such as ".x"
            raise Unavailable(f"{server.url}: {one_line(_reason(error))}") from None

    def _refused(self, answer: _Answer, body: bytes) -> NoReturn:
        """Raise for another status than 200 (api-conventions: HTTP status codes; the body is a Status)."""
        status = answer.status
        text = f"{self._server.url}: {status} {one_line(_message(body) or answer.reason, _MAX_MESSAGE_CHARS)}"
        match status:
            case http.HTTPStatus.GONE:
                raise Gone(text)
            case http.HTTPStatus.UNAUTHORIZED:
                raise Unavailable(f"{text}; the token in {self._server.token_file} was read again and is still refused")
            case http.HTTPStatus.FORBIDDEN:
                raise Unavailable(f"{text}; {_RBAC_FIX}")
            case http.HTTPStatus.TOO_MANY_REQUESTS | http.HTTPStatus.SERVICE_UNAVAILABLE:
                after = answer.headers.get("Retry-After", "").strip()
                if after.isascii() and after.isdigit():  # the API server gives seconds, never a date
                    raise Busy(text, max(MIN_RETRY_AFTER_S, min(float(after[:9]), MAX_RETRY_AFTER_S)))
        raise Unavailable(text)


def _read_token(path: Path) -> str:
    text = _read_mounted("token file", path, _MAX_TOKEN_BYTES).strip().decode("ascii", "replace")
    if not text or not text.isprintable() or not text.isascii() or " " in text:
        raise Unavailable(f"token file {path}: it contains no token")
    return text


def _read_mounted(what: str, path: Path, max_bytes: int) -> bytes:
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        mount = "mount the service account (automountServiceAccountToken: true)"
        raise Unavailable(f"{what} {path}: {_reason(error)}; {mount}") from None
    except TooLarge as error:
        raise Unavailable(f"{what} {path}: it is {error}") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _message(body: bytes) -> str | None:
    """The message of a Status (meta/v1)."""
    try:
        status = parse_json(body)
    except ValueError:
        return None
    message = status.get("message") if isinstance(status, dict) else None
    return message if isinstance(message, str) else None
