"""Answers as they come over a connection that is kept: whole, in pieces, in other forms, or not at all."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from otel_gpu.export.otlp_line import NoAnswer, _asked, _opened, _read, _send, plain_answer
from otel_gpu.export.sender import TAKEN, Delivery
from tests.unit.export.collectors import HttpCollector, Pki, data, sender, sent, trouble

PATIENCE_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
YES = OK + b"Content-Length: 0\r\n\r\n"
PARTIAL = ExportMetricsServiceResponse()
PARTIAL.partial_success.rejected_data_points = 3
REJECTED = PARTIAL.SerializeToString()


class Receiver:
    """Says these bytes, in these pieces, to one request after the other; keeps its connections unless it says so."""

    def __init__(self, *answers: tuple[bytes, ...], hang_up_after: int = 10**9) -> None:
        self._answers = list(answers)
        self._hang_up_after = hang_up_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []
        self.connections = 0
        self.hung_up: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with suppress(OSError), client, client.makefile("rb") as asked:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(self._hang_up_after):
                    if not self._served(client, asked.readline, asked.read):
                        break
            self.hung_up.put(None)

    def _served(self, client: socket.socket, line: Callable[[], bytes], read: Callable[[int], bytes]) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            more = line()
            if not more:
                return False
            head += more
        self.heads.append(head)
        read(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        for number, piece in enumerate(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]):
            if number:
                time.sleep(0.02)
            client.sendall(piece)
        return True

    def close(self) -> None:
        """End; connections end with those who opened them."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def receiving() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def receive(*answers: tuple[bytes, ...], hang_up_after: int = 10**9) -> Receiver:
        made.append(Receiver(*answers, hang_up_after=hang_up_after))
        return made[-1]

    yield receive
    for each in made:
        each.close()


Receiving = Callable[..., Receiver]


def deliveries(receiver: Receiver, number: int) -> list[Delivery]:
    with sender(receiver.url, 2.0) as made:
        return [made.send(data()) for _ in range(number)]


# ---------------------------------------------------------------------------- the law


names = st.sampled_from(["Content-Type", "content-length", "Date", "X-a", "Server", "Retry-After", "Connection"])
values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12) | st.sampled_from(
    ["0", "1", "2", "7", "close", "keep-alive", "Close", "", " 2", "2\t", "text/plain"]
)
odd_lines = st.sampled_from(
    [
        b"Transfer-Encoding: chunked",
        b"Content-Encoding: gzip",
        b"Set-Cookie: a=b",
        b" folded",
        b"none",
        b": x",
        b"\xe9: y",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=8))
    lines = [f"{name}: {value}".encode() for name, value in draw(st.lists(st.tuples(names, values), max_size=4))]
    if draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    lines += draw(st.lists(odd_lines, max_size=1))
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"ICY"]))
    status = draw(st.sampled_from([b"200 OK", b"200 ", b"200", b"204 x", b"304 x", b"503 a\xe9 b ", b"99 x", b"600 x"]))
    return b"\r\n".join([version + b" " + status, *draw(st.permutations(lines)), b"", body])


@given(answers())
def test_an_answer_in_one_piece_is_understood_as_pythons_client_does_or_left_to_it(answer: bytes) -> None:
    plain = plain_answer(answer)
    if plain is None:
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        ours.settimeout(PATIENCE_S)
        read = _read(_opened(ours, b"", time.monotonic() + PATIENCE_S))
    assert (plain.status, plain.reason, plain.body) == (read.status, read.reason, read.body)
    assert plain.headers == {name: value.strip() for name, value in read.headers.items()}  # RFC 9110, 5.5
    assert not plain.keep or read.keep


def test_what_a_collector_says_is_such_an_answer() -> None:
    answer = plain_answer(OK + b"Date: Tue, 17 Nov 2026 06:00:00 GMT\r\nContent-Length: 2\r\n\r\n\x0a\x00")
    assert answer is not None
    assert (answer.status, answer.reason, answer.body, answer.keep) == (200, "OK", b"\x0a\x00", True)
    assert answer.headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("cut", range(len(YES)))
def test_half_an_answer_is_none(cut: int) -> None:
    assert plain_answer(YES[:cut]) is None


# ---------------------------------------------------------------------------- in several forms


