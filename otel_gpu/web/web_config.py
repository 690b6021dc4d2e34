"""The web configuration file of Prometheus exporters: TLS, client certificates, passwords, headers.

The format is that of exporter-toolkit (docs/web-configuration.md there). An unsupported setting is an error and never
ignored, because the server would then be less protected than its file says.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.bounded_io import MAX_PEM_BYTES, TooLarge, read_file
from otel_gpu.config.yaml_file import Node, parse_yaml, read_yaml
from otel_gpu.errors import UsageError


class ClientAuth(StrEnum):
    """Whether clients need a certificate. The names are those of Go's crypto/tls."""

    NONE = "NoClientCert"
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRED = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate or key: a file, or text in the configuration file itself. ``origin`` names it in errors."""

    origin: str
    path: Path | None
    text: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The section ``tls_server_config``."""

    cert: Pem
    key: Pem
    client_auth: ClientAuth
    client_ca: Pem | None
    client_allowed_sans: frozenset[str]
    min_version: ssl.TLSVersion
    max_version: ssl.TLSVersion
    ciphers: tuple[str, ...]
    prefer_server_ciphers: bool


@dataclass(frozen=True, slots=True)
class WebConfigFile:
    """A web configuration file. ``headers`` with an empty value are not sent."""

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    open_paths: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[Path, ...]:
        """The certificate and key files that it refers to."""
        pems = () if self.tls is None else (self.tls.cert, self.tls.key, self.tls.client_ca)
        return tuple(pem.path for pem in pems if pem is not None and pem.path is not None)


# OpenSSL 3 allows TLS 1.0 and 1.1 only at security level 0, so no client could connect with them.
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

