"""The page and its static files. Without scripts the page is a table that reloads itself."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from otel_gpu.export.table import render
from otel_gpu.model import Report
from otel_gpu.view.text import KEY, LEGEND
from otel_gpu.web.response import Response
from otel_gpu.web.router import STATIC_PREFIX, Route

_CONTENT_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Page:
    """The HTML of the page. Text from containers is escaped. ``metrics``: whether ``/metrics`` is served."""

    def __init__(self, *, simulated: bool, refresh_s: int, metrics: bool = False) -> None:
        self._simulated = simulated
        paths = {"/api/attribution": "JSON", "/metrics": "metrics", "/healthz": "health", "/readyz": "readiness"}
        links = [f'<a href="{path}">{name}</a>' for path, name in paths.items() if metrics or path != "/metrics"]
        text = files(__package__).joinpath("static", "index.html").read_text(encoding="utf-8")
        legend = [f'<li><span class="swatch {kind}"></span>{name}</li>' for kind, name in LEGEND.items()]
        parts = {"links": "\n".join(links), "legend": "\n".join(legend), "key": " ".join(KEY)}
        self._page = Template(Template(text).safe_substitute(refresh_s=refresh_s, **parts))

    def render(self, report: Report | None) -> str:
        """The page with the table of this report, for browsers without scripts."""
        table = "the first sample is under way"
        if report is not None:
            table = render(report, width=160, simulated=self._simulated)
        return self._page.substitute(table=escape(table))


def static_routes() -> dict[str, Route]:
    """Routes of the page's style sheet, scripts and icon. The files are read once."""
    routes: dict[str, Route] = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = _CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            routes[STATIC_PREFIX + file.name] = _fixed_route(Response(file.read_bytes(), content_type))
    return routes


def _fixed_route(response: Response) -> Route:
    return lambda _: response
