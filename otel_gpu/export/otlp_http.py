"""OTLP over HTTP."""

from __future__ import annotations

import contextlib
import gzip
import http
import http.client
import io
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection

from otel_gpu.bounded_io import Deadline, DeadlineReader, one_line, parse_json
from otel_gpu.config.groups import Compression, ExportConfig
from otel_gpu.export.sender import (
    PROTOCOL,
    TLS,
    UNREACHABLE,
    Attempt,
    ExportFailure,
    ExportResult,
    rejected_points,
)
from otel_gpu.version import __version__

LARGEST_ANSWER_BYTES: Final = 64 << 10

_GZIP_LEVEL: Final = 6
_GRPC_PORT: Final = 4317
_GRPC_HINT: Final = f"; {_GRPC_PORT} is usually gRPC: --otlp-protocol grpc"
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes"""

_ERRORS: Final = (OSError, ValueError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""What requests, urllib3 and the standard library raise; all errors of requests are OSErrors."""


class HttpTransport:
    """Posts requests, over one connection for as long as the receiver keeps it."""

    def __init__(self, config: ExportConfig) -> None:
        # It logs malformed headers with a traceback. Each failure is in the result of its attempt.
        logging.getLogger("urllib3").setLevel(logging.CRITICAL)
        url = config.otlp.request_url
        self._url = f"{url.scheme}://{url.authority}{url.path}"
        self._compresses = config.otlp.compression is Compression.GZIP
        self._headers = {
            "user-agent": f"otel-gpu/{__version__}",
            "content-type": "application/x-protobuf",
            **({"content-encoding": "gzip"} if self._compresses else {}),
            **config.otlp.headers,
        }
        self._session = _Session(config, self._url)
        self._is_connected = False

    def prepare(self, request: ExportMetricsServiceRequest) -> Callable[[float], Attempt]:
        """Serialize and compress a request once for all attempts."""
        body = request.SerializeToString()
        return partial(self._attempt, gzip.compress(body, _GZIP_LEVEL, mtime=0) if self._compresses else body)

    def close(self) -> None:
        """Close idle connections. A pending response is waited for until its deadline."""
        self._session.close()

    def _attempt(self, body: bytes, timeout_s: float) -> Attempt:
        """Post a request, and read at most the beginning of the answer."""
        timeout: Any = urllib3.Timeout(total=timeout_s)  # for all of it, which requests's types do not have
        was_connected, self._is_connected = self._is_connected, False
        try:
            post = self._session.post(
                self._url, body, headers=self._headers, timeout=timeout, stream=True, allow_redirects=False
            )
            with post as response:
                self._is_connected = True
                answer = response.raw.read(LARGEST_ANSWER_BYTES, decode_content=True)
        except _ERRORS as error:
            failure = transport_failure(error, timeout_s, urlsplit(self._url).port)
            # Once an answer has begun, the receiver may have accepted the request, and must not get it twice.
            is_retryable = not self._is_connected and isinstance(error, requests.ConnectionError | requests.Timeout)
            # The receiver may have closed a connection that was kept since the request before: open one at once.
            retry_after_s = 0.0 if was_connected else None
            return Attempt(ExportResult(accepted=False, failure=failure), is_retryable, retry_after_s)
        return _attempt_of(response, answer)


class _Session(requests.Session):
    """Connections as configured.

    Of the environment it uses proxies, and a bundle of certificates where none is configured. ``requests`` would let
    REQUESTS_CA_BUNDLE replace the configured certificates and ``~/.netrc`` the configured authorization header.
    """

    def __init__(self, config: ExportConfig, url: str) -> None:
        super().__init__()
        self.trust_env = False
        self.proxies.update(get_environ_proxies(url))
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self.verify = str(config.otlp.certificate) if config.otlp.certificate else bundle or True
        certificate, key = config.otlp.client_certificate, config.otlp.client_key
        if certificate is not None:
            self.cert = (str(certificate), str(key)) if key else str(certificate)  # one file may have both
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: a redirect is a failure. ``requests`` would read all of its body even where it does not follow."""


# -- a deadline for whole answers ---------------------------------------------------
#
# The timeout of a socket, and so that of requests, is for each read: an answer that arrives byte by byte never exceeds
# it. These connections share one timeout between connecting, sending and reading the whole answer: with
# urllib3.Timeout(total=…), the socket has what is left of it when an answer begins.


class _DeadlineResponse(http.client.HTTPResponse):
    """Reads status, headers and body within the timeout that the socket has when the answer begins."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            self.fp = io.BufferedReader(DeadlineReader(self.fp.detach(), sock, Deadline(timeout_s)))


class _Http(HTTPConnection):
    response_class = _DeadlineResponse


class _Https(HTTPSConnection):
    response_class = _DeadlineResponse