@pytest.mark.parametrize(
    "pieces",
    [
        (YES,),
        tuple(bytes([each]) for each in YES),
        (YES[:20], YES[20:]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", YES),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\nLink: </a>\r\n\r\n" + YES,),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n",),
        (OK.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",),
        (OK + b"X: \xff\r\nX: b\r\nContent-Length: 0\r\n\r\n",),
    ],
    ids=["whole", "byte by byte", "two pieces", "100", "100 twice", "chunked", "204", "bare line ends", "odd headers"],
)
def test_a_yes_is_one_in_any_form_and_its_connection_is_kept(receiving: Receiving, pieces: tuple[bytes, ...]) -> None:
    receiver = receiving(pieces)
    assert deliveries(receiver, 3) == [TAKEN] * 3
    assert (receiver.connections, len(receiver.heads)) == (1, 3)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: %d\r\n\r\n" % len(REJECTED) + REJECTED,
        OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(REJECTED) + REJECTED + b"\r\n0\r\n\r\n",
    ],
    ids=["counted", "chunked"],
)
def test_points_that_are_rejected_are_told_in_any_form(receiving: Receiving, answer: bytes) -> None:
    receiver = receiving((answer,), (answer[:-3], answer[-3:]), (YES,))
    *partial, yes = deliveries(receiver, 3)
    assert [trouble(each) for each in partial] == [("partial", "3 points were rejected")] * 2
    assert yes == TAKEN
    assert receiver.connections == 1


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", "413", "HTTP 413 Too Large"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 3\r\n\r\nno!", "302", "HTTP 302 Found, to /login"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>", "garbage", "not OTLP"),
    ],
)
def test_a_no_on_a_connection_that_is_kept_is_told_and_the_next_request_uses_it(
    receiving: Receiving, answer: bytes, kind: str, text: str
) -> None:
    receiver = receiving((YES,), (answer,), (YES,))
    first, second, third = deliveries(receiver, 3)
    assert (first, third) == (TAKEN, TAKEN)
    assert trouble(second)[0] == kind
    assert text in trouble(second)[1]
    assert receiver.connections == 1


def test_a_refusal_that_passes_is_tried_again_on_the_same_connection(receiving: Receiving) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
    receiver = receiving((busy,), (YES,))
    assert deliveries(receiver, 1) == [TAKEN]
    assert (receiver.connections, len(receiver.heads)) == (1, 2)


# ---------------------------------------------------------------------------- connections end


def test_a_receiver_that_hangs_up_between_requests_is_connected_to_anew(receiving: Receiving) -> None:
    receiver = receiving((YES,), hang_up_after=1)
    with sender(receiver.url, 2.0) as made:
        for _ in range(3):
            assert made.send(data()) == TAKEN
            receiver.hung_up.get(timeout=PATIENCE_S)
    assert receiver.connections == len(receiver.heads) == 3


def test_a_receiver_that_hangs_up_while_it_is_asked_is_asked_again_at_once(receiving: Receiving) -> None:
    receiver = receiving((YES,), (), (YES,), hang_up_after=2)
    began_s = time.monotonic()
    assert deliveries(receiver, 2) == [TAKEN, TAKEN]
    assert time.monotonic() - began_s < 0.75  # without the pause that repetitions have, 0.8 s at least
    assert (receiver.connections, len(receiver.heads)) == (2, 3)


@pytest.mark.parametrize("word", [b"close", b"Close", b"keep-alive, close"])
def test_a_receiver_that_says_it_will_close_is_taken_at_its_word(receiving: Receiving, word: bytes) -> None:
    receiver = receiving((OK + b"Connection: " + word + b"\r\nContent-Length: 0\r\n\r\n",))
    assert deliveries(receiver, 2) == [TAKEN, TAKEN]
    assert receiver.connections == 2


def test_what_comes_unasked_ends_the_connection(receiving: Receiving) -> None:
    """The next answer would be taken for that of another request."""
    receiver = receiving((YES, YES), (YES,))
    with sender(receiver.url, 2.0) as made:
        assert made.send(data()) == TAKEN
        time.sleep(0.1)
        assert made.send(data()) == TAKEN
    assert receiver.connections == 2


@pytest.mark.parametrize("form", [b"Content-Length: 200000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n30d40\r\n"])
def test_only_the_beginning_of_a_long_answer_is_read(receiving: Receiving, form: bytes) -> None:
    receiver = receiving((b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + form + b"x" * 200_000,), (YES,))
    first, second = deliveries(receiver, 2)
    assert trouble(first)[0] == "garbage"
    assert second == TAKEN
    assert receiver.connections == 2


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"\0\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300]
)
def test_garbage_on_a_connection_that_was_kept_is_told(receiving: Receiving, answer: bytes) -> None:
    receiver = receiving((YES,), (answer,))
    with sender(receiver.url, 0.5) as made:
        assert made.send(data()) == TAKEN
        assert "the answer is not HTTP" in trouble(made.send(data()))[1]


def test_an_answer_that_ends_too_soon_is_not_asked_for_again(receiving: Receiving) -> None:
    """The receiver has taken the request, or not: it may not get it twice."""
    receiver = receiving((OK + b"Content-Length: 9\r\n\r\nxx",), hang_up_after=1)
    (delivery,) = deliveries(receiver, 1)
    assert not delivery.taken
    assert len(receiver.heads) == 1


def test_a_request_that_is_not_taken_in_is_given_up_when_the_time_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with sender(url, 0.5) as made:
            began_s = time.monotonic()
            assert trouble(made.send(b"\0" * (32 << 20))) == ("unreachable", "no whole answer within 0.5 s")
            assert time.monotonic() - began_s < 2


def test_the_reason_of_no_answer_is_handed_on() -> None:
    error = OSError("x")
    assert NoAnswer(error).args == (error,)


# ---------------------------------------------------------------------------- over TLS, and by a proxy


