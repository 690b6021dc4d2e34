"""The agent: samples, attributes, serves, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from otel_gpu.agent.host import Host
from otel_gpu.agent.sampler import FRESH_S
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.control.pause_file import PauseFile
from otel_gpu.control.server import ControlServer, pause_handlers
from otel_gpu.errors import Unavailable, UsageError
from otel_gpu.export.document import to_json
from otel_gpu.export.pipeline import ExportPipeline
from otel_gpu.export.prometheus import PrometheusRenderer
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.rows import ReportRows, report_rows
from otel_gpu.model import Report
from otel_gpu.sources.pause import PausableGpus
from otel_gpu.state.persistent import PersistentAttributor
from otel_gpu.version import __version__
from otel_gpu.web.compat_servers import CompatServers
from otel_gpu.web.event_stream import EVENTS_PATH, EventStream, cycle_id
from otel_gpu.web.metrics_route import METRICS_PATH, metrics_route
from otel_gpu.web.page import Page, static_routes
from otel_gpu.web.particulars import About
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import WebServer

log = logging.getLogger(__name__)

_MISSED_PASSES = 3
"""So many intervals without a sample, and the agent no longer calls itself healthy."""

_START_S = 30.0
"""What the first sample may take beyond that: a driver without persistence mode wakes its GPUs one by one."""

_LOOK_AROUND_S = 2.0
"""How long nobody looks whether the agent is to stop, should a signal have come in the one moment that is missed."""

_LAST_EXPORT_S = 2.5
"""What all last exports together may take; with a sample under way the agent is gone in less than 5 s."""


class Agent:
    """Everything that runs between start and stop. Constructing it binds its address and starts nothing."""

    def __init__(
        self,
        config: Config,
        host: Host,
        resources: Resources,
        clock: Clock,
        *,
        control: Path | None = None,
        attributor: PersistentAttributor | None = None,
    ) -> None:
        """``control`` is the socket for ``otel-gpu pause``. It and the ``attributor`` are optional."""
        self._config = config
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._gpu_source_name = host.gpus.name
        self._outdated = host.outdated
        self._sampling = Sampling(config, host, clock, attributor)
        self.engine, self._sampler = self._sampling.engine, self._sampling.sampler
        metrics = AgentMetrics(self._sampling.metrics)
        self.export_pipeline = ExportPipeline(
            config,
            resources,
            metrics.collect,
            lambda: clock.monotonic_ns() / 1e9,
            restored=self._sampling.restored,
        )
        host_name = resources.shared.get("host.name", "")
        self._page = Page(
            simulated=host.simulated_because is not None,
            refresh_s=max(1, round(config.interval_s)),
            metrics=config.serves_prometheus,
        )
        prices = config.attribution.prices
        self.events = EventStream(
            About(
                version=__version__,
                host_name=host_name,
                interval_s=config.interval_s,
                simulated_because=host.simulated_because,
                currency=None if prices is None else prices.currency,
            ),
            self._sampler.fresh,
        )
        routes: dict[str, Route] = {
            "/": lambda _: Response(self._page.render(self._sampler.fresh()), "text/html; charset=utf-8"),
            **static_routes(),
            "/api/attribution": self._json,
            EVENTS_PATH: self.events.route,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        if config.serves_prometheus:
            renderer = PrometheusRenderer(resources, created=config.openmetrics_created)
            routes[METRICS_PATH] = metrics_route(metrics.collect, renderer)
        absent = {METRICS_PATH: "metrics are not served here; --prometheus serves them"}
        self.compat = CompatServers(
            config.compat,
            self._rows,
            host=config.listen.host,
            host_name=host_name,
            health=self._healthz,
            web_config=config.web_config,
        )
        try:
            self.web = WebServer(config.listen, routes, config.web_config, absent=absent)
        except UsageError:
            self.compat.close()
            raise
        self._control = None if control is None or host.pausing is None else self._listen(control, host.pausing)

    def run(
        self,
        stop: threading.Event,
        on_sample: Callable[[Report], None],
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Work until ``stop`` is set, or only a new process could; ``on_start`` is called once it does.

        ``on_sample`` sees every answer. That ``stop`` was set is noticed after ``wake``, and sooner or later without.
        """
        cycles = 0
        try:
            self._start_threads()
            on_start()
            while not (stop.is_set() or self._outdated.is_set()):
                seen = self._sampler.wait_for_cycle(cycles, _LOOK_AROUND_S, unless=stop.is_set)
                attribution = self.engine.latest
                if seen > cycles and attribution is not None:
                    self.events.observe(attribution)
                    on_sample(attribution)
                cycles = seen
        finally:
            # What is under way is exported first: after that there is nothing left to collect.
            self.export_pipeline.stop(_LAST_EXPORT_S)
            self.web.close()
            self.compat.close()
            if self._control is not None:
                self._control.close()
            self._sampling.stop()

    def wake(self) -> None:
        """Have the agent notice that it is to stop; for signals' handlers too."""
        self._sampler.wake()

    def _start_threads(self) -> None:
        try:
            self._sampling.start()
            self.web.start()
            self.compat.start()
            self.export_pipeline.start()
            if self._control is not None:
                self._control.start()
        except RuntimeError as error:
            raise Unavailable(
                f"{error}: this user or container has as many as it may; raise ulimit -u (LimitNPROC=) or pids.max"
            ) from None

    def _listen(self, path: Path, gpus: PausableGpus) -> ControlServer | None:
        """Where the agent can be told to pause; nowhere, and that said in a line, if it may not listen there."""
        try:
            server = ControlServer(path, pause_handlers(gpus, lambda: self._sampler.fresh(0.0, 0.0)))
        except Unavailable as error:
            level = logging.WARNING if self._config.control_socket.path is not None else logging.INFO
            log.log(level, "otel-gpu pause cannot reach this agent: %s", error)
            return None
        gpus.use_store(PauseFile(path.parent, self._clock))  # only now: what is kept where another agent listens is his
        return server

    # -- what is served -------------------------------------------------------------

    def _rows(self, max_age_s: float) -> ReportRows | None:
        """The cycle that other exporters' listeners render, at most so old if it can be had."""
        report = self._sampler.fresh(max(FRESH_S, max_age_s))
        return None if report is None else report_rows(report)

    def _json(self, _: Request) -> Response:
        attribution = self._sampler.fresh()
        if attribution is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(to_json(attribution) + "\n", "application/json", headers={"ETag": f'"{cycle_id(attribution)}"'})

    def _healthz(self, _: Request) -> Response:
        """Alive: samples come, whatever they say."""
        age_s = self.engine.age_s()
        longest_s = _MISSED_PASSES * self._config.interval_s + self._config.deadline_s
        if age_s is None:  # none yet: counted from the start
            age_s = (self._clock.monotonic_ns() - self._started_ns) / 1e9
            longest_s += _START_S
        if age_s > longest_s:
            return Response(f"no sample for {age_s:.0f} s\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _readyz(self, _: Request) -> Response:
        """Ready: there are figures of GPUs to give."""
        attribution = self.engine.latest
        if attribution is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        gpus = next(source for source in attribution.sources if source.name == self._gpu_source_name)
        if not gpus.state.answers:
            return Response(f"{gpus.name}: {gpus.reason}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")
