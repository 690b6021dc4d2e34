"""Certificates of a test's own authority."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Pki:
    """An authority, a server certificate for 127.0.0.1, and web configuration files beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(directory / "ca.crt")
        self.issue("server", "127.0.0.1")

    def issue(self, name: str, *identities: str) -> trustme.LeafCert:
        """A certificate and its key, as ``name.crt`` and ``name.key``."""
        leaf = self.ca.issue_cert(*identities)
        leaf.cert_chain_pems[0].write_to_path(self.directory / f"{name}.crt")
        leaf.private_key_pem.write_to_path(self.directory / f"{name}.key")
        return leaf

    def config(self, extra: str = "", *, cert: str = "server.crt", key: str = "server.key") -> Path:
        """A web configuration file with TLS. ``extra`` continues its TLS section."""
        path = self.directory / "web.yml"
        path.write_text(f"tls_server_config:\n  cert_file: {cert}\n  key_file: {key}\n{extra}", encoding="utf-8")
        return path

    def client(self, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """A client that trusts the authority, with or without a certificate of its own."""
        context = ssl.create_default_context(cadata=self.ca.cert_pem.bytes().decode())
        if certificate is not None:
            certificate.configure_cert(context)
        return context
