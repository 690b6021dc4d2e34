"""Heads of requests: those that are as they should be, read as Python reads them, and all that are refused."""

from __future__ import annotations

import http.client
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.request import Asked, Head, parse_head
from otel_gpu.web.response import Request, Response

TOKEN = "".join(sorted("!#$%&'*+-.^_`|~abcXYZ019"))
names = st.sampled_from(["Accept", "accept", "Host", "X-a", "Authorization"]) | st.text(TOKEN, min_size=1, max_size=8)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=9).flatmap(
    lambda word: st.sampled_from([word, f"{word} {word}", f"{word}:{word}", f"{word}\xe9{word}"])
)
targets = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f\x85\xa0"), max_size=20)


def status(raw: bytes, *, too_large: bool = False) -> int | None:
    """What a request is refused with."""
    found = parse_head(Asked(raw, too_large=too_large))
    return int(found.status) if isinstance(found, Response) else None


def request(raw: bytes) -> Request:
    found = parse_head(Asked(raw))
    assert isinstance(found, Head)
    return found.request


@given(
    targets.map(lambda rest: f"/{rest}"),
    st.lists(st.tuples(names, values), max_size=8),
    st.sampled_from(["\r\n", "\n"]),
)
def test_headers_are_what_pythons_own_reader_finds(target: str, headers: list[tuple[str, str]], line_end: str) -> None:
    fields = "".join(f"{name}: {value}{line_end}" for name, value in headers) + line_end
    raw = f"GET {target} HTTP/1.1{line_end}{fields}body\r\n\r\n".encode("latin-1")
    theirs: dict[str, str] = {}
    for name, value in http.client.parse_headers(io.BytesIO(fields.encode("latin-1"))).items():
        theirs[name.lower()] = f"{theirs[name.lower()]}, {value}" if name.lower() in theirs else value
    found = request(raw)
    assert found.headers == theirs
    assert found.path + ("?" if "?" in target else "") + found.query == "/" + target.lstrip("/")


def test_a_scrape_is_read() -> None:
    found = parse_head(
        Asked(
            b"GET /metrics?a=1 HTTP/1.1\r\nHost: node:9464\r\nUser-Agent: Prometheus/2.42\r\n"
            b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\nAccept-Encoding:gzip \r\nX:\r\n\r\n"
        )
    )
    assert found == Head(
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
        stays=True,
    )


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n", b"\r\nGET / HTTP/1.1\r\n\r\n", b"  \r\n\r\n"])
def test_who_says_nothing_is_answered_nothing(raw: bytes) -> None:
    assert parse_head(Asked(raw)) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"GET /\r\n\r\n",  # HTTP/0.9
        b"GET / HTTP/1.1 x\r\n\r\n",
        b"GET / a HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1\r\n\r\n",
        b"GET / HTTP/1.1.1\r\n\r\n",
        b"GET / HTTP/-1.1\r\n\r\n",
        b"GET / HTTP/1.\xb2\r\n\r\n",
        b"GET / HTTP/11111111111.1\r\n\r\n",
        b"GET / http/1.1\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET /\x1b[2J HTTP/1.1\r\n\r\n",
        b"GET /\ra HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nContent-Len",
        b"GET / HTTP/1.1\r\nA: b\r\n",
        b"GET / HTTP/1.1\r\nno header\r\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\n A: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\rB: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\xe9: b\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    assert status(raw) == 400


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/9.9", b"HTTP/0.9", b"HTTP/3.1"])
def test_other_versions_are_not_spoken(version: bytes) -> None:
    assert status(b"PRI * " + version + b"\r\n\r\n") == 505


def test_a_version_to_come_that_says_it_is_compatible_is() -> None:
    assert status(b"GET / HTTP/1.2\r\n\r\n") is None


def test_a_line_or_a_header_that_is_too_long_is_told_as_such() -> None:
    assert status(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n") == 414
    assert status(b"GET /" + b"a" * 131_072, too_large=True) == 414
    assert status(b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000 + b"\r\n\r\n") == 431
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, too_large=True) == 431


def test_a_hundred_headers_are_enough() -> None:
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n") is None
    assert status(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n") == 431


@pytest.mark.parametrize("target", ["//metrics", "///metrics", "/metrics"])
def test_a_path_begins_with_one_slash(target: str) -> None:
    assert request(f"GET {target} HTTP/1.1\r\n\r\n".encode()).path == "/metrics"


@pytest.mark.parametrize(
    ("raw", "stays"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\n\n", True),
        (b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: closed, x-close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: TE , Close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: TE\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET / HTTP/1.2\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\n\r\nGET", False),
        (b"GET / HTTP/1.1\r\n\r\n\r\n", False),
    ],
)
def test_another_request_may_come_where_the_client_says_so_and_nothing_else_can(raw: bytes, stays: bool) -> None:
    found = parse_head(Asked(raw))
    assert isinstance(found, Head)
    assert found.stays is stays
