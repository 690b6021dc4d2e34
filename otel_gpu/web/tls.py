"""TLS for a server: what the web configuration asks for, as an SSL context."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.web.web_config import ClientAuth, Pem, TlsConfig

_LARGEST_BYTES: Final = 1 << 20
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
# The last: OpenSSL keeps one pair per kind of key, and finds no certificate of the key's kind.
_MISMATCH: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a server. UsageError names what is wrong with which certificate or key."""
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
    context.verify_mode = _VERIFY[config.client_auth]
    return context


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    cert, key = _read(config.cert), _read(config.key)
    _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config.cert)  # only to know that it is a certificate

    def encrypted() -> str:  # without this, OpenSSL asks on the terminal and waits
        raise _complaint(config.key, "is encrypted", "a private key without a passphrase")

    try:
        with _as_file(cert) as cert_path, _as_file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password=encrypted)
    except ssl.SSLError as error:
        reason = str(error.reason)  # None where OpenSSL gives none
        if reason in _MISMATCH:
            raise _complaint(config.key, "does not match the certificate", "the key it was made with") from None
        if "_TOO_" in reason:  # EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            reason = reason.lower().replace("_", " ")
            raise _complaint(config.cert, f"is refused by OpenSSL ({reason})", "a stronger certificate") from None
        raise _complaint(config.key, "holds no private key", "a private key in PEM") from None


def _load_authorities(context: ssl.SSLContext, pem: Pem) -> None:
    try:
        context.load_verify_locations(cadata=_read(pem).decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):  # ValueError: nothing at all
        raise _complaint(pem, "holds no certificate", "one or more certificates in PEM") from None


def _read(pem: Pem) -> bytes:
    if pem.path is None:
        return (pem.text or "").encode("utf-8", "replace")
    try:
        with pem.path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise _complaint(pem, f"cannot be read: {error.strerror}", "the path of a PEM file") from None
    if len(content) > _LARGEST_BYTES:
        raise _complaint(pem, "is over 1 MiB", "the path of a PEM file")
    return content


def _complaint(pem: Pem, trouble: str, allowed: str) -> UsageError:
    what = "" if pem.path is None else f" {str(pem.path)!r}"
    return UsageError(f"{pem.where}{what} {trouble}; allowed is {allowed}")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path where the content is read: Python's ssl takes keys from files only, and a key belongs on no disk."""
    descriptor = os.memfd_create("otel-gpu-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
