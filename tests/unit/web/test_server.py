from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from otel_gpu.errors import UsageError
from otel_gpu.values import Address
from otel_gpu.web.server import Request, Response, Route, WebServer
from tests.web import ask, say

ANY_PORT = Address("127.0.0.1", 0)


def broken(_: Request) -> Response:
    raise RuntimeError("secret of the house")


def echo(request: Request) -> Response:
    return Response(f"{request.path} {request.query} {request.headers.get('accept')} {request.headers.get('x-a')}")


ROUTES: Mapping[str, Route] = {
    "/echo": echo,
    "/large": lambda _: Response(b"gpu_up 1\n" * 1000, "text/plain; version=0.0.4"),
    "/": lambda _: Response("<p>page</p>", "text/html; charset=utf-8"),
    "/sad": lambda _: Response("not now\n", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/wide": lambda _: Response("模型 \ud800"),
    "/broken": broken,
}


@contextmanager
def serving(routes: Mapping[str, Route], address: Address = ANY_PORT) -> Iterator[WebServer]:
    server = WebServer(address, routes)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def web() -> Iterator[Address]:
    with serving(ROUTES) as server:
        yield server.address


def test_a_path_is_answered_with_its_body_type_and_length(web: Address) -> None:
    answer = ask(web, "/")
    assert (answer.status, answer.body) == (200, "<p>page</p>")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Length"] == "11"


def test_a_question_mark_and_what_follows_do_not_change_the_path(web: Address) -> None:
    assert ask(web, "/?refresh=1&x=/sad").body == "<p>page</p>"


def test_a_route_chooses_its_status(web: Address) -> None:
    answer = ask(web, "/sad")
    assert (answer.status, answer.body) == (503, "not now\n")


@pytest.mark.parametrize("path", ["/none", "/sad/", "/../etc/passwd", "/%2e%2e", "*"])
def test_an_unknown_path_is_answered_with_those_that_exist(web: Address, path: str) -> None:
    answer = ask(web, path)
    assert answer.status == 404
    assert "/  /broken  /echo  /large  /sad  /wide" in answer.body
    assert path not in answer.body.split("try")[0]  # what was asked for is not echoed


def test_a_route_sees_what_was_asked_for_and_how(web: Address) -> None:
    headers = {"ACCEPT": "application/openmetrics-text;version=1.0.0", "X-A": "b"}
    answer = ask(web, "/echo?a=1&b=?", headers=headers)
    assert answer.body == "/echo a=1&b=? application/openmetrics-text;version=1.0.0 b"


def test_a_header_that_comes_twice_is_one_with_a_comma(web: Address) -> None:
    answered = say(web, b"GET /echo HTTP/1.0\r\nAccept: a\r\naccept: b\r\n\r\n")
    assert answered.endswith(b"/echo  a, b None")


def test_a_large_answer_is_compressed_for_those_who_accept_it(web: Address) -> None:
    packed, plain = ask(web, "/large", headers={"Accept-Encoding": "gzip"}), ask(web, "/large")
    assert packed.body == plain.body == "gpu_up 1\n" * 1000
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Vary"] == "Accept-Encoding"
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) == 9000


