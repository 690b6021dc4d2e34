"""Requests to the API server, and the reasons of failures."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from otel_gpu.clock import SystemClock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.sources.names.kubernetes.api import MAX_RETRY_AFTER_S, ApiClient, ApiServer, Busy, in_cluster
from tests.kubernetes_api import Fault, KubernetesApi, container, hex_id, pod

PODS = "/api/v1/pods"
QUERY = {"fieldSelector": "spec.nodeName=gpu-node-1"}


def asking(server: ApiServer, timeout_s: float = 5.0) -> ApiClient:
    return ApiClient(server, SystemClock(), timeout_s)


def failure(server: ApiServer, timeout_s: float = 5.0, kind: type[Exception] = Unavailable) -> str:
    """The reason of a failed request: one line."""
    with pytest.raises(kind) as failed:
        asking(server, timeout_s).get(PODS, QUERY)
    text = str(failed.value)
    assert "\n" not in text
    return text


@contextlib.contextmanager
def listening(said: bytes = b"") -> Iterator[int]:
    """A port with a server that is not an API server; without bytes it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(1000)
                    connection.sendall(said) if said else connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


# ---------------------------------------------------------------------------- where the API is


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t", encoding="ascii")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("10.96.0.1", "10.96.0.1", "https://10.96.0.1:443"),
        ("fd00:10:96::1", "fd00:10:96::1", "https://[fd00:10:96::1]:443"),
        ("[fd00::1]", "fd00::1", "https://[fd00::1]:443"),
    ],
)
def test_in_a_cluster_the_environment_has_the_address(service_account: Path, host: str, address: str, url: str) -> None:
    found = in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}, service_account)

    assert found == ApiServer(address, 443, service_account / "ca.crt", service_account / "token")
    assert found.url == url


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
        {"KUBERNETES_SERVICE_PORT": "443"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "https"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "70000"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "0"},
        {"KUBERNETES_SERVICE_HOST": "", "KUBERNETES_SERVICE_PORT": "443"},
    ],
)
def test_outside_a_cluster_there_is_no_api(service_account: Path, environment: dict[str, str]) -> None:
    assert in_cluster(environment, service_account) is None


