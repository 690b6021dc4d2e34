"""OTLP over HTTP, by OpenTelemetry's exporter, with a session of ours: it alone sees what was answered.

The exporter takes any answer from 200 to 399 for a success, does not read it, and names no reason when it gives up.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
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
from requests.cookies import extract_cookies_to_jar
from requests.utils import select_proxy
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.otlp_deadline import bound_answers
from otel_gpu.export.otlp_line import LARGEST_ANSWER_BYTES, Answer, Line, NoAnswer
from otel_gpu.export.sender import PROTOCOL, TAKEN, TLS, UNREACHABLE, Delivery, Trouble, rejected
from otel_gpu.settings_export import Compression, ExportConfig

_COMPRESSION: Final = {Compression.NONE: SdkCompression.NoCompression, Compression.GZIP: SdkCompression.Gzip}
_LONGEST_REASON: Final = 200
_SHORTEST_S: Final = 0.001
_GRPC_PORT: Final = 4317
_PORTS: Final = {"http": 80, "https": 443}
_Settings = dict[str, Any]
"""What ``requests`` sends with: proxies, trust, certificates."""

_IS_GRPC: Final = f"; {_GRPC_PORT} is usually gRPC: --otlp-protocol grpc"


class _Refused(Exception):
    """An answer that is none; the exporter repeats no request for it."""


class _Adapter(requests.adapters.HTTPAdapter):
    """Uses connections that read an answer within one timeout, straight or by a proxy."""

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """The pool for a request."""
        pool = super().get_connection_with_tls_context(*arguments, **named)
        bound_answers(pool)
        return pool

    def connected(self, request: requests.PreparedRequest, settings: _Settings, timeout_s: float) -> HTTPConnection:
        """A connection straight to a receiver, with the trust and the certificates that ``requests`` would use."""
        url, verify, cert = str(request.url), settings["verify"], settings["cert"]
        pool: HTTPConnectionPool = self.get_connection_with_tls_context(request, verify, cert=cert)
        self.cert_verify(pool, url, verify, cert)
        connection = pool._new_conn()  # noqa: SLF001 - urllib3 has no other way; a test fails where the name changes
        connection.timeout = timeout_s
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection  # type: ignore[return-value]  # it is one, though only promised to be like one


class _Session(requests.Session):
    """Remembers how the last request went, and takes its orders from the configuration alone.

    ``requests`` would prefer REQUESTS_CA_BUNDLE to the certificates configured, and ``~/.netrc`` to a header. It says
    what is to be sent and to whom to connect, and asks by proxies; requests straight to a receiver go by a line.
    """

    def __init__(self, authorities: Path | None, port: int | None) -> None:
        super().__init__()
        self._adapter = _Adapter()
        for scheme in ("http://", "https://"):
            self.mount(scheme, self._adapter)
        self.auth = _unchanged
        self.trouble: Trouble | None = None
        self.refused = False
        self._authorities = authorities
        self._port = port
        self._settings: _Settings | None = None
        self._by_proxy: bool | None = None
        self._prepared = requests.PreparedRequest()
        self._prepared_for: tuple[str, Mapping[str, str]] | None = None
        self._head = b""
        self._line = Line(self._connect)

    def forget(self) -> None:
        """Nothing has been answered yet."""
        self.trouble, self.refused = None, False

    def merge_environment_settings(self, *arguments: Any, **named: Any) -> _Settings:
        """Proxies from the environment, certificates from the configuration; of one receiver, so looked up once."""
        if self._settings is None:
            self._settings = super().merge_environment_settings(*arguments, **named)
            if self._authorities is not None:
                self._settings["verify"] = str(self._authorities)
        return dict(self._settings)

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """One attempt, over when its timeout is: the exporter makes several. Only an answer's beginning is read."""
        self.forget()
        timeout_s: float = named["timeout"]
        try:
            if self._by_proxy is None:
                settings = self.merge_environment_settings(named["url"], {}, stream=True, verify=None, cert=None)
                self._by_proxy = select_proxy(named["url"], settings["proxies"]) is not None
            if self._by_proxy:
                answer = self._ask_by_proxy(arguments, named, max(timeout_s, _SHORTEST_S))
            else:
                answer = self._ask(named["url"], named["headers"], named["data"], max(timeout_s, _SHORTEST_S))
        except Exception as error:
            self.trouble = _trouble(error, timeout_s, self._port)
            raise
        self.trouble = _judged(answer)
        self.refused = 400 <= answer.status < 500 and answer.status != http.HTTPStatus.TOO_MANY_REQUESTS
        if self.trouble is not None and answer.status < 400 and self.trouble.kind != "partial":
            raise _Refused(self.trouble.text)
        return _Taken(answer.status, answer.reason, answer.headers)  # type: ignore[return-value]  # as much as is read

    def close(self) -> None:
        """Let go of connections."""
        self._line.close()
        super().close()

    # -- straight -------------------------------------------------------------------

    def _ask(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """Errors are those of ``requests``, by which the exporter tells whether to try again."""
        wanted = url, headers
        if wanted != self._prepared_for or self.cookies:  # cookies that a receiver has set go into a header
            self._prepared = self.prepare_request(requests.Request("POST", url, headers))
            self._head = _head(self._prepared)
            self._prepared_for = wanted
        try:
            answer = self._line.post(b"%s%d\r\n\r\n" % (self._head, len(body)), body, timeout_s)
        except NoAnswer as error:
            raise requests.ConnectionError(*error.args) from error
        if answer.raw is not None:
            extract_cookies_to_jar(self.cookies, self._prepared, answer.raw)
        return answer

    def _connect(self, timeout_s: float) -> HTTPConnection:
        return self._adapter.connected(self._prepared, self._settings or {}, timeout_s)

    # -- by a proxy -----------------------------------------------------------------

    def _ask_by_proxy(self, arguments: tuple[Any, ...], named: Mapping[str, Any], timeout_s: float) -> Answer:
        limits = {"stream": True, "timeout": urllib3.Timeout(total=timeout_s)}
        with super().request(*arguments, **{**named, **limits}) as response:
            body = response.raw.read(LARGEST_ANSWER_BYTES, decode_content=True)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, response.reason or "", headers, body)


