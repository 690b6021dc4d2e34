"""Checks of where metrics go: the OTLP receiver they are pushed to, and the addresses they are served at."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpu.bounded_io import MAX_PEM_BYTES, read_file
from otel_gpu.config import Config
from otel_gpu.config.groups import Exporter, Protocol
from otel_gpu.config.values import Address
from otel_gpu.doctor.findings import Finding, degraded, ok, unused
from otel_gpu.errors import OtelGpuError
from otel_gpu.export.sender import TLS, UNREACHABLE, ExportFailure

PROBE_TIMEOUT_S: Final = 2.0
"""For a request to a receiver, with its retries."""

_HTTP_TIMEOUT_S: Final = 1.0
_SERVER_NAME: Final = "otel-gpu"
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - for connecting, not listening
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_FIXES: Final = {
    UNREACHABLE: "start a Collector there; --otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT) for another address; or "
    "--exporters prometheus",
    TLS: "--otlp-certificate FILE (OTEL_EXPORTER_OTLP_CERTIFICATE) with the receiver's CA; --otlp-endpoint with a "
    "host name from its certificate; http:// for plain text",
    "401": "--otlp-headers authorization=… (OTEL_EXPORTER_OTLP_HEADERS)",
    "403": "--otlp-headers authorization=… (OTEL_EXPORTER_OTLP_HEADERS)",
    "404": "the path is used as written: --otlp-endpoint http://HOST:4318/v1/metrics",
}


def endpoint_checks(config: Config) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every check with its subject. A check may block, and may run concurrently with the others."""
    if not config.export.exporters and not config.export.serves_prometheus:
        yield (
            "exporters",
            lambda: unused(
                "exporters", "none: nothing is pushed, and figures are on the page only", "--exporters otlp"
            ),
        )
    if Exporter.OTLP in config.export.exporters:
        yield "otlp", lambda: check_otlp(config)
    if Exporter.CONSOLE in config.export.exporters:
        yield "console", lambda: ok("console", "metrics are written to standard output")
    web = config.web
    purpose = "the page and /metrics" if config.export.serves_prometheus else "the page (--prometheus adds /metrics)"
    yield "listen", partial(check_address, "listen", web.listen, web.config_file, purpose, "--listen HOST:PORT")
    for listener in config.compat.listeners:
        address = Address(listener.address.host or web.listen.host, listener.address.port)
        subject, flag = f"compat {listener.exporter}", f"--compat {listener.exporter}:PORT"
        purpose = f"the metrics of {listener.exporter}"
        yield subject, partial(check_address, subject, address, web.config_file, purpose, flag)


def check_otlp(config: Config, timeout_s: float = PROBE_TIMEOUT_S) -> Finding:
    """Check whether the OTLP receiver accepts an empty request."""
    # Loading the HTTP and gRPC clients takes longer than most checks.
    from otel_gpu.export.otlp import probe_otlp  # noqa: PLC0415

    failure = probe_otlp(config.export, min(timeout_s, config.export.otlp.timeout_s))
    receiver = f"{config.export.otlp.target} ({config.export.otlp.protocol})"
    if failure is None:
        return ok("otlp", f"{receiver} accepted an empty request")
    return degraded("otlp", f"{receiver}: {failure.text}", _otlp_fix(config, failure))


def _otlp_fix(config: Config, failure: ExportFailure) -> str:
    other = Protocol.HTTP if config.export.otlp.protocol is Protocol.GRPC else Protocol.GRPC
    return _FIXES.get(
        failure.kind, f"check that a Collector listens there; if it expects the other protocol: --otlp-protocol {other}"
    )


def check_address(subject: str, address: Address, web_config: Path | None, purpose: str, flag: str) -> Finding:
    """Check whether an agent can listen at an address, or does. ``flag`` changes the address."""
    problem = _bind_problem(address)
    if problem is None:
        return ok(subject, f"{address} is free for {purpose}")
    if problem != errno.EADDRINUSE:
        return degraded(subject, f"cannot listen on {address}: {problem}", flag)
    if _is_agent(address, web_config):
        return ok(subject, f"{address}: a running agent answers")
    fix = f"to find the program: ss -ltnp 'sport = :{address.port}'; or {flag}"
    return degraded(subject, f"{address} is in use by another program: an agent cannot start with it", fix)


def _bind_problem(address: Address) -> int | str | None:
    """``None`` if the address can be bound; else EADDRINUSE, or what is wrong with it."""
    try:
        # Bound, never listening: an agent that starts at this moment still gets it (SO_REUSEADDR, socket(7)).
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        return errno.EADDRINUSE if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    except (OverflowError, TypeError, ValueError) as error:  # bind() raises each of them for an invalid host
        return str(error)
    return None


def _is_agent(address: Address, web_config: Path | None) -> bool:
    """Whether the server there names itself otel-gpu, with or without TLS, or shows the agent's certificate."""
    host = _LOOPBACK.get(address.host, address.host)
    if _names_itself(http.client.HTTPConnection(host, address.port, timeout=_HTTP_TIMEOUT_S)):
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is identified, and gets no secret
    connection = http.client.HTTPSConnection(host, address.port, timeout=_HTTP_TIMEOUT_S, context=context)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
    except (OSError, ValueError):
        connection.close()
        return False
    # A server that requires a client certificate answers nothing more; with TLS 1.3 it has shown its own by then.
    return _names_itself(connection) or (web_config is not None and shown == _own_certificate(web_config))


def _names_itself(connection: http.client.HTTPConnection) -> bool:
    """Whether the answer has our ``Server`` header; so does a refusal without a password."""
    try:
        connection.request("HEAD", "/healthz")
        return (connection.getresponse().getheader("Server") or "").split("/")[0].strip() == _SERVER_NAME
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _own_certificate(web_config: Path) -> bytes:
    """The certificate of a web configuration in DER; empty if it has none that is readable."""
    from otel_gpu.web.web_config import read_web_config  # noqa: PLC0415 - loads YAML, which most hosts do not need

    try:
        tls = read_web_config(web_config).tls if web_config.is_file() else None  # a pipe would block
        pem = "" if tls is None else tls.cert.text or ""
        if tls is not None and tls.cert.path is not None and tls.cert.path.is_file():
            pem = read_file(tls.cert.path, MAX_PEM_BYTES).decode("ascii", "ignore")
        first = _PEM.search(pem)
        return ssl.PEM_cert_to_DER_cert(first[0]) if first else b""
    except (OtelGpuError, OSError, ValueError):
        return b""
