"""The page people open first, and the files it is made of. Without scripts it is the table, kept current."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from otel_gpu.export.table import render
from otel_gpu.model import Report
from otel_gpu.web.response import Response, Route
from otel_gpu.web.router import STATIC

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Page:
    """The page as HTML; everything a container controls is escaped. ``metrics`` says that ``/metrics`` is served."""

    def __init__(self, *, simulated: bool, refresh_s: int, metrics: bool = False) -> None:
        self._simulated = simulated
        paths = {"/api/attribution": "JSON", "/metrics": "metrics", "/healthz": "health", "/readyz": "readiness"}
        links = [f'<a href="{path}">{name}</a>' for path, name in paths.items() if metrics or path != "/metrics"]
        text = files(__package__).joinpath("static", "index.html").read_text(encoding="utf-8")
        self._page = Template(Template(text).safe_substitute(refresh_s=refresh_s, links="\n".join(links)))

    def of(self, attribution: Report | None) -> str:
        """The page, with this answer for those who have scripts off."""
        table = (
            "the first sample is under way"
            if attribution is None
            else render(attribution, width=160, simulated=self._simulated)
        )
        return self._page.substitute(table=escape(table))


def static_routes() -> dict[str, Route]:
    """Paths of the page's style, scripts and icon; read once."""
    routes: dict[str, Route] = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            routes[STATIC + file.name] = _always(Response(file.read_bytes(), content_type))
    return routes


def _always(response: Response) -> Route:
    return lambda _: response
