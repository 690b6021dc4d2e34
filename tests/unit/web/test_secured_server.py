"""The server behind TLS, client certificates and passwords, over real sockets."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest
import trustme

from otel_gpu.errors import UsageError
from otel_gpu.values import Address
from otel_gpu.web.server import Limits, WebServer
from tests.unit.web.pki import ROUTES, Pki, serving
from tests.web import PATIENCE_S, ask, say

REFUSED = (ssl.SSLError, ConnectionError)
"""How a client learns that its certificate is not good enough: by an alert, or by the end of the connection."""


def mutual(kind: str) -> str:
    return f"  client_auth_type: {kind}\n  client_ca_file: ca.crt\n"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    path = tmp_path_factory.mktemp("users") / "web.yml"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    path.write_text(
        f"basic_auth_users:\n  alice: {hashed}\n"
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: ''\n",
        encoding="utf-8",
    )
    with serving(path) as server:
        yield server


# ---------------------------------------------------------------------------- TLS


def test_over_tls_the_same_is_served_and_the_url_says_https(pki: Pki) -> None:
    with serving(pki.config()) as server:
        answer = ask(server.address, "/?x=1", tls=pki.client())
        assert (answer.status, answer.body) == (200, "hello x=1\n")
        assert server.url == f"https://127.0.0.1:{server.address.port}"


def test_who_does_not_trust_the_authority_does_not_connect(pki: Pki) -> None:
    with serving(pki.config()) as server, pytest.raises(ssl.SSLCertVerificationError):
        ask(server.address, "/", tls=ssl.create_default_context())


def test_a_certificate_that_stands_in_the_file_itself_serves_as_well(pki: Pki) -> None:
    config = pki.directory / "web.yml"
    cert, key = (
        "".join(f"    {line}\n" for line in (pki.directory / name).read_text("ascii").splitlines())
        for name in ("server.crt", "server.key")
    )
    config.write_text(f"tls_server_config:\n  cert: |\n{cert}  key: |\n{key}", encoding="utf-8")
    with serving(config) as server:
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_a_version_below_the_least_is_refused(pki: Pki) -> None:
    old = pki.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(pki.config("  min_version: TLS13\n")) as server:
        with pytest.raises(ssl.SSLError):
            ask(server.address, "/", tls=old)
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_only_the_suites_that_are_listed_are_spoken(pki: Pki) -> None:
    suite = "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n"
    other = pki.client()
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with serving(pki.config(suite)) as server:
        with pytest.raises(ssl.SSLError):
            ask(server.address, "/", tls=other)
        assert ask(server.address, "/", tls=pki.client()).status == 200


def test_plain_text_to_a_tls_port_is_told_what_to_do(pki: Pki) -> None:
    with serving(pki.config()) as server:
        answer = ask(server.address, "/")
        assert (answer.status, answer.body) == (400, "this port speaks TLS; ask for https://\n")


@pytest.mark.parametrize("raw", [b"", b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x00garbage"])
def test_what_is_no_handshake_costs_nothing_but_its_connection(
    pki: Pki, raw: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(pki.config()) as server:
        say(server.address, raw)
        assert ask(server.address, "/", tls=pki.client()).status == 200
    assert capfd.readouterr() == ("", "")


def test_a_connection_ends_as_tls_says_it_should(pki: Pki) -> None:
    strict = pki.client()
    with (
        serving(pki.config()) as server,
        socket.create_connection((server.address.host, server.address.port), timeout=PATIENCE_S) as plain,
        strict.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client,
    ):
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answered = b""
        while chunk := client.recv(65536):  # raises if it is cut off instead of closed
            answered += chunk
    assert answered.endswith(b"hello \n")


def test_bad_protection_is_refused_before_the_address_is_bound(pki: Pki) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cert_file"):
        WebServer(Address("127.0.0.1", taken.getsockname()[1]), ROUTES, pki.config(cert="none.crt"))


# ---------------------------------------------------------------------------- client certificates


def test_a_client_with_a_certificate_of_the_authority_comes_in(pki: Pki) -> None:
    with serving(pki.config(mutual("RequireAndVerifyClientCert"))) as server:
        client = pki.client(pki.ca.issue_cert("prometheus.example"))
        assert ask(server.address, "/", tls=client).status == 200


def test_a_client_without_a_certificate_or_with_anybody_elses_does_not(pki: Pki) -> None:
    stranger = trustme.CA().issue_cert("prometheus.example")
    with serving(pki.config(mutual("RequireAndVerifyClientCert"))) as server:
        for certificate in (None, stranger):
            with pytest.raises(REFUSED):
                ask(server.address, "/", tls=pki.client(certificate))


def test_a_certificate_that_is_optional_is_verified_where_it_is_given(pki: Pki) -> None:
    with serving(pki.config(mutual("VerifyClientCertIfGiven"))) as server:
        assert ask(server.address, "/", tls=pki.client()).status == 200
        assert ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("a.example"))).status == 200
        with pytest.raises(REFUSED):
            ask(server.address, "/", tls=pki.client(trustme.CA().issue_cert("a.example")))


def test_of_the_authoritys_certificates_only_those_with_an_allowed_name_come_in(pki: Pki) -> None:
    names = "  client_allowed_sans: [prometheus.example]\n"
    with serving(pki.config(mutual("RequireAndVerifyClientCert") + names)) as server:
        assert ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("a", "prometheus.example"))).status == 200
        with pytest.raises(REFUSED):
            ask(server.address, "/", tls=pki.client(pki.ca.issue_cert("grafana.example")))


# ---------------------------------------------------------------------------- passwords and headers


def test_the_right_password_opens_every_path(users: WebServer) -> None:
    assert [ask(users.address, path, headers=basic("alice", "right")).status for path in ("/", "/healthz", "/x")] == [
        200,
        200,
        404,
    ]


@pytest.mark.parametrize("headers", [{}, basic("alice", "wrong"), basic("mallory", "right"), {"Authorization": "x"}])
@pytest.mark.parametrize("path", ["/", "/healthz", "/none"])
def test_without_it_nothing_is_told_but_that_one_is_needed(
    users: WebServer, headers: dict[str, str], path: str
) -> None:
    answer = ask(users.address, path, headers=headers)
    assert (answer.status, answer.body) == (401, "a user and a password are needed\n")
    assert answer.headers["WWW-Authenticate"] == "Basic"


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_other_methods_need_it_too(users: WebServer, method: str) -> None:
    assert ask(users.address, "/", method).status == 401


def test_headers_are_set_and_a_blank_one_is_left_out(users: WebServer) -> None:
    headers = ask(users.address, "/").headers
    assert headers["X-Frame-Options"] == "deny"
    assert "Content-Security-Policy" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_same_request_is_judged_anew_when_the_configuration_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"

    def write(password: bytes, option: str) -> None:
        hashed = bcrypt.hashpw(password, bcrypt.gensalt(4)).decode()
        text = f"basic_auth_users:\n  alice: {hashed}\nhttp_server_config:\n  headers:\n    X-Frame-Options: {option}\n"
        (tmp_path / "new").write_text(text, encoding="utf-8")
        (tmp_path / "new").replace(path)

    asked = b"GET / HTTP/1.1\r\nAuthorization: Basic YWxpY2U6cmlnaHQ=\r\n\r\n"
    write(b"right", "deny")
    found = []
    with serving(path) as server:
        for password, option in ((b"right", "deny"), (b"other", "deny"), (b"right", "sameorigin")):
            write(password, option)
            for _ in range(2):
                answered = say(server.address, asked)
                found.append((answered[9:12], b"\r\nX-Frame-Options: %s\r\n" % option.encode() in answered))
    assert found == [(b"200", True)] * 2 + [(b"401", True)] * 2 + [(b"200", True)] * 2


# ---------------------------------------------------------------------------- clients that take their time


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_clients_that_say_nothing_do_not_keep_others_waiting(pki: Pki, tls: bool) -> None:
    with serving(pki.config() if tls else None) as server:
        where = (server.address.host, server.address.port)
        silent = [socket.create_connection(where, timeout=PATIENCE_S) for _ in range(5)]
        try:
            assert ask(server.address, "/", tls=pki.client() if tls else None).status == 200
        finally:
            for client in silent:
                client.close()


def test_over_tls_many_are_served_beside_those_who_never_finish_their_handshake(pki: Pki) -> None:
    with serving(pki.config()) as server, ExitStack() as stack:
        where = (server.address.host, server.address.port)
        for number in range(30):
            rude = stack.enter_context(socket.create_connection(where, timeout=PATIENCE_S))
            rude.sendall((b"", b"\x16\x03", b"\x16\x03\x01\x00\x05hello", b"GET / HT")[number % 4])
        context = pki.client()
        pool = stack.enter_context(ThreadPoolExecutor(20))
        answers = list(pool.map(lambda _: ask(server.address, "/", tls=context).status, range(60)))
    assert answers == [200] * 60


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
@pytest.mark.parametrize("said", [b"", b"\x16\x03", b"GET / HTTP/1.0\r\nX: "])
def test_a_client_that_never_comes_to_the_end_is_let_go(pki: Pki, tls: bool, said: bytes) -> None:
    with (
        serving(pki.config() if tls else None, Limits(slowest_client_s=0.2)) as server,
        socket.create_connection((server.address.host, server.address.port), timeout=PATIENCE_S) as client,
    ):
        client.sendall(said)
        while client.recv(65536):  # an alert or an error page may come first
            pass


def test_a_drop_now_and_then_does_not_keep_a_connection(pki: Pki) -> None:
    with (
        serving(limits=Limits(slowest_client_s=0.3)) as server,
        socket.create_connection((server.address.host, server.address.port), timeout=0.1) as client,
    ):
        client.sendall(b"GET / HTTP/1.0\r\n")
        for _ in range(300):  # 30 s; the server's patience is 0.3 s for all of it, not for each drop
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server waits for ever")


def test_where_all_places_are_taken_the_slowest_is_cut_off_and_it_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(limits=Limits(slowest_client_s=30, most_connections=2)) as server, caplog.at_level(logging.INFO):
        where = (server.address.host, server.address.port)
        silent = [socket.create_connection(where, timeout=PATIENCE_S) for _ in range(4)]
        try:
            assert [ask(server.address, "/").status for _ in range(3)] == [200] * 3
            assert [client.recv(1) for client in silent[:3]] == [b""] * 3
        finally:
            for client in silent:
                client.close()
    assert caplog.messages == ["2 connections are open; for each more, the slowest is cut off; told once"]


def test_a_request_of_endless_headers_is_too_large() -> None:
    line = b"GET / HTTP/1.0\r\n"
    header = b"X: %s\r\n" % (b"x" * 60_000)
    endless = line + header * 3
    with serving() as server:
        # As much as is read and no more: what is left unread turns the end of the connection into a reset.
        assert say(server.address, endless[: 128 * 1024]).startswith(b"HTTP/1.1 431 ")
        assert ask(server.address, "/").status == 200
