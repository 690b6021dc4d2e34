from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import bcrypt
import pytest
import trustme

from otel_gpu.clock import SystemClock
from otel_gpu.config.values import Address
from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.top.latest import Latest, LatestView, Outage
from otel_gpu.top.remote import RemoteViews, agent_address, events
from otel_gpu.version import __version__
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.endpoints import EVENTS_PATH, EventStream
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import WebListener
from tests import web
from tests.builders import attribution
from tests.unit.top.views import SUBJECT

PATIENCE_S = 30.0
ANYWHERE = Address("127.0.0.1", 0)


def serving(
    address: Address = ANYWHERE, web_config: Path | None = None, route: Route | None = None
) -> AbstractContextManager[WebListener]:
    """An agent's server with one cycle."""
    stream = EventStream(SUBJECT, attribution, Bodies())
    return web.serving({EVENTS_PATH: route or stream.route}, address=address, web_config=web_config)


@contextmanager
def following(url: str) -> Iterator[LatestView]:
    latest = LatestView(SystemClock())
    views = RemoteViews(agent_address(url, "--url"), latest, retry_s=0.02)
    views.start()
    try:
        yield latest
    finally:
        views.close()


def until(latest: LatestView, condition: Callable[[Latest], object]) -> Latest:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition(seen := latest.read()):
        assert latest.failure is None, latest.failure
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return seen


def failure(url: str) -> OtelGpuError:
    with following(url) as latest:
        deadline_s = time.monotonic() + PATIENCE_S
        while latest.failure is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        return latest.failure


# ---------------------------------------------------------------------------- an agent, lost and found


def test_views_of_an_agent_are_read() -> None:
    with serving() as server, following(server.url) as latest:
        shown = until(latest, lambda seen: seen.view).view
    assert shown is not None
    assert shown.host == "node-1"
    assert len(shown.workloads) == 5


def test_a_lost_agent_is_an_outage_until_it_is_back() -> None:
    with ExitStack() as stack:
        with serving() as server:
            latest = stack.enter_context(following(server.url))
            until(latest, lambda seen: seen.view)
        lost = until(latest, lambda seen: seen.outage and "refused" in seen.outage.reason)
        assert lost.view is not None
        with serving(server.address):
            assert until(latest, lambda seen: seen.outage is None).view is not None


def test_an_agent_that_changes_its_version_is_an_outage() -> None:
    with ExitStack() as stack:
        with serving() as server:
            latest = stack.enter_context(following(server.url))
            until(latest, lambda seen: seen.view)
        newer = Response(b'event: view\ndata: {"version":"9.9"}\n\n', "text/event-stream")
        with serving(server.address, route=lambda _: newer):
            seen = until(latest, lambda seen: seen.outage and "9.9" in seen.outage.reason)
    assert isinstance(seen.outage, Outage)


# ---------------------------------------------------------------------------- what cannot be


def test_an_agent_that_was_never_reached_is_a_failure_without_retries() -> None:
    with serving() as server:
        url = server.url
    error = failure(url)
    assert isinstance(error, Unavailable)
    assert str(error) == f"the agent at {url}: connection refused"


def answering(body: bytes, content_type: str) -> Route:
    def route(_: Request) -> Response:
        return Response(body, content_type)

    return route


def test_another_kind_of_server_is_a_usage_error() -> None:
    with serving(route=answering(b"hello", "text/plain")) as server:
        error = failure(server.url)
    assert isinstance(error, UsageError)
    assert "not an otel-gpu agent" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        b'event: view\ndata: {"version":"9.9"}\n\n',
        b'event: page\ndata: {"version":"9.9"}\n\nevent: attribution\ndata: {}\n\n',
    ],
    ids=["another view", "another event"],
)
def test_an_unknown_format_is_reported_in_one_line_with_both_versions(body: bytes) -> None:
    with serving(route=answering(body, "text/event-stream")) as server:
        error = failure(server.url)
    assert isinstance(error, Unavailable)
    assert f"the agent is otel-gpu 9.9, this top is {__version__}" in str(error)
    assert str(error).endswith("use top of the agent's version")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "body", [b"event: view\ndata: {}\n\n", b"event: view\ndata: 7\n\n", b"event: view\ndata: [[\n\n", b"data: {}\n\n"]
)
def test_a_stream_without_a_version_may_not_be_an_agent(body: bytes) -> None:
    with serving(route=answering(body, "text/event-stream")) as server:
        error = failure(server.url)
    assert isinstance(error, Unavailable)
    assert f"not an otel-gpu agent, or another version than this top ({__version__}): " in str(error)
    assert "\n" not in str(error)


