"""What settings of exporters must agree on among themselves and with the files they name, before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NoReturn

from otel_gpu.config import Config, Loaded
from otel_gpu.errors import UsageError
from otel_gpu.settings_compat import check_flags
from otel_gpu.settings_export import Exporter, Protocol

_LARGEST_BYTES: Final = 1 << 20
_WITH_TLS: Final = "an https:// endpoint with it"


def check_exports(loaded: Loaded) -> None:
    """UsageError in one line for what cannot work; what no exporter uses is not looked at."""
    config = loaded.config
    flags = next(value for value in loaded.values if value.key == "my-gpu-exporter-flags")
    check_flags(config, f"{flags.origin}: {flags.key} is {flags.text!r}")
    if config.pushes:
        _check_retention(loaded)
    if Exporter.OTLP in config.exporters:
        _check_endpoint(loaded)
        _check_plain_text(loaded)
        _check_files(loaded)


def _check_retention(loaded: Loaded) -> None:
    config = loaded.config
    if config.retention_s < 2 * config.export_interval_s:
        _refuse(
            loaded,
            "retention",
            f"at least twice the export-interval ({config.export_interval_s:g}s), "
            "so that final values reach every exporter before they vanish",
        )


def _check_endpoint(loaded: Loaded) -> None:
    config = loaded.config
    if config.otlp_endpoint is None or config.otlp_endpoint.scheme:
        return
    authority = config.otlp_endpoint.authority
    if config.otlp_protocol is not Protocol.GRPC:
        _refuse(loaded, "otlp-endpoint", f"a URL, such as http://{authority}")
    if config.otlp_insecure is None:
        _refuse(
            loaded, "otlp-endpoint", f"a URL, http://{authority} or https://{authority}, or otlp-insecure beside it"
        )


def _check_plain_text(loaded: Loaded) -> None:
    """Both TLS and plain text asked for.

    OpenTelemetry's own variable speaks of endpoints without a scheme only, and is ignored beside one that has it
    (Protocol Exporter, "Insecure"): it may be set for other programs.
    """
    config = loaded.config
    insecure = None if _origin(loaded, "otlp-insecure").startswith("OTEL_EXPORTER_") else config.otlp_insecure
    if config.otlp_target.scheme == "https":
        if insecure:
            _refuse(loaded, "otlp-insecure", f"false, or nothing, with the endpoint {config.otlp_target}")
        return
    if insecure is False:
        _refuse(
            loaded,
            "otlp-insecure",
            f"true, or nothing, with the endpoint {config.otlp_target}, which is plain text; or {_WITH_TLS}",
        )
    for key, path in _files(config).items():
        if path is not None:
            _refuse(loaded, key, f"nothing with the endpoint {config.otlp_target}, which is plain text; or {_WITH_TLS}")


def _check_files(loaded: Loaded) -> None:
    config = loaded.config
    certificate, key = config.otlp_client_certificate, config.otlp_client_key
    if config.otlp_certificate is not None:
        _check_authorities(loaded, "otlp-certificate", config.otlp_certificate)
    if certificate is not None:
        _check_authorities(loaded, "otlp-client-certificate", certificate)
        _check_pair(loaded, certificate, key)
    elif key is not None:
        _refuse(loaded, "otlp-client-key", "nothing without an otlp-client-certificate")


def _check_authorities(loaded: Loaded, key: str, path: Path) -> None:
    text = _read(loaded, key, path).decode("ascii", "ignore")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):  # ValueError: nothing at all
        _refuse(loaded, key, "a file with one or more certificates in PEM")


def _check_pair(loaded: Loaded, certificate: Path, key: Path | None) -> None:
    where = "otlp-client-certificate" if key is None else "otlp-client-key"
    _read(loaded, where, key or certificate)

    def encrypted() -> str:  # without this, OpenSSL asks on the terminal and waits
        _refuse(loaded, where, "a private key without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=encrypted)
    except ssl.SSLError:
        if key is None:
            _refuse(loaded, where, "a certificate with its private key in the same file, or otlp-client-key beside it")
        _refuse(loaded, where, f"the private key, in PEM, of the certificate in {certificate}")


def _read(loaded: Loaded, key: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        _refuse(loaded, key, f"a file in PEM, and this one cannot be read: {error.strerror}")
    if len(content) > _LARGEST_BYTES:
        _refuse(loaded, key, "a file in PEM of at most 1 MiB")
    return content


def _files(config: Config) -> dict[str, Path | None]:
    return {
        "otlp-certificate": config.otlp_certificate,
        "otlp-client-key": config.otlp_client_key,
        "otlp-client-certificate": config.otlp_client_certificate,
    }


def _refuse(loaded: Loaded, key: str, allowed: str) -> NoReturn:
    value = next(value for value in loaded.values if value.key == key)
    raise UsageError(f"{value.origin}: {key} is {value.text!r}; allowed is {allowed}")


def _origin(loaded: Loaded, key: str) -> str:
    return next(value.origin for value in loaded.values if value.key == key)
