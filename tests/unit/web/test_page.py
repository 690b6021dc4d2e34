from __future__ import annotations

from html.parser import HTMLParser

import pytest

from otel_gpu.export.table import render
from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.web.page import STYLE, page
from tests.builders import attribute, attribution, snapshot


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, and the text within ``pre``."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.table = ""
        self.refresh: str | None = None
        self._in_table = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_table |= tag == "pre"
        if ("http-equiv", "refresh") in attrs:
            self.refresh = dict(attrs)["content"]

    def handle_endtag(self, tag: str) -> None:
        self._in_table &= tag != "pre"

    def handle_data(self, data: str) -> None:
        self.table += data if self._in_table else ""


def test_the_page_shows_the_table() -> None:
    assert Seen(page(attribution(), simulated=False, refresh_s=5)).table == render(attribution(), width=160)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "</pre><img src=x onerror=alert(1)>", "&lt;b&gt;", "\"'>"]
)
def test_what_a_container_calls_itself_is_text_and_nothing_else(name: str) -> None:
    innocent = Seen(page(attribution("innocent"), simulated=False, refresh_s=5))
    hostile = Seen(page(attribution(name), simulated=False, refresh_s=5))
    assert hostile.tags == innocent.tags
    assert name in hostile.table


def test_a_page_without_an_answer_yet_says_so() -> None:
    assert Seen(page(None, simulated=False, refresh_s=5)).table == "the first sample is under way"


def test_a_page_without_figures_says_that_they_are_not_known_and_why() -> None:
    outcome = SourceOutcome("nvml", SourceState.UNAVAILABLE, "NVML: no driver")
    table = Seen(page(attribute(None, snapshot(sources=[outcome])), simulated=False, refresh_s=5)).table
    assert "who holds a GPU is not known" in table
    assert "nvml: unavailable: NVML: no driver" in table


def test_the_page_keeps_itself_current() -> None:
    assert Seen(page(None, simulated=False, refresh_s=7)).refresh == "7"


def test_a_simulated_host_is_called_so_on_the_page() -> None:
    assert "SIMULATED HOST" in page(attribution(), simulated=True, refresh_s=5)
    assert "SIMULATED" not in page(attribution(), simulated=False, refresh_s=5)


def test_the_page_needs_nothing_from_elsewhere_and_no_script() -> None:
    html = page(attribution(), simulated=False, refresh_s=5)
    assert "://" not in html + STYLE
    assert "script" not in Seen(html).tags


def test_the_page_leads_to_the_metrics_where_they_are_served() -> None:
    assert '<a href="/metrics">' in page(None, simulated=False, refresh_s=5, metrics=True)
    assert "/metrics" not in page(None, simulated=False, refresh_s=5)
