from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus

import pytest

from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import WebServer
from tests.unit.web.harness import HTTP_1_0, serving
from tests.web import ANY_PORT, ask, say


def broken(_: Request) -> Response:
    raise RuntimeError("a secret")


def echo(request: Request) -> Response:
    return Response(f"{request.path} {request.query} {request.headers.get('accept')} {request.headers.get('x-a')}")


ROUTES: Mapping[str, Route] = {
    "/echo": echo,
    "/large": lambda _: Response(b"gpu_up 1\n" * 1000, "text/plain; version=0.0.4"),
    "/": lambda _: Response("<p>page</p>", "text/html; charset=utf-8"),
    "/unavailable": lambda _: Response("not now\n", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/wide": lambda _: Response("模型 \ud800"),
    "/broken": broken,
}


@pytest.fixture(scope="module")
def web() -> Iterator[Address]:
    with serving(ROUTES) as server:
        yield server.address


def test_a_response_has_body_type_and_length(web: Address) -> None:
    answer = ask(web, "/")
    assert (answer.status, answer.body) == (200, "<p>page</p>")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Length"] == "11"


def test_a_route_sets_the_status(web: Address) -> None:
    answer = ask(web, "/unavailable")
    assert (answer.status, answer.body) == (503, "not now\n")


@pytest.mark.parametrize("path", ["/none", "/unavailable/", "/../etc/passwd", "/%2e%2e", "*"])
def test_an_unknown_path_gives_404_with_the_available_paths(web: Address, path: str) -> None:
    answer = ask(web, path)
    assert answer.status == 404
    assert "/  /broken  /echo  /large  /unavailable  /wide" in answer.body
    assert path not in answer.body.split("available paths")[0]  # the requested path is not echoed


def test_a_route_receives_path_query_and_headers(web: Address) -> None:
    headers = {"ACCEPT": "application/openmetrics-text;version=1.0.0", "X-A": "b"}
    answer = ask(web, "/echo?a=1&b=?", headers=headers)
    assert answer.body == "/echo a=1&b=? application/openmetrics-text;version=1.0.0 b"


@pytest.mark.parametrize("path", ["/", "/large", "/none", "/broken"])
def test_head_gives_the_headers_of_get_without_a_body(web: Address, path: str) -> None:
    packed = {"Accept-Encoding": "gzip"}
    head, get = ask(web, path, "HEAD", headers=packed), ask(web, path, headers=packed)
    assert (head.status, head.body) == (get.status, "")
    assert say(web, b"HEAD / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")[2] == b""
    assert {name: value for name, value in head.headers.items() if name != "Date"} == {
        name: value for name, value in get.headers.items() if name != "Date"
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/", "/none", "/broken"])
def test_known_methods_other_than_get_and_head_give_405(web: Address, method: str, path: str) -> None:
    answer = ask(web, path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.body == "only GET and HEAD are supported\n"


def test_an_unknown_method_gives_501(web: Address) -> None:
    answer = ask(web, "/", "BREW")
    assert answer.status == 501
    assert "Traceback" not in answer.body


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/none", "GET"), ("/broken", "GET"), ("/", "POST")])
def test_every_response_has_the_security_headers(web: Address, path: str, method: str) -> None:
    headers = ask(web, path, method).headers
    policy = headers["Content-Security-Policy"].split("; ")
    alone = {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"}
    own = {f"{kind}-src 'self'" for kind in ("script", "style", "connect", "img")}
    assert set(policy) == alone | own | {"require-trusted-types-for 'script'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_the_server_header_does_not_reveal_the_python_version(web: Address) -> None:
    assert ask(web, "/").headers["Server"].strip() == "otel-gpu"


def test_a_route_that_raises_gives_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    with serving(ROUTES) as server, caplog.at_level(logging.INFO):
        answers = [ask(server.address, "/broken") for _ in range(3)]
        assert ask(server.address, "/").status == 200
    assert [(answer.status, answer.body) for answer in answers] == [(500, "internal error\n")] * 3
    (record,) = caplog.records
    assert record.getMessage() == "request for /broken failed: RuntimeError: a secret"
    assert not record.exc_info


def test_failure_and_recovery_of_a_route_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = iter([ValueError("a"), ValueError("b"), TypeError("c"), None, None])

    def unstable(_: Request) -> Response:
        if (error := next(errors)) is not None:
            raise error
        return Response("ok")

    with serving({"/": unstable}) as server, caplog.at_level(logging.INFO):
        assert [ask(server.address, "/").status for _ in range(5)] == [500, 500, 500, 200, 200]
    assert caplog.messages == [
        "request for / failed: ValueError: a",
        "request for / failed: TypeError: c",
        "requests for / succeed again",
    ]


def test_the_traceback_of_a_route_is_logged_at_debug_level(web: Address, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(web, "/broken")
    assert any(record.exc_info and record.exc_info[0] is RuntimeError for record in caplog.records)


def test_text_that_utf_8_cannot_encode_is_escaped(web: Address) -> None:
    answer = ask(web, "/wide")
    assert answer.body == "模型 \\ud800"
    assert int(answer.headers["Content-Length"]) == len(answer.body.encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /" + b"a" * 30_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Len",
    ],
    ids=["empty", "blank line", "garbage", "unknown version", "TLS", "endless line", "half a header"],
)
def test_a_malformed_request_affects_its_connection_only(
    web: Address, raw: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert b"Traceback" not in say(web, raw)
    assert ask(web, "/").status == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"garbage\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n", b"400 Bad Request"),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501 Not Implemented"),
    ],
)
def test_an_error_response_is_a_complete_response(web: Address, raw: bytes, status: bytes) -> None:
    head, _, body = say(web, raw).partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    assert line == b"HTTP/1.1 " + status
    expected = {b"Content-Length: %d" % len(body), b"X-Content-Type-Options: nosniff", b"Connection: close"}
    assert expected <= set(headers)


def test_a_client_that_leaves_during_its_response_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with serving({"/": lambda _: Response("x" * 4_000_000)}) as server:
        for _ in range(3):
            with socket.create_connection((server.address.host, server.address.port), timeout=30) as client:
                client.sendall(HTTP_1_0)
                client.recv(1)
        assert len(ask(server.address, "/").body) == 4_000_000
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------------- addresses


def test_the_url_of_a_wildcard_address_is_the_loopback_address() -> None:
    with serving(ROUTES, address=Address("0.0.0.0", 0)) as server:
        assert server.url == f"http://127.0.0.1:{server.address.port}"
        assert ask(Address("127.0.0.1", server.address.port), "/").status == 200


def test_an_ipv6_address_is_served_if_the_host_has_ipv6() -> None:
    try:
        with serving(ROUTES, address=Address("::1", 0)) as server:
            assert server.url == f"http://[::1]:{server.address.port}"
    except UsageError as error:
        assert "cannot listen on [::1]:0: " in str(error)  # noqa: PT017 - depends on the host


def test_an_address_in_use_is_an_error_with_a_remedy() -> None:
    with (
        serving(ROUTES) as server,
        pytest.raises(UsageError) as caught,
        serving(ROUTES, address=server.address),
    ):
        pass
    assert str(caught.value) == (
        f"cannot listen on {server.address}: Address already in use; "
        "choose another with --listen HOST:PORT (port 0: any free one)"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "é" * 70, "\ud800", "a\0b"], ids=ascii)
def test_a_host_that_cannot_be_bound_is_an_error(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on "), serving(ROUTES, address=Address(host, 0)):
        pass


def test_a_closed_server_frees_its_address_even_if_never_started() -> None:
    server = WebServer()
    first = server.listen(ANY_PORT, ROUTES)
    server.stop()
    with serving(ROUTES, address=first.address) as again:
        assert ask(again.address, "/").status == 200
    with serving(ROUTES, address=again.address) as third:
        assert third.address == first.address
