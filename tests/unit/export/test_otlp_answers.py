"""Answers over a persistent HTTP connection: whole, in pieces, in other forms, or none."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from otel_gpu.export.batches import Batch
from otel_gpu.export.sender import ACCEPTED, ExportResult
from otel_gpu.metrics.series import Point
from tests.unit.export.collectors import HttpCollector, Pki, data, failure, sender, sent
from tests.unit.export.samples import GPU, batch, collection

PATIENCE_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
YES = OK + b"Content-Length: 0\r\n\r\n"


class Receiver:
    """Answers requests with these bytes, in these pieces. Closes a connection after ``hang_up_after`` requests."""

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
        """Stop listening. Connections end when their client closes them."""
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


def results(receiver: Receiver, number: int) -> list[ExportResult]:
    with sender(receiver.url, PATIENCE_S) as made:
        return [made.send(data()) for _ in range(number)]


# ---------------------------------------------------------------------------- in several forms


@pytest.mark.parametrize(
    "pieces",
    [
        (YES,),
        tuple(bytes([each]) for each in YES),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n",),
    ],
    ids=["whole", "byte by byte", "chunked", "204"],
)
def test_a_success_in_any_form_keeps_its_connection(receiving: Receiving, pieces: tuple[bytes, ...]) -> None:
    receiver = receiving(pieces)
    assert results(receiver, 3) == [ACCEPTED] * 3
    assert (receiver.connections, len(receiver.heads)) == (1, 3)


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", "413", "HTTP 413 Too Large"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 3\r\n\r\nno!", "302", "HTTP 302 Found, to /login"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>", "garbage", "not OTLP"),
    ],
)
def test_a_failure_keeps_the_connection_for_the_next_request(
    receiving: Receiving, answer: bytes, kind: str, text: str
) -> None:
    receiver = receiving((YES,), (answer,), (YES,))
    first, second, third = results(receiver, 3)
    assert (first, third) == (ACCEPTED, ACCEPTED)
    assert failure(second)[0] == kind
    assert text in failure(second)[1]
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "head", [b"302 Found\r\nLocation: /%s", b"302 %s\r\nLocation: /"], ids=["the location", "the reason phrase"]
)
def test_what_a_redirect_says_is_cut_and_printable(receiving: Receiving, head: bytes) -> None:
    answer = b"HTTP/1.1 " + head % (b"a\xc2\x9b2J" + b"x" * 10_000) + b"\r\nContent-Length: 0\r\n\r\n"
    (result,) = results(receiving((answer,)), 1)
    _, text = failure(result)
    assert len(text) < 300
    assert text.isprintable()


# ---------------------------------------------------------------------------- connections end


def test_a_connection_closed_between_requests_is_opened_again(receiving: Receiving) -> None:
    receiver = receiving((YES,), hang_up_after=1)
    with sender(receiver.url, 2.0) as made:
        for _ in range(3):
            assert made.send(data()) == ACCEPTED
            receiver.hung_up.get(timeout=PATIENCE_S)
    assert receiver.connections == len(receiver.heads) == 3


def test_a_request_on_a_connection_that_was_just_closed_is_retried_at_once(receiving: Receiving) -> None:
    receiver = receiving((YES,), (), (YES,), hang_up_after=2)
    began_s = time.monotonic()
    assert results(receiver, 2) == [ACCEPTED, ACCEPTED]
    assert time.monotonic() - began_s < 0.75  # without the pause that repetitions have, 0.8 s at least
    assert (receiver.connections, len(receiver.heads)) == (2, 3)


@pytest.mark.parametrize("form", [b"Content-Length: 200000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n30d40\r\n"])
def test_only_the_beginning_of_a_long_answer_is_read(receiving: Receiving, form: bytes) -> None:
    receiver = receiving((b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + form + b"x" * 200_000,), (YES,))
    first, second = results(receiver, 2)
    assert failure(first)[0] == "garbage"
    assert second == ACCEPTED
    assert receiver.connections == 2


def test_a_request_whose_answer_is_cut_short_is_not_retried(receiving: Receiving) -> None:
    """The receiver may have accepted the request, and must not get it twice."""
    receiver = receiving((OK + b"Content-Length: 9\r\n\r\nxx",), hang_up_after=1)
    (result,) = results(receiver, 1)
    assert not result.accepted
    assert len(receiver.heads) == 1


def test_a_request_that_the_receiver_does_not_read_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with sender(url, 0.5) as made:
            began_s = time.monotonic()
            assert failure(made.send(large(8 << 20))) == ("unreachable", "no whole answer within 0.5 s")
            assert time.monotonic() - began_s < 2


# ---------------------------------------------------------------------------- TLS and proxies


def test_over_tls_the_connection_is_kept_and_large_requests_arrive(
    pki: Pki, started: Callable[[HttpCollector], HttpCollector]
) -> None:
    collector = started(HttpCollector(pki.context()))
    threads = set()
    answered = collector.answer
    collector.answer = lambda number: (threads.add(threading.get_ident()), answered(number))[1]  # type: ignore[func-returns-value]
    with sender(collector.url, otlp_certificate=pki.file("ca.crt")) as made:
        for _ in range(3):
            assert made.send(large(2_000_000)) == ACCEPTED
    assert len(threads) == 1  # the server has a thread for each connection
    assert [seen.size_bytes > 2_000_000 for seen in collector.seen] == [True] * 3


def large(size_bytes: int) -> Batch:
    """A request of at least this size."""
    point = Point(1.0, {**GPU, "text": "x" * size_bytes})
    return batch(collection({"hw.power": [point]}))


@pytest.mark.parametrize("answer", [YES, OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
def test_a_proxy_of_the_environment_gets_the_whole_url(
    receiving: Receiving, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    proxy = receiving((answer,))
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    with sender("http://collector.invalid:4318") as made:
        assert [made.send(data()), made.send(data())] == [ACCEPTED, ACCEPTED]
    assert proxy.connections == 1
    assert {head.split(b"\r\n")[0] for head in proxy.heads} == {
        b"POST http://collector.invalid:4318/v1/metrics HTTP/1.1"
    }


def test_a_receiver_in_no_proxy_is_reached_directly(receiving: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert results(receiving((YES,)), 1) == [ACCEPTED]


# ---------------------------------------------------------------------------- requests


def test_a_configured_host_header_is_sent(receiving: Receiving) -> None:
    receiver = receiving((YES,))
    assert sent(receiver.url, otlp_headers="host=tenant.example") == ACCEPTED
    assert b"\r\nhost: tenant.example\r\n" in receiver.heads[0]
    assert receiver.heads[0].lower().count(b"\r\nhost:") == 1


def test_a_missing_certificate_file_is_a_failure_that_names_it(
    pki: Pki, started: Callable[[HttpCollector], HttpCollector]
) -> None:
    collector = started(HttpCollector(pki.context()))
    with sender(collector.url, 0.5, otlp_certificate=pki.file("ca.crt")) as made:
        Path(pki.file("ca.crt")).unlink()
        assert "ca.crt" in failure(made.send(data()))[1]


def test_a_refusal_before_the_whole_body_was_sent_is_a_failure_with_its_reason() -> None:
    """As Go's server does: it answers after the headers, closes for writing, and closes with the body unread."""
    reason = b"request body too large"
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def refuse() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                client.sendall(answer % (len(reason), reason))
                client.shutdown(socket.SHUT_WR)
                time.sleep(0.5)

        thread = threading.Thread(target=refuse)
        thread.start()
        with sender(url, 5.0) as made:
            kind, text = failure(made.send(large(8 << 20)))
        thread.join(PATIENCE_S)
    assert (kind, text) == ("413", "HTTP 413 Too Large: request body too large")
