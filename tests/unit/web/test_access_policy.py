"""Protection that changes while the server runs."""

from __future__ import annotations

import logging
from pathlib import Path

import bcrypt
import pytest

from otel_gpu.web.access_policy import Guard, GuardFile
from tests.unit.web.pki import Pki


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def replaced(path: Path, text: str) -> Path:
    """Written as renewals are: beside it, then in its place, so that it is another file even within one clock tick."""
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    return beside.replace(path)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def test_without_a_word_nothing_is_asked_of_anybody() -> None:
    assert Guard().tls is None
    assert Guard().admits("/", None)
    assert Guard().allows(None)


def test_what_has_not_changed_is_not_read_again(pki: Pki) -> None:
    file = GuardFile(pki.config())
    assert file.current() is file.current()


def test_a_renewed_certificate_is_used_without_a_restart(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    file = GuardFile(pki.config())
    before = file.current()
    leaf = pki.ca.issue_cert("127.0.0.1")
    replaced(pki.directory / "server.crt", leaf.cert_chain_pems[0].bytes().decode())
    with caplog.at_level(logging.INFO):
        assert file.current() is before  # half of the renewal: the key is still the old one
        assert file.current() is before
        replaced(pki.directory / "server.key", leaf.private_key_pem.bytes().decode())
        after = file.current()
    assert after.tls is not before.tls
    refused, used = caplog.messages
    assert refused.startswith("the web configuration has changed and is not used: ")
    assert "does not match the certificate" in refused
    assert used == "the web configuration has changed and is used from now on"


@pytest.mark.parametrize("now", ["", "basic_auth_users:\n", "http_server_config: {}\n", "not: yaml: at all\n", None])
def test_passwords_do_not_go_while_the_file_is_being_written(tmp_path: Path, now: str | None) -> None:
    path = replaced(tmp_path / "web.yml", f"basic_auth_users:\n  alice: {hashed('right')}\n")
    file = GuardFile(path)
    if now is None:
        path.unlink()
    else:
        replaced(path, now)
    assert not file.current().admits("/", None)


def test_tls_does_not_go_while_the_file_is_being_written(pki: Pki) -> None:
    file = GuardFile(pki.config())
    replaced(pki.directory / "web.yml", "")
    assert file.current().tls is not None


def test_a_user_who_is_taken_out_is_out(tmp_path: Path) -> None:
    alice, bob = (f"  {name}: {hashed('right')}\n" for name in ("alice", "bob"))
    path = replaced(tmp_path / "web.yml", "basic_auth_users:\n" + alice + bob)
    file = GuardFile(path)
    of_alice = "Basic YWxpY2U6cmlnaHQ="
    assert file.current().admits("/", of_alice)
    replaced(path, "basic_auth_users:\n" + bob)
    assert not file.current().admits("/", of_alice)


def test_paths_are_open_only_where_they_are_named(tmp_path: Path) -> None:
    text = f"basic_auth_users:\n  alice: {hashed('right')}\nauth_excluded_paths: [/healthz]\n"
    guard = GuardFile(replaced(tmp_path / "web.yml", text)).current()
    assert guard.admits("/healthz", None)
    assert not any(guard.admits(path, None) for path in ("/", "/healthz/", "/HEALTHZ", "/readyz", "//healthz"))


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
def test_a_certificate_needs_one_of_the_names_asked_for(kind: str, name: str, allowed: bool) -> None:
    wanted = frozenset({"prometheus.example", "p@example", "spiffe://example/p", "::1"})
    assert Guard(client_allowed_sans=wanted).allows({"subjectAltName": (("DNS", "x"), (kind, name))}) is allowed


@pytest.mark.parametrize("certificate", [None, {}])
def test_no_certificate_has_none_of_the_names_asked_for(certificate: dict[str, object] | None) -> None:
    assert not Guard(client_allowed_sans=frozenset({"x"})).allows(certificate)
