from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import load_guard
from tests.unit.web.pki import Pki

VERIFY = "  client_auth_type: RequireAndVerifyClientCert\n"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def complaint(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_guard(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("broken", "content", "line", "trouble"),
    [
        ("cert", None, 2, "cannot be read: No such file or directory; allowed is the path of a PEM file"),
        ("key", None, 3, "cannot be read: No such file or directory; allowed is the path of a PEM file"),
        ("cert", "", 2, "holds no certificate; allowed is one or more certificates in PEM"),
        ("cert", "garbage é", 2, "holds no certificate; allowed is one or more certificates in PEM"),
        ("cert", "x" * (1 << 20) + "x", 2, "is over 1 MiB; allowed is the path of a PEM file"),
        ("key", "garbage", 3, "holds no private key; allowed is a private key in PEM"),
        (
            "key",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            3,
            "holds no private key; allowed is a private key in PEM",
        ),
    ],
    ids=["no cert", "no key", "empty cert", "garbage cert", "large cert", "garbage key", "broken key"],
)
def test_a_bad_certificate_or_key_is_told_with_line_file_and_what_is_allowed(
    pki: Pki, broken: str, content: str | None, line: int, trouble: str
) -> None:
    path = pki.directory / "bad.pem"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    config = pki.config(cert="bad.pem") if broken == "cert" else pki.config(key="bad.pem")
    assert complaint(config) == f"{config}:{line}: {broken}_file '{path}' {trouble}"


def test_a_directory_is_no_certificate(pki: Pki) -> None:
    assert "cannot be read: Is a directory" in complaint(pki.config(cert="."))


@pytest.mark.parametrize("kind", list(trustme.KeyType))
def test_a_key_of_another_certificate_is_refused(pki: Pki, kind: trustme.KeyType) -> None:
    other = pki.ca.issue_cert("other", key_type=kind)
    other.private_key_pem.write_to_path(pki.directory / "other.key")
    assert complaint(pki.config(key="other.key")).endswith(
        "other.key' does not match the certificate; allowed is the key it was made with"
    )


def test_a_certificate_beside_the_key_does_not_stand_in_for_the_one_that_is_named(pki: Pki) -> None:
    other = pki.ca.issue_cert("other")
    other.private_key_and_cert_chain_pem.write_to_path(pki.directory / "other.pem")
    assert "does not match the certificate" in complaint(pki.config(key="other.pem"))
    load_guard(pki.config(cert="other.pem", key="other.pem"))


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(pki: Pki) -> None:
    key = serialization.load_pem_private_key((pki.directory / "server.key").read_bytes(), None)
    (pki.directory / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    assert complaint(pki.config(key="locked.key")).endswith(
        "is encrypted; allowed is a private key without a passphrase"
    )


def test_a_client_authority_that_is_none_is_refused(pki: Pki) -> None:
    config = pki.config(VERIFY + "  client_ca_file: server.key\n")
    assert complaint(config) == (
        f"{config}:5: client_ca_file '{pki.directory}/server.key' holds no certificate; "
        "allowed is one or more certificates in PEM"
    )


def test_a_key_that_stands_in_the_file_is_never_shown(pki: Pki) -> None:
    config = pki.directory / "web.yml"
    config.write_text("tls_server_config:\n  cert_file: server.crt\n  key: SECRET\n", encoding="utf-8")
    assert complaint(config) == f"{config}:3: key holds no private key; allowed is a private key in PEM"
