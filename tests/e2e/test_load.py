"""The agent under load: 200 scrapers and 50 slow or broken clients at the same time."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.config.values import Address
from tests.agent_process import AgentProcess, simulated_agent

pytestmark = pytest.mark.long

SCRAPERS: Final = 200
WAVES: Final = 2
BROKEN_CLIENTS: Final = 50
INTERVAL_S: Final = 1
CYCLES: Final = 15
"""The minimum duration of the load, in cycles of an agent without load."""

PATIENCE_S: Final = 60

FOLLOW: Final = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"


async def scrape(address: Address) -> bytes:
    """A complete, decompressed response; AssertionError if a part is missing."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(REQUEST)
        answered = await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    head, _, body = answered.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), head
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    return gzip.decompress(body)


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte at a time."""
    while not reader.at_eof():
        writer.write(b"G")
        await writer.drain()
        await asyncio.sleep(0.1)


async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send half a request, then nothing."""
    writer.write(REQUEST[: len(REQUEST) // 2])
    await asyncio.sleep(PATIENCE_S)


async def not_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request, and do not read the response."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # those of sockets have it
    writer.write(REQUEST)
    await asyncio.sleep(PATIENCE_S)


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request, and reset the connection before the response."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.write(REQUEST)
    await writer.drain()
    writer.transport.abort()


async def send_random_bytes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send random bytes."""
    writer.write(random.Random(1).randbytes(4096))
    await writer.drain()
    await asyncio.sleep(0.1)


async def speak_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the beginning of a TLS handshake to a port without TLS."""
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
    await reader.read()


BEHAVIOURS: Final[tuple[Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], ...]] = (
    drip, break_off, not_read, reset, send_random_bytes, speak_tls,
)  # fmt: skip


async def misbehave(address: Address, number: int) -> None:
    """Connect again and again, each time as a broken client of this number."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                await BEHAVIOURS[number % len(BEHAVIOURS)](reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


class Cycles:
    """The times of an agent's samples (Unix time in ns), which are the ids of its events."""

    def __init__(self, address: Address) -> None:
        self.at_ns: list[int] = []
        self._address = address

    async def follow(self) -> None:
        """Record every cycle from now on."""
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port, limit=1 << 24)
        writer.write(FOLLOW)
        try:
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    self.at_ns.append(int(line[4:]))
        finally:
            writer.transport.abort()
        raise ConnectionError("the agent closed the event stream")

    async def until(self, count: int) -> None:
        """Wait for ``count`` cycles."""
        async with asyncio.timeout(PATIENCE_S + count * INTERVAL_S):
            while len(self.at_ns) < count:
                await asyncio.sleep(0.01)

    def most_skipped(self) -> int:
        """The largest number of missing cycles between two recorded ones."""
        gaps_ns = (after - before for before, after in pairwise(self.at_ns))
        return max(round(gap_ns / (INTERVAL_S * 1e9)) for gap_ns in gaps_ns) - 1


class Load:
    """The load, with all responses and the largest use of resources; an idle agent is the reference."""

    def __init__(self, agent: AgentProcess, idle: AgentProcess) -> None:
        self.bodies: list[bytes] = []
        self.cycles = 0
        """The number of cycles that a well-behaved scraper saw."""
        self.sampled, self.reference = Cycles(agent.address), Cycles(idle.address)
        self.most_threads = 0
        self.most_resident_kib = 0
        self._agent = agent

    async def run(self) -> None:
        address = self._agent.address
        followed = [asyncio.create_task(self.sampled.follow()), asyncio.create_task(self.reference.follow())]
        await asyncio.gather(self.sampled.until(2), self.reference.until(2))
        others = [asyncio.create_task(misbehave(address, number)) for number in range(BROKEN_CLIENTS)]
        others += [asyncio.create_task(self._watch()), asyncio.create_task(self._follow(address)), *followed]
        waves, began = 0, len(self.reference.at_ns)
        try:
            while waves < WAVES or len(self.reference.at_ns) < began + CYCLES:
                await asyncio.sleep(INTERVAL_S)  # the broken clients are connected
                self.bodies += await asyncio.gather(*(scrape(address) for _ in range(SCRAPERS)))
                waves += 1
            await asyncio.sleep(INTERVAL_S)
        finally:
            for task in others:
                task.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        assert len(self.bodies) == waves * SCRAPERS

    async def _follow(self, address: Address) -> None:
        last = None
        while True:
            energy = re.search(rb"^hw_energy_joules_total{.*$", await scrape(address), re.MULTILINE)
            assert energy is not None
            if energy[0] != last:
                last = energy[0]
                self.cycles += 1
            await asyncio.sleep(INTERVAL_S / 5)

    async def _watch(self) -> None:
        while True:
            self.most_threads = max(self.most_threads, status(self._agent, "Threads"))
            self.most_resident_kib = max(self.most_resident_kib, status(self._agent, "VmRSS"))
            await asyncio.sleep(0.05)


def status(agent: AgentProcess, key: str) -> int:
    """A number in ``/proc/PID/status``."""
    lines = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def value(name: str, body: bytes) -> float:
    """The sum of a metric's samples."""
    lines = body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def test_200_scrapers_are_served_despite_50_broken_clients_and_sampling_continues(tmp_path: Path) -> None:
    exporters = ("--exporters", "prometheus")
    idle_directory = tmp_path / "idle"
    idle_directory.mkdir()
    with (
        simulated_agent(*exporters, directory=tmp_path) as agent,
        simulated_agent(*exporters, directory=idle_directory) as idle,
    ):
        agent.until(lambda: agent.get("/metrics").status == 200)
        idle.until(lambda: idle.get("/metrics").status == 200)
        threads, resident_kib = status(agent, "Threads"), status(agent, "VmRSS")
        load = Load(agent, idle)
        asyncio.run(load.run())
        assert agent.process.poll() is None
        assert "Traceback" not in agent.stderr

    for body in set(load.bodies):  # all scrapers of a cycle get the same body
        assert body.endswith(b"\n")
        assert value("otel_gpu_up", body) >= 1
        assert value("otel_gpu_conservation_energy_error_joules", body) == 0
    assert load.cycles >= WAVES
    # It sampled as often as the idle agent on the same machine at the same time.
    assert len(load.sampled.at_ns) >= 0.8 * len(load.reference.at_ns)
    assert load.sampled.most_skipped() <= 1 + load.reference.most_skipped()
    assert load.most_threads - threads <= 16
    assert load.most_resident_kib - resident_kib < 48 * 1024
