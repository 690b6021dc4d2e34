"""The two tools: how each is started on a world, and how to see that it exports its first metrics."""

from __future__ import annotations

import gzip
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from bench.cost.errors import CostError
from bench.cost.worlds import Place, Size
from tests.nvml_stub.build import build
from tests.nvml_stub.play import LiveCounts, stub_env

START_S: Final = 60.0
_POLL_S: Final = 0.02
_REPOSITORY: Final = Path(__file__).parents[2]
_CONSTRAINTS: Final = _REPOSITORY / "constraints/bench.txt"
_LAUNCHER: Final = Path(__file__).with_name("peer.py")
_AS_PROMETHEUS: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
"""The headers of a scrape by Prometheus. It accepts gzip, so compression is part of the cost."""

OURS: Final = "otel-gpu"
PEER: Final = "nvitop-exporter"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on a world. ``ready`` is in its exposition once per GPU as soon as it has figures."""

    name: str
    command: tuple[str, ...]
    port: int
    ready: str


class Scrape(NamedTuple):
    """An answer to a scrape: its text, the bytes received, and how long it took (s)."""

    text: str
    sent_bytes: int
    took_s: float


class Running:
    """A running tool. While it is paused it uses nothing, and its counts stay."""

    def __init__(self, tool: Tool, size: Size, counts: LiveCounts, env: Mapping[str, str], log: Path) -> None:
        self.tool, self.size, self.counts = tool, size, counts
        self._log = log
        self._connection = http.client.HTTPConnection("127.0.0.1", tool.port, timeout=START_S)
        began_s = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - ours
                tool.command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.pid = self._process.pid
        try:
            self._await_metrics(began_s + START_S)
        except BaseException:
            self.end()
            raise
        self.start_s = time.monotonic() - began_s

    def scrape(self) -> Scrape:
        """Scrape it as Prometheus does."""
        began_s = time.monotonic()
        try:
            answer, body = self._asked()
        except ConnectionError:  # paused for longer than it keeps an idle connection; Prometheus retries as well
            self._connection.close()
            answer, body = self._asked()
        took_s = time.monotonic() - began_s
        if answer.status != http.HTTPStatus.OK:
            raise CostError(f"{self.tool.name} answers {answer.status}")
        text = gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body
        return Scrape(text.decode(), len(body), took_s)

    def _asked(self) -> tuple[http.client.HTTPResponse, bytes]:
        self._connection.request("GET", "/metrics", headers=_AS_PROMETHEUS)
        with self._connection.getresponse() as answer:
            return answer, answer.read()

    def pause(self) -> None:
        """Stop it from running."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Terminate it."""
        self._connection.close()
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_metrics(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            if self._process.poll() is not None:
                said = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                raise CostError(f"{self.tool.name} ended with {self._process.returncode}: {' '.join(said)}")
            try:
                text = self.scrape().text
            except (OSError, http.client.HTTPException, CostError):
                self._connection.close()
            else:
                if text.count(self.tool.ready) >= self.size.gpus:
                    return
            time.sleep(_POLL_S)
        raise CostError(f"{self.tool.name} exports no metrics within {START_S:g} s; its log is {self._log}")


@contextmanager
def started(tool: Tool, size: Size, place: Place, directory: Path) -> Iterator[Running]:
    """Run the tool on a world; it ends with this context."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = LiveCounts(directory / "calls")
    env = stub_env(build(), place.world, live=counts)
    running = Running(tool, size, counts, env, directory / "log")
    try:
        yield running
    finally:
        running.end()


def our_agent(place: Place, directory: Path, *, sink_url: str, docker: Path, options: Sequence[str] = ()) -> Tool:
    """The agent in its usual configuration, with a state directory, and a cycle each second. It pushes every 15 s."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command = (
        *(sys.executable, "-m", "otel_gpu", "run", "--source", "nvml", "--proc-root", str(place.proc)),
        *("--interval", "1s", "--exporters", "otlp,prometheus", "--otlp-endpoint", sink_url),
        *("--environment", "docker", "--docker-host", f"unix://{docker}", "--listen", f"127.0.0.1:{port}"),
        *("--state-dir", str(directory / "state"), "--control-socket", str(directory / "control.sock"), *options),
    )
    return Tool(OURS, command, port, "hw_power_watts{")


def peer(place: Place) -> Tool:
    """The other exporter: it reads the GPUs every second by itself, and exports what it read last."""
    port = free_port()
    python = str(peer_python())
    command = (python, str(_LAUNCHER), str(place.proc), "--port", str(port), "--interval", "1", "--hostname", "bench")
    return Tool(PEER, command, port, "gpu_power_usage_W{")


def peer_python() -> Path:
    """The interpreter of an environment that has the other exporter; created at first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-gpu/bench"
    target = cache / sha256(_CONSTRAINTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    python = target / "bin/python"
    if not (target / ".done").exists():
        sys.stderr.write(f"bench: installing {PEER} (once)…\n")
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps")
        try:
            subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)  # noqa: S603 - ours
            subprocess.run([str(python), *install, "-r", str(_CONSTRAINTS)], check=True)  # noqa: S603 - pinned
        except subprocess.CalledProcessError:
            raise CostError(f"{PEER} cannot be installed: a package index is needed the first time") from None
        (target / ".done").touch()
    return python


def peer_version() -> str:
    """Its version, as pinned."""
    pinned = (line.partition(" ")[0] for line in _CONSTRAINTS.read_text(encoding="ascii").splitlines())
    return next(line.partition("==")[2] for line in pinned if line.startswith(f"{PEER}=="))


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
