"""OTLP over HTTP, by OpenTelemetry's exporter with a ``requests`` session of ours.

The exporter treats any status from 200 to 399 as success, does not read the answer, and does not report why it gave
up. The session reads and judges every answer.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import os
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.exporter.otlp.proto.http import Compression as SdkCompression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from requests.utils import get_environ_proxies

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.otlp_deadline import set_answer_deadline
from otel_gpu.export.sender import ACCEPTED, PROTOCOL, TLS, UNREACHABLE, ExportFailure, ExportResult, rejected_points
from otel_gpu.settings_export import Compression, ExportConfig

LARGEST_ANSWER_BYTES: Final = 64 << 10

_COMPRESSION: Final = {Compression.NONE: SdkCompression.NoCompression, Compression.GZIP: SdkCompression.Gzip}
_LONGEST_REASON: Final = 200
_SHORTEST_S: Final = 0.001
_GRPC_PORT: Final = 4317
_GRPC_HINT: Final = f"; {_GRPC_PORT} is usually gRPC: --otlp-protocol grpc"
_NO_REASON: Final = "the exporter gives no reason"


class _NotAccepted(Exception):
    """The answer is not an OTLP success. The exporter does not retry a request that raises this."""


class _Adapter(requests.adapters.HTTPAdapter):
    """Reads every answer within one timeout, with or without a proxy."""

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """The connection pool for a request."""
        pool = super().get_connection_with_tls_context(*arguments, **named)
        set_answer_deadline(pool)
        return pool


class _Session(requests.Session):
    """Judges answers and keeps the failure of the last request.

    Of the environment it uses proxies only. ``requests`` would let REQUESTS_CA_BUNDLE replace the configured
    certificates and ``~/.netrc`` the configured authorization header.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.trust_env = False
        self.proxies.update(get_environ_proxies(url))
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())
        self.failure: ExportFailure | None = None
        self.is_refusal = False

    def forget(self) -> None:
        """Forget the last request."""
        self.failure, self.is_refusal = None, False

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """Make one attempt within its timeout, and read at most the beginning of the answer."""
        self.forget()
        timeout_s = max(named["timeout"], _SHORTEST_S)
        limits = {"stream": True, "timeout": urllib3.Timeout(total=timeout_s)}
        try:
            with super().request(*arguments, **{**named, **limits}) as response:
                body = response.raw.read(LARGEST_ANSWER_BYTES, decode_content=True)
        except Exception as error:
            self.failure = transport_failure(error, timeout_s, urlsplit(named["url"]).port)
            raise
        status = response.status_code
        self.failure = _judged(response, body)
        self.is_refusal = 400 <= status < 500 and status != http.HTTPStatus.TOO_MANY_REQUESTS
        if self.failure is not None and self.failure.kind != "partial" and status < 400:
            raise _NotAccepted(self.failure.text)
        return response


class HttpSender:
    """Posts requests to a Collector, with the exporter's retries."""

    def __init__(self, config: ExportConfig, timeout_s: float, log: ExporterLog) -> None:
        self._log = log
        endpoint = config.otlp_target
        url = f"{endpoint.scheme}://{endpoint.authority}{endpoint.path or '/v1/metrics'}"
        self._session = _Session(url)
        self._exporter = OTLPMetricExporter(
            endpoint=url,
            certificate_file=_text(config.otlp_certificate) or _environment_certificates(),
            client_key_file=_text(config.otlp_client_key),
            client_certificate_file=_text(config.otlp_client_certificate),
            headers=dict(config.otlp_headers),
            timeout=timeout_s,
            compression=_COMPRESSION[config.otlp_compression],
            session=self._session,
        )

    def send(self, data: MetricsData) -> ExportResult:
        """Post a request."""
        self._session.forget()
        with self._log.capture() as lines:
            is_accepted = self._exporter.export(data) is MetricExportResult.SUCCESS
        failure = self._session.failure
        if is_accepted:
            return ACCEPTED if failure is None else ExportResult(accepted=True, failure=failure)
        if failure is None:  # the exporter made no HTTP request
            reason = lines[-1][-_LONGEST_REASON:] if lines else _NO_REASON
            return ExportResult(accepted=False, failure=ExportFailure("failed", reason), try_next=True)
        return ExportResult(accepted=False, failure=failure, try_next=self._session.is_refusal)

    def close(self) -> None:
        """End waiting between retries. A read in progress ends with its timeout."""
        self._exporter.shutdown()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _environment_certificates() -> str | None:
    """The bundle that ``requests`` uses by default."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")


# -- answers ------------------------------------------------------------------------


def _judged(response: requests.Response, body: bytes) -> ExportFailure | None:
    """What is wrong with an answer; ``None`` for a success. An empty body is a success in every encoding."""
    status, headers = response.status_code, response.headers
    if status < 300 and not body:
        return None
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if status >= 300:
        detail = f", to {headers['location']}" if "location" in headers else _reason_given(content_type, body)
        return ExportFailure(str(status), f"HTTP {status} {response.reason or ''}".rstrip() + detail)
    message = _parsed(content_type, body)
    if message is None:
        return ExportFailure("garbage", f"HTTP {status} with an answer that is not OTLP; is that a Collector?")
    return rejected_points(message.partial_success.rejected_data_points, message.partial_success.error_message)


def _parsed(content_type: str, body: bytes) -> ExportMetricsServiceResponse | None:
    answer = ExportMetricsServiceResponse()
    try:
        if content_type == "application/json":
            found = json.loads(body)
            if not isinstance(found, dict) or (found and "partialSuccess" not in found):  # it may have other fields too
                return None
            json_format.ParseDict(found, answer, ignore_unknown_fields=True)
        elif content_type in ("", "application/x-protobuf", "application/protobuf"):
            answer.ParseFromString(body)
        elif body.strip():
            return None
    except (DecodeError, json_format.ParseError, ValueError, RecursionError):  # ValueError: not JSON or not UTF-8
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
    line = " ".join(text.split())
    return f": {line[:_LONGEST_REASON]}" if line else ""


# -- errors -------------------------------------------------------------------------


def transport_failure(error: BaseException, timeout_s: float, port: int | None) -> ExportFailure:
    """The root cause of an exception in words.

    There are few kinds: a server of another protocol closes, resets and answers by turns, which is one kind of failure.
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
            kind, text = UNREACHABLE, " ".join(f"{type(cause).__name__}: {cause}".split())
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
