"""Measurements of an agent on a simulated host, and of a name source under a flood of events."""

from __future__ import annotations

import http.client
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench.fleet.child import Child, child
from bench.limits.load import Load, Receiver
from bench.limits.world import Size
from otel_gpu.clock import SystemClock
from otel_gpu.config.values import Address, address
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.names.docker.source import DockerSource
from tests.docker_api import DockerApi, container_id, serving_docker

SETTLE_S: Final = 40.0
"""Two pushes and several cycles."""

START_S: Final = 60.0
_SERIES: Final = re.compile(rb"^otel_gpu_series\{.* (\d+)$", re.MULTILINE)
_DROPPED: Final = re.compile(rb"^otel_gpu_series_dropped\{.* (\d+)$", re.MULTILINE)


class LimitsError(Exception):
    """The measurement failed."""


@dataclass(frozen=True, slots=True)
class Host:
    """What an agent on one host needs. Memory is resident memory; the simulated host is a part of it."""

    gpus: int
    processes: int
    slow_clients: int
    scrapers: int
    with_prices: bool
    series: int
    dropped_series: int
    scraped_bytes: int
    compressed_bytes: int
    pushed_bytes: int
    cpu_ms_per_cycle: float
    memory_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Events:
    """A flood of an engine's events: one container is renamed again and again."""

    containers: int
    events: int
    seconds: float
    cpu_s: float
    requests: int


def measure_host(
    size: Size, directory: Path, *, slow_clients: int = 0, scrapers: int = 0, with_prices: bool = False
) -> Host:
    """Run an agent on a host of this size, with a state directory, and scrape it every 5 s or with this load."""
    prices = ("--price-gpu-hour", "2", "--price-kwh", "0.3") if with_prices else ()
    with Receiver().running() as receiver, _agent(size, receiver, directory, prices) as (process, at):
        _scrape(at, compressed=False)
        cpu_s, began_s = _cpu_s(process.pid), time.monotonic()
        if slow_clients or scrapers:
            load = Load(at, slow_clients=slow_clients, scrapers=scrapers, duration_s=SETTLE_S)
            load.run()
            if load.failures:
                raise LimitsError(load.failures[0])
        else:
            while time.monotonic() < began_s + SETTLE_S:
                time.sleep(5.0)
                _scrape(at, compressed=True)
        cycles = (time.monotonic() - began_s) / 5.0
        used_s = _cpu_s(process.pid) - cpu_s
        memory_bytes = _status_bytes(process.pid, "VmRSS")
        plain, compressed = _scrape(at, compressed=False), _scrape(at, compressed=True)
        return Host(
            gpus=size.gpus,
            processes=size.processes,
            slow_clients=slow_clients,
            scrapers=scrapers,
            with_prices=with_prices,
            series=_value(_SERIES, plain),
            dropped_series=_value(_DROPPED, plain),
            scraped_bytes=len(plain),
            compressed_bytes=len(compressed),
            pushed_bytes=receiver.received_bytes,
            cpu_ms_per_cycle=1e3 * used_s / cycles,
            memory_bytes=memory_bytes,
            peak_bytes=high_water_bytes(process.pid),
        )


@contextmanager
def _agent(
    size: Size, receiver: Receiver, directory: Path, more: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    directory.mkdir()
    log = directory / "log"
    command = [sys.executable, "-m", "bench.limits.agent", str(size.gpus), str(size.processes_per_gpu), "run"]
    command += ["--source", "sim", "--listen", "127.0.0.1:0", "--exporters", "otlp,prometheus", *more]
    command += ["--otlp-endpoint", receiver.url, "--state-dir", str(directory / "state")]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - ours
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output
        )
    try:
        yield process, _ready(process, log)
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> Address:
    """The address of the agent, once it serves metrics."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        found = re.search(r"http://(\S+)/metrics", log.read_text(encoding="utf-8"))
        if found is not None:
            try:
                _scrape(address(found[1]), compressed=True)
            except LimitsError:
                pass
            else:
                return address(found[1])
        time.sleep(0.2)
    raise LimitsError(f"the agent does not start: {log.read_text(encoding='utf-8')}")


def _scrape(at: Address, *, compressed: bool) -> bytes:
    """The body of a scrape as it is sent."""
    connection = http.client.HTTPConnection(at.host, at.port, timeout=START_S)
    try:
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"} if compressed else {})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise LimitsError(f"a scrape gets {response.status}")
    return body


def _value(pattern: re.Pattern[bytes], body: bytes) -> int:
    found = pattern.search(body)
    if found is None:
        raise LimitsError(f"no {pattern.pattern!r} in the exposition")
    return int(found[1])


def _cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # linux/posix-timers_types.h: CPUCLOCK_SCHED


def _status_bytes(pid: int, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise LimitsError(f"no {key} of process {pid}")
    return int(found[1]) * 1024


def high_water_bytes(pid: int) -> int:
    """The most memory that a process has had resident."""
    return _status_bytes(pid, "VmHWM")


# ---------------------------------------------------------------------------- events of an engine


def measure_events(directory: Path, *, containers: int = 500, events: int = 5000) -> Events:
    """Rename one container so often, as fast as an engine can report it, and wait for its last name."""
    renamed = container_id(0)
    workloads = {WorkloadRef(WorkloadKind.CONTAINER, container_id(number)): [number] for number in range(containers)}
    path = directory / "engine.sock"
    with child("engine", _serve_engine, str(path), containers) as engine:
        engine.receive(str)
        source = DockerSource("docker", f"unix://{path}", clock=SystemClock())

        def has_name(name: str) -> bool:
            info = source.read(workloads).known.get(renamed)
            return info is not None and info.names.container == name

        try:
            _await(lambda: has_name("job-0") and len(source.read(workloads).known) == containers)
            requests, cpu_s, began_s = _after(engine, 0), _own_cpu_s(), time.monotonic()
            _after(engine, events)
            _await(lambda: has_name(f"name-{events}"))
            took_s, used_s = time.monotonic() - began_s, _own_cpu_s() - cpu_s
            return Events(containers, events, took_s, used_s, _after(engine, 0) - requests)
        finally:
            source.close()


def _after(engine: Child, renames: int) -> int:
    """The requests that the engine has received after so many renames."""
    engine.send(renames)
    return engine.receive(int)


def _await(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > until_s:
            raise LimitsError("the name source does not follow")
        time.sleep(0.05)


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _serve_engine(connection: Connection, path: str, containers: int) -> None:
    """An engine in a process of its own. For each number received, so many renames; answers its requests so far."""
    api = DockerApi()
    for number in range(containers):
        api.run(number, f"job-{number}")
    with serving_docker(api, Path(path)):
        connection.send("ready")
        while True:
            for number in range(connection.recv()):
                api.rename(container_id(0), f"name-{number + 1}")
            connection.send(sum(api.requests.values()))
