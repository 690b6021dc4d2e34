"""Simulated hosts whose history is backfilled into a real Prometheus, as if it had scraped the agent all along."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import RenderContext
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.rows import report_rows
from otel_gpu.model import GpuReading, Report
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.sources.sim.truth import Truth
from otel_gpu.sources.sim.world import WorldSpec
from tests.real.prometheus import Prometheus, Series, prometheus, promtool

CYCLE_S: Final = 5
SCRAPE_S: Final = 15


class _History:
    """A simulated host sampled every 5 s and scraped every 15 s, for ``for_s`` seconds that ended a minute ago."""

    def __init__(self, world: WorldSpec, options: AttributionOptions, for_s: int) -> None:
        self.clock = ManualClock(wall_ns=(int(time.time()) - for_s - 60) * 10**9)
        self.host = SimulatedHost(world, self.clock)
        self._for_s = for_s
        self._stored: list[str] = []
        self._engine = Engine(
            gpus=self.host.gpu_source(),
            processes=self.host.process_source(),
            names=[self.host.name_source()],
            clock=self.clock,
            options=options,
        )

    def scrapes(self) -> Iterator[tuple[int, Report]]:
        """Seconds since the start, and the report, at each scrape."""
        for at_s in range(0, self._for_s + 1, CYCLE_S):
            report = self._engine.sample()
            if at_s % SCRAPE_S == 0:
                yield at_s, report
            self.clock.advance(CYCLE_S)

    def store(self, exposition: Iterable[str]) -> None:
        """Add the lines of a scrape. Comments are left out: OpenMetrics rejects their types and repeated blocks."""
        time_s = self.clock.wall_ns() / 1e9
        self._stored += [f"{line} {time_s:.3f}" for line in exposition if not line.startswith("#")]

    @contextmanager
    def served(self, directory: Path) -> Iterator[Prometheus]:
        """A Prometheus with all scrapes."""
        directory.mkdir(exist_ok=True)
        text = directory / "stored.txt"
        text.write_text("\n".join([*self._stored, "# EOF", ""]), encoding="utf-8")
        created = promtool("tsdb", "create-blocks-from", "openmetrics", str(text), str(directory / "data"))
        assert created.returncode == 0, created.stderr
        # Backfilled series have no staleness markers, so the lookback ends before the previous scrape.
        with prometheus(None, directory=directory, flags=[f"--query.lookback-delta={SCRAPE_S - 1}s"]) as server:
            yield server


# ---------------------------------------------------------------------------- other exporters' metrics


@dataclass(frozen=True, slots=True)
class CompatHistory:
    """A Prometheus, the truth by the Unix time of each scrape, and the driver's readings by GPU index."""

    server: Prometheus
    truths: dict[float, Truth]
    readings: dict[float, dict[str, GpuReading]]

    @property
    def times_s(self) -> Sequence[float]:
        """Unix times of the scrapes, oldest first."""
        return sorted(self.truths)

    def query(self, expression: str, at_s: float | None = None) -> Sequence[Series]:
        """The series of an expression at a scrape, by default the last one."""
        return self.server.query(expression, self.times_s[-1] if at_s is None else at_s)

    def by(self, label: str, expression: str, at_s: float | None = None) -> dict[str, float]:
        """Values by a label, which must differ between all series."""
        found = [(one.labels.get(label, ""), one.value) for one in self.query(expression, at_s)]
        assert len(dict(found)) == len(found), (expression, found)
        return dict(found)


@contextmanager
def compat_history(
    world: WorldSpec, *, for_s: int, options: AttributionOptions, directory: Path
) -> Iterator[CompatHistory]:
    """The metrics of a world in the names of all other exporters."""
    history = _History(world, options, for_s)
    truths: dict[float, Truth] = {}
    readings: dict[float, dict[str, GpuReading]] = {}
    for _, report in history.scrapes():
        context = RenderContext(report_rows(report), "node-1")
        for name, families in FAMILIES.items():
            history.store(render(families, context, prefix=EXPORTERS[name].prefix).decode().splitlines())
        time_s = history.clock.wall_ns() / 1e9
        truths[time_s] = history.host.truth()
        readings[time_s] = {str(each.identity.index): each.reading for each in report.gpus}
    with history.served(directory) as server:
        yield CompatHistory(server, truths, readings)


# ---------------------------------------------------------------------------- the demo

KWH_PRICE: Final = 0.3
TOKENS_PER_S: Final = 100.0
_DEMO_OPTIONS: Final = AttributionOptions(prices=Prices("EUR", {"": 2.5}, KWH_PRICE))
_DEMO_HOST: Final = Resources({"host.name": "demo", "host.id": "0" * 32}, {"service.name": "otel-gpu"})


@dataclass(frozen=True, slots=True)
class DemoHistory:
    """A Prometheus, the Unix time of the last scrape, and the agent's last report."""

    server: Prometheus
    last_s: float
    report: Report

    def query(self, expression: str) -> Sequence[Series]:
        """The series of an expression at the last scrape."""
        return self.server.query(expression, self.last_s)


@contextmanager
def demo_history(*, for_s: int, directory: Path) -> Iterator[DemoHistory]:
    """The agent's metrics of the demo, and the token counter of a language server with the labels of its pod."""
    history = _History(demo_world(0), _DEMO_OPTIONS, for_s)
    renderer, stats = PrometheusRenderer(_DEMO_HOST), SelfStats(history.clock.wall_ns())
    collector = MetricCollector(lambda: stats, currency="EUR")
    for at_s, report in history.scrapes():
        errors = {source.name: 0 for source in report.sources}
        stats = replace(stats, cpu_s=at_s / 100, memory_bytes=50 << 20, source_errors=errors)
        history.store(renderer.render(collector.collect(report), Exposition.TEXT).decode().splitlines())
        history.store(
            f'vllm:generation_tokens_total{{pod="{pod}"}} {TOKENS_PER_S * at_s}' for pod in _language_servers(report)
        )
        last_s = history.clock.wall_ns() / 1e9
    with history.served(directory) as server:
        yield DemoHistory(server, last_s, report)


def _language_servers(report: Report) -> set[str]:
    names = [workload.names for workload in report.workloads]
    return {each.pod for each in names if each is not None and each.pod is not None and each.container == "vllm-chat"}