def test_over_tls_a_connection_is_kept_and_large_requests_arrive(
    pki: Pki, started: Callable[[HttpCollector], HttpCollector]
) -> None:
    collector = started(HttpCollector(pki.context()))
    threads = set()
    answered = collector.answer
    collector.answer = lambda number: (threads.add(threading.get_ident()), answered(number))[1]  # type: ignore[func-returns-value]
    with sender(collector.url, otlp_certificate=pki.file("ca.crt")) as made:
        for _ in range(3):
            assert made.send(large()) == TAKEN
    assert len(threads) == 1  # the server has a thread for each connection
    assert [seen.size_bytes for seen in collector.seen] == [len(large())] * 3


def large() -> bytes:
    """A request of 2 MB: a Resource with a long schema URL."""
    return b"\x0a" + _counted(b"\x1a" + _counted(b"x" * 2_000_000))


def _counted(content: bytes) -> bytes:
    size, head = len(content), b""
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + content


@pytest.mark.parametrize("answer", [YES, OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
def test_a_proxy_of_the_environment_is_asked_for_the_whole_url(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    proxy = receiving((answer,))
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    with sender("http://collector.invalid:4318") as made:
        assert [made.send(data()), made.send(data())] == [TAKEN, TAKEN]
    assert proxy.connections == 1
    assert {head.split(b"\r\n")[0] for head in proxy.heads} == {
        b"POST http://collector.invalid:4318/v1/metrics HTTP/1.1"
    }


def test_of_what_a_proxy_says_too_only_the_beginning_is_read(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9000000000\r\n\r\n" + b"x" * 100_000
    proxy = receiving((page,))
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    assert trouble(sent("http://collector.invalid:4318", 2.0))[0] == "garbage"


def test_a_receiver_that_needs_no_proxy_is_asked_straight(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert deliveries(receiving((YES,)), 1) == [TAKEN]


# ---------------------------------------------------------------------------- what is sent


def test_a_request_says_to_whom_it_is_in_the_usual_way(receiving: Receiving) -> None:
    receiver = receiving((YES,))
    assert sent(receiver.url, otlp_headers="authorization=Bearer%20a") == TAKEN
    line, *headers = receiver.heads[0].decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    assert line == "POST /v1/metrics HTTP/1.1"
    assert f"Host: {receiver.url.removeprefix('http://')}" in headers
    names = [each.partition(":")[0].lower() for each in headers]
    assert len(set(names)) == len(names)
    assert {"authorization: Bearer a", "Connection: keep-alive", "content-type: application/x-protobuf"} <= set(headers)


class Slow(socket.socket):
    """Takes no more than so many bytes of a message at a time, each once, and then all there is."""

    takes: list[int]
    messages = 0

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        self.messages += 1
        return self.send(b"".join(buffers)[: self.takes.pop(0) if self.takes else None])


@given(st.binary(min_size=1, max_size=20), st.binary(max_size=20), st.lists(st.integers(1, 40), max_size=4))
def test_head_and_body_are_one_message_and_arrive_as_they_are_however_much_is_taken_at_a_time(
    head: bytes, body: bytes, takes: list[int]
) -> None:
    ours, theirs = socket.socketpair()
    with Slow(fileno=ours.detach()) as slow, theirs:
        slow.takes = [*takes]
        _send(slow, head, body, time.monotonic() + PATIENCE_S)
        assert slow.messages == 1 or takes
        slow.shutdown(socket.SHUT_WR)
        assert theirs.makefile("rb").read() == head + body


def test_a_host_that_is_configured_is_sent(receiving: Receiving) -> None:
    receiver = receiving((YES,))
    assert sent(receiver.url, otlp_headers="host=tenant.example") == TAKEN
    assert b"\r\nhost: tenant.example\r\n" in receiver.heads[0]
    assert receiver.heads[0].lower().count(b"\r\nhost:") == 1


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a:80/x", "a"),
        ("http://a:443/x", "a:443"),
        ("https://a./x", "a"),
        ("https://user:secret@a:4318/x", "a:4318"),
        ("http://[::1]:4318/x", "[::1]:4318"),
        ("http://[::1]/x", "[::1]"),
    ],
)
def test_a_host_is_written_without_what_goes_without_saying(url: str, host: str) -> None:
    from otel_gpu.export.otlp_http import _host  # noqa: PLC0415

    assert _host(url) == host


def test_a_certificate_that_was_taken_away_is_told(pki: Pki, started: Callable[[HttpCollector], HttpCollector]) -> None:
    collector = started(HttpCollector(pki.context()))
    with sender(collector.url, 0.5, otlp_certificate=pki.file("ca.crt")) as made:
        Path(pki.file("ca.crt")).unlink()
        assert "ca.crt" in trouble(made.send(data()))[1]


def test_who_refuses_by_the_head_alone_is_heard_though_the_body_could_not_be_sent() -> None:
    """As Go's server does: it answers, says that it says no more, and closes a moment later with the body unread."""
    said = b"request body too large"
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer % (len(said), said))
        theirs.shutdown(socket.SHUT_RDWR)
        found = _asked(ours, b"POST / HTTP/1.1\r\n\r\n", bytes(8 << 20), time.monotonic() + PATIENCE_S)
    assert (found.status, found.body, found.keep) == (413, said, False)