_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def saying(words: bytes | None) -> AbstractContextManager[str]:
    """The address of a server that says this and ends, whatever it is asked; nothing for ever, if ``None``."""

    def send(accepted: socket.socket) -> None:
        if words is not None:
            accepted.recv(4096)
            with contextlib.suppress(OSError):  # the client may not read all of it
                accepted.sendall(words)
                accepted.shutdown(socket.SHUT_WR)

    return speaking(send)


@contextmanager
def speaking(send: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that calls ``send`` with its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as after:

        def answer() -> None:
            accepted, _ = listener.accept()
            after.callback(accepted.close)
            send(accepted)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP server: it sends 'SSH-2.0-OpenSSH_9.6'"),
        (b"\x1b[2Jgarbage" + b"x" * 5000 + b"\n", "not an HTTP server: it sends '\ufffd[2Jgarbagexxx"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it serves https"),
        (b"", "it closed the connection without a response; does it serve https?"),
    ],
    ids=["SSH", "garbage", "TLS", "nothing"],
)
def test_the_answer_of_another_server_is_quoted(words: bytes, reason: str) -> None:
    with saying(words) as url:
        error = str(failure(url))
    assert reason in error
    assert error.isprintable()
    assert len(error) < 200


def test_a_silent_server_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.top.remote._CONNECT_S", 0.2)
    with saying(None) as url:
        assert str(failure(url)).endswith(": no response")


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200", _STREAM + b"data: "], ids=["in the status", "in a line"])
def test_a_server_that_sends_a_byte_now_and_then_is_a_failure(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.top.remote._CONNECT_S", 0.3)
    monkeypatch.setattr("otel_gpu.top.remote._SILENCE_S", 0.3)
    ended = threading.Event()

    def send(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has left
            accepted.sendall(beginning)
            while not ended.wait(0.02):
                accepted.sendall(b" ")

    with speaking(send) as url:
        try:
            assert str(failure(url)).endswith(": no response")
        finally:
            ended.set()


def test_a_line_longer_than_any_view_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.top.remote._MAX_LINE_BYTES", 1 << 20)
    with saying(_STREAM + b"event: view\ndata: " + b"x" * (1 << 20) + b"\n\n") as url:
        assert str(failure(url)).endswith("not an otel-gpu agent: it sends a line of over 1 MiB")


def test_a_password_is_part_of_the_url_and_never_shown(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"s3cret pass", bcrypt.gensalt(4)).decode()
    config = tmp_path / "web.yml"
    config.write_text(f"basic_auth_users:\n  me: {hashed}\n")
    with serving(web_config=config) as server:
        authority = str(server.address)
        with following(f"http://me:s3cret%20pass@{authority}") as latest:
            until(latest, lambda seen: seen.view)
        for wrong in (f"http://{authority}", f"http://me:s3cret-wrong@{authority}"):
            error = failure(wrong)
            assert isinstance(error, UsageError)
            assert "password" in str(error)
            assert "s3cret" not in str(error)


def test_a_certificate_needs_a_trusted_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    config = tmp_path / "web.yml"
    config.write_text("tls_server_config:\n  cert_file: cert\n  key_file: key\n")
    with serving(web_config=config) as server:
        error = failure(server.url)
        assert isinstance(error, UsageError)
        assert "SSL_CERT_FILE" in str(error)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert ssl.get_default_verify_paths().cafile == str(tmp_path / "ca")
        with following(server.url) as latest:
            until(latest, lambda seen: seen.view)
        plain = failure(server.url.replace("https", "http"))
    assert "400" in str(plain)
    assert "https" in str(plain)


# ---------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://node-1:9464", "http://node-1:9464"),
        ("http://node-1/", "http://node-1:9464"),
        ("https://[::1]:9464/api/attribution", "https://[::1]:9464"),
        ("http://user:pass@node-1:1/gpu/api/events", "http://node-1:1/gpu"),
        (" http://node-1 ", "http://node-1:9464"),
    ],
)
def test_the_agent_of_a_url_is_shown_without_the_password(url: str, shown: str) -> None:
    assert str(agent_address(url, "--url")) == shown
    assert "pass" not in repr(agent_address(url, "--url"))


@pytest.mark.parametrize(
    "url",
    ["node-1:9464", "ftp://node-1", "http://", "http://node-1:port", "http://node-1:99999", "", "http://[::1",
     "http://node-1/?query", "http://node-1/\r\nX: y", "http://a b/", "http://user:hunter2@:1"],
)  # fmt: skip
def test_an_invalid_url_is_a_usage_error_without_the_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--url: .* is not the URL of an agent; use http://HOST:PORT") as caught:
        agent_address(url, "--url")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------- server-sent events


def test_data_ends_an_event_and_comments_are_skipped() -> None:
    stream = io.BytesIO(b": hello\n\nretry: 1\n\nevent: a\nid: 1\ndata: x\n\ndata:y\r\n\r\n\n\nevent: cut\ndata: z")
    assert list(events(stream)) == [("a", b"x"), ("", b"y")]
