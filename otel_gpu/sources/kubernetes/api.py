"""The Kubernetes API over HTTPS with the standard library: two kinds of GET, and what their failures mean.

Authorisation is a bearer token in a file that the kubelet renews; TLS is verified always, against the cluster's own
authority. One connection for each request: there is one every few minutes.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote, urlencode

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.sources.kubernetes.lines import Lines
from otel_gpu.sources.outside import printable
from otel_gpu.version import __version__

LARGEST_ANSWER_BYTES: Final = 64 << 20
"""A list beyond this is refused: a node's pods take a few MiB."""

ANSWER_FACTOR: Final = 6
"""A list must be there, whole, within this many timeouts: a busy server is slow, and nobody waits for it here."""

TOKEN_AGE_S: Final = 60.0
"""A token is read again after this, as the API reference advises; at once when it is refused."""

SHORTEST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
"""How long a server that is busy can make us wait."""

_CHUNK_BYTES: Final = 64 << 10
_STATUS_BYTES: Final = 64 << 10
_LONGEST_MESSAGE: Final = 240
_LONGEST_TOKEN_BYTES: Final = 64 << 10
_GRANT: Final = "apply the ClusterRole with list and watch on pods and bind it to the agent's service account"


class Busy(Unavailable):
    """The server asks to be left alone for ``wait_s``."""

    def __init__(self, text: str, wait_s: float) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API is, whom to trust there, and the file with the token to show."""

    host: str
    port: int
    ca_file: Path
    token_file: Path

    @property
    def url(self) -> str:
        """Its address, for people."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def in_cluster(environment: Mapping[str, str], service_account: Path) -> ApiServer | None:
    """The API as the kubelet tells every container of it; ``None`` outside a cluster or without a service account."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "").strip().removeprefix("[").removesuffix("]")
    port = environment.get("KUBERNETES_SERVICE_PORT", "").strip()
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        return None
    token_file = service_account / "token"
    try:
        mounted = token_file.is_file()
    except OSError:  # it may be there; the reason is told when it is read
        mounted = True
    return ApiServer(host, int(port), service_account / "ca.crt", token_file) if mounted else None


class Api:
    """Asks one API server, one question at a time. Every failure is an ``Unavailable`` with a line to act on.

    ``close`` may come from another thread, and ends what is under way.
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
        """The JSON that is answered. ``Gone`` for what has expired, ``Busy`` for later."""
        deadline_s = self._now_s() + self._timeout_s * ANSWER_FACTOR
        with self._answered(path, query, deadline_s) as answer:
            body = b"".join(self._chunks(answer, deadline_s, LARGEST_ANSWER_BYTES))
        if len(body) > LARGEST_ANSWER_BYTES:
            raise Unavailable(f"{self._server.url}{path}: the answer is over {LARGEST_ANSWER_BYTES >> 20} MiB")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            cut = f", cut after {len(body):,} bytes" if answer.length else ""
            raise Unavailable(
                f"{self._server.url}{path}: the answer is no JSON{cut}; is that the API server?"
            ) from None

    def stream(
        self, path: str, query: Mapping[str, str | int], longest_s: float
    ) -> Generator[tuple[bytes | None, ...], None, None]:
        """Lines as they come, in batches, ``None`` for one too long; the first batch is empty: the server agreed.

        Ends when the server ends it. Raises when the connection is cut, or longer than ``longest_s`` open.
        """
        deadline_s = self._now_s() + longest_s
        lines = Lines()
        with self._answered(path, query, self._now_s() + self._timeout_s * ANSWER_FACTOR) as answer:
            yield ()
            for chunk in self._chunks(answer, deadline_s, None):
                if batch := tuple(lines.feed(chunk)):
                    yield batch

    def close(self) -> None:
        """Ask no more, and wait for no answer."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket's own shutdown, which takes the TLS away from under a reader.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    # ------------------------------------------------------------------------ asking

    @contextlib.contextmanager
    def _answered(
        self, path: str, query: Mapping[str, str | int], deadline_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer of 200, open for reading."""
        target = f"{path}?{urlencode(query, quote_via=quote, errors='replace')}"
        token = self._bearer(again=False)
        with contextlib.ExitStack() as open_until_read, self._meaning():
            answer = open_until_read.enter_context(self._asked(target, token, deadline_s))
            if answer.status == http.HTTPStatus.UNAUTHORIZED and (renewed := self._bearer(again=True)) != token:
                open_until_read.pop_all().close()
                answer = open_until_read.enter_context(self._asked(target, renewed, deadline_s))
            if answer.status != http.HTTPStatus.OK:
                self._refused(answer, b"".join(self._chunks(answer, deadline_s, _STATUS_BYTES)))
            if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
                raise Unavailable(f"{self._server.url}: the answer is {printable(encoding)}; plain JSON was asked for")
            yield answer

    @contextlib.contextmanager
    def _asked(self, target: str, token: str, deadline_s: float) -> Iterator[http.client.HTTPResponse]:
        """One request and the beginning of its answer."""
        server = self._server
        context = self._tls()
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=self._timeout_s, context=context)
        try:
            connection.connect()
            self._hold(connection.sock)
            connection.sock.settimeout(self._left_s(deadline_s))
            headers = {
                "Accept": "application/json",
                "Authorization": f"Bearer {token}",
                "Connection": "close",
                "User-Agent": f"otel-gpu/{__version__}",
            }
            connection.request("GET", target, headers=headers)
            with connection.getresponse() as answer:
                yield answer
        finally:
            self._hold(None)
            connection.close()

    def _chunks(self, answer: http.client.HTTPResponse, deadline_s: float, most_bytes: int | None) -> Iterator[bytes]:
        """What is answered, as it comes, until it is too much or too late: a socket's own timeout is for each read."""
        size = 0
        while most_bytes is None or size <= most_bytes:
            left_s = self._left_s(deadline_s)
            if self._socket is not None:
                self._socket.settimeout(left_s)
            chunk = answer.read1(_CHUNK_BYTES)
            if not chunk:
                return
            size += len(chunk)
            yield chunk

    def _hold(self, connected: socket.socket | None) -> None:
        with self._lock:
            self._socket = connected
            if self._closed and connected is not None:
                raise Unavailable("closed")

    def _tls(self) -> ssl.SSLContext:
        # Not create_default_context: from Python 3.13 on it insists on parts of RFC 5280 that many clusters' own
        # authorities lack. A certificate in the file is trusted also if it is no root, as Go and kubectl have it.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self._server.ca_file)
        except ssl.SSLError:
            raise Unavailable(f"CA file {self._server.ca_file}: it holds no certificate in PEM") from None
        except OSError as error:
            raise _unreadable("CA file", self._server.ca_file, error) from None
        return context

    def _bearer(self, *, again: bool) -> str:
        now_s = self._now_s()
        if self._token is None or again or now_s - self._token_read_s >= TOKEN_AGE_S:
            self._token, self._token_read_s = _read_token(self._server.token_file), now_s
        return self._token

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._now_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    # ------------------------------------------------------------------------ what failures mean

    @contextlib.contextmanager
    def _meaning(self) -> Iterator[None]:
        """Turns what goes wrong with a connection into a line to act on."""
        server = self._server
        address = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            said = printable(error.verify_message or "certificate verify failed")
            raise Unavailable(
                f"{server.url}: its certificate is not accepted: {said}; it is checked against CA file {server.ca_file}"
            ) from None
        except TimeoutError:
            raise Unavailable(f"{server.url}: no answer in time; is it overloaded, or cut off by a firewall?") from None
        except socket.gaierror as error:
            raise Unavailable(f"{server.url}: no such host ({error.strerror}); it is from {address}") from None
        except ConnectionRefusedError:
            raise Unavailable(
                f"{server.url}: connection refused; is {address} right, does a NetworkPolicy allow it?"
            ) from None
        except http.client.HTTPException as error:
            cut = isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected)
            what = (
                "the connection was cut" if cut else f"this is not HTTP: {type(error).__name__}; is it the API server?"
            )
            raise Unavailable(f"{server.url}: {what}") from None
        except ssl.SSLError as error:
            raise Unavailable(f"{server.url}: TLS failed: {printable(error.reason or str(error))}") from None
        except (OSError, ValueError) as error:  # ValueError: a host that is none, such as ".x"
            raise Unavailable(f"{server.url}: {printable(_said(error))}") from None

    def _refused(self, answer: http.client.HTTPResponse, body: bytes) -> NoReturn:
        """An answer that is none (api-conventions: HTTP status codes; the body is a Status)."""
        status = answer.status
        text = f"{self._server.url}: {status} {printable(_message(body) or answer.reason, _LONGEST_MESSAGE)}"
        match status:
            case http.HTTPStatus.GONE:
                raise Gone(text)
            case http.HTTPStatus.UNAUTHORIZED:
                raise Unavailable(f"{text}; the token in {self._server.token_file} was read again and is refused")
            case http.HTTPStatus.FORBIDDEN:
                raise Unavailable(f"{text}; {_GRANT}")
            case http.HTTPStatus.TOO_MANY_REQUESTS | http.HTTPStatus.SERVICE_UNAVAILABLE:
                after = answer.headers.get("Retry-After", "").strip()
                if after.isascii() and after.isdigit():  # the API server gives seconds, never a date
                    raise Busy(text, max(SHORTEST_WAIT_S, min(float(after[:9]), LONGEST_WAIT_S)))
        raise Unavailable(text)


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_LONGEST_TOKEN_BYTES).strip()
    except OSError as error:
        raise _unreadable("token file", path, error) from None
    text = token.decode("ascii", "replace")
    if not text or not text.isprintable() or not text.isascii() or " " in text:
        raise Unavailable(f"token file {path}: it holds no token")
    return text


def _unreadable(what: str, path: Path, error: OSError) -> Unavailable:
    mount = "mount the service account's (automountServiceAccountToken: true)"
    return Unavailable(f"{what} {path}: {_said(error)}; {mount}")


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _message(body: bytes) -> str | None:
    """What a Status says (meta/v1 Status)."""
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        return None
    message = status.get("message") if isinstance(status, dict) else None
    return message if isinstance(message, str) else None
