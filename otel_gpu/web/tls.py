"""TLS: the SSL context of a server, from its web configuration."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from otel_gpu.bounded_io import TooLarge, read_file
from otel_gpu.errors import UsageError
from otel_gpu.web.web_config import ClientAuth, Pem, TlsConfig

_MAX_PEM_BYTES: Final = 1 << 20
_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
# The last one: OpenSSL keeps one pair per type of key, and finds no certificate for this type.
_MISMATCH_REASONS: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a server. UsageError names the certificate or key that cannot be used, and why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = config.min_version
    context.maximum_version = config.max_version
    if config.ciphers:
        context.set_ciphers(":".join(config.ciphers))
    if not config.prefer_server_ciphers:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_pair(context, config)
    if config.client_ca is not None:
        _load_authorities(context, config.client_ca)
    context.verify_mode = _VERIFY_MODES[config.client_auth]
    return context


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    cert, key = _read(config.cert), _read(config.key)
    _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config.cert)  # only to check that it is a certificate

    def encrypted() -> str:  # without it, OpenSSL prompts on the terminal and waits
        raise _error(config.key, "is encrypted", "a private key without a passphrase")

    try:
        with _as_file(cert) as cert_path, _as_file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password=encrypted)
    except ssl.SSLError as error:
        reason = str(error.reason)  # None where OpenSSL gives none
        if reason in _MISMATCH_REASONS:
            raise _error(config.key, "does not match the certificate", "the key of the certificate") from None
        if "_TOO_" in reason:  # EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            reason = reason.lower().replace("_", " ")
            raise _error(config.cert, f"is rejected by OpenSSL ({reason})", "a stronger certificate") from None
        raise _error(config.key, "contains no private key", "a private key in PEM") from None


def _load_authorities(context: ssl.SSLContext, pem: Pem) -> None:
    try:
        context.load_verify_locations(cadata=_read(pem).decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):  # ValueError: empty
        raise _error(pem, "contains no certificate", "one or more certificates in PEM") from None


def _read(pem: Pem) -> bytes:
    if pem.path is None:
        return (pem.text or "").encode("utf-8", "replace")
    try:
        return read_file(pem.path, _MAX_PEM_BYTES)
    except OSError as error:
        raise _error(pem, f"cannot be read: {error.strerror}", "the path of a PEM file") from None
    except TooLarge:
        raise _error(pem, "is larger than 1 MiB", "the path of a PEM file") from None


def _error(pem: Pem, problem: str, allowed: str) -> UsageError:
    path = "" if pem.path is None else f" {str(pem.path)!r}"
    return UsageError(f"{pem.origin}{path} {problem}; use {allowed}")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path with this content. Python's ssl reads keys from files only, and a key must not be written to disk."""
    descriptor = os.memfd_create("otel-gpu-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
