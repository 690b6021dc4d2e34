"""A small HTTP server on one address: fixed paths, GET and HEAD only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.values import Address
from otel_gpu.web.access_policy import Guard, GuardFile
from otel_gpu.web.limits import Limits
from otel_gpu.web.reception import Reception
from otel_gpu.web.response import Request, Response, Route
from otel_gpu.web.router import Site

__all__ = ["Limits", "Request", "Response", "Route", "WebServer"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_LIMITS: Final = Limits()
_NO_GUARD: Final = Guard()
_BACKLOG: Final = 512
"""Connections that the kernel completes before they are received; a client beyond it tries again after a second."""


class WebServer:
    """Serves routes on one address from construction (which binds it) to ``close``.

    ``web_config`` is a web configuration file: TLS, client certificates, passwords. Constructing reads it, and raises
    UsageError for whatever is wrong with it. ``absent`` says of paths that somebody may look for how to have them;
    ``remedy`` what to do if the address cannot be had.
    """

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        web_config: Path | None = None,
        *,
        absent: Mapping[str, str] = _NONE,
        remedy: str = "choose another with --listen HOST:PORT (port 0: any free one)",
        limits: Limits = _LIMITS,
    ) -> None:
        guard = _unguarded if web_config is None else GuardFile(web_config).current
        self._scheme = "http" if guard().tls is None else "https"
        try:
            listener = _listen(address)
        except (OSError, OverflowError, TypeError, ValueError) as error:  # bind() raises them all for what is no host
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {address}: {reason}; {remedy}") from None
        self.address = Address(address.host, listener.getsockname()[1])
        self._reception = Reception(listener, Site(routes, absent), guard, limits)
        self._thread = threading.Thread(target=self._reception.run, name="otel-gpu-web", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)  # noqa: S104
        return f"{self._scheme}://{Address(host, self.address.port)}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the address; whoever is being served is cut off."""
        self._reception.close()
        if self._thread.ident is None:
            self._reception.run()  # only ends
        else:
            self._thread.join()


def _unguarded() -> Guard:
    return _NO_GUARD


def _listen(address: Address) -> socket.socket:
    """A socket that listens, and may take an address that was in use a moment ago."""
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Whomever it receives has it, too: the end of an answer does not wait for its beginning to be confirmed.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
