"""Requests for other hosts on loopback, as a browser sends them after DNS rebinding."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from otel_gpu.config.values import Address, host_names
from tests.unit.web.harness import ROUTES, basic, bcrypt_hash, serving, write_atomically
from tests.unit.web.pki import Pki
from tests.web import ask


def status(address: Address, host: str) -> int:
    return ask(Address("127.0.0.1", address.port), "/", headers={"Host": host}).status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9464",
        "localhost.",
        "app.localhost",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.8.9.10",
        "[::1]",
        "[::1]:9464",
        "[::ffff:127.0.0.1]",
        socket.gethostname(),
        f"{socket.gethostname().upper()}:80",
        "",
    ],
)
def test_names_of_this_host_are_answered(host: str) -> None:
    with serving(ROUTES) as server:
        assert status(server.address, host) == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "attacker.example:9464", "localhost.attacker.example", "xlocalhost", "10.0.0.1", "[::2]", "[",
     "127.0.0.1.nip.io", "0x7f.1"],
)  # fmt: skip
def test_other_hosts_are_refused_with_the_setting_that_allows_them(host: str) -> None:
    with serving(ROUTES) as server:
        answer = ask(server.address, "/", headers={"Host": host})
    text = f"the host {host} is not allowed here; allow it with --allowed-hosts\n"
    assert (answer.status, answer.body) == (421, text)


def test_allowed_hosts_and_the_configured_name_are_answered() -> None:
    with serving(ROUTES, allowed_hosts=("gpu.example", "10.0.0.1")) as server:
        hosts = ("gpu.example", "GPU.example:443", "10.0.0.1", "other.example", "a.gpu.example")
        assert [status(server.address, host) for host in hosts] == [200, 200, 200, 421, 421]
    with serving(ROUTES, allowed_hosts=("*",)) as server:
        assert status(server.address, "anything.example") == 200


def test_a_listener_beyond_loopback_answers_any_host() -> None:
    with serving(ROUTES, address=Address("0.0.0.0", 0)) as server:
        assert status(server.address, "gpu.example") == 200


def test_with_a_password_any_host_is_answered(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "web.yml", f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\n")
    with serving(ROUTES, web_config=path) as server:
        headers = {"Host": "gpu.example", "Authorization": basic("alice", "right")}
        assert ask(server.address, "/", headers=headers).status == 200


@pytest.mark.parametrize(
    ("client_auth", "expected"), [("RequireAndVerifyClientCert", 200), ("VerifyClientCertIfGiven", 421)]
)
def test_only_required_client_certificates_replace_the_check(pki: Pki, client_auth: str, expected: int) -> None:
    config = pki.config(f"  client_auth_type: {client_auth}\n  client_ca_file: ca.crt\n")
    tls = pki.client(pki.ca.issue_cert("prometheus.example"))
    with serving(ROUTES, web_config=config) as server:
        assert ask(server.address, "/", headers={"Host": "gpu.example"}, tls=tls).status == expected


def test_host_names_are_names_or_addresses_without_ports() -> None:
    assert host_names(" a.example, [::1] ,*,a.example,10.0.0.1,") == ("a.example", "::1", "*", "10.0.0.1")
    assert host_names("") == ()
    for text in ("a:80", "http://a", "a b", "a/b", "*.a", "[a]"):
        with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
            host_names(text)
