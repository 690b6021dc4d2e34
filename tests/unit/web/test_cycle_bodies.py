"""What a cycle looks like is made once, for however many clients and whatever they ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.config import load
from otel_gpu.model import Report
from otel_gpu.view.builder import Subject
from otel_gpu.web import endpoints
from otel_gpu.web.bodies import Bodies, CycleBody
from otel_gpu.web.endpoints import EVENTS_PATH, EventStream, Page, compat_routes, report_route
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from tests.tables import views
from tests.unit.export.exposition import simulated_report


class Cycles:
    """The newest report, and the calls of functions that make something of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.report = simulated_report()
        self.calls: Counter[str] = Counter()
        for name in ("to_json", "report_rows", "render", "document"):
            monkeypatch.setattr(endpoints, name, self._counted(name, getattr(endpoints, name)))

    def newest(self, *_: float) -> Report:
        return self.report

    def advance(self) -> None:
        step_ns = 5_000_000_000
        earlier = self.report
        self.report = replace(earlier, wall_ns=earlier.wall_ns + step_ns, monotonic_ns=earlier.monotonic_ns + step_ns)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return function(*arguments, **named)

        return counted


def compat_route(cycles: Cycles, bodies: Bodies) -> Route:
    (listener,) = load({"compat": "dcgm-exporter"}, {}).config.compat.listeners
    return compat_routes(listener, cycles.newest, "node", lambda _: Response("ok"), bodies)["/metrics"]


def event_route(cycles: Cycles, bodies: Bodies) -> Route:
    return EventStream(Subject("1", "node", 5.0), cycles.newest, bodies).route


@pytest.mark.parametrize(
    ("path", "made_by", "per_cycle", "make"),
    [
        ("/api/attribution", "to_json", 1, lambda cycles, bodies: report_route(cycles.newest, bodies)),
        ("/", "render", 1, lambda cycles, bodies: Page(views(), refresh_s=5).route(cycles.newest, bodies)),
        ("/metrics", "report_rows", 1, compat_route),
        (EVENTS_PATH, "document", 2, event_route),  # the frame for all, and the first body with the history
    ],
    ids=["JSON", "page", "compat", "events"],
)
def test_a_cycle_is_made_once_for_all_clients(
    path: str,
    made_by: str,
    per_cycle: int,
    make: Callable[[Cycles, Bodies], Route],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cycles, bodies = Cycles(monkeypatch), Bodies()
    route = make(cycles, bodies)
    received = []
    for _ in range(2):
        for _ in range(5):
            body = route(Request(path)).body
            assert isinstance(body, CycleBody)
            received.append(body.plain())
        cycles.advance()
    assert cycles.calls[made_by] == 2 * per_cycle
    assert len({id(each) for each in received}) == 2