@pytest.mark.parametrize("path", ["/", "/large", "/none", "/broken"])
def test_head_gets_the_headers_of_get_and_no_body(web: Address, path: str) -> None:
    packed = {"Accept-Encoding": "gzip"}
    head, get = ask(web, path, "HEAD", headers=packed), ask(web, path, headers=packed)
    assert (head.status, head.body) == (get.status, "")
    assert say(web, b"HEAD / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")[2] == b""
    assert {name: value for name, value in head.headers.items() if name != "Date"} == {
        name: value for name, value in get.headers.items() if name != "Date"
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/", "/none", "/broken"])
def test_methods_that_would_change_something_are_refused_with_those_that_are_not(
    web: Address, method: str, path: str
) -> None:
    answer = ask(web, path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.body == "only GET and HEAD are answered here\n"


def test_a_method_that_nobody_knows_is_not_implemented(web: Address) -> None:
    answer = ask(web, "/", "BREW")
    assert answer.status == 501
    assert "Traceback" not in answer.body


def test_only_a_refusal_tells_what_is_allowed(web: Address) -> None:
    assert "Allow" not in ask(web, "/").headers


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/none", "GET"), ("/broken", "GET"), ("/", "POST")])
def test_every_answer_tells_browsers_to_run_and_load_only_our_own_files(web: Address, path: str, method: str) -> None:
    headers = ask(web, path, method).headers
    policy = headers["Content-Security-Policy"].split("; ")
    alone = {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"}
    own = {f"{kind}-src 'self'" for kind in ("script", "style", "connect", "img")}
    assert set(policy) == alone | own | {"require-trusted-types-for 'script'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_the_server_does_not_tell_which_python_it_runs_on(web: Address) -> None:
    assert ask(web, "/").headers["Server"].strip() == "otel-gpu"


def test_a_route_that_raises_gives_500_and_keeps_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with serving(ROUTES) as server, caplog.at_level(logging.INFO):
        answers = [ask(server.address, "/broken") for _ in range(3)]
        assert ask(server.address, "/").status == 200
    assert [(answer.status, answer.body) for answer in answers] == [(500, "internal error\n")] * 3
    (record,) = caplog.records  # told once
    assert record.getMessage() == "answering /broken failed: RuntimeError: secret of the house"
    assert not record.exc_info


def test_a_route_that_works_again_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    moods = iter([ValueError("a"), ValueError("b"), TypeError("c"), None, None])

    def moody(_: Request) -> Response:
        if (trouble := next(moods)) is not None:
            raise trouble
        return Response("ok")

    with serving({"/": moody}) as server, caplog.at_level(logging.INFO):
        assert [ask(server.address, "/").status for _ in range(5)] == [500, 500, 500, 200, 200]
    assert caplog.messages == [
        "answering / failed: ValueError: a",
        "answering / failed: TypeError: c",
        "answering / works again",
    ]


def test_the_traceback_of_a_route_that_raises_is_for_debugging(web: Address, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(web, "/broken")
    assert any(record.exc_info and record.exc_info[0] is RuntimeError for record in caplog.records)


def test_what_utf_8_cannot_say_is_escaped(web: Address) -> None:
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
        b"GET /" + b"a" * 70_000,
        b"GET / HTTP/1.1\r\nContent-Len",
    ],
    ids=["silence", "a blank line", "garbage", "a version to come", "TLS", "an endless line", "half a header"],
)
def test_what_is_no_request_costs_nothing_but_its_connection(
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
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", b"400 Bad Request"),
        (b"BREW / HTTP/1.1\r\n\r\n", b"501 Not Implemented"),
    ],
)
def test_what_is_refused_is_answered_like_anything_else(web: Address, raw: bytes, status: bytes) -> None:
    head, _, body = say(web, raw).partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    assert line == b"HTTP/1.1 " + status
    expected = {b"Content-Length: %d" % len(body), b"X-Content-Type-Options: nosniff", b"Connection: close"}
    assert expected <= set(headers)


def test_of_requests_that_come_at_once_the_first_is_answered(web: Address) -> None:
    """Its answer ends the connection, so nobody's second request can pass for somebody else's."""
    answered = say(web, b"GET /sad HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 503 ")
    assert answered.endswith(b"\r\n\r\nnot now\n")


def test_a_client_that_leaves_before_the_answer_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with serving({"/": lambda _: Response("x" * 4_000_000)}) as server:
        for _ in range(3):
            with socket.create_connection((server.address.host, server.address.port), timeout=30) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                client.recv(1)
        assert len(ask(server.address, "/").body) == 4_000_000
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------------- addresses


def test_port_zero_is_any_free_port_and_the_url_names_it() -> None:
    with serving(ROUTES) as server:
        assert server.address.port > 0
        assert server.url == f"http://127.0.0.1:{server.address.port}"


def test_a_server_on_every_address_is_found_on_this_machine() -> None:
    with serving(ROUTES, Address("0.0.0.0", 0)) as server:
        assert server.url == f"http://127.0.0.1:{server.address.port}"
        assert ask(Address("127.0.0.1", server.address.port), "/").status == 200


def test_no_name_is_looked_up_in_order_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a look-up may take DNS many seconds"))
    with serving(ROUTES, Address("0.0.0.0", 0)) as server:
        assert server.address.port > 0


def test_an_ipv6_address_is_served_where_there_is_ipv6() -> None:
    try:
        server = WebServer(Address("::1", 0), ROUTES)
    except UsageError as error:
        assert "cannot listen on [::1]:0: " in str(error)  # noqa: PT017 - either way is right, by the machine
        return
    assert server.url == f"http://[::1]:{server.address.port}"
    server.close()


def test_an_address_in_use_is_told_with_the_way_out() -> None:
    with serving(ROUTES) as server, pytest.raises(UsageError) as caught:
        WebServer(server.address, ROUTES)
    assert str(caught.value) == (
        f"cannot listen on {server.address}: Address already in use; "
        "choose another with --listen HOST:PORT (port 0: any free one)"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "é" * 70, "\ud800", "a\0b"], ids=ascii)
def test_a_host_that_is_not_ours_or_nobodys_is_told_as_such(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on "):
        WebServer(Address(host, 0), ROUTES)


def test_a_closed_server_frees_its_address_whether_it_was_started_or_not() -> None:
    server = WebServer(ANY_PORT, ROUTES)
    server.close()
    with serving(ROUTES, server.address) as again:
        assert ask(again.address, "/").status == 200
    with serving(ROUTES, again.address) as third:
        assert third.address == server.address
