from __future__ import annotations

import json
import math
from typing import Any

import pytest

from otel_gpu.export.document import document
from otel_gpu.model import Report
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import decode_view
from otel_gpu.web.bodies import Bodies, CycleBody
from otel_gpu.web.endpoints import EventStream
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from tests.builders import attribute, attribution, gpu, snapshot

SUBJECT = Subject("1.2.3", "node-1", 5.0, "asked for", "EUR")


def cycle(at_s: float) -> Report:
    return attribute(None, snapshot(gpu(0, power_w=70.0), at_s=at_s))


def content(response: Response) -> bytes:
    """The first part of a stream."""
    return response.body.plain().data if isinstance(response.body, CycleBody) else bytes(response.body)  # type: ignore[arg-type]


def parse_events(text: bytes | None) -> list[dict[str, Any]]:
    """The events of a stream as a browser parses them (HTML, 9.2.6)."""
    found: list[dict[str, Any]] = []
    for block in (text or b"").decode("ascii").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def newest_frame(stream: EventStream) -> bytes:
    assert stream.feed.latest is not None
    return stream.feed.latest.data


def event_stream(*reports: Report | None) -> EventStream:
    """The stream of an agent that has these reports one after the other, then the last one again and again."""
    left = list(reports)
    return EventStream(SUBJECT, lambda: left.pop(0) if len(left) > 1 else left[0], Bodies())


def test_a_cycle_is_its_view_and_then_its_document() -> None:
    report = attribution()
    stream = event_stream(report)
    response = stream.route(Request("/api/events"))
    assert response.content_type == "text/event-stream"
    assert content(response).startswith(b"retry: 2000\n\n")
    view, main = parse_events(content(response))
    assert [(each["event"], each["id"]) for each in (view, main)] == [
        ("view", str(report.wall_ns)), ("attribution", str(report.wall_ns)),
    ]  # fmt: skip
    assert decode_view(view["data"]) == ViewBuilder(SUBJECT).build(report)
    assert main["data"] == json.loads(json.dumps(document(report)))


def test_line_breaks_in_names_do_not_break_events() -> None:
    response = event_stream(attribution("x\ndata: {}\n\nevent: other")).route(Request("/api/events"))
    assert [event["event"] for event in parse_events(content(response))] == ["view", "attribution"]


def test_a_new_client_gets_the_whole_history_and_then_the_newest_slot_only() -> None:
    cycles = [cycle(15.0 * number) for number in range(5)]
    stream = event_stream(cycles[3])
    for each in cycles[:4]:
        stream.observe(each)
    response = stream.route(Request("/api/events"))
    assert len(parse_events(content(response))[0]["data"]["history"]["at"]) == 4
    stream.feed.subscribe("client", lambda: None)
    stream.observe(cycles[4])
    assert len(parse_events(newest_frame(stream))[0]["data"]["history"]["at"]) == 1
    assert parse_events(newest_frame(stream))[0]["id"] == str(cycles[4].wall_ns)


def test_without_clients_no_cycle_is_encoded() -> None:
    stream = event_stream(cycle(0))
    stream.observe(cycle(0))
    assert stream.feed.latest is None


def test_a_cycle_is_encoded_once_and_an_older_one_is_not_published() -> None:
    old, new = cycle(0), cycle(5)
    stream = event_stream(new, new, old)
    first = stream.route(Request("/api/events")).stream
    encoded = stream.feed.latest
    second = stream.route(Request("/api/events")).stream
    late = stream.route(Request("/api/events")).stream
    assert encoded is not None
    assert first is not None
    assert second is not None
    assert late is not None
    assert first.body_frame is second.body_frame is late.body_frame is stream.feed.latest is encoded


def test_a_client_before_the_first_sample_gets_it_when_it_comes() -> None:
    stream = event_stream(None)
    response = stream.route(Request("/api/events"))
    assert response.body == b"retry: 2000\n\n"
    assert response.stream is not None
    stream.feed.subscribe("client", lambda: None)
    stream.observe(cycle(0))
    assert len(parse_events(newest_frame(stream))) == 2


def test_a_failure_to_encode_is_logged_once_and_the_next_cycle_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    stream = event_stream(cycle(0))
    stream.feed.subscribe("client", lambda: None)
    for at_s in (0, 5):
        stream.observe(attribute(None, snapshot(gpu(0, power_w=math.nan), at_s=at_s)))
    (record,) = caplog.records
    assert record.getMessage().startswith("sending a cycle to the page failed: ValueError: ")
    stream.observe(cycle(20))
    assert parse_events(newest_frame(stream))[0]["id"] == str(cycle(20).wall_ns)
