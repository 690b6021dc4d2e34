"""Access policies, and their reload while the server runs."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import AccessPolicy, AccessPolicyFile
from tests.unit.web.harness import basic, bcrypt_hash, serving, write_atomically
from tests.unit.web.pki import Pki
from tests.web import PATIENCE_S, ask


def checked(file: AccessPolicyFile) -> AccessPolicy:
    """The policy after the next check of the files."""
    file.check()
    return file.current()


def test_the_default_policy_allows_everything() -> None:
    assert AccessPolicy().tls is None
    assert AccessPolicy().allows_request("/", None)
    assert AccessPolicy().allows_certificate(None)


def test_an_unchanged_file_is_not_read_again(pki: Pki) -> None:
    file = AccessPolicyFile(pki.config())
    assert file.current() is file.current()


def test_a_renewed_certificate_is_used_without_a_restart(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    file = AccessPolicyFile(pki.config())
    before = file.current()
    leaf = pki.ca.issue_cert("127.0.0.1")
    write_atomically(pki.directory / "server.crt", leaf.cert_chain_pems[0].bytes().decode())
    with caplog.at_level(logging.INFO):
        assert checked(file) is before  # the certificate is new, the key is still the old one
        assert checked(file) is before
        write_atomically(pki.directory / "server.key", leaf.private_key_pem.bytes().decode())
        after = checked(file)
    assert after.tls is not before.tls
    rejected, applied = caplog.messages
    assert rejected.startswith("the web configuration has changed but is not applied: ")
    assert "does not match the certificate" in rejected
    assert applied == "the web configuration has changed and is applied"


@pytest.mark.parametrize("now", ["", "basic_auth_users:\n", "http_server_config: {}\n", "not: yaml: at all\n", None])
def test_passwords_stay_in_force_while_the_file_is_written(tmp_path: Path, now: str | None) -> None:
    path = write_atomically(tmp_path / "web.yml", f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\n")
    file = AccessPolicyFile(path)
    if now is None:
        path.unlink()
    else:
        write_atomically(path, now)
    assert not checked(file).allows_request("/", None)


def test_tls_stays_in_force_while_the_file_is_written(pki: Pki) -> None:
    file = AccessPolicyFile(pki.config())
    write_atomically(pki.directory / "web.yml", "")
    assert checked(file).tls is not None


def test_a_removed_user_is_rejected(tmp_path: Path) -> None:
    alice, bob = (f"  {name}: {bcrypt_hash('right')}\n" for name in ("alice", "bob"))
    path = write_atomically(tmp_path / "web.yml", "basic_auth_users:\n" + alice + bob)
    file = AccessPolicyFile(path)
    as_alice = basic("alice", "right")
    assert file.current().allows_request("/", as_alice)
    write_atomically(path, "basic_auth_users:\n" + bob)
    assert not checked(file).allows_request("/", as_alice)


def test_only_the_listed_paths_need_no_password(tmp_path: Path) -> None:
    text = f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\nauth_excluded_paths: [/healthz]\n"
    policy = AccessPolicyFile(write_atomically(tmp_path / "web.yml", text)).current()
    assert policy.allows_request("/healthz", None)
    assert not any(policy.allows_request(path, None) for path in ("/", "/healthz/", "/HEALTHZ", "/readyz", "//healthz"))


@pytest.mark.parametrize(
    ("kind", "name", "allowed"),
    [
        ("DNS", "prometheus.example", True),
        ("email", "p@example", True),
        ("URI", "spiffe://example/p", True),
        ("IP Address", "0:0:0:0:0:0:0:1", True),
        ("IP Address", "10.0.0.1", False),
        ("DNS", "other.example", False),
        ("othername", "prometheus.example", False),
    ],
)
def test_a_certificate_needs_one_of_the_allowed_names(kind: str, name: str, allowed: bool) -> None:
    names = frozenset({"prometheus.example", "p@example", "spiffe://example/p", "::1"})
    assert (
        AccessPolicy(client_allowed_sans=names).allows_certificate({"subjectAltName": (("DNS", "x"), (kind, name))})
        is allowed
    )


@pytest.mark.parametrize("certificate", [None, {}])
def test_a_missing_certificate_has_no_allowed_name(certificate: dict[str, object] | None) -> None:
    assert not AccessPolicy(client_allowed_sans=frozenset({"x"})).allows_certificate(certificate)


def test_files_that_cannot_be_read_now_delay_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.web.access_policy._CHECK_S", 0.01)
    reading, answered = threading.Event(), threading.Event()

    def hang(_: Path) -> NoReturn:
        reading.set()
        assert answered.wait(PATIENCE_S)
        raise UsageError("it could not be read")

    path = write_atomically(tmp_path / "web.yml", "http_server_config: {}\n")
    with serving(web_config=path) as server:
        monkeypatch.setattr("otel_gpu.web.access_policy.load_access_policy", hang)
        write_atomically(path, "http_server_config:\n")
        assert reading.wait(PATIENCE_S)
        assert ask(server.address, "/").status == 200
        answered.set()
