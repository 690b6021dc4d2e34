"""What stands between a client and what is served, and is renewed when its files change."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_gpu.errors import UsageError

if TYPE_CHECKING:
    from otel_gpu.web.authentication import BasicAuth

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Guard:
    """What holds for one connection. Without a word: plain text, nobody is asked who they are."""

    tls: ssl.SSLContext | None = None
    client_allowed_sans: frozenset[str] = frozenset()
    auth: BasicAuth | None = None
    open_paths: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client's verified certificate has one of the alternative names asked for, if any are."""
        return not self.client_allowed_sans or not self.client_allowed_sans.isdisjoint(_names(certificate or {}))

    def admits(self, path: str, authorization: str | None) -> bool:
        """Whether a request for this path may be answered."""
        return self.auth is None or path in self.open_paths or self.auth.admits(authorization)


def load_guard(path: Path) -> tuple[Guard, tuple[Path, ...]]:
    """What a web configuration file asks for, and the files it names. UsageError says what is wrong with which."""
    # Here, not above: most start without such a file, and YAML and bcrypt take their time to import.
    from otel_gpu.web.authentication import BasicAuth  # noqa: PLC0415
    from otel_gpu.web.tls import server_context  # noqa: PLC0415
    from otel_gpu.web.web_config import read_web_config  # noqa: PLC0415

    config = read_web_config(path)
    guard = Guard(
        tls=None if config.tls is None else server_context(config.tls),
        client_allowed_sans=frozenset() if config.tls is None else config.tls.client_allowed_sans,
        auth=BasicAuth(config.users) if config.users else None,
        open_paths=config.open_paths,
        headers=config.headers,
    )
    return guard, config.files


class GuardFile:
    """A web configuration file. It is read at once, and again when it or a file it names has changed.

    Certificates are renewed every few weeks and agents run for months. A change that cannot be used leaves what held
    before: a file that is being written must not open the door.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._guard, self._files = load_guard(path)
        self._state = _state((path, *self._files))

    def current(self) -> Guard:
        """What holds now."""
        with self._lock:
            state = _state((self._path, *self._files))
            if state != self._state:
                self._state = state
                self._renew()
            return self._guard

    def _renew(self) -> None:
        try:
            guard, files = load_guard(self._path)
        except UsageError as error:
            log.error("the web configuration has changed and is not used: %s", error)  # noqa: TRY400 - one line
            return
        if (guard.tls is None) != (self._guard.tls is None) or (guard.auth is None and self._guard.auth is not None):
            log.error("%s: TLS goes on or off, and passwords go, only with a restart", self._path)
            return
        if files != self._files:
            self._files, self._state = files, _state((self._path, *files))
        self._guard = guard
        log.info("the web configuration has changed and is used from now on")


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The alternative names of a certificate, as people and Go write them: OpenSSL writes ::1 as 0:0:0:0:0:0:0:1."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            with suppress(ValueError):
                yield str(ipaddress.ip_address(name))
        elif kind in ("DNS", "email", "URI"):
            yield name


def _state(paths: Iterable[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when a file is written or replaced."""
    return tuple(_file_state(path) for path in paths)


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
