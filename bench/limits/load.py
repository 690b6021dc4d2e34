"""Clients of an agent: many that read nothing, scrapers that read at once, and a receiver of OTLP."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from otel_gpu.config.values import Address

SCRAPE_TIMEOUT_S: Final = 10.0
"""That of Prometheus."""

_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BEGINNING_BYTES: Final = 256 << 10
"""The part of a body that is searched. The rest is only counted, so that the scrapers need little of the CPU."""

_ENERGY: Final = re.compile(rb"^hw_energy_joules_total\{.*$", re.MULTILINE)


class Receiver:
    """A receiver of OTLP that accepts everything."""

    def __init__(self) -> None:
        receiver = self
        self.received_bytes = self.largest_bytes = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = len(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.received_bytes += size
                receiver.largest_bytes = max(receiver.largest_bytes, size)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """Answer requests within this context."""
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class Load:
    """Clients that never read, and scrapers that read at once, each again and again."""

    def __init__(self, address: Address, *, slow_clients: int, scrapers: int, duration_s: float) -> None:
        self.bodies = 0
        self.closed = 0
        """Clients that the agent has disconnected."""
        self.cycles: set[bytes] = set()
        self.failures: list[str] = []
        self._address = (address.host, address.port)
        self._slow_clients, self._scrapers = slow_clients, scrapers
        self._until_s = time.monotonic() + duration_s
        self._lock = threading.Lock()

    def run(self) -> None:
        """Return after the duration, or at the first failure of a scraper."""
        threads = [threading.Thread(target=self._read_nothing)]
        threads += [threading.Thread(target=self._scrape) for _ in range(self._scrapers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._until_s or bool(self.failures)

    def _read_nothing(self) -> None:
        clients = {client.fileno(): client for client in (self._connect() for _ in range(self._slow_clients))}
        poll = select.poll()
        for descriptor in clients:
            poll.register(descriptor, select.POLLRDHUP)
        try:
            while not self._is_over:
                for descriptor, _ in poll.poll(100):
                    poll.unregister(descriptor)
                    clients.pop(descriptor).close()
                    self.closed += 1
                    again = self._connect()
                    clients[again.fileno()] = again
                    poll.register(again, select.POLLRDHUP)
        except OSError as error:
            self.failures.append(f"a slow client: {error}")
        finally:
            for client in clients.values():
                client.close()

    def _connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(SCRAPE_TIMEOUT_S)
        client.connect(self._address)
        with suppress(ConnectionError):  # then its hang-up is seen
            client.sendall(_REQUEST)
        return client

    def _scrape(self) -> None:
        while not self._is_over:
            try:
                cycle = self._scraped_cycle()
            except (OSError, ValueError) as error:
                self.failures.append(f"a scraper: {type(error).__name__}: {error}")
                return
            with self._lock:
                self.bodies += 1
                self.cycles.add(cycle)
            time.sleep(0.5)

    def _scraped_cycle(self) -> bytes:
        """Scrape once and read all of the body; returns a line that differs from cycle to cycle."""
        deadline_s = time.monotonic() + SCRAPE_TIMEOUT_S
        buffer, received, beginning = bytearray(1 << 20), 0, b""
        with socket.create_connection(self._address, SCRAPE_TIMEOUT_S) as client:
            client.sendall(_REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            while size := client.recv_into(buffer):
                if len(beginning) < _BEGINNING_BYTES:
                    beginning += buffer[:size]
                received += size
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{received} bytes in {SCRAPE_TIMEOUT_S:g} s")
        head, _, body = beginning.partition(b"\r\n\r\n")
        length, cycle = re.search(rb"Content-Length: (\d+)", head), _ENERGY.search(body)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None or cycle is None:
            raise ValueError(f"{beginning[:100]!r}")
        if received != len(head) + 4 + int(length[1]):
            raise ValueError(f"{received} bytes of {int(length[1])}")
        return cycle[0]
