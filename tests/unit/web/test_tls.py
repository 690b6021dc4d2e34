from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import load_access_policy
from tests.unit.web.pki import Pki

VERIFY = "  client_auth_type: RequireAndVerifyClientCert\n"


def load_error(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_access_policy(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("broken", "content", "line", "problem"),
    [
        ("cert", None, 2, "cannot be read: No such file or directory; use the path of a PEM file"),
        ("key", None, 3, "cannot be read: No such file or directory; use the path of a PEM file"),
        ("cert", "", 2, "contains no certificate; use one or more certificates in PEM"),
        ("cert", "garbage é", 2, "contains no certificate; use one or more certificates in PEM"),
        ("cert", "x" * (1 << 20) + "x", 2, "is larger than 1 MiB; use the path of a PEM file"),
        ("key", "garbage", 3, "contains no private key; use a private key in PEM"),
        (
            "key",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            3,
            "contains no private key; use a private key in PEM",
        ),
    ],
    ids=["no cert", "no key", "empty cert", "garbage cert", "large cert", "garbage key", "broken key"],
)
def test_an_error_names_line_file_and_problem(
    pki: Pki, broken: str, content: str | None, line: int, problem: str
) -> None:
    path = pki.directory / "bad.pem"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    config = pki.config(cert="bad.pem") if broken == "cert" else pki.config(key="bad.pem")
    assert load_error(config) == f"{config}:{line}: {broken}_file '{path}' {problem}"


def test_a_directory_is_rejected(pki: Pki) -> None:
    assert "cannot be read: Is a directory" in load_error(pki.config(cert="."))


@pytest.mark.parametrize("kind", list(trustme.KeyType))
def test_a_key_of_another_certificate_is_rejected(pki: Pki, kind: trustme.KeyType) -> None:
    other = pki.ca.issue_cert("other", key_type=kind)
    other.private_key_pem.write_to_path(pki.directory / "other.key")
    assert load_error(pki.config(key="other.key")).endswith(
        "other.key' does not match the certificate; use the key of the certificate"
    )


def test_a_certificate_in_the_key_file_does_not_replace_the_configured_one(pki: Pki) -> None:
    other = pki.ca.issue_cert("other")
    other.private_key_and_cert_chain_pem.write_to_path(pki.directory / "other.pem")
    assert "does not match the certificate" in load_error(pki.config(key="other.pem"))
    load_access_policy(pki.config(cert="other.pem", key="other.pem"))


def test_an_encrypted_key_is_rejected_without_a_prompt(pki: Pki) -> None:
    key = serialization.load_pem_private_key((pki.directory / "server.key").read_bytes(), None)
    (pki.directory / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    assert load_error(pki.config(key="locked.key")).endswith("is encrypted; use a private key without a passphrase")


def test_a_client_ca_file_without_a_certificate_is_rejected(pki: Pki) -> None:
    config = pki.config(VERIFY + "  client_ca_file: server.key\n")
    assert load_error(config) == (
        f"{config}:5: client_ca_file '{pki.directory}/server.key' contains no certificate; "
        "use one or more certificates in PEM"
    )


def test_an_inline_key_is_not_shown_in_errors(pki: Pki) -> None:
    config = pki.directory / "web.yml"
    config.write_text("tls_server_config:\n  cert_file: server.crt\n  key: SECRET\n", encoding="utf-8")
    assert load_error(config) == f"{config}:3: key contains no private key; use a private key in PEM"
