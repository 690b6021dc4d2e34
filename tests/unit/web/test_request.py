"""Parsing of requests: well-formed ones as the standard library parses them, and malformed ones."""

from __future__ import annotations

import http.client
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.request import ParsedRequest, RawRequest, Request, parse_request
from otel_gpu.web.response import Response

TOKEN = "".join(sorted("!#$%&'*+-.^_`|~abcXYZ019"))
names = st.sampled_from(["Accept", "accept", "Host", "X-a", "Authorization"]) | st.text(TOKEN, min_size=1, max_size=8)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=9).flatmap(
    lambda word: st.sampled_from([word, f"{word} {word}", f"{word}:{word}", f"{word}\xe9{word}"])
)
targets = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f\x85\xa0"), max_size=20)


def status(raw: bytes, *, is_too_large: bool = False) -> int | None:
    """The status of a rejected request; ``None`` if it is not rejected."""
    found = parse_request(RawRequest(raw, is_too_large=is_too_large))
    return int(found.status) if isinstance(found, Response) else None


def request(raw: bytes) -> Request:
    found = parse_request(RawRequest(raw))
    assert isinstance(found, ParsedRequest)
    return found.request


@given(
    targets.map(lambda rest: f"/{rest}"),
    st.lists(st.tuples(names, values), max_size=8),
    st.sampled_from(["\r\n", "\n"]),
)
def test_headers_equal_those_of_the_standard_library(
    target: str, headers: list[tuple[str, str]], line_end: str
) -> None:
    headers = [("Host", "node"), *((name, value) for name, value in headers if name.lower() != "host")]
    fields = "".join(f"{name}: {value}{line_end}" for name, value in headers) + line_end
    raw = f"GET {target} HTTP/1.1{line_end}{fields}body\r\n\r\n".encode("latin-1")
    expected: dict[str, str] = {}
    for name, value in http.client.parse_headers(io.BytesIO(fields.encode("latin-1"))).items():
        expected[name.lower()] = f"{expected[name.lower()]}, {value}" if name.lower() in expected else value
    found = request(raw)
    assert found.headers == expected
    assert found.path + ("?" if "?" in target else "") + found.query == "/" + target.lstrip("/")


def test_a_scrape_is_parsed() -> None:
    found = parse_request(
        RawRequest(
            b"GET /metrics?a=1 HTTP/1.1\r\nHost: node:9464\r\nUser-Agent: Prometheus/2.42\r\n"
            b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\nAccept-Encoding:gzip \r\nX:\r\n\r\n"
        )
    )
    assert found == ParsedRequest(
        "GET",
        Request(
            "/metrics",
            "a=1",
            {
                "host": "node:9464",
                "user-agent": "Prometheus/2.42",
                "accept": "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1",
                "accept-encoding": "gzip",
                "x": "",
            },
        ),
        keep_alive=True,
    )


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n", b"\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"  \r\n\r\n"])
def test_a_blank_line_is_no_request(raw: bytes) -> None:
    assert parse_request(RawRequest(raw)) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"GET /\r\n\r\n",  # HTTP/0.9
        b"GET / HTTP/1.1 x\r\n\r\n",
        b"GET / a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1\r\n\r\n",
        b"GET / HTTP/1.1.1\r\n\r\n",
        b"GET / HTTP/-1.1\r\n\r\n",
        b"GET / HTTP/1.\xb2\r\n\r\n",
        b"GET / HTTP/11111111111.1\r\n\r\n",
        b"GET / http/1.1\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\x1b[2J HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\ra HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Len",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno header\r\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n A: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\rB: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\xe9: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.2\r\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: http://a/\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_malformed_request_is_rejected(raw: bytes) -> None:
    assert status(raw) == 400


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/9.9", b"HTTP/0.9", b"HTTP/3.1"])
def test_versions_other_than_1_are_rejected(version: bytes) -> None:
    assert status(b"PRI * " + version + b"\r\n\r\n") == 505


def test_a_later_minor_version_is_accepted() -> None:
    assert status(b"GET / HTTP/1.2\r\nHost: localhost\r\n\r\n") is None


def test_long_lines_and_headers_have_their_own_status() -> None:
    assert status(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") == 414
    assert status(b"GET /" + b"a" * 131_072, is_too_large=True) == 414
    assert status(b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70_000 + b"\r\n\r\n") == 431
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, is_too_large=True) == 431


def test_at_most_a_hundred_headers_are_accepted() -> None:
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 99 + b"Host: a\r\n\r\n") is None
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n") == 431


@pytest.mark.parametrize("target", ["//metrics", "///metrics", "/metrics"])
def test_leading_slashes_are_collapsed(target: str) -> None:
    assert request(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).path == "/metrics"


@pytest.mark.parametrize(
    ("raw", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
        (b"GET / HTTP/1.1\nHost: localhost\n\n", True),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: closed, x-close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: TE , Close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: TE\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET / HTTP/1.2\r\nHost: localhost\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n", False),
    ],
)
def test_keep_alive_needs_http_1_1_no_close_no_body_and_nothing_after_the_head(raw: bytes, keep_alive: bool) -> None:
    found = parse_request(RawRequest(raw))
    assert isinstance(found, ParsedRequest)
    assert found.keep_alive is keep_alive
