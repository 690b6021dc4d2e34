"""Names from an engine over TCP and TLS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from otel_gpu.model import SourceState
from otel_gpu.sources.names.docker import DockerTls
from tests.docker_api import Bad, DockerApi, serving_docker
from tests.unit.sources.names.docker.conftest import MakeSource, first_read, names, unavailable
from tests.waiting import until

LOOPBACK = "127.0.0.1"


def test_an_engine_over_tcp_ignores_proxies_in_the_environment(
    make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving_docker(DockerApi(), (LOOPBACK, 0)) as api:
        api.run(1, "llm")
        source = make_source(api.base_url)
        assert first_read(source).state is SourceState.OK
        api.start(2, "two")
        until(lambda: names(source) == {"llm", "two"})
        source.close()


def test_an_answer_over_tcp_that_arrives_byte_by_byte_ends_at_the_deadline(make_source: MakeSource) -> None:
    with serving_docker(DockerApi(), (LOOPBACK, 0)) as api:
        api.bad["/version"] = Bad(drips=b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        assert "no answer to GET /version within 0.3 s" in unavailable(make_source(api.base_url, timeout_s=0.3))


@contextmanager
def served_with_tls(authority: trustme.CA, host: str = LOOPBACK, *, mutual: bool = False) -> Iterator[DockerApi]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    with serving_docker(DockerApi(), (LOOPBACK, 0), context) as api:
        api.run(1, "llm")
        yield api


def written(authority: trustme.CA, directory: Path) -> DockerTls:
    """The files that DOCKER_CERT_PATH has."""
    ca, cert, key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    own = authority.issue_cert("client@example.org")
    own.cert_chain_pems[0].write_to_path(str(cert))
    own.private_key_pem.write_to_path(str(key))
    return DockerTls(ca, cert, key)


def test_mutual_tls(make_source: MakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "of-another-host.pem"))
    with served_with_tls(authority, mutual=True) as api:
        source = make_source(api.base_url, tls=written(authority, tmp_path))
        assert first_read(source).state is SourceState.OK
        key = api.start(2, "two")
        until(lambda: key in source.read({}).known)
        source.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "otel-gpu-events"]


def test_a_certificate_of_another_ca_is_rejected(make_source: MakeSource, tmp_path: Path) -> None:
    with served_with_tls(trustme.CA()) as api:
        reason = unavailable(make_source(api.base_url, tls=written(trustme.CA(), tmp_path)))
        assert "certificate not trusted" in reason
        assert not api.requests


def test_a_certificate_for_another_host_is_rejected(make_source: MakeSource, tmp_path: Path) -> None:
    authority = trustme.CA()
    with served_with_tls(authority, "elsewhere.example.org") as api:
        reason = unavailable(make_source(api.base_url, tls=written(authority, tmp_path)))
        assert "certificate not trusted" in reason
        assert not api.requests


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_verification_can_be_switched_off(make_source: MakeSource) -> None:
    with served_with_tls(trustme.CA()) as api:
        source = make_source(api.base_url, tls=DockerTls(verify=False))
        assert first_read(source).state is SourceState.OK
        source.close()


def test_a_missing_client_certificate_is_a_reason(make_source: MakeSource, tmp_path: Path) -> None:
    authority = trustme.CA()
    with served_with_tls(authority, mutual=True) as api:
        tls = DockerTls(ca=written(authority, tmp_path).ca)
        assert unavailable(make_source(api.base_url, tls=tls))
        assert not api.requests


def test_missing_and_invalid_certificate_files_are_reasons(make_source: MakeSource, tmp_path: Path) -> None:
    authority = trustme.CA()
    missing = tmp_path / "missing.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage", encoding="ascii")
    with served_with_tls(authority) as api:
        for tls in (
            DockerTls(ca=missing),
            DockerTls(ca=garbage),
            DockerTls(ca=written(authority, tmp_path).ca, cert=missing, key=missing),
            DockerTls(ca=written(authority, tmp_path).ca, cert=garbage, key=garbage),
        ):
            assert unavailable(make_source(api.base_url, tls=tls))


def test_plain_text_to_an_engine_with_tls_is_a_reason(make_source: MakeSource) -> None:
    with served_with_tls(trustme.CA()) as api:
        assert unavailable(make_source(api.base_url))
