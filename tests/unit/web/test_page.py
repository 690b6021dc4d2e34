from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from otel_gpu.model import Report, SourceOutcome, SourceState
from otel_gpu.view.builder import COLOURS
from otel_gpu.view.terminal import Tone
from otel_gpu.web.endpoints import Page, static_routes
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from tests.builders import attribute, attribution, snapshot
from tests.tables import render, views


def page(attribution: Report | None, *, simulated: bool = False, refresh_s: int = 5, metrics: bool = False) -> str:
    return Page(views(simulated=simulated), refresh_s=refresh_s, metrics=metrics).render(attribution)


def bytes_of(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


class ParsedPage(HTMLParser):
    """A page as a browser parses it: its elements, and the text within ``pre``."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.table = ""
        self.refresh: str | None = None
        self._in_table = self._in_script = False
        self.inline = ""
        self.loads: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_table |= tag == "pre"
        self._in_script = tag in {"script", "style"}
        self.inline += "".join(f"{key} " for key, _ in attrs if key == "style" or key.startswith("on"))
        found = dict(attrs)
        if tag in {"script", "link"}:
            self.loads.add(found.get("src") or found.get("href") or "")
        if ("http-equiv", "refresh") in attrs:
            self.refresh = dict(attrs)["content"]

    def handle_endtag(self, tag: str) -> None:
        self._in_table &= tag != "pre"
        self._in_script = False

    def handle_data(self, data: str) -> None:
        self.table += data if self._in_table else ""
        self.inline += data.strip() if self._in_script else ""


def test_the_page_shows_the_table() -> None:
    assert ParsedPage(page(attribution(), simulated=False, refresh_s=5)).table == render(attribution(), width=160)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "</pre><img src=x onerror=alert(1)>", "&lt;b&gt;", "\"'>"]
)
def test_names_of_containers_are_text_and_never_markup(name: str) -> None:
    innocent = ParsedPage(page(attribution("innocent"), simulated=False, refresh_s=5))
    hostile = ParsedPage(page(attribution(name), simulated=False, refresh_s=5))
    assert hostile.tags == innocent.tags
    assert name in hostile.table


def test_the_page_before_the_first_sample_says_so() -> None:
    assert ParsedPage(page(None, simulated=False, refresh_s=5)).table == "the first sample is under way"


def test_a_page_without_figures_says_why() -> None:
    outcome = SourceOutcome("nvml", SourceState.UNAVAILABLE, "NVML: no driver")
    table = ParsedPage(page(attribute(None, snapshot(sources=[outcome])), simulated=False, refresh_s=5)).table
    assert "The workloads on the GPUs are unknown" in table
    assert "nvml: unavailable: NVML: no driver" in table


def test_the_page_reloads_itself() -> None:
    assert ParsedPage(page(None, simulated=False, refresh_s=7)).refresh == "7"


def test_a_simulated_host_is_marked_on_the_page() -> None:
    assert "SIMULATED HOST" in page(attribution(), simulated=True, refresh_s=5)
    assert "SIMULATED" not in page(attribution(), simulated=False, refresh_s=5)


def test_the_page_needs_no_other_origin_and_nothing_inline() -> None:
    html = page(attribution())
    parsed = ParsedPage(html)
    assert "://" not in html
    assert parsed.inline == ""
    routes = static_routes()
    assert parsed.loads == {"/static/icon.svg", "/static/style.css", "/static/theme.js", "/static/page.js"}
    assert parsed.loads <= routes.keys()
    for path, route in routes.items():
        addresses = set(re.findall(r"[a-z]+://[^\"\s]*", bytes_of(route(Request(path))).decode()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path  # an XML namespace, which is not loaded


def test_scripts_import_only_served_files() -> None:
    routes = static_routes()
    imported = {
        f"/static/{name}"
        for path, route in routes.items()
        if path.endswith(".js")
        for name in re.findall(r'from "\./([^"]+)"', bytes_of(route(Request(path))).decode())
    }
    scripts = {path for path in routes if path.endswith(".js")}
    assert imported == scripts - {"/static/theme.js", "/static/page.js"}


def test_scripts_create_no_markup_from_text() -> None:
    """Trusted types forbid it in browsers that support them; the scripts do not try."""
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.cssText|DOMParser"
    for path, route in static_routes().items():
        assert not re.search(sinks, bytes_of(route(Request(path))).decode()), path


def test_colours_work_in_browsers_without_light_dark() -> None:
    """Without light-dark() support, bars and swatches that use it would have no colour."""
    style = bytes_of(static_routes()["/static/style.css"](Request("/static/style.css"))).decode()
    rules = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    assert "light-dark(" not in rules
    assert re.findall(r"--mark: (.*?);", rules)
    for value in re.findall(r"--(?:mark|page|text): (.*?);", rules):
        assert re.fullmatch(r"var\(--light, #[0-9a-f]{6}\) var\(--dark, #[0-9a-f]{6}\)", value)


def test_every_tone_and_colour_of_the_view_has_a_rule() -> None:
    style = bytes_of(static_routes()["/static/style.css"](Request("/static/style.css"))).decode()
    assert set(re.findall(r"^\.tone-(\w+) ", style, re.MULTILINE)) == set(Tone)
    assert set(re.findall(r"^\.colour-(\d+) ", style, re.MULTILINE)) == set(map(str, range(COLOURS)))


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("style.css", "text/css; charset=utf-8"),
        ("page.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_static_files_have_their_content_type(name: str, content_type: str) -> None:
    path = f"/static/{name}"
    assert static_routes()[path](Request(path)).content_type == content_type


def test_the_page_links_to_metrics_only_if_they_are_served() -> None:
    assert '<a href="/metrics">' in page(None, simulated=False, refresh_s=5, metrics=True)
    assert "/metrics" not in page(None, simulated=False, refresh_s=5)
