"""HTTP Basic authentication (RFC 7617) against bcrypt hashes."""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
from collections.abc import Mapping
from typing import Final

import bcrypt

from otel_gpu.errors import Unavailable

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
                is_correct = bcrypt.checkpw(password[:_MAX_PASSWORD_BYTES], hashed or self._decoy)
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