class _Adapter(requests.adapters.HTTPAdapter):
    """Opens connections with a deadline, to the receiver or to a proxy."""

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """The connection pool for a request."""
        pool = super().get_connection_with_tls_context(*arguments, **named)
        pool.ConnectionCls = _Https if pool.scheme == "https" else _Http
        return pool


# -- answers ------------------------------------------------------------------------


def _attempt_of(response: requests.Response, body: bytes) -> Attempt:
    """What an answer says of the attempt."""
    status = response.status_code
    failure = _judged(response, body)
    if failure is None or failure.kind == "partial":
        return Attempt(ExportResult(accepted=True, failure=failure))
    is_refused = 400 <= status < 500 and status != http.HTTPStatus.TOO_MANY_REQUESTS
    result = ExportResult(accepted=False, failure=failure, try_next=is_refused)
    return Attempt(result, status in _RETRYABLE, _retry_after_s(response.headers.get("retry-after", "")))


def _retry_after_s(text: str) -> float | None:
    """How long a receiver asks to wait: seconds or a date (RFC 9110, 10.2.3)."""
    if text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _judged(response: requests.Response, body: bytes) -> ExportFailure | None:
    """What is wrong with an answer; ``None`` for a success. An empty body is a success in every encoding."""
    status, headers = response.status_code, response.headers
    if status < 300 and not body:
        return None
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if status >= 300:
        detail = f", to {one_line(headers['location'])}" if "location" in headers else _reason_given(content_type, body)
        return ExportFailure(str(status), f"HTTP {status} {one_line(response.reason or '')}".rstrip() + detail)
    message = _parsed(content_type, body)
    if message is None:
        return ExportFailure("garbage", f"HTTP {status} with an answer that is not OTLP; is that a Collector?")
    return rejected_points(message.partial_success.rejected_data_points, message.partial_success.error_message)


def _parsed(content_type: str, body: bytes) -> ExportMetricsServiceResponse | None:
    answer = ExportMetricsServiceResponse()
    try:
        if content_type == "application/json":
            found = parse_json(body)
            if not isinstance(found, dict) or (found and "partialSuccess" not in found):  # it may have other fields too
                return None
            json_format.ParseDict(found, answer, ignore_unknown_fields=True)
        elif content_type in ("", "application/x-protobuf", "application/protobuf"):
            answer.ParseFromString(body)
        elif body.strip():
            return None
    except (DecodeError, json_format.ParseError, ValueError):  # ValueError: not JSON or not UTF-8
        return None
    return answer


def _reason_given(content_type: str, body: bytes) -> str:
    """The receiver's reason for a refusal: a google.rpc.Status as OTLP requires, or a line of text."""
    text = ""
    if content_type == "application/x-protobuf":
        with contextlib.suppress(DecodeError):
            text = Status.FromString(body).message
    elif content_type == "text/plain":
        text = body.decode("utf-8", "replace")
    line = one_line(text)
    return f": {line}" if line else ""


# -- errors -------------------------------------------------------------------------


def transport_failure(error: BaseException, timeout_s: float, port: int | None) -> ExportFailure:
    """The root cause of an exception in words.

    A server of another protocol may close the connection, reset it or answer: all three are one kind of failure.
    """
    cause = _root_cause(error)
    kind, hint = (PROTOCOL, _GRPC_HINT) if port == _GRPC_PORT else (UNREACHABLE, "")
    match cause:
        case ssl.SSLCertVerificationError():
            kind, text = TLS, f"certificate verify failed: {cause.verify_message}"
        case ssl.SSLError():
            kind, text = TLS, f"TLS failed: {(getattr(cause, 'reason', None) or 'unknown').lower().replace('_', ' ')}"
        case http.client.RemoteDisconnected():
            text = f"the connection was closed without an answer{hint}"
        case ConnectionResetError() | BrokenPipeError():
            text = f"the connection was reset{hint}"
        case http.client.HTTPException():
            kind, text = PROTOCOL, f"the answer is not HTTP ({type(cause).__name__}){_GRPC_HINT}"
        case TimeoutError() | urllib3.exceptions.TimeoutError():
            kind, text = UNREACHABLE, f"no whole answer within {timeout_s:.3g} s"
        case OSError() if cause.strerror:
            kind, text = UNREACHABLE, cause.strerror[0].lower() + cause.strerror[1:]
        case _:
            kind, text = UNREACHABLE, one_line(f"{type(cause).__name__}: {cause}")
    return ExportFailure(kind, text)


def _root_cause(error: BaseException) -> BaseException:
    seen: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in seen:
        seen.append(inner)
        if isinstance(inner, http.client.HTTPException):  # its own cause only says which number could not be parsed
            break
        reason = getattr(inner, "reason", None)
        wrapped = next((each for each in (reason, *inner.args) if isinstance(each, BaseException)), None)
        inner = wrapped or inner.__cause__ or inner.__context__
    return seen[-1]
