"""A large host under a real limit of memory: slow clients, scrapers and pushes at once."""

from __future__ import annotations

import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.config.values import Address
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES
from tests.agent_process import AgentProcess
from tests.cli import clean_environment
from tests.real.memory_cgroup import memory_cgroup

pytestmark = pytest.mark.real

GPUS: Final = 16
PROCESSES_PER_GPU: Final = 200
LIMIT_BYTES: Final = 384 << 20
"""Below the limit of the manifests, 512 MiB."""

SLOW_CLIENTS: Final = 250
SCRAPERS: Final = 16
SCRAPE_TIMEOUT_S: Final = 10.0
"""That of Prometheus."""

LOAD_S: Final = 40.0
REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
BEGINNING_BYTES: Final = 256 << 10
"""The part of a body that is searched. The rest is only counted, so that the scrapers need little of the CPU."""

ENERGY: Final = re.compile(rb"^hw_energy_joules_total\{.*$", re.MULTILINE)


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
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class Load:
    """Clients that never read, and scrapers that read at once, each again and again."""

    def __init__(self, address: Address) -> None:
        self.bodies = 0
        self.closed = 0
        """Clients that the agent has disconnected."""
        self.cycles: set[bytes] = set()
        self.failures: list[str] = []
        self._address = (address.host, address.port)
        self._until_s = time.monotonic() + LOAD_S
        self._lock = threading.Lock()

    def run(self) -> None:
        """Return after ``LOAD_S``, or at the first failure of a scraper."""
        threads = [threading.Thread(target=self._read_nothing)]
        threads += [threading.Thread(target=self._scrape) for _ in range(SCRAPERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._until_s or bool(self.failures)

    def _read_nothing(self) -> None:
        clients = {client.fileno(): client for client in (self._connect() for _ in range(SLOW_CLIENTS))}
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
            client.sendall(REQUEST)
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
            client.sendall(REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            while size := client.recv_into(buffer):
                if len(beginning) < BEGINNING_BYTES:
                    beginning += buffer[:size]
                received += size
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{received} bytes in {SCRAPE_TIMEOUT_S:g} s")
        head, _, body = beginning.partition(b"\r\n\r\n")
        length, cycle = re.search(rb"Content-Length: (\d+)", head), ENERGY.search(body)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None or cycle is None:
            raise ValueError(f"{beginning[:100]!r}")
        if received != len(head) + 4 + int(length[1]):
            raise ValueError(f"{received} bytes of {int(length[1])}")
        return cycle[0]


def high_water_bytes(pid: int) -> int:
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_a_large_host_stays_below_the_limit_whatever_clients_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.limits.agent", str(GPUS), str(PROCESSES_PER_GPU)]
    words += ["run", "--source", "sim", "--listen", "127.0.0.1:0", "--exporters", "otlp,prometheus"]
    with memory_cgroup(LIMIT_BYTES) as cgroup, Receiver().running() as receiver:
        words += ["--otlp-endpoint", receiver.url, "--state-dir", str(tmp_path / "state")]
        agent = AgentProcess(words, clean_environment(), tmp_path, before_start=cgroup.join)
        try:
            agent.until(lambda: agent.get("/metrics").status == 200)
            load = Load(agent.address)
            load.run()
            assert load.failures == []
            assert agent.process.poll() is None, f"ended with {agent.process.returncode}: {agent.stderr}"
            assert high_water_bytes(agent.process.pid) < LIMIT_BYTES
            assert cgroup.oom_kills == 0
            assert agent.get("/healthz").status == 200
        finally:
            agent.process.kill()
            agent.process.wait()
    assert load.bodies >= SCRAPERS, "every scraper was served"
    assert load.closed >= SLOW_CLIENTS, "every slow client was disconnected"
    assert len(load.cycles) >= LOAD_S / 5.0, "as many cycles as the interval asks for"
    assert receiver.received_bytes > 20 << 20, "at least two pushes"
    assert receiver.largest_bytes <= LARGEST_REQUEST_BYTES
