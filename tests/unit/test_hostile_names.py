"""Hostile names in every export: a name forges nothing, hides nothing and runs nothing."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from html.parser import HTMLParser

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_gpu.agent.sampling import StateLog
from otel_gpu.bounded_io import printable
from otel_gpu.cli.logs import set_up
from otel_gpu.config import LogFormat, LogLevel
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.export.document import to_json
from otel_gpu.export.otlp import to_otlp_json
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.labels import DECLARED_KEYS, Resources
from otel_gpu.model import Report, SourceOutcome, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.names.untrusted import MAX_TEXT_BYTES, sanitize
from otel_gpu.web.endpoints import Page as WebPage
from tests.tables import render as render_table
from tests.tables import views
from tests.unit.compat import series as compat
from tests.unit.export.exposition import RESOURCES, parsed
from tests.unit.metrics.builders import answer, collected, device, part, process, split, workload

INNOCENT = "vllm"
HOSTILE = {
    "a line end": 'x\ngpu_workload_energy_joules_total{gpu_workload_name="other"} 9e9',
    "carriage returns": "x\r\n\r\nHTTP/1.0 200 OK",
    "quotes": "\"'`} 1\\",
    "a closing label": 'x"} 1\n# EOF',
    "escape sequences": "\x1b[2J\x1b[31mroot\x1b]0;title\x07\x9b31m",
    "a script": "<script>alert(1)</script></pre><img src=x onerror=alert(1)>",
    "entities": "&lt;b&gt;&#60;script&#62;",
    "a right-to-left override": "abc\u202egnp.exe\u2066\u200f",
    "a NUL": "a\0b",
    "separators": "a\u2028b\u2029c\x85d\x0be",
    "half a character": "a\ud800b",
    "10 kB": "A" * 10_000,
    "10 kB of line ends": "\n" * 10_000,
    "a format string": "%s%n{0}${jndi:ldap://x}",
}


@pytest.fixture(params=list(HOSTILE.values()), ids=list(HOSTILE))
def name(request: pytest.FixtureRequest) -> str:
    """A name as sources pass it on."""
    passed_on = sanitize(request.param)
    assert passed_on is not None
    return passed_on


def cycle(name: str) -> Report:
    """One container on one GPU with the name in every field, and a source whose reason quotes it."""
    names = WorkloadNames(
        container=name, image=name, pod=name, namespace=name, pod_uid=name, extra=(("container.label.team", name),)
    )
    return answer(
        device(memory=split(measured=40)),
        workloads=[workload(part(measured=40), names=names)],
        processes=[process(name=name, memory_bytes=40)],
        sources=[SourceOutcome("docker", SourceState.DEGRADED, f"container {name[:40]} is odd")],
    )


class Page(HTMLParser):
    """A page as a browser parses it: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[object] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def acts(text: str) -> set[str]:
    """Characters that a terminal or an editor acts on instead of showing them, without line ends."""
    return {one for one in text if one != "\n" and unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def test_names_are_cut_at_the_longest_length() -> None:
    assert all(len((sanitize(text) or "").encode()) <= MAX_TEXT_BYTES for text in HOSTILE.values())


def test_a_terminal_shows_the_name_in_one_line_and_acts_on_nothing(name: str) -> None:
    shown, innocent = (render_table(cycle(each), width=160) for each in (name, INNOCENT))
    assert acts(shown) == set()
    assert shown.count("\n") == innocent.count("\n")


def test_the_name_adds_no_elements_to_the_page(name: str) -> None:
    page = WebPage(views(), refresh_s=5)
    shown, innocent = (Page(page.render(cycle(each))) for each in (name, INNOCENT))
    assert shown.elements == innocent.elements
    assert acts(shown.text) == set()
    assert shown.text.count("\n") == innocent.text.count("\n")


def test_json_returns_the_name_and_nothing_else_changes(name: str) -> None:
    text = to_json(cycle(name))
    assert acts(text) == set()
    document = json.loads(text)
    assert document["workloads"][0]["container"] == document["processes"][0]["name"] == name
    assert text.count("\n") == to_json(cycle(INNOCENT)).count("\n")


@pytest.mark.parametrize("form", Exposition)
def test_prometheus_parses_the_name_and_no_additional_series(name: str, form: Exposition) -> None:
    hostile, innocent = (
        parsed(PrometheusRenderer(RESOURCES).render(collected(cycle(each)), form), form) for each in (name, INNOCENT)
    )
    assert {key: len(family.samples) for key, family in hostile.items()} == {
        key: len(family.samples) for key, family in innocent.items()
    }
    (sample,) = (
        one
        for one in hostile["gpu_workload_memory_usage_bytes"].samples
        if one.labels["gpu_attribution_method"] == "measured"
    )
    assert (sample.labels["container_name"], sample.value) == (printable(name), 40)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_number_of_compat_series_does_not_depend_on_the_name(name: str, exporter: str) -> None:
    hostile, innocent = (
        Counter(
            sample.name
            for family in text_string_to_metric_families(compat.text(exporter, cycle(each), host_name="n"))
            for sample in family.samples
        )
        for each in (name, INNOCENT)
    )
    assert hostile == innocent
    assert hostile


def test_otlp_carries_the_same_name_as_prometheus(name: str) -> None:
    document = json.loads(to_otlp_json(collected(cycle(name)), RESOURCES))
    values = [
        attribute["value"].get("stringValue")
        for resource in document["resourceMetrics"]
        for attribute in resource["resource"]["attributes"]
        if attribute["key"] in ("container.name", "k8s.pod.name")
    ]
    assert values == [printable(name), printable(name)]


def test_a_terminal_acts_on_nothing_in_the_text_of_a_scrape(name: str) -> None:
    report = cycle(name)
    texts = [PrometheusRenderer(RESOURCES).render(collected(report), form).decode() for form in Exposition]
    texts += [compat.text(exporter, report) for exporter in EXPORTERS]
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n"))


def test_resource_attributes_of_the_configuration_are_printable_in_a_scrape() -> None:
    resources = Resources({"host.name": "a\x1b[2J\nb"}, {})
    text = PrometheusRenderer(resources).render(collected(cycle(INNOCENT)), Exposition.TEXT).decode()
    assert 'host_name="a\N{REPLACEMENT CHARACTER}[2J\\nb"' in text


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize("log_format", LogFormat)
def test_a_log_line_that_quotes_the_name_is_one_line(
    name: str, log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(LogLevel.DEBUG, log_format)
    StateLog().observe(cycle(name).sources)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isascii()
    assert line.isprintable()


def test_what_jobs_say_of_themselves_is_not_repeated_for_their_processes() -> None:
    """2,000 processes of jobs with four variables of 1,024 characters once made an exposition of 275 MB."""

    def size_bytes(text: str) -> int:
        exported = sanitize(text)
        assert exported is not None
        names = WorkloadNames(title=exported, declared=tuple((key, exported) for key in sorted(DECLARED_KEYS)))
        jobs = [WorkloadRef(WorkloadKind.SLURM_JOB, str(number)) for number in range(20)]
        report = answer(
            device(memory=split(measured=40)),
            workloads=[workload(part(measured=1), ref=job, names=names) for job in jobs],
            processes=[process(pid, ref=jobs[pid % 20], memory_bytes=1) for pid in range(2000)],
        )
        text_of = PrometheusRenderer(RESOURCES).render(collected(report), Exposition.TEXT)
        assert text_of.count(b"gpu_process_memory_usage_bytes{") == 2000
        return len(text_of)

    added_bytes = size_bytes("€" * 1024) - size_bytes("x")
    assert 0 < added_bytes <= 20 * len(DECLARED_KEYS) * MAX_TEXT_BYTES