def test_without_a_service_account_there_is_no_api(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    assert in_cluster(environment, tmp_path / "missing") is None


# ---------------------------------------------------------------------------- answers


def test_an_answer_is_json_and_each_request_has_its_connection(api: KubernetesApi) -> None:
    api.put(pod("p", container(hex_id(1))))
    client = asking(api.server)

    answers = [client.get(PODS, QUERY) for _ in range(3)]

    assert all(isinstance(answer, dict) and len(answer["items"]) == 1 for answer in answers)
    assert [request.token for request in api.requests] == ["first"] * 3


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_is_used_and_verified(tmp_path: Path) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on the loopback")
    server = KubernetesApi(tmp_path, host="::1")
    try:
        assert isinstance(asking(server.server).get(PODS, QUERY), dict)
    finally:
        server.close()


def test_an_intermediate_ca_is_trusted(tmp_path: Path, api: KubernetesApi) -> None:
    intermediate = api.authority.create_child_ca()
    intermediate.cert_pem.write_to_path(api.ca_file)
    intermediate.issue_cert("127.0.0.1").configure_cert(api.tls)

    assert isinstance(asking(api.server).get(PODS, QUERY), dict)


# ---------------------------------------------------------------------------- no answers


def test_a_certificate_of_another_ca_is_rejected_before_the_token_is_sent(tmp_path: Path, api: KubernetesApi) -> None:
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(other)

    said = failure(replace(api.server, ca_file=other))

    assert "its certificate is not trusted: unable to get local issuer certificate" in said
    assert f"the CA file is {other}" in said
    assert api.requests == []


def test_a_certificate_with_another_host_name_is_rejected(tmp_path: Path) -> None:
    server = KubernetesApi(tmp_path, "kubernetes.default.svc", "10.0.0.7")
    try:
        said = failure(server.server)
    finally:
        server.close()

    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in said
    assert server.requests == []


def test_a_missing_or_invalid_ca_file_is_a_reason(tmp_path: Path, api: KubernetesApi) -> None:
    missing = failure(replace(api.server, ca_file=tmp_path / "none"))
    api.ca_file.write_text("hello", encoding="ascii")

    assert missing.startswith(f"CA file {tmp_path / 'none'}: No such file or directory; mount")
    assert failure(api.server) == f"CA file {api.ca_file}: it contains no PEM certificate"


@pytest.mark.parametrize("token", ["", " \n", "two words", "line\nbreak", "ü"])
def test_a_token_file_without_a_token_is_a_reason(api: KubernetesApi, token: str) -> None:
    api.token_file.write_text(token, encoding="utf-8")

    assert failure(api.server) == f"token file {api.token_file}: it contains no token"
    assert api.requests == []


def test_a_missing_token_file_is_a_reason(api: KubernetesApi) -> None:
    api.token_file.unlink()

    assert failure(api.server).startswith(f"token file {api.token_file}: No such file or directory; mount")


def test_a_mounted_file_that_is_too_large_is_a_reason(api: KubernetesApi) -> None:
    ca = api.ca_file.read_bytes()
    api.ca_file.write_bytes(ca + b"\n" * (1 << 20))
    assert failure(api.server) == f"CA file {api.ca_file}: it is over 1 MiB"
    api.ca_file.write_bytes(ca)
    api.token_file.write_bytes(b"x" * (1 << 17))
    assert failure(api.server) == f"token file {api.token_file}: it is over 65,536 bytes"


def test_the_reason_for_a_forbidden_list_has_the_fix(api: KubernetesApi) -> None:
    message = 'pods is forbidden: User \\"system:serviceaccount:gpu:agent\\" cannot list resource \\"pods\\"'
    api.faults.append(Fault(403, body=f'{{"kind": "Status", "message": "{message}"}}'.encode()))

    said = failure(api.server)

    assert '403 pods is forbidden: User "system:serviceaccount:gpu:agent" cannot list' in said
    assert said.endswith("apply the ClusterRole with list and watch on pods and bind it to the agent's service account")


def test_an_expired_version_is_gone(api: KubernetesApi) -> None:
    api.faults.append(Fault(410, body=b'{"message": "too old"}'))

    assert "410 too old" in failure(api.server, kind=Gone)


@pytest.mark.parametrize(
    ("after", "wait_s"), [("7", 7.0), ("0", 1.0), ("86400", MAX_RETRY_AFTER_S), ("9" * 400, MAX_RETRY_AFTER_S)]
)
def test_a_busy_servers_pause_is_bounded(api: KubernetesApi, after: str, wait_s: float) -> None:
    api.faults.append(Fault(429, headers={"Retry-After": after}))

    with pytest.raises(Busy) as failed:
        asking(api.server).get(PODS, QUERY)

    assert failed.value.wait_s == wait_s


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}])
def test_a_busy_server_without_a_number_is_unavailable(api: KubernetesApi, headers: dict[str, str]) -> None:
    api.faults.append(Fault(429, headers=headers))

    assert "429 Too Many Requests" in failure(api.server)


def test_the_reason_for_a_refused_connection_says_what_to_check(api: KubernetesApi) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    said = failure(replace(api.server, port=port))

    assert said.startswith(f"https://127.0.0.1:{port}: connection refused; check KUBERNETES_SERVICE_HOST and")


@pytest.mark.parametrize("host", ["no-such-host.invalid", ".x", "a\nb", "ü" * 80, "x" * 300])
def test_an_unknown_host_is_a_reason(api: KubernetesApi, host: str) -> None:
    with pytest.raises(Unavailable):
        asking(replace(api.server, host=host)).get(PODS, QUERY)


def test_a_silent_server_is_a_timeout(api: KubernetesApi) -> None:
    with listening() as port:
        assert "no answer in time" in failure(replace(api.server, port=port), timeout_s=0.2)


