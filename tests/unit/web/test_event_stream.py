from __future__ import annotations

import json
import math
from typing import Any

import pytest

from otel_gpu.export.document import document
from otel_gpu.model import Report
from otel_gpu.web.event_stream import Events
from otel_gpu.web.particulars import About
from otel_gpu.web.response import Request
from tests.builders import attribute, attribution, gpu, snapshot

ABOUT = About("1.2.3", "node-1", 5.0, "asked for", "EUR")


def cycle(at_s: float) -> Report:
    return attribute(None, snapshot(gpu(0, power_w=70.0), at_s=at_s))


def events_of(text: bytes | None) -> list[dict[str, Any]]:
    """What a browser makes of a stream (HTML, 9.2.6): its events, in order."""
    found: list[dict[str, Any]] = []
    for block in (text or b"").decode("ascii").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def events(*answers: Report | None) -> Events:
    """Events of an agent that has these cycles, one after the other; the last again and again."""
    left = list(answers)
    return Events(ABOUT, lambda: left.pop(0) if len(left) > 1 else left[0])


def test_a_cycle_is_what_stands_beside_and_then_the_document_itself() -> None:
    now = attribution()
    served = events(now)
    response = served.route(Request("/api/events"))
    assert isinstance(response.body, bytes)
    assert response.content_type == "text/event-stream"
    assert response.body.startswith(b"retry: 2000\n\n")
    beside, main = events_of(response.body)
    assert (beside["event"], main["event"]) == ("page", "attribution")
    assert main["data"] == json.loads(json.dumps(document(now)))
    assert main["id"] == str(now.wall_ns)
    assert beside["data"]["simulated"] == "asked for"
    assert len(beside["data"]["workloads"]) == len(main["data"]["workloads"])


def test_names_with_line_ends_break_no_event() -> None:
    response = events(attribution("x\ndata: {}\n\nevent: page")).route(Request("/api/events"))
    assert isinstance(response.body, bytes)
    assert [event["event"] for event in events_of(response.body)] == ["page", "attribution"]


def test_who_begins_to_follow_gets_the_whole_hour_and_later_only_what_is_new() -> None:
    cycles = [cycle(15.0 * number) for number in range(5)]
    served = events(cycles[3])
    for each in cycles[:4]:
        served.observe(each)
    response = served.route(Request("/api/events"))
    assert isinstance(response.body, bytes)
    assert len(events_of(response.body)[0]["data"]["history"]["at"]) == 4
    served.feed.join("somebody", lambda: None)
    served.observe(cycles[4])
    assert len(events_of(served.feed.newest)[0]["data"]["history"]["at"]) == 1
    assert events_of(served.feed.newest)[1]["id"] == str(cycles[4].wall_ns)


def test_while_nobody_follows_nothing_is_written() -> None:
    served = events(cycle(0))
    served.observe(cycle(0))
    assert served.feed.newest is None


def test_a_cycle_is_written_once_however_many_ask_and_an_older_one_is_never_news() -> None:
    old, new = cycle(0), cycle(5)
    served = events(new, new, old)
    first = served.route(Request("/api/events")).following
    written = served.feed.newest
    second = served.route(Request("/api/events")).following
    late = served.route(Request("/api/events")).following
    assert written is not None
    assert first is not None
    assert second is not None
    assert late is not None
    assert first.told is second.told is late.told is served.feed.newest is written


def test_before_the_first_sample_one_follows_and_waits() -> None:
    served = events(None)
    response = served.route(Request("/api/events"))
    assert response.body == b"retry: 2000\n\n"
    assert response.following is not None
    served.feed.join("somebody", lambda: None)
    served.observe(cycle(0))
    assert len(events_of(served.feed.newest)) == 2


def test_a_cycle_that_cannot_be_told_is_logged_once_and_the_next_is_told(caplog: pytest.LogCaptureFixture) -> None:
    served = events(cycle(0))
    served.feed.join("somebody", lambda: None)
    for at_s in (0, 5):
        served.observe(attribute(None, snapshot(gpu(0, power_w=math.nan), at_s=at_s)))
    (record,) = caplog.records
    assert record.getMessage().startswith("telling a cycle to the page failed: ValueError: ")
    served.observe(cycle(20))
    assert events_of(served.feed.newest)[1]["id"] == str(cycle(20).wall_ns)
