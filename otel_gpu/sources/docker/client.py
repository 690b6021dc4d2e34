"""The one home of the Docker SDK: an engine that is asked and never told, and what its errors mean."""

from __future__ import annotations

import json
import socket
import ssl
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import docker
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection
from docker.types import CancellableStream

from otel_gpu.errors import Gone, OtelGpuError, Unavailable
from otel_gpu.sources.docker.documents import mapping, text

_UNIX: Final = "unix://"
_MOST_TOLD: Final = 300
"""Characters of somebody else's error that are worth a line."""
_LONGEST_LINE: Final = 1 << 20
"""Bytes kept of one event. All labels of a container are in it; one that is cut is not understood, and counted."""


@dataclass(frozen=True, slots=True)
class DockerTls:
    """Certificates for an engine over TCP: its authority's, and ours with its key; files in PEM."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True


class _Connection(UnixHTTPConnection):  # type: ignore[misc]  # the SDK has no types
    """As the SDK's, which leaves a socket behind that it could not connect."""

    def connect(self) -> None:
        """Connect, or leave nothing."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self.unix_socket)
        except OSError:
            connection.close()
            raise
        self.sock = connection


class _Adapter(UnixHTTPAdapter):  # type: ignore[misc]
    def get_connection(self, url: str, proxies: Any = None) -> Any:
        pool = super().get_connection(url, proxies)
        make = partial(_Connection, pool.base_url, pool.socket_path, pool.timeout)
        pool._new_conn = make  # noqa: SLF001 - how urllib3 lets a pool have connections of its own
        return pool


class Engine:
    """A Docker or Podman engine. It is asked with GET alone. Raises ``Unavailable``, and ``Gone`` for a container."""

    def __init__(self, base_url: str, *, tls: DockerTls | None, timeout_s: float) -> None:
        self._base_url = base_url
        self._tls = tls
        self._timeout_s = timeout_s
        self._path = Path("/" + base_url.removeprefix(_UNIX).lstrip("/")) if base_url.startswith(_UNIX) else None
        self._where = base_url if self._path is None else str(self._path)
        with self._asking():
            self._client = self._connected()

    def check(self) -> None:
        """Nothing, if it answers at all."""
        with self._asking():
            self._check_socket()
            self._client.version(api_version=False)

    def containers(self) -> Sequence[object]:
        """Those that run, as the list tells them."""
        with self._asking("/containers/json"):
            listed = self._client.containers()
        if not isinstance(listed, list):
            raise Unavailable(f"{self._where}: the answer to GET /containers/json is no list")
        return listed

    def inspect(self, container_id: str) -> object:
        """One of them in full."""
        with self._asking(f"/containers/{container_id[:12]}/json", not_found=Gone):
            answer: object = self._client.inspect_container(container_id)
            return answer

    def events(self, actions: Sequence[str], quiet_s: float) -> Events:
        """What happens to containers from now on; it ends after that long without a word."""
        with self._asking("/events"):
            # A client of its own: this one waits on another thread. The SDK's own events() would wait for ever for an
            # engine that never answers.
            client = self._new_client(self._client.api_version)
            response = client.get(
                f"{client.base_url}/v{client.api_version}/events",
                params={"filters": json.dumps({"type": ["container"], "event": list(actions)})},
                timeout=(self._timeout_s, quiet_s),
                stream=True,
            )
            if not response.ok:
                response.close()
                response.raise_for_status()
            return Events(response)

    def close(self) -> None:
        """Let go of its connections."""
        self._client.close()

    def _connected(self) -> Any:
        self._check_socket()
        client = self._new_client(DEFAULT_DOCKER_API_VERSION)
        try:
            version = text(mapping(client.version(api_version=False)).get("ApiVersion"))
        finally:
            client.close()
        if version is None:
            raise Unavailable(f"{self._where}: what answers there is no Docker or Podman engine")
        return self._new_client(version)

    def _check_socket(self) -> None:
        if self._path is None:
            if not self._base_url.startswith(("tcp://", "http://", "https://")):
                raise Unavailable(f"{self._base_url}: cannot be asked; give unix:///path/of.sock or tcp://host:port")
            return
        mode = self._path.stat().st_mode
        if not stat.S_ISSOCK(mode):
            # Docker makes a directory in the place of a bind mount whose source is missing.
            kind = "directory" if stat.S_ISDIR(mode) else "file"
            raise Unavailable(f"{self._where}: is a {kind}, not a socket; is the engine's socket mounted there?")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self._path))

    def _new_client(self, version: str) -> Any:
        tls: Any = False
        if self._tls is not None:
            pair = (self._tls.cert, self._tls.key)
            tls = docker.tls.TLSConfig(
                client_cert=None if None in pair else tuple(str(file) for file in pair),
                ca_cert=None if self._tls.ca is None else str(self._tls.ca),
                verify=self._tls.verify,
            )
        client = docker.APIClient(self._base_url, version=version, timeout=self._timeout_s, tls=tls)
        # The address given is the one asked, with the certificates given: requests would obey HTTP_PROXY, .netrc and
        # REQUESTS_CA_BUNDLE, which are there for other hosts.
        if self._path is not None:
            client.mount("http+docker://", _Adapter(str(self._path), timeout=self._timeout_s))
        client.trust_env = False
        client.max_redirects = 0
        return client

    @contextmanager
    def _asking(self, path: str = "/version", not_found: type[OtelGpuError] = Unavailable) -> Iterator[None]:
        try:
            yield
        except OtelGpuError:
            raise
        except Exception as error:
            # All kinds: the SDK takes it for granted that an answer is well-formed, and fails as it may if it is not.
            causes = list(_causes(error))
            status = next((code for one in causes if (code := _status(one)) is not None), None)
            kind = not_found if status == HTTPStatus.NOT_FOUND else Unavailable
            meaning = self._meaning(path, causes) if status is None else _meaning_of_status(path, status, error)
            raise kind(f"{self._where}: {meaning}") from error

    def _meaning(self, path: str, causes: Sequence[BaseException]) -> str:
        for one in causes:
            if isinstance(one, ssl.SSLCertVerificationError):
                return f"its certificate is not trusted: {_line(one.verify_message)}; check the CA and the host's name"
            if isinstance(one, ssl.SSLError):
                return f"TLS failed: {_line(one)}"
        meanings: Sequence[tuple[tuple[type[BaseException], ...], str]] = (
            (
                (PermissionError,),
                "permission denied; add the agent's user to the socket's group, or use a socket proxy",
            ),
            ((FileNotFoundError,), "no such file; is the engine running, and its socket mounted here?"),
            ((ConnectionRefusedError,), "connection refused; is the engine running?"),
            ((TimeoutError,), f"no answer to GET {path} within {self._timeout_s:g} s"),
            ((socket.gaierror,), "no address is known for this host"),
            ((json.JSONDecodeError, UnicodeDecodeError), f"the answer to GET {path} is no JSON"),
            ((HTTPException, ConnectionError), f"the answer to GET {path} was cut off"),
        )
        for kinds, meaning in meanings:
            if any(isinstance(one, kinds) for one in causes):
                return meaning
        return f"GET {path}: {_line(causes[0])}"


class Events:
    """A stream of events, one JSON object to a line. It is read by one thread, and may be closed by another."""

    def __init__(self, response: Any) -> None:
        self._response = response
        chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
        # Without chunks nobody knows how much will come: only single bytes are sure not to wait for the next event.
        self._stream = CancellableStream(response.iter_content(None if chunked else 1), response)

    def __iter__(self) -> Iterator[bytes]:
        """Lines, until the stream ends for whatever reason."""
        # Closed while it is read, the response fails wherever it happens to be.
        with suppress(Exception):
            yield from lines(self._stream)

    def close(self) -> None:
        """End it, and whoever reads it."""
        # The SDK looks for the socket inside of the response, and does not find it if the stream has just ended.
        with suppress(Exception):
            self._stream.close()

    def release(self) -> None:
        """Let go of the connection; for the thread that has read it."""
        with suppress(Exception):
            self._response.close()


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines from pieces of any size, each as soon as it is whole. Blank ones are left out, and long ones cut."""
    kept = bytearray()
    for chunk in chunks:
        *ends, beginning = chunk.split(b"\n")
        for end in ends:
            kept += end[: _LONGEST_LINE - len(kept)]
            line = bytes(kept)
            kept.clear()
            if line.strip():
                yield line
        kept += beginning[: _LONGEST_LINE - len(kept)]


# ---------------------------------------------------------------------------- errors of others


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that led to it: libraries wrap each other's."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__context__, one.__cause__, *(arg for arg in one.args if isinstance(arg, BaseException))]


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) and status >= 300 else None


def _meaning_of_status(path: str, status: int, error: BaseException) -> str:
    if status == HTTPStatus.FORBIDDEN:
        return f"GET {path} is forbidden; let the proxy allow GET on version, containers and events"
    explanation = text(getattr(error, "explanation", None))
    return f"GET {path}: HTTP status {status}" + ("" if explanation is None else f": {_line(explanation)}")


def _line(said: object) -> str:
    whole = " ".join(str(said).split()) or type(said).__name__
    return whole if len(whole) <= _MOST_TOLD else f"{whole[: _MOST_TOLD - 1]}…"
