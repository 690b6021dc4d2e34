"""Calls over a node's unix sockets with the gRPC library, its one home among the sources.

It takes 16 MB, so it is imported only where ``wire`` got no good answer: it knows why.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from urllib.parse import quote

import grpc

from otel_gpu.errors import Unavailable, Unsupported
from otel_gpu.sources.kubelet.wire import MOST_BYTES

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # Of its own, or a channel made anew would inherit the pause after its predecessor's failures.
    ("grpc.use_local_subchannel_pool", 1),
    # Otherwise the escaped path, which servers in other languages than Go refuse as an address.
    ("grpc.default_authority", "localhost"),
)


class Channel:
    """A connection to one socket. Any thread may close it: a call that is under way ends at once."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(f"unix:{quote(path)}", options=_OPTIONS)

    def ask(self, method: str, request: bytes = b"") -> bytes:
        """The answer to a method by its full name; ``Unavailable``, or ``Unsupported`` if there is no such method."""
        name = method.rpartition("/")[2]
        try:
            # Without a deserialiser: where one fails, gRPC logs a traceback.
            raw: bytes = self._channel.unary_unary(method)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._meant(method, name, error) from None
        except ValueError:  # "Cannot invoke RPC on closed channel!"
            raise Unavailable(f"{self._path}: closed before {name}") from None
        return raw

    def close(self) -> None:
        """Hang up."""
        with suppress(Exception):  # a second time, or from two threads at once
            self._channel.close()

    def _meant(self, method: str, name: str, error: grpc.RpcError) -> Unavailable | Unsupported:
        code, said = error.code(), _told(str(error.details() or ""))
        if code is grpc.StatusCode.UNIMPLEMENTED:
            service = method.strip("/").rpartition("/")[0]
            return Unsupported(f"{self._path}: whoever listens there does not know {name} of {service}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"{self._path}: no answer to {name} within {self._timeout_s:g} s")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return Unavailable(f"{self._path}: {name} is not allowed: {said}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unavailable(f"{self._path}: the connection was lost or is no gRPC ({said})")
        return Unavailable(f"{self._path}: {name} failed: {code.name}: {said}")


def _told(details: str) -> str:
    """In one line, the end of a chain of errors, which is where it began."""
    return " ".join(details.rpartition("last error: ")[2].split())[:200]
