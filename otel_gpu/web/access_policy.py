"""The access policy of a server: TLS, client certificates, passwords. It is reloaded when its files change."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_gpu.errors import Unavailable, UsageError

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The policy of one connection. The default is plain text without authentication."""

    tls: ssl.SSLContext | None = None
    requires_certificate: bool = False
    client_allowed_sans: frozenset[str] = frozenset()
    auth: BasicAuth | None = None
    open_paths: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authenticates(self) -> bool:
        """Whether every client needs a certificate or a password."""
        return self.requires_certificate or self.auth is not None

    def allows_certificate(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client's verified certificate has one of the required alternative names, if any are required."""
        required = self.client_allowed_sans
        return not required or not required.isdisjoint(_alternative_names(certificate or {}))

    def allows_request(self, path: str, authorization: str | None) -> bool:
        """Whether a request for this path may be answered. Unavailable if that cannot be checked now."""
        return self.auth is None or path in self.open_paths or self.auth.accepts(authorization)


def load_access_policy(path: Path) -> tuple[AccessPolicy, tuple[Path, ...]]:
    """The policy of a web configuration file, and the files it refers to. UsageError says what is wrong."""
    # Imported here: most agents have no such file, and YAML takes time to import.
    from otel_gpu.web.web_config import ClientAuth, read_web_config, server_context  # noqa: PLC0415

    config = read_web_config(path)
    policy = AccessPolicy(
        tls=None if config.tls is None else server_context(config.tls),
        requires_certificate=config.tls is not None and config.tls.client_auth is ClientAuth.REQUIRED,
        client_allowed_sans=frozenset() if config.tls is None else config.tls.client_allowed_sans,
        auth=BasicAuth(config.users) if config.users else None,
        open_paths=config.open_paths,
        headers=config.headers,
    )
    return policy, config.files


_CHECK_S: Final = 1.0
"""How often the files are checked for changes."""


class AccessPolicyFile:
    """The policy of a web configuration file. It is read at construction, and again when one of its files has changed.

    Certificates are renewed every few weeks, and agents run for months. After a change that cannot be applied the
    previous policy stays in force: a file that is being written must not open the server. A thread checks and reads the
    files, so that a file system that does not answer delays no client.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._policy, self._files = load_access_policy(path)
        self._fingerprint = _fingerprint((path, *self._files))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="otel-gpu-web-config", daemon=True)

    def start(self) -> None:
        """Start to watch the files."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch them. A read that hangs is not waited for."""
        self._stopping.set()

    def current(self) -> AccessPolicy:
        """The policy in force. The same object is returned until it changes."""
        return self._policy

    def check(self) -> None:
        """Read the files if one of them has changed."""
        fingerprint = _fingerprint((self._path, *self._files))
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._reload()

    def _watch(self) -> None:
        while not self._stopping.wait(_CHECK_S):
            try:
                self.check()
            except Exception as error:  # a bug must not end the thread: certificates would expire
                log.error("the web configuration cannot be checked: %s: %s", type(error).__name__, error)  # noqa: TRY400

    def _reload(self) -> None:
        try:
            policy, files = load_access_policy(self._path)
        except UsageError as error:
            log.error("the web configuration has changed but is not applied: %s", error)  # noqa: TRY400 - one line
            return
        toggles_tls = (policy.tls is None) != (self._policy.tls is None)
        if toggles_tls or (policy.auth is None and self._policy.auth is not None):
            log.error("%s: turning TLS on or off, or removing the last password, requires a restart", self._path)
            return
        if files != self._files:
            self._files, self._fingerprint = files, _fingerprint((self._path, *files))
        self._policy = policy
        log.info("the web configuration has changed and is applied")


def _alternative_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The subject alternative names of a certificate. OpenSSL writes ::1 as 0:0:0:0:0:0:0:1, configurations as ::1."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            with suppress(ValueError):
                yield str(ipaddress.ip_address(name))
        elif kind in ("DNS", "email", "URI"):
            yield name


def _fingerprint(paths: Iterable[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """Values that change when one of the files is written or replaced."""
    return tuple(_file_fingerprint(path) for path in paths)


def _file_fingerprint(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


# ---------------------------------------------------------------------------- HTTP Basic authentication (RFC 7617)

_MAX_PASSWORD_BYTES: Final = 72
"""bcrypt uses only these bytes of a password. The library rejects longer ones, so they are cut here."""

_MAX_PENDING_CHECKS: Final = 8
"""Requests that may compute a hash or wait for it. Each occupies a worker thread."""


class BasicAuth:
    """Checks user names and passwords. ``users`` maps names to bcrypt hashes and is not empty.

    A bcrypt check takes about 0.1 s by design. The last correct password of each user is therefore remembered, as a
    digest with a random key of this process.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        # Imported here: most agents have no passwords, and bcrypt takes time to import.
        import bcrypt  # noqa: PLC0415

        self._bcrypt = bcrypt
        self._users = dict(users)
        # An unknown user is checked against the costliest hash, so that timing does not reveal which users exist.
        self._decoy = max(self._users.values(), key=lambda hashed: int(hashed[4:6]))
        self._digest_key = secrets.token_bytes(32)
        self._accepted_digests: dict[str, bytes] = {}
        self._bcrypt_lock = threading.Lock()
        self._pending_checks = threading.BoundedSemaphore(_MAX_PENDING_CHECKS)

    def accepts(self, authorization: str | None) -> bool:
        """Whether the value of an Authorization header has a known user and its password.

        Unavailable while too many checks are pending. A remembered password is accepted even then.
        """
        credentials = parse_basic(authorization)
        if credentials is None:
            return False
        user, password = credentials
        digest = hmac.digest(self._digest_key, password, "sha256")
        remembered = self._accepted_digests.get(user)
        if remembered is not None and hmac.compare_digest(remembered, digest):
            return True
        hashed = self._users.get(user)
        if not self._pending_checks.acquire(blocking=False):
            raise Unavailable("too many password checks in progress; try again")
        try:
            with self._bcrypt_lock:  # password guessing occupies one core at most
                is_correct = self._bcrypt.checkpw(password[:_MAX_PASSWORD_BYTES], hashed or self._decoy)
        finally:
            self._pending_checks.release()
        if hashed is None or not is_correct:
            return False
        self._accepted_digests[user] = digest
        return True


def parse_basic(authorization: str | None) -> tuple[str, bytes] | None:
    """User name and password of an Authorization header; ``None`` if it is not valid Basic authentication."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password) if separator else None
    except ValueError:  # not base64, or not UTF-8
        return None
