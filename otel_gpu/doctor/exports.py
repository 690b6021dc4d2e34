"""What the doctor says of where metrics go: whoever they are pushed to, and the addresses they are served at."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otel_gpu.config import Config
from otel_gpu.doctor.findings import Finding, degraded, ok, unused
from otel_gpu.errors import OtelGpuError
from otel_gpu.export.sender import TLS, UNREACHABLE, ExportFailure
from otel_gpu.settings_export import Exporter, Protocol
from otel_gpu.values import Address

REQUEST_S: Final = 2.0
"""What a request to a receiver may take, with its repetitions."""

_ASK_S: Final = 1.0
_SERVER: Final = "otel-gpu"
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - where to ask, not to listen
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_FIXES: Final = {
    UNREACHABLE: "start a Collector there, name another with --otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT), or "
    "--exporters prometheus",
    TLS: "--otlp-certificate FILE (OTEL_EXPORTER_OTLP_CERTIFICATE) with who vouches for it; --otlp-endpoint with a "
    "host that its certificate names; http:// for plain text",
    "401": "--otlp-headers authorization=… (OTEL_EXPORTER_OTLP_HEADERS)",
    "403": "--otlp-headers authorization=… (OTEL_EXPORTER_OTLP_HEADERS)",
    "404": "the path counts as it is written: --otlp-endpoint http://HOST:4318/v1/metrics",
}


def export_checks(config: Config) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every check with its subject: each takes some time, and they may be made side by side."""
    if not config.exporters and not config.serves_prometheus:
        yield "exporters", lambda: unused("exporters", "none: figures are on the page only", "--exporters otlp")
    if Exporter.OTLP in config.exporters:
        yield "otlp", lambda: examine_otlp(config)
    if Exporter.CONSOLE in config.exporters:
        yield "console", lambda: ok("console", "metrics are written to standard output")
    what = "the page and /metrics" if config.serves_prometheus else "the page, without /metrics (--prometheus)"
    yield "listen", lambda: examine_address("listen", config.listen, config.web_config, what, "--listen HOST:PORT")
    for listener in config.compat:
        address = Address(listener.address.host or config.listen.host, listener.address.port)
        subject, remedy = f"compat {listener.exporter}", f"--compat {listener.exporter}:PORT"
        what = f"the series of {listener.exporter}"

        def check(subject: str = subject, address: Address = address, what: str = what, fix: str = remedy) -> Finding:
            return examine_address(subject, address, config.web_config, what, fix)

        yield subject, check


def examine_otlp(config: Config, timeout_s: float = REQUEST_S) -> Finding:
    """Check whether the OTLP receiver accepts an empty request."""
    # Imported here: clients of HTTP and gRPC take longer to load than most checks take.
    from otel_gpu.export.otlp import probe_otlp  # noqa: PLC0415

    failure = probe_otlp(config, min(timeout_s, config.otlp_timeout_s))
    about = f"{config.otlp_target} ({config.otlp_protocol})"
    if failure is None:
        return ok("otlp", f"{about} took an empty request")
    return degraded("otlp", f"{about}: {failure.text}", _otlp_fix(config, failure))


def _otlp_fix(config: Config, failure: ExportFailure) -> str:
    other = Protocol.HTTP if config.otlp_protocol is Protocol.GRPC else Protocol.GRPC
    return _FIXES.get(failure.kind, f"is that a Collector? if it speaks the other protocol: --otlp-protocol {other}")


def examine_address(subject: str, address: Address, web_config: Path | None, what: str, choose: str) -> Finding:
    """Judge whether an agent can listen there, or does."""
    wrong = _bound(address)
    if wrong is None:
        return ok(subject, f"{address} is free for {what}")
    if wrong != errno.EADDRINUSE:
        return degraded(subject, f"cannot listen on {address}: {wrong}", choose)
    who = f"who listens there: ss -ltnp 'sport = :{address.port}'; or {choose}"
    if _is_agent(address, web_config):
        return ok(subject, f"{address}: a running agent answers")
    return degraded(subject, f"{address} is in use by another program: an agent started now would not start", who)


def _bound(address: Address) -> int | str | None:
    """``None`` if the address can be had; else EADDRINUSE, or what is wrong with it."""
    try:
        # Bound, never listening: an agent that starts at this moment gets it all the same (SO_REUSEADDR, socket(7)).
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        return errno.EADDRINUSE if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    except (OverflowError, TypeError, ValueError) as error:  # bind() raises them all for what is no host
        return str(error)
    return None


def _is_agent(address: Address, web_config: Path | None) -> bool:
    """Whether what answers there calls itself by our name, with TLS or without, or shows the agent's certificate."""
    host = _LOOPBACK.get(address.host, address.host)
    if _bears_our_name(http.client.HTTPConnection(host, address.port, timeout=_ASK_S)):
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is asked who it is, and told nothing
    secured = http.client.HTTPSConnection(host, address.port, timeout=_ASK_S, context=context)
    try:
        secured.connect()
        shown = secured.sock.getpeercert(binary_form=True)
    except (OSError, ValueError):
        secured.close()
        return False
    # Who wants a client's certificate says no more than this: with TLS 1.3 he has shown his own by then.
    return _bears_our_name(secured) or (web_config is not None and shown == _own_certificate(web_config))


def _bears_our_name(connection: http.client.HTTPConnection) -> bool:
    """Whether the answer does, a refusal for want of a password too."""
    try:
        connection.request("HEAD", "/healthz")
        return (connection.getresponse().getheader("Server") or "").split("/")[0].strip() == _SERVER
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _own_certificate(web_config: Path) -> bytes:
    """The certificate of a web configuration, in DER; nothing if it has none that can be read."""
    from otel_gpu.web.web_config import read_web_config  # noqa: PLC0415 - most have none, and YAML takes its time

    try:
        tls = read_web_config(web_config).tls if web_config.is_file() else None  # nobody waits for a pipe
        pem = "" if tls is None else tls.cert.text or ""
        if tls is not None and tls.cert.path is not None and tls.cert.path.is_file():
            pem = tls.cert.path.read_text("ascii", "ignore")
        first = _PEM.search(pem)
        return ssl.PEM_cert_to_DER_cert(first[0]) if first else b""
    except (OtelGpuError, OSError, ValueError):
        return b""
