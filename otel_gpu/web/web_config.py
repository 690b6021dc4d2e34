"""The web configuration file that Prometheus exporters share: TLS, client certificates, passwords, headers.

The format is exporter-toolkit's (docs/web-configuration.md there). What cannot be honoured here is refused, never
ignored: whoever wrote it relies on it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.yamlfile import Node, parse_yaml, read_yaml


class ClientAuth(StrEnum):
    """What is asked of a client's certificate; the names are those of Go's crypto/tls."""

    NONE = "NoClientCert"
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRED = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate or key: a file, or text that stands in the configuration itself."""

    where: str
    path: Path | None
    text: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How connections are secured."""

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
class WebConfig:
    """What stands between a client and what is served. ``headers`` with an empty value are not to be sent."""

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    open_paths: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it names."""
        pems = () if self.tls is None else (self.tls.cert, self.tls.key, self.tls.client_ca)
        return tuple(pem.path for pem in pems if pem is not None and pem.path is not None)


# OpenSSL has left TLS 1.0 and 1.1 to security level 0 since 3.0, so asking for them would get nobody in.
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
"""The suites of TLS 1.2 that Go calls secure, by their IANA and their OpenSSL names."""

_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that may be set, as exporter-toolkit has them, and their values where these are few."""

_BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[ -~]*")

_SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users", "auth_excluded_paths")
_TLS_KEYS: Final = (
    "cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites",
)  # fmt: skip
_NOT_HONOURED: Final = {
    "rate_limit": "requests are not counted here; connections are limited instead",
    "curve_preferences": "the curves and their order are OpenSSL's",
    "RequestClientCert": "Python's TLS takes no certificate that it does not verify",
    "RequireAnyClientCert": "Python's TLS takes no certificate that it does not verify",
    "RequireClientCert": "Python's TLS takes no certificate that it does not verify",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """The value of a key, and the line where the key stands."""

    origin: str
    key: str
    node: Node

    def complain(self, value: str, allowed: str) -> UsageError:
        return UsageError(f"{self.origin}: {self.key} is {value!r}; allowed is {allowed}")

    def text(self, allowed: str) -> str:
        text = "" if self.node.is_empty else self.node.text()
        if text is None:
            raise UsageError(f"{self.origin}: {self.key} is no single value; allowed is {allowed}")
        return text

    def texts(self, allowed: str) -> tuple[str, ...]:
        items = self.node.items()
        if items is None:
            raise UsageError(f"{self.origin}: {self.key} is no list; allowed is {allowed}")
        return tuple(_Entry(item.origin, self.key, item).text(allowed) for item in items)

    def choice(self, allowed: Iterable[str]) -> str:
        known = tuple(allowed)
        text = self.text(_any_of(known))
        if text in _NOT_HONOURED:
            raise self.complain(text, f"{_any_of(known)}: {_NOT_HONOURED[text]}")
        if text not in known:
            raise self.complain(text, _any_of(known))
        return text

    def is_true(self) -> bool:
        text = self.text("true or false").lower()
        if text not in ("true", "false"):
            raise self.complain(text, "true or false")
        return text == "true"


def read_web_config(path: Path) -> WebConfig:
    """What a file says. UsageError names the file, the line, the key, the value and what is allowed."""
    return parse_web_config(read_yaml(path, "web configuration file"), str(path), path.parent)


def parse_web_config(text: str, name: str, directory: Path) -> WebConfig:
    """What a text says; the files it names are relative to ``directory``. An empty one protects nothing."""
    root = parse_yaml(text, name)
    if root is None:
        return WebConfig()
    sections = _settings(_Entry(name, "the file", root), _SECTIONS)
    tls, http, users, open_paths = (sections.get(key) for key in _SECTIONS)
    config = WebConfig(
        tls=None if tls is None else _tls(tls, directory),
        headers={} if http is None else _headers(http),
        users={} if users is None else _users(users),
        open_paths=frozenset() if open_paths is None else _paths(open_paths),
    )
    if open_paths is not None and not config.users:
        raise UsageError(f"{open_paths.origin}: auth_excluded_paths excludes from nothing without basic_auth_users")
    return config


def _settings(section: _Entry, known: Iterable[str]) -> dict[str, _Entry]:
    """The keys of a mapping that have a value: exporter-toolkit takes an empty one as unset."""
    entries = _entries(section, known)
    return {key: entry for key, entry in entries.items() if not entry.node.is_empty and entry.node.text() != ""}


def _entries(section: _Entry, known: Iterable[str] | None = None) -> dict[str, _Entry]:
    """The keys of a mapping; ``known`` are those it may have, None if they are the user's to name."""
    pairs = section.node.entries()
    if pairs is None:
        raise UsageError(f"{section.origin}: {section.key} is no mapping; allowed is {_any_of(known or ('NAME',))}: …")
    seen: dict[str, _Entry] = {}
    for key_node, value in pairs:
        key = key_node.text()
        if key is None:
            raise UsageError(f"{key_node.origin}: {section.key} has a key that is no single word")
        if known is not None:
            _check_known(key, key_node.origin, section, known)
        if key in seen:
            raise UsageError(f"{key_node.origin}: {key!r} is set a second time; the first is at {seen[key].origin}")
        seen[key] = _Entry(key_node.origin, key, value)
    return seen


