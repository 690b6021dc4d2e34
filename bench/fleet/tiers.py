"""The two tiers of Collectors, with the shipped configurations of a node and of a gateway."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import psutil

from bench.fleet.errors import FleetError
from otel_gpu.config.values import Address
from tests.cli import clean_environment
from tests.real.collector import CONFIGURATIONS, ROOT, Addresses
from tests.real.programs import free_addresses, responds
from tests.web import ask

_START_S: Final = 60.0
_ADDRESSES: Final = 6
_QUEUE: Final = "otelcol_exporter_queue_size{"


def find_collector() -> Path:
    """The Collector that ``make collector`` built."""
    build = ROOT / "tools" / "collector" / "build.sh"
    result = subprocess.run([build, "--find"], capture_output=True, encoding="utf-8", check=False)  # noqa: S603 - ours
    if result.returncode:
        raise FleetError(result.stderr.strip())
    return Path(result.stdout.strip())


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time so far over all restarts, in s, and resident memory now."""

    cpu_s: float
    memory_bytes: int


class Collector:
    """A Collector on a shipped configuration; it can be killed and started again, with the same queue and addresses."""

    def __init__(
        self, name: str, program: Path, configuration: str, *, directory: Path, addresses: Sequence[Address]
    ) -> None:
        self.name = name
        self._telemetry, *others = addresses
        self.addresses = Addresses(*others)
        self.directory = directory
        self._words = [str(program), f"--config={CONFIGURATIONS / configuration}", f"--config={self._own_port()}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._past_cpu_s = 0.0

    def start(self, environment: Mapping[str, str]) -> None:
        """Start it without waiting for it (see ``wait``). It has its own session, so Ctrl-C does not reach it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        given = {"QUEUE_DIRECTORY": str(self.directory / "queue"), **self.addresses.environment(), **environment}
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - built here
                self._words,
                env=clean_environment(given),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it is healthy."""
        deadline_s = time.monotonic() + _START_S
        while not responds(self.addresses.health, "/"):
            self.check()
            if time.monotonic() > deadline_s:
                raise FleetError(f"{self.name} was not healthy after {_START_S:g} s: {self._last_words()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise FleetError if it has ended unexpectedly."""
        if self._process is not None and self._process.poll() is not None:
            raise FleetError(f"{self.name} ended with {self._process.returncode}: {self._last_words()}")

    def kill(self) -> None:
        """Send SIGKILL and wait for its end; do nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        self._past_cpu_s += _cost(process.pid).cpu_s
        process.kill()
        process.wait()

    def queue_bytes(self) -> int:
        """Bytes in its queue by its own metrics; 0 while it does not respond."""
        try:
            text = ask(self._telemetry, "/metrics").body
        except (OSError, http.client.HTTPException):
            return 0
        return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(_QUEUE))

    def cost(self) -> Cost:
        """Its cost so far."""
        now = Cost(0.0, 0) if self._process is None else _cost(self._process.pid)
        return Cost(self._past_cpu_s + now.cpu_s, now.memory_bytes)

    def _own_port(self) -> str:
        """Serve its own metrics on a separate port instead of 8888, which all would share."""
        at = f"{{host: {self._telemetry.host}, port: {self._telemetry.port}}}"
        return f"yaml:service: {{telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {at}}}}}}}]}}}}}}"

    def _last_words(self) -> str:
        lines = (self.directory / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "no output"


@dataclass(frozen=True, slots=True)
class Tiers:
    """All Collectors. Nodes are spread over the gateways; a gateway forwards each series to its responsible member."""

    nodes: Sequence[Collector]
    gateways: Sequence[Collector]
    backend: Address

    def start_gateway(self, gateway: Collector) -> None:
        """Start a gateway with the addresses of all members."""
        members = ", ".join(str(one.addresses.member) for one in self.gateways)
        gateway.start({"GATEWAY_MEMBERS": f"[{members}]", "BACKEND_ENDPOINT": f"http://{self.backend}"})

    def start(self) -> None:
        """Start all, and wait until they are healthy."""
        for gateway in self.gateways:
            self.start_gateway(gateway)
        for place, node in enumerate(self.nodes):
            entry = self.gateways[place % len(self.gateways)].addresses.otlp_grpc
            node.start({"GATEWAY_ENDPOINT": str(entry), "GATEWAY_INSECURE": "true"})
        for collector in (*self.gateways, *self.nodes):
            collector.wait()

    def check(self) -> None:
        """Raise FleetError if one has ended unexpectedly."""
        for collector in (*self.gateways, *self.nodes):
            collector.check()


@contextmanager
def tiers(directory: Path, *, nodes: int, gateways: int, backend: Address) -> Iterator[Tiers]:
    """Collectors, not yet started; killed at the end."""
    program = find_collector()
    # In one call: two calls could return the same port.
    free = iter(free_addresses(_ADDRESSES * (nodes + gateways)))

    def made(kind: str, count: int) -> list[Collector]:
        return [
            Collector(
                f"{kind}-{number}",
                program,
                f"{kind}.yaml",
                directory=directory / f"{kind}-{number}",
                addresses=list(islice(free, _ADDRESSES)),
            )
            for number in range(count)
        ]

    with ExitStack() as held:
        both = Tiers(made("node", nodes), made("gateway", gateways), backend)
        for collector in (*both.gateways, *both.nodes):
            held.callback(collector.kill)
        yield both


def _cost(pid: int) -> Cost:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Cost(times.user + times.system, process.memory_info().rss)
    except psutil.Error:
        return Cost(0.0, 0)
