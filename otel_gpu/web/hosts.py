"""The Host headers that a listener on loopback accepts.

A web page of another origin can have its own name resolve to 127.0.0.1 (DNS rebinding). The browser then lets it read
the answers of this host, but still sends the name of the page in the Host header (RFC 9110, 7.2).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from typing import Final

ANY_HOST: Final = "*"


class LoopbackHosts:
    """Names of this host for clients on it: localhost, addresses of loopback, and ``names``."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {_normal(name) for name in names}

    def allow(self, header: str) -> bool:
        """Whether a Host header names this host. Without the header the client is no browser."""
        host = _normal(_without_port(header))
        if not header or host in self._names or host == "localhost" or host.endswith(".localhost"):
            return True
        return _is_loopback(host)


def loopback_hosts(bound_host: str, configured_host: str, allowed: Collection[str]) -> LoopbackHosts | None:
    """The hosts for a listener that is bound to this address; ``None`` if it accepts any host."""
    if ANY_HOST in allowed or not _is_loopback(bound_host):
        return None
    return LoopbackHosts((configured_host, socket.gethostname(), *allowed))


def _without_port(header: str) -> str:
    """The host of ``host:port``, without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _normal(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
