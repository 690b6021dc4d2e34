from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.bodies import Bodies
from otel_gpu.web.response import Encoder, Response, accepts_gzip


def encode(response: Response, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    body, headers = Encoder(Bodies()).encode(response, accept_encoding)
    return body.data, headers


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0, *", False),
        ("gzip;q=nonsense", False),
        ("gzip;q=", False),
        ("*", True),
        ("*;q=0", False),
        ("identity", False),
        ("br, zstd", False),
        (",,;;", False),
    ],
)
def test_gzip_is_accepted_with_a_weight_above_zero(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@given(st.binary(min_size=1025, max_size=5000))
def test_a_compressed_body_is_one_gzip_member(plain: bytes) -> None:
    body = encode(Response(plain), "gzip")[0]
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert unpack.decompress(body) == plain
    assert (unpack.eof, unpack.unused_data) == (True, b"")


def test_a_large_body_is_compressed_for_clients_that_accept_it() -> None:
    text = "gpu_up 1\n" * 1000
    body, headers = encode(Response(text), "gzip")
    assert gzip.decompress(body).decode() == text
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Content-Length"] == str(len(body))
    assert len(body) < len(text) / 10


def test_a_large_body_has_vary_whether_compressed_or_not() -> None:
    body, headers = encode(Response(b"x" * 2000), "")
    assert (body, headers["Vary"]) == (b"x" * 2000, "Accept-Encoding")
    assert "Content-Encoding" not in headers


def test_a_small_body_is_not_compressed() -> None:
    assert encode(Response("x" * 1024), "gzip") == (
        b"x" * 1024,
        {"Content-Type": "text/plain; charset=utf-8", "Content-Length": "1024"},
    )


def test_compression_is_deterministic() -> None:
    assert encode(Response("x" * 2000), "gzip") == encode(Response("x" * 2000), "gzip")


def test_a_body_for_several_clients_is_compressed_once() -> None:
    encoder, body = Encoder(Bodies()), b"gpu_up 1\n" * 1000
    first, again = (encoder.encode(Response(body), "gzip")[0].data for _ in range(2))
    assert first is again
    other, _ = encoder.encode(Response(body + b"gpu_up 2\n"), "gzip")
    assert gzip.decompress(other.data) == body + b"gpu_up 2\n"
