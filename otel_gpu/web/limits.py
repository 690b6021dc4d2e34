"""How much clients may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds, and how long clients may take.

    ``slowest_client_s`` is for each of: to ask, handshake included; to take in the answer. While ``most_bytes`` of
    answers are on their way no more are made, and ``hurried_client_s`` takes its place for the latter. Who was answered
    may ask again within ``resting_client_s``: one who scrapes every minute needs no new connection. Who follows a feed
    is told something after ``heartbeat_s`` at the latest.
    """

    slowest_client_s: float = 5.0
    hurried_client_s: float = 1.0
    resting_client_s: float = 90.0
    most_connections: int = 256
    most_bytes: int = 32 << 20
    most_threads: int = 16
    most_followers: int = 64
    heartbeat_s: float = 15.0