def _check_known(key: str, origin: str, section: _Entry, known: Iterable[str]) -> None:
    if key in _NOT_HONOURED:
        raise UsageError(f"{origin}: {key} cannot be honoured, remove it: {_NOT_HONOURED[key]}")
    if key not in known:
        raise UsageError(f"{origin}: {section.key} has no key {key!r}; allowed is {_any_of(known)}")


def _tls(section: _Entry, directory: Path) -> TlsConfig | None:
    entries = _settings(section, _TLS_KEYS)
    if not entries:
        return None
    cert, key = (_pem(entries, section, name, directory) for name in ("cert", "key"))
    if cert is None or key is None:
        missing = "cert" if cert is None else "key"
        raise UsageError(f"{section.origin}: tls_server_config has no {missing}_file; TLS needs cert_file and key_file")
    client_auth = _client_auth(entries)
    min_version, max_version = (
        _VERSIONS[entries[name].choice(_VERSIONS)] if name in entries else default
        for name, default in (("min_version", ssl.TLSVersion.TLSv1_2), ("max_version", ssl.TLSVersion.TLSv1_3))
    )
    if min_version > max_version:
        raise UsageError(f"{section.origin}: min_version is above max_version, which lets nobody in")
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
        raise UsageError(f"{section.origin}: tls_server_config has {name} and {name}_file; allowed is one of them")
    if inline is not None:
        return Pem(f"{inline.origin}: {name}", None, inline.text("PEM text"))
    if named is None:
        return None
    path = named.text("the path of a PEM file")
    if "\0" in path:
        raise named.complain(path, "the path of a PEM file")
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
            f"{client_ca.where} is for client certificates, which client_auth_type {client_auth} does not ask for; "
            f"allowed with it is {ClientAuth.IF_GIVEN} or {ClientAuth.REQUIRED}"
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
        raise UsageError(f"{entry.origin}: client_allowed_sans is empty, which lets nobody in")
    return frozenset(names)


def _ciphers(entries: Mapping[str, _Entry]) -> tuple[str, ...]:
    entry = entries.get("cipher_suites")
    if entry is None:
        return ()
    names = entry.texts(f"a list of {_any_of(_CIPHERS)}")
    for name in names:
        if name not in _CIPHERS:
            raise entry.complain(name, f"{_any_of(_CIPHERS)}; those of TLS 1.3 are always on")
    return tuple(_CIPHERS[name] for name in names)


def _headers(section: _Entry) -> dict[str, str]:
    entries = _settings(section, ("http2", "headers"))
    if "http2" in entries:  # it permits HTTP/2 and demands nothing: clients and servers fall back to what both speak
        entries["http2"].is_true()
    if "headers" not in entries:
        return {}
    headers: dict[str, str] = {}
    for name, entry in _entries(entries["headers"], _HEADERS).items():
        value = entry.choice(_HEADERS[name]) if _HEADERS[name] else entry.text("a header's value")
        if not _HEADER_VALUE.fullmatch(value):
            raise entry.complain(value, "printable ASCII on one line")
        headers[name] = value
    return headers


def _users(section: _Entry) -> dict[str, bytes]:
    users: dict[str, bytes] = {}
    for name, entry in _entries(section).items():
        if ":" in name:  # RFC 7617, 2: the first colon ends the name
            raise UsageError(f"{entry.origin}: basic_auth_users has {name!r}; allowed is a name without a colon")
        hashed = entry.text("a bcrypt hash")
        if not _BCRYPT.fullmatch(hashed):  # not shown: it may be the password itself
            raise UsageError(
                f"{entry.origin}: basic_auth_users: what stands for {name!r} is no bcrypt hash; "
                "allowed is what htpasswd -nBC 10 '' gives, such as $2y$10$ and 53 characters"
            )
        users[name] = hashed.encode("ascii")
    return users


def _paths(entry: _Entry) -> frozenset[str]:
    allowed = "a list of paths, such as /healthz"
    paths = entry.texts(allowed)
    for path in paths:
        if not path.startswith("/"):
            raise entry.complain(path, allowed)
    return frozenset(paths)


def _any_of(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
