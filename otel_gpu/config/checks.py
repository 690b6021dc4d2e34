"""Checks that need several settings or the files they name. They run before the agent starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

from otel_gpu.bounded_io import MAX_PEM_BYTES, TooLarge, read_file
from otel_gpu.config.compat import FLAGS, check_flags
from otel_gpu.config.groups import Exporter, Protocol
from otel_gpu.config.resolution import Loaded
from otel_gpu.errors import UsageError

_FILES: Final = ("otlp-certificate", "otlp-client-certificate", "otlp-client-key")
_OR_TLS: Final = "or use an https:// endpoint"


def check_exports(loaded: Loaded) -> None:
    """UsageError in one line for export settings that cannot work. Settings that no exporter uses are not checked."""
    export = loaded.config.export
    flags = loaded.value(FLAGS)
    check_flags(loaded.config, f"{flags.where}: {flags.text!r}")
    if export.pushes:
        _check_retention(loaded)
    if Exporter.OTLP in export.exporters:
        _check_endpoint(loaded)
        _check_plain_text(loaded)
        _check_files(loaded)


def _check_retention(loaded: Loaded) -> None:
    config = loaded.config
    if config.attribution.retention_s < 2 * config.export.interval_s:
        _refuse(
            loaded,
            "retention",
            f"is too short; use at least twice the export-interval ({config.export.interval_s:g}s), "
            "so that every exporter gets final values",
        )


def _check_endpoint(loaded: Loaded) -> None:
    otlp = loaded.config.export.otlp
    if otlp.endpoint is None or otlp.endpoint.scheme:
        return
    authority = otlp.endpoint.authority
    if otlp.protocol is not Protocol.GRPC:
        _refuse(loaded, "otlp-endpoint", f"has no scheme; use a URL, for example http://{authority}")
    if otlp.insecure is None:
        use = f"use http://{authority} or https://{authority}, or set otlp-insecure"
        _refuse(loaded, "otlp-endpoint", f"has no scheme; {use}")


def _check_plain_text(loaded: Loaded) -> None:
    """Refuse settings for TLS with a plain text endpoint, and the reverse.

    OpenTelemetry's own variable concerns endpoints without a scheme only, and is ignored for others (Protocol Exporter,
    "Insecure"): it may be set for other programs.
    """
    otlp = loaded.config.export.otlp
    insecure = None if loaded.value("otlp-insecure").origin.startswith("OTEL_EXPORTER_") else otlp.insecure
    if otlp.target.scheme == "https":
        if insecure:
            _refuse(loaded, "otlp-insecure", f"contradicts the endpoint {otlp.target}; use false, or remove it")
        return
    is_plain = f"the endpoint {otlp.target}, which is plain text"
    if insecure is False:
        _refuse(loaded, "otlp-insecure", f"contradicts {is_plain}; use true, or remove it, {_OR_TLS}")
    for key in _FILES:
        if _path(loaded, key) is not None:
            _refuse(loaded, key, f"has no effect with {is_plain}; remove it, {_OR_TLS}")


def _check_files(loaded: Loaded) -> None:
    otlp = loaded.config.export.otlp
    if otlp.certificate is not None:
        _check_certificates(loaded, "otlp-certificate", otlp.certificate)
    if otlp.client_certificate is not None:
        _check_certificates(loaded, "otlp-client-certificate", otlp.client_certificate)
        _check_pair(loaded, otlp.client_certificate, otlp.client_key)
    elif otlp.client_key is not None:
        _refuse(loaded, "otlp-client-key", "needs otlp-client-certificate, too")


def _check_certificates(loaded: Loaded, key: str, path: Path) -> None:
    import ssl  # noqa: PLC0415 - an agent without certificates does not need it

    text = _read(loaded, key, path).decode("ascii", "ignore")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):  # ValueError: an empty text
        _refuse(loaded, key, "is not valid; use a file with one or more certificates in PEM")


def _check_pair(loaded: Loaded, certificate: Path, client_key: Path | None) -> None:
    import ssl  # noqa: PLC0415 - as above

    key = "otlp-client-certificate" if client_key is None else "otlp-client-key"
    _read(loaded, key, client_key or certificate)

    def encrypted() -> str:  # without this, OpenSSL asks on the terminal and waits
        _refuse(loaded, key, "is encrypted; use a private key without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, client_key, password=encrypted)
    except ssl.SSLError:
        if client_key is None:
            _refuse(loaded, key, "has no private key; add the key to the file, or set otlp-client-key")
        _refuse(loaded, key, f"is not valid; use the private key, in PEM, of the certificate in {certificate}")


def _read(loaded: Loaded, key: str, path: Path) -> bytes:
    try:
        return read_file(path, MAX_PEM_BYTES)
    except OSError as error:
        _refuse(loaded, key, f"cannot be read: {error.strerror}")
    except TooLarge as error:
        _refuse(loaded, key, f"is {error}; use a file in PEM")


def _path(loaded: Loaded, key: str) -> Path | None:
    otlp = loaded.config.export.otlp
    by_key = dict(zip(_FILES, (otlp.certificate, otlp.client_certificate, otlp.client_key), strict=True))
    return by_key[key]


def _refuse(loaded: Loaded, key: str, problem: str) -> NoReturn:
    value = loaded.value(key)
    raise UsageError(f"{value.where}: {value.text!r} {problem}")