def test_a_late_answer_of_the_api_is_a_timeout(api: KubernetesApi) -> None:
    api.faults.append(Fault(200, delay_s=20))

    assert "no answer in time" in failure(api.server, timeout_s=0.1)


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status": b"HTTP/1.1 2",
    "headers": OK + b"X: ",
    "body": OK + b"Content-Length: 1000000\r\n\r\n",
    "size of a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n",
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n",
    "trailer": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    "refusal": b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n",
}
"""Beginnings of answers that never end, each by the part that follows byte by byte."""


@pytest.mark.parametrize("drips", DRIPS.values(), ids=DRIPS)
def test_an_answer_that_arrives_byte_by_byte_ends_at_the_deadline(api: KubernetesApi, drips: bytes) -> None:
    api.faults.append(Fault(drips=drips))
    started_s = time.monotonic()
    assert "no answer in time" in failure(api.server, timeout_s=0.1)
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("drips", [DRIPS[part] for part in ("headers", "size of a chunk", "chunk")])
def test_a_watch_that_arrives_byte_by_byte_ends_at_the_deadline(api: KubernetesApi, drips: bytes) -> None:
    api.faults.append(Fault(drips=drips))
    started_s = time.monotonic()
    with pytest.raises(Unavailable, match="no answer in time"):
        list(asking(api.server, timeout_s=0.1).stream(PODS, {**QUERY, "watch": "1"}, max_s=0.5))
    assert time.monotonic() - started_s < 5


def test_a_server_without_tls_is_a_reason(api: KubernetesApi) -> None:
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "TLS failed: " in failure(replace(api.server, port=port))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the connection was cut"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP: BadStatusLine"),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"items"', "the connection was cut"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "the connection was cut"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"items": [', "not JSON, cut after 11 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "the answer is not JSON; is this the API server?"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "the answer is not JSON; is this the API server?"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", "302 Found"),
        (b"HTTP/1.1 500 a\tb\r\n\r\n\xff", r"500 a b"),
    ],
)
def test_an_invalid_answer_of_the_api_is_a_reason(api: KubernetesApi, raw: bytes, said: str) -> None:
    api.faults.append(Fault(raw=raw))

    assert said in failure(api.server)


def test_an_encoded_answer_is_rejected(api: KubernetesApi) -> None:
    api.faults.append(Fault(200, headers={"Content-Encoding": "gzip"}, body=gzip.compress(b"{}")))

    assert failure(api.server).endswith("the answer is encoded as gzip")


def test_a_list_of_150_mib_is_rejected_at_the_limit(api: KubernetesApi) -> None:
    api.faults.append(Fault(200, body=b" " * (150 << 20)))

    assert failure(api.server).endswith("the answer is over 8 MiB")


@pytest.mark.parametrize("raw", [OK + b"X: y\r\n" * 200_000, OK + b"X: " + b"y" * (1 << 20)], ids=["many", "long"])
def test_headers_without_end_are_rejected(api: KubernetesApi, raw: bytes) -> None:
    api.faults.append(Fault(raw=raw))

    assert "is this the API server?" in failure(api.server)


def test_a_long_error_body_is_cut(api: KubernetesApi) -> None:
    api.faults.append(Fault(502, body=b"<html>" * 100_000))

    assert failure(api.server).endswith("502 Bad Gateway")


# ---------------------------------------------------------------------------- streams


def test_a_silent_watch_is_a_timeout(api: KubernetesApi) -> None:
    query = QUERY | {"watch": "1", "resourceVersion": "1000", "timeoutSeconds": "300"}
    batches = asking(api.server).stream(PODS, query, max_s=0.3)

    assert next(batches) == ()
    with pytest.raises(Unavailable, match="no answer in time"):
        next(batches)


def test_a_closed_client_sends_no_request(api: KubernetesApi) -> None:
    client = asking(api.server)
    client.close()

    with pytest.raises(Unavailable, match="closed"):
        client.get(PODS, QUERY)
    assert api.requests == []
