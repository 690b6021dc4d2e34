"""The agent's own HTTP routes: the Report as JSON, liveness and readiness."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.clock import Clock
from otel_gpu.export.document import to_json
from otel_gpu.model import Report
from otel_gpu.web.endpoints import cycle_id
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Response
from otel_gpu.web.router import Route

_MISSED_CYCLES: Final = 3
"""The agent is unhealthy after this many intervals without a sample."""

_START_S: Final = 30.0
"""Additional time for the first sample: a driver without persistence mode initialises its GPUs one after the other."""


def report_route(fresh: Callable[[], Report | None]) -> Route:
    """A route that returns the newest Report as JSON."""

    def report_json(_: Request) -> Response:
        report = fresh()
        if report is None:
            return NO_SAMPLE_YET
        return Response(to_json(report) + "\n", "application/json", headers={"ETag": f'"{cycle_id(report)}"'})

    return report_json


class Health:
    """Liveness and readiness of an agent whose engine runs a cycle every ``interval_s``."""

    def __init__(self, engine: Engine, clock: Clock, *, gpu_source: str, interval_s: float, deadline_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._gpu_source = gpu_source
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
        """Whether there are figures of GPUs."""
        report = self._engine.latest
        if report is None:
            return NO_SAMPLE_YET
        gpus = next(source for source in report.sources if source.name == self._gpu_source)
        if not gpus.state.answers:
            return Response(f"{gpus.name}: {gpus.reason}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")
