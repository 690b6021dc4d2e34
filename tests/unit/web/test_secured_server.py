"""The server with TLS, client certificates and passwords, over real sockets."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.web.server import WebListener
from tests.unit.web.harness import ROUTES, basic, bcrypt_hash, connect, serving, wait_until, write_atomically
from tests.unit.web.pki import Pki
from tests.web import PATIENCE_S, ask, say

REJECTED = (ssl.SSLError, ConnectionError)
"""A rejected certificate ends the connection, with or without a TLS alert."""


def mutual(kind: str) -> str:
    return f"  client_auth_type: {kind}\n  client_ca_file: ca.crt\n"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebListener]:
    path = tmp_path_factory.mktemp("users") / "web.yml"
    path.write_text(
        f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\n"
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: ''\n",
        encoding="utf-8",
    )
    with serving(web_config=path) as server:
        yield server


# ---------------------------------------------------------------------------- TLS


def test_tls_serves_the_same_with_an_https_url(pki: Pki) -> None:
    with serving(web_config=pki.config()) as server:
        answer = ask(server.address, "/?x=1", tls=pki.client())
        assert (answer.status, answer.body) == (200, "hello x=1\n")
        assert server.url == f"https://127.0.0.1:{server.address.port}"


def test_a_client_that_does_not_trust_the_authority_does_not_connect(pki: Pki) -> None:
    with serving(web_config=pki.config()) as server, pytest.raises(ssl.SSLCertVerificationError):
        ask(server.address, "/", tls=ssl.create_default_context())


def test_an_inline_certificate_is_served(pki: Pki) -> None:
    config = pki.directory / "web.yml"
    cert, key = (
        "".join(f"    {line}\n" for line in (pki.directory / name).read_text("ascii").splitlines())
        for name in ("server.crt", "server.key")
    )
    config.write_text(f"tls_server_config:\n  cert: |\n{cert}  key: |\n{key}", encoding="utf-8")
    with serving(web_config=config) as server:
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_a_version_below_the_minimum_is_rejected(pki: Pki) -> None:
    old = pki.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(web_config=pki.config("  min_version: TLS13\n")) as server:
        with pytest.raises(ssl.SSLError):
            ask(server.address, "/", tls=old)
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_only_the_listed_cipher_suites_are_accepted(pki: Pki) -> None:
    suite = "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n"
    other = pki.client()
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with serving(web_config=pki.config(suite)) as server:
        with pytest.raises(ssl.SSLError):
            ask(server.address, "/", tls=other)
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_plain_text_on_a_tls_port_gets_a_hint(pki: Pki) -> None:
    with serving(web_config=pki.config()) as server:
        answer = ask(server.address, "/")
        assert (answer.status, answer.body) == (400, "this port requires TLS; use https://\n")


@pytest.mark.parametrize("raw", [b"", b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x00garbage"])
def test_an_invalid_handshake_affects_its_connection_only(
    pki: Pki, raw: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(web_config=pki.config()) as server:
        say(server.address, raw)
        assert ask(server.address, "/", tls=pki.client()).status == 200
    assert capfd.readouterr() == ("", "")


def test_a_connection_ends_with_a_close_notify(pki: Pki) -> None:
    strict = pki.client()
    with (
        serving(web_config=pki.config()) as server,
        socket.create_connection((server.address.host, server.address.port), timeout=PATIENCE_S) as plain,
        strict.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client,
    ):
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        response = b""
        while chunk := client.recv(65536):  # raises without a close_notify
            response += chunk
    assert response.endswith(b"hello \n")


def test_an_invalid_web_configuration_is_an_error_before_the_address_is_bound(pki: Pki) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UsageError, match="cert_file"),
        serving(ROUTES, address=Address("127.0.0.1", taken.getsockname()[1]), web_config=pki.config(cert="none.crt")),
    ):
        pass


# ---------------------------------------------------------------------------- client certificates


def test_a_client_certificate_of_the_authority_is_accepted(pki: Pki) -> None:
    with serving(web_config=pki.config(mutual("RequireAndVerifyClientCert"))) as server:
        client = pki.client(pki.ca.issue_cert("prometheus.example"))
        assert ask(server.address, "/", tls=client).status == 200


def test_no_certificate_and_one_of_another_authority_are_rejected(pki: Pki) -> None:
    other = trustme.CA().issue_cert("prometheus.example")
    with serving(web_config=pki.config(mutual("RequireAndVerifyClientCert"))) as server:
        for certificate in (None, other):
            with pytest.raises(REJECTED):
                ask(server.address, "/", tls=pki.client(certificate))


def test_an_optional_certificate_is_verified_if_given(pki: Pki) -> None:
    with serving(web_config=pki.config(mutual("VerifyClientCertIfGiven"))) as server:
        assert ask(server.address, "/", tls=pki.client()).status == 200
        assert ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("a.example"))).status == 200
        with pytest.raises(REJECTED):
            ask(server.address, "/", tls=pki.client(trustme.CA().issue_cert("a.example")))


def test_only_certificates_with_an_allowed_name_are_accepted(pki: Pki) -> None:
    names = "  client_allowed_sans: [prometheus.example]\n"
    with serving(web_config=pki.config(mutual("RequireAndVerifyClientCert") + names)) as server:
        assert ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("a", "prometheus.example"))).status == 200
        with pytest.raises(REJECTED):
            ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("grafana.example")))


# ---------------------------------------------------------------------------- passwords and headers


def test_the_correct_password_gives_access_to_every_path(users: WebListener) -> None:
    assert [
        ask(users.address, path, headers={"Authorization": basic("alice", "right")}).status
        for path in ("/", "/healthz", "/x")
    ] == [
        200,
        200,
        404,
    ]


@pytest.mark.parametrize("authorization", [None, basic("alice", "wrong"), basic("mallory", "right"), "x"])
@pytest.mark.parametrize("path", ["/", "/healthz", "/none"])
def test_without_the_password_every_path_gives_401(users: WebListener, authorization: str | None, path: str) -> None:
    answer = ask(users.address, path, headers={} if authorization is None else {"Authorization": authorization})
    assert (answer.status, answer.body) == (401, "user name and password required\n")
    assert answer.headers["WWW-Authenticate"] == "Basic"


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_other_methods_need_the_password_as_well(users: WebListener, method: str) -> None:
    assert ask(users.address, "/", method).status == 401


def test_configured_headers_are_sent_and_an_empty_one_is_removed(users: WebListener) -> None:
    headers = ask(users.address, "/").headers
    assert headers["X-Frame-Options"] == "deny"
    assert "Content-Security-Policy" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_changed_web_configuration_applies_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("otel_gpu.web.access_policy._CHECK_S", 0.01)
    caplog.set_level(logging.INFO)
    path = tmp_path / "web.yml"

    def write(password: str, option: str) -> None:
        users = f"basic_auth_users:\n  alice: {bcrypt_hash(password)}\n"
        write_atomically(path, f"{users}http_server_config:\n  headers:\n    X-Frame-Options: {option}\n")

    request = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('alice', 'right')}\r\n\r\n".encode()
    write("right", "deny")
    found = []
    with serving(web_config=path) as server:
        for password, option in (("right", "deny"), ("other", "deny"), ("right", "sameorigin")):
            caplog.clear()
            write(password, option)
            wait_until(lambda: "the web configuration has changed and is applied" in caplog.messages)
            for _ in range(2):
                response = say(server.address, request)
                found.append((response[9:12], b"\r\nX-Frame-Options: %s\r\n" % option.encode() in response))
    assert found == [(b"200", True)] * 2 + [(b"401", True)] * 2 + [(b"200", True)] * 2


def test_many_tls_clients_are_served_beside_unfinished_handshakes(pki: Pki) -> None:
    with serving(web_config=pki.config()) as server, ExitStack() as stack:
        for number in range(30):
            connect(stack, server.address, (b"", b"\x16\x03", b"\x16\x03\x01\x00\x05hello", b"GET / HT")[number % 4])
        context = pki.client()
        pool = stack.enter_context(ThreadPoolExecutor(20))
        statuses = list(pool.map(lambda _: ask(server.address, "/", tls=context).status, range(60)))
    assert statuses == [200] * 60
