"""The agent: all services of ``run`` and ``demo``, from start to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.host import Host, view_subject
from otel_gpu.agent.own_process import descriptor_limit
from otel_gpu.agent.sampling import FRESH_S, Sampling
from otel_gpu.agent.services import Service, Services
from otel_gpu.bounded_io import one_line
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.control.pause_file import PauseFile
from otel_gpu.control.server import ControlServer, pause_handlers
from otel_gpu.errors import Unavailable
from otel_gpu.export.prometheus import PrometheusRenderer
from otel_gpu.export.push import ExportPipeline
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.model import Report
from otel_gpu.sources.pause import PausableGpus
from otel_gpu.state.persistent import PersistentAttributor
from otel_gpu.view.problems import dropped_series
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.endpoints import (
    EVENTS_PATH,
    METRICS_PATH,
    CompatListeners,
    EventStream,
    Page,
    metrics_route,
    report_route,
    static_routes,
)
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import WebServer, limits_within

log = logging.getLogger(__name__)

_STOP_POLL_S: Final = 2.0
"""How often the agent checks whether to stop, for the rare signal that arrives just before it waits."""

_MISSED_CYCLES: Final = 3
"""The agent is unhealthy after this many intervals without a sample."""

_START_S: Final = 30.0
"""Additional time for the first sample: a driver without persistence mode initialises its GPUs one after the other."""

_MAX_REASON_CHARS: Final = 1000
"""The limit of a reason on ``/readyz``. A source may give several reasons at once, each with its fix."""


class Agent:
    """Samples, attributes, serves and exports until it is stopped. Construction binds addresses and starts nothing."""

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
        """``control`` is the path of the control socket. UsageError for an invalid address or web configuration."""
        self._outdated = host.outdated
        self._sampling = Sampling(config, host, clock, attributor)
        self.engine, self._sampler = self._sampling.engine, self._sampling.sampler
        metrics = AgentMetrics(self._sampling.metrics)
        self.export_pipeline = ExportPipeline(
            config.export,
            resources,
            metrics.collect,
            lambda: clock.monotonic_ns() / 1e9,
            restored=self._sampling.restored,
        )
        host_name = resources.shared.get("host.name", "")
        health = Health(
            self.engine,
            clock,
            interval_s=config.sampling.interval_s,
            deadline_s=config.sampling.deadline_s,
        )
        bodies = Bodies()
        self.events = EventStream(
            view_subject(config, host, host_name),
            self._latest,
            bodies,
            agent_problems=lambda: dropped_series(self._sampling.metrics.dropped_series),
        )
        routes = self._routes(config, health, bodies)
        if config.export.serves_prometheus:
            renderer = PrometheusRenderer(resources, created=config.export.openmetrics_created)
            routes[METRICS_PATH] = metrics_route(metrics.collect, renderer, bodies)
        server = WebServer(limits=limits_within(descriptor_limit()), bodies=bodies)
        with ExitStack() as bound:
            bound.callback(server.stop)
            self.compat = CompatListeners(
                server,
                config.compat.listeners,
                self._report,
                bodies,
                host=config.web.listen.host,
                host_name=host_name,
                health=health.healthz,
                web_config=config.web.config_file,
                allowed_hosts=config.web.allowed_hosts,
            )
            absent = {METRICS_PATH: "metrics are not served here; --prometheus serves them"}
            self.web = server.listen(
                config.web.listen,
                routes,
                config.web.config_file,
                absent=absent,
                allowed_hosts=config.web.allowed_hosts,
            )
            bound.pop_all()
        # Exporters stop first: the last export is of a sampler that still runs.
        self._services = Services(
            self._sampling,
            server,
            *_control_services(config, host, clock, control, lambda: self._sampler.fresh(0.0, 0.0)),
            self.export_pipeline,
        )

    def run(
        self,
        stop: threading.Event,
        on_sample: Callable[[Report], None],
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Run until ``stop`` is set, or until only a new process could read the driver.

        ``on_start`` is called when all services run, ``on_sample`` with every Report. After ``wake`` a ``stop`` is
        noticed at once.
        """
        cycles = 0
        self._services.start()
        try:
            on_start()
            while not (stop.is_set() or self._outdated.is_set()):
                seen = self._sampler.wait_for_cycle(cycles, _STOP_POLL_S, unless=stop.is_set)
                report = self.engine.latest
                if seen > cycles and report is not None:
                    self.events.observe(report)
                    on_sample(report)
                cycles = seen
        finally:
            self._services.stop()

    def wake(self) -> None:
        """Make the agent check whether to stop. Safe in a signal handler."""
        self._sampler.wake()

    def _routes(self, config: Config, health: Health, bodies: Bodies) -> dict[str, Route]:
        page = Page(
            self.events.view,
            refresh_s=max(1, round(config.sampling.interval_s)),
            metrics=config.export.serves_prometheus,
        )
        return {
            "/": page.route(self._sampler.fresh, bodies),
            **static_routes(),
            "/api/attribution": report_route(self._sampler.fresh, bodies),
            EVENTS_PATH: self.events.route,
            "/healthz": health.healthz,
            "/readyz": health.readyz,
        }

    def _latest(self) -> Report | None:
        """The newest Report, or the first one."""
        return self.engine.latest or self._sampler.fresh()

    def _report(self, max_age_s: float) -> Report | None:
        """A Report at most this old, if possible, for the listeners of other exporters' names."""
        return self._sampler.fresh(max(FRESH_S, max_age_s))


def _control_services(
    config: Config, host: Host, clock: Clock, path: Path | None, on_change: Callable[[], object]
) -> tuple[Service, ...]:
    """The control server, or nothing and one log line if it cannot listen."""
    gpus: PausableGpus | None = host.pausable
    if path is None or gpus is None:
        return ()
    try:
        server = ControlServer(path, pause_handlers(gpus, on_change))
    except Unavailable as error:
        level = logging.WARNING if config.state.control_socket.path is not None else logging.INFO
        log.log(level, "otel-gpu pause cannot reach this agent: %s", error)
        return ()
    gpus.use_store(PauseFile(path.parent, clock))  # only now: another agent that listens there owns the file
    return (server,)


# ---------------------------------------------------------------------------- liveness and readiness


class Health:
    """Liveness and readiness of an agent whose engine runs a cycle every ``interval_s``."""

    def __init__(self, engine: Engine, clock: Clock, *, interval_s: float, deadline_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._max_age_s = _MISSED_CYCLES * interval_s + deadline_s
        self._started_ns = clock.monotonic_ns()

    def healthz(self, _: Request) -> Response:
        """Whether cycles run, whatever their result."""
        age_s, max_age_s = self._engine.age_s(), self._max_age_s
        if age_s is None:  # no cycle yet
            age_s = (self._clock.monotonic_ns() - self._started_ns) / 1e9
            max_age_s += _START_S
        if age_s > max_age_s:
            return Response(f"no sample for {age_s:.0f} s\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def readyz(self, _: Request) -> Response:
        """Whether something can be attributed: the driver responds, and processes are visible."""
        report = self._engine.latest
        if report is None:
            return NO_SAMPLE_YET
        blind = next((source for source in report.sources if source.blind), None)
        if blind is None:
            return Response("ok\n")
        reason = one_line(blind.reason or "nothing can be attributed", _MAX_REASON_CHARS)
        return Response(f"{blind.name}: {reason}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
