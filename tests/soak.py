"""A simulated week in fast-forward: ``python -m tests.soak --days 7``, or ``make soak``.

The real engine with the real rules and a real state directory samples a simulated host on which jobs come and go and
GPUs, the driver, /proc and the runtime fail. A real exporter pushes to a receiver that is down, refuses or hangs; a
real listener is scraped. Now and then the agent is stopped or killed, and another one continues.

In every cycle energy and memory must add up, no counter may fall, and all energy must equal the advance of the GPUs'
counters, to the millijoule. Memory, threads and descriptors must not grow. ``--leak`` keeps the report of every cycle,
which must be detected as a leak.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.own_process import SelfUsage
from otel_gpu.agent.resources import host_resources
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.config.values import Address
from otel_gpu.export.prometheus import PrometheusRenderer
from otel_gpu.export.push import ExportPipeline
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.endpoints import metrics_route
from otel_gpu.web.server import WebServer
from tests.soak_host import SoakGpus, SoakHost, SoakNames, SoakProcesses
from tests.soak_judge import Audit, Footprint, not_flat, summary
from tests.soak_receiver import Mood, Receiver
from tests.state_dirs import OPTIONS, StatefulAgent, counters, killed

CYCLE_S: Final = 30.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
SAVE_EVERY_S: Final = 10 * CYCLE_S
SCRAPE_EVERY: Final = 40
RESTART_EVERY_S: Final = 6 * HOUR_S
MOOD_EVERY_S: Final = HOUR_S
"""The mean time between changes of the receiver; it is up every other time."""

LAST_EXPORT_S: Final = 0.5


class Agent:
    """One run of the agent: engine, attributor, exporter and listener, as in the real agent, on a manual clock."""

    def __init__(self, host: SoakHost, directory: Path, receiver: Receiver, *, delta: bool) -> None:
        self.directory = directory
        self.attributor = StatefulAgent(directory, OPTIONS, checkpoint_every_s=SAVE_EVERY_S)
        self.engine = Engine(
            gpus=SoakGpus(host, self.attributor.known_gpus),
            processes=SoakProcesses(host),
            names=[SoakNames(host)],
            clock=host.clock,
            rules=self.attributor,
        )
        usage = SelfUsage()
        account = SelfAccount(started_ns=host.clock.wall_ns(), cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes)
        metrics = AgentMetrics(CycleMetrics(lambda: self.engine.latest, account))
        resources = host_resources(service_name="soak", given={}, environment={})
        flags = {
            "otlp-endpoint": receiver.url,
            "export-interval": "1s",
            "export-timeout": "1s",
            "otlp-timeout": "500ms",
            "otlp-temporality": "delta" if delta else "cumulative",
        }
        self.export_pipeline = ExportPipeline(load(flags, {}).config.export, resources, metrics.collect, time.monotonic)
        bodies = Bodies()
        self.web = WebServer(bodies=bodies)
        renderer = PrometheusRenderer(resources)
        listener = self.web.listen(
            Address("127.0.0.1", 0), {"/metrics": metrics_route(metrics.collect, renderer, bodies)}
        )
        self.address = listener.address
        self.web.start()
        self.export_pipeline.start()

    def scrape(self) -> str:
        """The response to a scrape."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def exports(self) -> Counter[str]:
        """Numbers of exports by result."""
        (pusher,) = self.export_pipeline.pushers
        return Counter({"ok": pusher.exports_ok, "failed": pusher.exports_failed})

    def close(self) -> None:
        """Stop cleanly: export, save, close."""
        self.export_pipeline.stop(LAST_EXPORT_S)
        self.web.stop()
        self.attributor.close()
        self.engine.close()


