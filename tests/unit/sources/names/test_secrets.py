"""Secrets of name sources: no log line or reason has the cluster's token or an engine's key."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
import trustme

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState
from otel_gpu.sources.names.docker import DockerSource, DockerTls
from otel_gpu.sources.names.kubernetes import KubernetesSource
from tests.docker_api import DockerApi, serving_docker
from tests.kubernetes_api import NODE, KubernetesApi

TOKEN = "swordfish-of-the-cluster"
KEY = "swordfish-in-a-key"
PATIENCE_S = 20.0


def test_the_token_is_only_sent_to_the_api(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = KubernetesApi(tmp_path)
    api.token_file.write_text(TOKEN, encoding="utf-8")  # another than the server accepts: it refuses with a message
    source = KubernetesSource(api.server, node_name=NODE, clock=SystemClock(), timeout_s=5.0)
    try:
        with caplog.at_level(logging.DEBUG):
            source.read({})
            assert source.wait(PATIENCE_S)
            read = source.read({})
    finally:
        source.close()
        api.close()
    assert TOKEN in [request.token for request in api.requests]
    assert TOKEN not in caplog.text + str(read)
    assert read.state is SourceState.UNAVAILABLE


@pytest.mark.parametrize("broken", ["key", "nothing"])
def test_the_content_of_a_key_file_is_not_reported(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    other.cert_pem.write_to_path(str(ca))  # so that the engine is not trusted
    own = authority.issue_cert("client@example.org")
    own.cert_chain_pems[0].write_to_path(str(cert))
    own.private_key_pem.write_to_path(str(key))
    secret = KEY if broken == "key" else key.read_text("ascii").splitlines()[1]
    if broken == "key":
        key.write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n", encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving_docker(DockerApi(), ("127.0.0.1", 0), context) as api, caplog.at_level(logging.DEBUG):
        source = DockerSource("docker", api.base_url, clock=SystemClock(), tls=DockerTls(ca, cert, key))
        try:
            source.read({})
            assert source.wait(PATIENCE_S)
            read = source.read({})
        finally:
            source.close()
    assert read.state is SourceState.UNAVAILABLE
    assert secret not in caplog.text + str(read)