class _Taken(NamedTuple):
    """An answer, as far as the exporter looks at one."""

    status_code: int
    reason: str
    headers: Mapping[str, str]


class _Encoded:
    """A request that is encoded already, as far as the exporter looks at one. It would count points in it, for metrics
    of its own that nobody has switched on."""

    resource_metrics: Final = ()

    def __init__(self, body: bytes) -> None:
        self._body = body

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self._body


class _Exporter(OTLPMetricExporter):
    """Also takes what is encoded. The private name is the exporter's own; a test fails where it changes."""

    def export_encoded(self, body: bytes) -> MetricExportResult:
        """Post a request."""
        return self._export_batch(_Encoded(body))  # type: ignore[arg-type]  # as much of it as is looked at


class HttpSender:
    """Posts requests to a Collector, with the exporter's repetitions."""

    def __init__(self, config: ExportConfig, timeout_s: float, log: ExporterLog) -> None:
        self._log = log
        endpoint = config.otlp_target
        certificate, key = config.otlp_client_certificate, config.otlp_client_key
        self._session = _Session(config.otlp_certificate, urlsplit(f"//{endpoint.authority}").port)
        self._exporter = _Exporter(
            endpoint=f"{endpoint.scheme}://{endpoint.authority}{endpoint.path or '/v1/metrics'}",
            certificate_file=None if config.otlp_certificate is None else str(config.otlp_certificate),
            client_key_file=None if key is None else str(key),
            client_certificate_file=None if certificate is None else str(certificate),
            headers=dict(config.otlp_headers),
            timeout=timeout_s,
            compression=_COMPRESSION[config.otlp_compression],
            session=self._session,
        )

    def send(self, data: MetricsData | bytes) -> Delivery:
        """Post a request."""
        self._session.forget()
        export = self._exporter.export_encoded if isinstance(data, bytes) else self._exporter.export
        with self._log.heard() as lines:
            taken = export(data) is MetricExportResult.SUCCESS  # type: ignore[arg-type]  # by its type
        trouble = self._session.trouble
        if taken:
            return Delivery(taken=True, trouble=trouble) if trouble is not None else TAKEN
        if trouble is None:  # it never came to a request
            said = lines[-1] if lines else "the exporter gives no reason"
            return Delivery(taken=False, trouble=Trouble("failed", said), go_on=True)
        return Delivery(taken=False, trouble=trouble, go_on=self._session.refused)

    def close(self) -> None:
        """End waiting between repetitions. An answer that is being waited for is waited for."""
        self._exporter.shutdown()


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _head(request: requests.PreparedRequest) -> bytes:
    """A request's line and headers, up to the length of its body."""
    lines = [f"POST {request.path_url} HTTP/1.1"]
    if "host" not in request.headers:
        lines.append(f"Host: {_host(str(request.url))}")
    for name, value in request.headers.items():
        if name.lower() != "content-length":
            lines.append(f"{name}: {value if isinstance(value, str) else value.decode('latin-1')}")
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")