class Soak:
    """A host, a receiver, and one agent after the other."""

    def __init__(self, seed: int, root: Path) -> None:
        self.audit = Audit()
        self.footprints: list[Footprint] = []
        self.restarts: Counter[str] = Counter()
        self.exports: Counter[str] = Counter()
        self.scrapes = 0
        self.host = SoakHost(seed, ManualClock())
        self._dice = random.Random(seed + 1)
        self._root = root
        self._receiver = Receiver()
        self._agent = self._start(root / "state-0")
        self._restart_s, self._mood_s = self._soon(RESTART_EVERY_S), self._soon(MOOD_EVERY_S)

    @property
    def now_s(self) -> float:
        """Simulated time since the beginning."""
        return self.host.clock.monotonic_ns() / 1e9

    def run(self, until_s: float, *, leak: list[Any] | None, progress: Callable[[float], None]) -> None:
        """Run cycle by cycle."""
        footprint_every_s = max(CYCLE_S, min(HOUR_S, until_s / 40))
        footprint_s = 0.0
        while self.now_s < until_s:
            self.host.clock.advance(CYCLE_S)
            answer = self._agent.engine.sample()
            self.audit.check(answer, self.host.expected_mj)
            if leak is not None:
                leak.append((answer, counters(answer)))
            if self.audit.cycles % SCRAPE_EVERY == 0:
                self.audit.check_scrape(self._agent.scrape())
                self.scrapes += 1
            if self.now_s >= self._mood_s:
                self._change_receiver()
            if self.now_s >= footprint_s:
                footprint_s += footprint_every_s
                self.footprints.append(Footprint.now())
                progress(self.now_s / until_s)
            if self.now_s >= self._restart_s:
                self._restart()

    def close(self) -> None:
        """Stop the agent, then the receiver, which must be up for the last export."""
        self._receiver.become(Mood.UP)
        self._end()
        self._receiver.close()

    def received(self) -> dict[str, int]:
        """Requests and bytes at the receiver."""
        receiver = self._receiver
        return {"taken": receiver.taken, "refused": receiver.refused, "bytes": receiver.taken_bytes}

    def _start(self, directory: Path) -> Agent:
        return Agent(self.host, directory, self._receiver, delta=bool(self._dice.getrandbits(1)))

    def _end(self) -> None:
        self._agent.close()
        self.exports += self._agent.exports()

    def _soon(self, seconds: float) -> float:
        return self.now_s + seconds * self._dice.uniform(0.5, 1.5)

    def _change_receiver(self) -> None:
        is_up = self._receiver.mood is Mood.UP
        self._receiver.become(self._dice.choice((Mood.DOWN, Mood.BUSY, Mood.HANGING)) if is_up else Mood.UP)
        self._mood_s = self._soon(MOOD_EVERY_S)

    def _restart(self) -> None:
        """Stop or kill this agent. After a kill the next one starts on a copy of the directory."""
        directory = self._agent.directory
        how = self._dice.choice(("stopped", "killed"))
        if how == "killed":
            copy = killed(directory, self._agent.attributor, self.restarts.total() + 1)
        self._end()
        if how == "killed":
            shutil.rmtree(directory)
            directory = copy.rename(self._root / f"state-{self.restarts.total() + 1}")
        self.restarts[how] += 1
        self.host.clock.advance(self._dice.choice((1.0, 45.0, 600.0)))
        self._agent = self._start(directory)
        self._restart_s = self._soon(RESTART_EVERY_S)


def soak(
    hours: float, seed: int = 1, *, leak: bool = False, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Play this many hours; returns the summary."""
    begun_s = time.monotonic()
    kept: list[Any] | None = [] if leak else None
    with tempfile.TemporaryDirectory() as root:
        played = Soak(seed, Path(root))
        try:
            played.run(hours * HOUR_S, leak=kept, progress=progress)
        finally:
            played.close()
    audit = played.audit
    wrong = audit.wrong + not_flat(played.footprints)
    if not played.received()["taken"]:
        wrong.append("no export has ever arrived")
    return {
        "simulated_hours": hours,
        "seconds": round(time.monotonic() - begun_s, 1),
        "cycles": audit.cycles,
        "cycle_s": CYCLE_S,
        "workloads": audit.workloads,
        "processes": audit.processes,
        "faults": dict(sorted(played.host.faults.items())),
        "restarts": dict(sorted(played.restarts.items())),
        "exports": dict(sorted(played.exports.items())),
        "receiver": played.received(),
        "scrapes": played.scrapes,
        "restarted_series": audit.restarted_series,
        "footprint": summary(played.footprints),
        "wrong": wrong,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description="a simulated week in fast-forward")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leak", action="store_true", help="keep the report of every cycle; the leak must be detected")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the summary to a file")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # faults are injected
    begun_s, shown = time.monotonic(), [-1]

    def progress(part: float) -> None:
        percent = int(part * 20) * 5
        if percent > shown[0]:
            shown[0] = percent
            sys.stderr.write(f"{percent:3d} %  day {part * options.days:.1f}  {time.monotonic() - begun_s:.0f} s\n")

    result = soak(options.days * DAY_S / HOUR_S, options.seed, leak=options.leak, progress=progress)
    text = json.dumps(result, indent=2) + "\n"
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
