"""Basic authentication (RFC 7617) against bcrypt hashes."""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
from collections.abc import Mapping
from typing import Final

import bcrypt

from otel_gpu.errors import Unavailable

_LONGEST_BYTES: Final = 72
"""bcrypt looks no further, whoever made the hash; the library refuses more instead of leaving it out."""

_MOST_WAITING: Final = 8
"""Requests whose passwords are checked or wait for it, each on a thread that others could use."""


class BasicAuth:
    """Who may come in. ``users`` are names and bcrypt hashes, at least one.

    A hash takes about 0.1 s by design, which is much for a scrape. So the last password that was right for each user is
    remembered, as a keyed digest that is worth nothing outside this process.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = dict(users)
        # Whom nobody knows is checked against the costliest hash there is, so that time does not tell who exists.
        self._decoy = max(self._users.values(), key=lambda hashed: int(hashed[4:6]))
        self._digest_key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._one_at_a_time = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)

    def admits(self, authorization: str | None) -> bool:
        """Whether the value of an Authorization header names a user and the right password.

        Unavailable where others wait to be checked already: guessing may not keep out those who are remembered.
        """
        credentials = parse_basic(authorization)
        if credentials is None:
            return False
        user, password = credentials
        digest = hmac.digest(self._digest_key, password, "sha256")
        remembered = self._right.get(user)
        if remembered is not None and hmac.compare_digest(remembered, digest):
            return True
        hashed = self._users.get(user)
        if not self._waiting.acquire(blocking=False):
            raise Unavailable("too many passwords are being checked; try again")
        try:
            with self._one_at_a_time:  # guessing may take one core, not all
                is_right = bcrypt.checkpw(password[:_LONGEST_BYTES], hashed or self._decoy)
        finally:
            self._waiting.release()
        if hashed is None or not is_right:
            return False
        self._right[user] = digest
        return True


def parse_basic(authorization: str | None) -> tuple[str, bytes] | None:
    """User and password of an Authorization header; None if it holds no such thing."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password) if separator else None
    except ValueError:  # no base64, no UTF-8
        return None