_CIPHERS: Final = {
    f"TLS_ECDHE_{signed_by}_WITH_{iana}": f"ECDHE-{signed_by}-{openssl}"
    for signed_by in ("ECDSA", "RSA")
    for iana, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
"""OpenSSL names of the TLS 1.2 suites that Go lists as secure, by IANA name."""

_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that exporter-toolkit allows, and their values where only a few are valid."""

_BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
_MAX_BCRYPT_COST: Final = 14
"""A check takes about 1.6 s with it, and twice as long with each step more."""

_HEADER_VALUE: Final = re.compile(r"[ -~]*")

_SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users", "auth_excluded_paths")
_TLS_KEYS: Final = (
    "cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites",
)  # fmt: skip
_UNSUPPORTED: Final = {
    "rate_limit": "the server limits connections, not requests",
    "curve_preferences": "OpenSSL selects the curves",
    "RequestClientCert": "Python always verifies client certificates",
    "RequireAnyClientCert": "Python always verifies client certificates",
    "RequireClientCert": "Python always verifies client certificates",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key of the file, its location and its value."""

    origin: str
    key: str
    node: Node

    def invalid(self, value: str, allowed: str) -> UsageError:
        return UsageError(f"{self.origin}: {self.key}: {value!r} is not valid; use {allowed}")

    def text(self, allowed: str) -> str:
        text = "" if self.node.is_empty else self.node.text()
        if text is None:
            raise UsageError(f"{self.origin}: {self.key} must be a single value: {allowed}")
        return text

    def texts(self, allowed: str) -> tuple[str, ...]:
        items = self.node.items()
        texts = None if items is None else ["" if item.is_empty else item.text() for item in items]
        if texts is None or None in texts:
            raise UsageError(f"{self.origin}: {self.key} must be {allowed}")
        return tuple(text for text in texts if text is not None)

    def choice(self, allowed: Iterable[str]) -> str:
        choices = tuple(allowed)
        text = self.text(_any_of(choices))
        if text in _UNSUPPORTED:
            reason = _UNSUPPORTED[text]
            raise UsageError(f"{self.origin}: {self.key}: {text!r} is not supported: {reason}; use {_any_of(choices)}")
        if text not in choices:
            raise self.invalid(text, _any_of(choices))
        return text

    def is_true(self) -> bool:
        text = self.text("true or false").lower()
        if text not in ("true", "false"):
            raise self.invalid(text, "true or false")
        return text == "true"


def read_web_config(path: Path) -> WebConfigFile:
    """Read a file. UsageError names the file, the line, the key, the value and the valid values."""
    return parse_web_config(read_yaml(path, "web configuration file"), str(path), path.parent)


def parse_web_config(text: str, name: str, directory: Path) -> WebConfigFile:
    """Parse the text of a file. Paths in it are relative to ``directory``. An empty text configures nothing."""
    root = parse_yaml(text, name)
    if root is None:
        return WebConfigFile()
    sections = _settings(_Entry(name, "the file", root), _SECTIONS)
    tls, http, users, open_paths = (sections.get(key) for key in _SECTIONS)
    config = WebConfigFile(
        tls=None if tls is None else _tls(tls, directory),
        headers={} if http is None else _headers(http),
        users={} if users is None else _users(users),
        open_paths=frozenset() if open_paths is None else _paths(open_paths),
    )
    if open_paths is not None and not config.users:
        raise UsageError(f"{open_paths.origin}: auth_excluded_paths has no effect without basic_auth_users")
    return config


def _settings(section: _Entry, known: Iterable[str]) -> dict[str, _Entry]:
    """The keys of a mapping that have a value. As in exporter-toolkit, a key without one is not set."""
    entries = _entries(section, known)
    return {key: entry for key, entry in entries.items() if not entry.node.is_empty and entry.node.text() != ""}


def _entries(section: _Entry, known: Iterable[str] | None = None) -> dict[str, _Entry]:
    """The keys of a mapping. ``known`` are the valid keys; ``None`` if the keys are user names."""
    pairs = section.node.entries()
    if pairs is None:
        keys = "user names as keys" if known is None else f"the keys {_any_of(known)}"
        raise UsageError(f"{section.origin}: {section.key} must be a mapping with {keys}")
    seen: dict[str, _Entry] = {}
    for key_node, value in pairs:
        key = key_node.text()
        if key is None:
            raise UsageError(f"{key_node.origin}: {section.key} has a key that is not a single word")
        if known is not None:
            _check_known(key, key_node.origin, section, known)
        if key in seen:
            raise UsageError(f"{key_node.origin}: {key!r} is set twice, first at {seen[key].origin}")
        seen[key] = _Entry(key_node.origin, key, value)
    return seen


def _check_known(key: str, origin: str, section: _Entry, known: Iterable[str]) -> None:
    if key in _UNSUPPORTED:
        raise UsageError(f"{origin}: {key} is not supported, remove it: {_UNSUPPORTED[key]}")
    if key not in known:
        raise UsageError(f"{origin}: unknown key {key!r} in {section.key}; use {_any_of(known)}")


def _tls(section: _Entry, directory: Path) -> TlsConfig | None:
    entries = _settings(section, _TLS_KEYS)
    if not entries:
        return None
    cert, key = (_pem(entries, section, name, directory) for name in ("cert", "key"))
    if cert is None or key is None:
        missing = "cert" if cert is None else "key"
        raise UsageError(f"{section.origin}: tls_server_config needs cert_file and key_file; {missing}_file is missing")
    client_auth = _client_auth(entries)
    min_version, max_version = (
        _VERSIONS[entries[name].choice(_VERSIONS)] if name in entries else default
        for name, default in (("min_version", ssl.TLSVersion.TLSv1_2), ("max_version", ssl.TLSVersion.TLSv1_3))
    )
    if min_version > max_version:
        raise UsageError(f"{section.origin}: min_version is above max_version, so no client can connect")
    return TlsConfig(
        cert=cert,
        key=key,
        client_auth=client_auth,
        client_ca=_client_ca(entries, section, client_auth, directory),
        client_allowed_sans=_client_allowed_sans(entries, client_auth),
        min_version=min_version,
        max_version=max_version,
        ciphers=_ciphers(entries),
        prefer_server_ciphers="prefer_server_cipher_suites" not in entries
        or entries["prefer_server_cipher_suites"].is_true(),
    )


def _pem(entries: Mapping[str, _Entry], section: _Entry, name: str, directory: Path) -> Pem | None:
    inline, named = entries.get(name), entries.get(f"{name}_file")
    if inline is not None and named is not None:
        raise UsageError(f"{section.origin}: tls_server_config has both {name} and {name}_file; use one of them")
    if inline is not None:
        return Pem(f"{inline.origin}: {name}", None, inline.text("PEM text"))
    if named is None:
        return None
    path = named.text("the path of a PEM file")
    if "\0" in path:
        raise named.invalid(path, "the path of a PEM file")
    return Pem(f"{named.origin}: {name}_file", directory / path, None)


def _client_auth(entries: Mapping[str, _Entry]) -> ClientAuth:
    entry = entries.get("client_auth_type")
    return ClientAuth.NONE if entry is None else ClientAuth(entry.choice(ClientAuth))


def _client_ca(entries: Mapping[str, _Entry], section: _Entry, client_auth: ClientAuth, directory: Path) -> Pem | None:
    client_ca = _pem(entries, section, "client_ca", directory)
    if client_ca is None and client_auth is not ClientAuth.NONE:
        raise UsageError(f"{section.origin}: client_auth_type {client_auth} needs client_ca_file or client_ca")
    if client_ca is not None and client_auth is ClientAuth.NONE:
        raise UsageError(
            f"{client_ca.origin} is for client certificates, which client_auth_type {client_auth} does not request; "
            f"use client_auth_type {ClientAuth.IF_GIVEN} or {ClientAuth.REQUIRED}"
        )
    return client_ca


def _client_allowed_sans(entries: Mapping[str, _Entry], client_auth: ClientAuth) -> frozenset[str]:
    entry = entries.get("client_allowed_sans")
    if entry is None:
        return frozenset()
    if client_auth is not ClientAuth.REQUIRED:
        raise UsageError(f"{entry.origin}: client_allowed_sans needs client_auth_type {ClientAuth.REQUIRED}")
    names = entry.texts("a list of DNS names, addresses, e-mail addresses or URIs")
    if not names:
        raise UsageError(f"{entry.origin}: client_allowed_sans is empty, so no client can connect")
    return frozenset(names)


def _ciphers(entries: Mapping[str, _Entry]) -> tuple[str, ...]:
    entry = entries.get("cipher_suites")
    if entry is None:
        return ()
    names = entry.texts(f"a list of {_any_of(_CIPHERS)}")
    for name in names:
        if name not in _CIPHERS:
            raise entry.invalid(name, f"{_any_of(_CIPHERS)}; those of TLS 1.3 are always enabled")
    return tuple(_CIPHERS[name] for name in names)


def _headers(section: _Entry) -> dict[str, str]:
    entries = _settings(section, ("http2", "headers"))
    if "http2" in entries:  # it allows HTTP/2 and does not require it
        entries["http2"].is_true()
    if "headers" not in entries:
        return {}
    headers: dict[str, str] = {}
    for name, entry in _entries(entries["headers"], _HEADERS).items():
        value = entry.choice(_HEADERS[name]) if _HEADERS[name] else entry.text("a header's value")
        if not _HEADER_VALUE.fullmatch(value):
            raise entry.invalid(value, "printable ASCII on one line")
        headers[name] = value
    return headers


def _users(section: _Entry) -> dict[str, bytes]:
    users: dict[str, bytes] = {}
    for name, entry in _entries(section).items():
        if ":" in name:  # RFC 7617, 2: the first colon ends the name
            raise UsageError(f"{entry.origin}: basic_auth_users: {name!r} is not valid; use a name without a colon")
        hashed = entry.text("a bcrypt hash")
        if not _BCRYPT.fullmatch(hashed):  # the value is not shown: it may be the password itself
            raise UsageError(
                f"{entry.origin}: basic_auth_users: the value of {name!r} is not a bcrypt hash; "
                "use the output of htpasswd -nBC 10 '': $2y$10$ and 53 characters"
            )
        cost = int(hashed[4:6])
        if cost > _MAX_BCRYPT_COST:
            raise UsageError(
                f"{entry.origin}: basic_auth_users: the hash of {name!r} has cost {cost}, and a check of its password "
                f"takes {2 ** (cost - 10) / 10:,.0f} s; use a cost of at most {_MAX_BCRYPT_COST}, for example 10"
            )
        users[name] = hashed.encode("ascii")
    return users


def _paths(entry: _Entry) -> frozenset[str]:
    allowed = "a list of paths, such as /healthz"
    paths = entry.texts(allowed)
    for path in paths:
        if not path.startswith("/"):
            raise entry.invalid(path, allowed)
    return frozenset(paths)


def _any_of(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


# ---------------------------------------------------------------------------- TLS

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
        return read_file(pem.path, MAX_PEM_BYTES)
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
