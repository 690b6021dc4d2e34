"""The agent under 200 scrapers and 50 clients who are slow or broken, all at a time."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.values import Address
from tests.agent_process import AgentProcess, agent_process

pytestmark = pytest.mark.long

SCRAPERS: Final = 200
WAVES: Final = 2
RUDE: Final = 50
INTERVAL_S: Final = 1
PATIENCE_S: Final = 60

REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept-Encoding: gzip\r\n\r\n"


async def scrape(address: Address) -> bytes:
    """One whole answer, unpacked; AssertionError if anything of it is missing."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(REQUEST)
        answered = await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    head, _, body = answered.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n"), head
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    return gzip.decompress(body)


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A byte now and then, for ever."""
    while not reader.at_eof():
        writer.write(b"G")
        await writer.drain()
        await asyncio.sleep(0.1)


async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half a request, then silence."""
    writer.write(REQUEST[: len(REQUEST) // 2])
    await asyncio.sleep(PATIENCE_S)


async def not_listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A whole request, whose answer is never taken in."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # those of sockets have it
    writer.write(REQUEST)
    await asyncio.sleep(PATIENCE_S)


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A request, and a reset before the answer can have come."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.write(REQUEST)
    await writer.drain()
    writer.transport.abort()


async def talk_nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes that mean nothing."""
    writer.write(random.Random(1).randbytes(4096))
    await writer.drain()
    await asyncio.sleep(0.1)


async def speak_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The beginning of a handshake, to a port that has none."""
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
    await reader.read()


MANNERS: Final[tuple[Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], ...]] = (
    drip, break_off, not_listen, reset, talk_nonsense, speak_tls,
)  # fmt: skip


async def be_rude(address: Address, number: int) -> None:
    """Come again and again, in one of many ways."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                await MANNERS[number % len(MANNERS)](reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


class Load:
    """What came of it: every answer, and what the agent came to meanwhile."""

    def __init__(self, agent: AgentProcess) -> None:
        self.bodies: list[bytes] = []
        self.cycles = 0
        self.stale = 0
        """How often a patient client saw a new cycle, and how often one that was there two intervals before already."""
        self.most_threads = 0
        self.most_resident_kib = 0
        self._agent = agent

    async def run(self) -> None:
        address = self._agent.address
        others = [asyncio.create_task(be_rude(address, number)) for number in range(RUDE)]
        others += [asyncio.create_task(self._watch()), asyncio.create_task(self._follow(address))]
        try:
            for _ in range(WAVES):
                await asyncio.sleep(INTERVAL_S)  # the rude are here already
                self.bodies += await asyncio.gather(*(scrape(address) for _ in range(SCRAPERS)))
            await asyncio.sleep(INTERVAL_S)
        finally:
            for task in others:
                task.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def _follow(self, address: Address) -> None:
        last, since_s = None, 0.0
        while True:
            asked_s = time.monotonic()
            energy = re.search(rb"^hw_energy_joules_total{.*$", await scrape(address), re.MULTILINE)
            assert energy is not None
            if energy[0] != last:
                last, since_s = energy[0], time.monotonic()
                self.cycles += 1
            elif asked_s - since_s > 2 * INTERVAL_S:
                self.stale += 1
            await asyncio.sleep(INTERVAL_S / 5)

    async def _watch(self) -> None:
        while True:
            self.most_threads = max(self.most_threads, status(self._agent, "Threads"))
            self.most_resident_kib = max(self.most_resident_kib, status(self._agent, "VmRSS"))
            await asyncio.sleep(0.05)


def status(agent: AgentProcess, key: str) -> int:
    """A number of ``/proc/PID/status``."""
    lines = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def value(name: str, body: bytes) -> float:
    """The sum of a metric's samples."""
    lines = body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def test_200_scrapers_beside_50_rude_clients_are_all_served_and_sampling_goes_on(tmp_path: Path) -> None:
    arguments = ("--source", "sim", "--interval", f"{INTERVAL_S}s", "--exporters", "prometheus")
    with agent_process("run", *arguments, "--listen", "127.0.0.1:0", directory=tmp_path) as agent:
        agent.until(lambda: agent.get("/metrics").status == 200)
        threads, resident_kib = status(agent, "Threads"), status(agent, "VmRSS")
        load = Load(agent)
        asyncio.run(load.run())
        assert agent.process.poll() is None
        assert "Traceback" not in agent.stderr

    assert len(load.bodies) == WAVES * SCRAPERS
    for body in set(load.bodies):  # one cycle is written once, for everybody
        assert body.endswith(b"\n")
        assert value("otel_gpu_up", body) >= 1
        assert value("otel_gpu_conservation_energy_error_joules", body) == 0
    assert (load.cycles >= WAVES, load.stale) == (True, 0)
    assert load.most_threads - threads <= 16
    assert load.most_resident_kib - resident_kib < 48 * 1024