def _host(url: str) -> str:
    """Whom a URL names, in a header: without a user, the dot that ends a full name, or the usual port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    named = f"[{host}]" if ":" in host else host
    return named if parts.port in (None, _PORTS.get(parts.scheme)) else f"{named}:{parts.port}"


def _judged(answer: Answer) -> Trouble | None:
    """What is wrong with an answer, if anything is. One that is empty says in all its languages that all was taken."""
    status, headers, body = answer.status, answer.headers, answer.body
    if status < 300 and not body:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if status >= 300:
        said = f", to {headers['location']}" if "location" in headers else _reason_given(kind, body)
        return Trouble(str(status), f"HTTP {status} {answer.reason}".rstrip() + said)
    message = _parsed(kind, body)
    if message is None:
        return Trouble("garbage", f"HTTP {status} with an answer that is not OTLP; is that a Collector?")
    return rejected(message.partial_success.rejected_data_points, message.partial_success.error_message)


def _parsed(kind: str, body: bytes) -> ExportMetricsServiceResponse | None:
    answer = ExportMetricsServiceResponse()
    try:
        if kind == "application/json":
            told = json.loads(body or b"{}")
            if not isinstance(told, dict) or (told and "partialSuccess" not in told):  # fields to come may be beside it
                return None
            json_format.ParseDict(told, answer, ignore_unknown_fields=True)
        elif kind in ("", "application/x-protobuf", "application/protobuf"):
            answer.ParseFromString(body)
        elif body.strip():
            return None
    except (DecodeError, json_format.ParseError, ValueError, RecursionError):  # ValueError: no JSON, no UTF-8
        return None
    return answer


def _reason_given(kind: str, body: bytes) -> str:
    """What the receiver says of its refusal: OTLP has it in a google.rpc.Status, others in a line of text."""
    text = ""
    if kind == "application/x-protobuf":
        with contextlib.suppress(DecodeError):
            text = Status.FromString(body).message
    elif kind == "text/plain":
        text = body.decode("utf-8", "replace")
    line = " ".join(text.split())
    return f": {line[:_LONGEST_REASON]}" if line else ""


def _trouble(error: BaseException, timeout_s: float, port: int | None) -> Trouble:
    """An exception's deepest cause, in words: what is above it only says that it happened.

    Of few kinds: a server that speaks no HTTP closes, resets and talks as it comes, and is one trouble all the same.
    """
    cause = _deepest(error)
    kind, hint = (PROTOCOL, _IS_GRPC) if port == _GRPC_PORT else (UNREACHABLE, "")
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
            kind, text = PROTOCOL, f"the answer is not HTTP ({type(cause).__name__}){_IS_GRPC}"
        case TimeoutError() | urllib3.exceptions.TimeoutError():
            kind, text = UNREACHABLE, f"no whole answer within {timeout_s:.3g} s"
        case OSError() if cause.strerror:
            kind, text = UNREACHABLE, cause.strerror[0].lower() + cause.strerror[1:]
        case _:
            kind, text = UNREACHABLE, " ".join(f"{type(cause).__name__}: {cause}".split())
    return Trouble(kind, text)


def _deepest(error: BaseException) -> BaseException:
    seen: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in seen:
        seen.append(inner)
        if isinstance(inner, http.client.HTTPException):  # below it is only what was wrong with a number
            break
        reason = getattr(inner, "reason", None)
        wrapped = next((each for each in (reason, *inner.args) if isinstance(each, BaseException)), None)
        inner = wrapped or inner.__cause__ or inner.__context__
    return seen[-1]
