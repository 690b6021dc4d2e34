from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics.export import MetricsData

from otel_gpu.clock import SystemClock
from otel_gpu.config import load
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.metrics_data import Encoder
from otel_gpu.export.push import Pusher
from otel_gpu.export.sender import TAKEN, Delivery, Trouble
from otel_gpu.exporting import Exporting
from otel_gpu.metrics.collection import Collection
from otel_gpu.metrics.points import Point
from tests.unit.export.collectors import Answer, BlackHole, GrpcCollector, HttpCollector, unused_url
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, identity, one_gauge

PATIENCE_S = 20.0
"""How long a test waits for what must happen; nothing is asserted about how soon it does."""

REFUSED = Delivery(taken=False, trouble=Trouble("503", "HTTP 503"))


class FakeSender:
    """Answers ``answer()``, and tells what it was sent and for how long it was made."""

    def __init__(self, answer: Callable[[], Delivery] = lambda: TAKEN) -> None:
        self.answer = answer
        self.sent: queue.Queue[MetricsData] = queue.Queue()
        self.timeouts_s: list[float] = []
        self.closed = threading.Event()

    def open(self, timeout_s: float) -> FakeSender:
        self.timeouts_s.append(timeout_s)
        return self

    def send(self, data: MetricsData | bytes) -> Delivery:
        assert isinstance(data, MetricsData)
        self.sent.put(data)
        return self.answer()

    def close(self) -> None:
        self.closed.set()


class Growing:
    """Another collection each time, with a counter that has grown by 1 J."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Collection:
        self.count += 1
        point = Point(float(self.count), GPU, identity("w"), START_NS)
        return collection({"gpu.workload.energy": [point]}, TIME_NS + self.count)


@pytest.fixture
def pusher() -> Iterator[Callable[..., Pusher]]:
    """Makes pushers and stops them."""
    made: list[Pusher] = []

    def make(
        sender: FakeSender,
        collect: Callable[[], Collection | None],
        interval_s: float = 0.01,
        encoder: Encoder | None = None,
        **others: Any,
    ) -> Pusher:
        times = {"export_timeout_s": 30.0, "request_timeout_s": 10.0, "monotonic_s": time.monotonic, **others}
        each = Pusher("here", sender.open, encoder or Encoder(RESOURCES), collect, interval_s=interval_s, **times)
        made.append(each)
        return each

    yield make
    for each in made:
        stop(each)


def stop(pusher: Pusher, timeout_s: float = 5.0) -> bool:
    pusher.begin_stop(timeout_s)
    return pusher.finish_stop()


def value(data: MetricsData) -> float:
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    return point.value  # type: ignore[union-attr]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# ---------------------------------------------------------------------------- when


def test_the_first_export_comes_with_the_first_sample_and_not_an_interval_later(pusher: Any) -> None:
    sender, samples = FakeSender(), iter([None, None, one_gauge()])
    pusher(sender, lambda: next(samples, one_gauge()), interval_s=3600.0).start()
    assert value(sender.sent.get(timeout=PATIENCE_S)) == 1.0


def test_before_the_first_sample_nothing_is_sent_and_nothing_is_wrong(
    pusher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked, sender = threading.Semaphore(0), FakeSender()
    made = pusher(sender, asked.release)
    made.start()
    assert all(asked.acquire(timeout=PATIENCE_S) for _ in range(2))
    stop(made)
    assert (sender.sent.qsize(), made.exports_ok, made.exports_failed, lines(caplog)) == (0, 0, 0, [])


def test_every_interval_has_an_export(pusher: Any) -> None:
    sender = FakeSender()
    pusher(sender, Growing()).start()
    assert [value(sender.sent.get(timeout=PATIENCE_S)) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_what_has_been_told_is_not_told_again(pusher: Any) -> None:
    asked, sender = threading.Semaphore(0), FakeSender()

    def collect() -> Collection:
        asked.release()
        return one_gauge()

    made = pusher(sender, collect)
    made.start()
    assert all(asked.acquire(timeout=PATIENCE_S) for _ in range(4))
    stop(made)
    assert sender.sent.qsize() == 1


def test_exports_that_a_slow_receiver_made_late_are_not_made_up_for(pusher: Any) -> None:
    now = [0.0]
    waits: list[float] = []
    sender = FakeSender()
    made = pusher(sender, Growing(), interval_s=10.0, monotonic_s=lambda: now[0])

    def answer() -> Delivery:
        now[0] += 25.0  # two and a half intervals
        return TAKEN

    def wait(timeout: float) -> bool:
        waits.append(timeout)
        now[0] += timeout
        if len(waits) == 2:
            made._stopping.set()
        return False

    sender.answer = answer
    made._stopping.wait = wait
    made._run()
    assert waits == [5.0, 5.0]


def test_requests_get_no_more_time_than_the_export(pusher: Any) -> None:
    sender = FakeSender()
    pusher(sender, Growing(), export_timeout_s=3.0, request_timeout_s=10.0)
    assert sender.timeouts_s == [3.0]


# ---------------------------------------------------------------------------- trouble


def test_a_change_of_state_is_logged_once_and_so_is_the_return(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gone, busy = Trouble("connection refused", "connection refused"), Trouble("503", "HTTP 503 Service Unavailable")
    script = iter([None, gone, gone, gone, busy, busy, None, None, gone, None])
    ended = threading.Event()

    def answer() -> Delivery:
        trouble = next(script, False)
        if trouble is False:
            ended.set()
            return TAKEN
        return TAKEN if trouble is None else Delivery(taken=False, trouble=trouble)  # type: ignore[arg-type]

    made = pusher(FakeSender(answer), Growing())
    made.start()
    assert ended.wait(PATIENCE_S)
    stop(made)
    hint = "; start a Collector there, name another with --otlp-endpoint, or choose --exporters none"
    assert lines(caplog) == [
        f"export to here fails: connection refused{hint}",
        "export to here fails: HTTP 503 Service Unavailable",
        "export to here is ok again",
        f"export to here fails: connection refused{hint}",
        "export to here is ok again",
    ]
    assert made.exports_failed == 6
    assert made.exports_ok >= 5
    assert made.trouble is None


def test_kinds_of_trouble_that_alternate_are_each_logged_once(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    kinds = itertools.cycle(["unreachable", "protocol", "503", "unreachable"])
    sender = FakeSender(lambda: Delivery(taken=False, trouble=Trouble(next(kinds), "no")))
    made = pusher(sender, Growing())
    made.start()
    for _ in range(20):
        sender.sent.get(timeout=PATIENCE_S)
    stop(made)
    assert lines(caplog) == ["export to here fails: no"] * 3
    assert made.exports_failed >= 20


def test_points_that_were_rejected_are_logged_though_the_rest_was_taken(
    pusher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender(lambda: Delivery(taken=True, trouble=Trouble("partial", "3 points were rejected: old")))
    made = pusher(sender, Growing())
    made.start()
    for _ in range(3):
        sender.sent.get(timeout=PATIENCE_S)
    stop(made)
    assert lines(caplog) == ["export to here fails: 3 points were rejected: old"]


@pytest.mark.parametrize("where", ["collect", "send"])
def test_a_bug_in_one_export_costs_that_export_and_shows_no_traceback(
    pusher: Any, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    fails = [True]
    growing = Growing()

    def failing() -> None:
        if fails.pop() if fails else False:
            raise ZeroDivisionError("by 0")

    def collect() -> Collection:
        if where == "collect":
            failing()
        return growing()

    def answer() -> Delivery:
        if where == "send":
            failing()
        return TAKEN

    sender = FakeSender(answer)
    made = pusher(sender, collect)
    made.start()
    for _ in range(3):
        sender.sent.get(timeout=PATIENCE_S)
    stop(made)
    assert lines(caplog)[0] == "export to here fails: ZeroDivisionError: by 0"
    assert [record.exc_info for record in caplog.records if record.levelno > logging.DEBUG] == [None] * len(
        lines(caplog)
    )
    assert made.exports_failed == 1


def three() -> Collection:
    points = [Point(float(number), GPU, identity(f"w{number}"), START_NS) for number in range(3)]
    return collection({"gpu.workload.energy": points})


@pytest.mark.parametrize(("go_on", "requests"), [(True, 3), (False, 1)])
def test_after_a_refusal_the_rest_is_sent_only_to_a_receiver_that_is_there(
    pusher: Any, go_on: bool, requests: int
) -> None:
    sender = FakeSender(lambda: Delivery(taken=False, trouble=Trouble("400", "no"), go_on=go_on))
    made = pusher(sender, three, encoder=Encoder(RESOURCES, largest_bytes=1))
    assert made._send(three(), sender, 30.0, last=True) == Trouble("400", "no")
    assert sender.sent.qsize() == requests


def test_an_export_that_takes_too_long_is_broken_off_between_requests(pusher: Any) -> None:
    now = [0.0]

    def answer() -> Delivery:
        now[0] += 20.0
        return TAKEN

    sender = FakeSender(answer)
    encoder = Encoder(RESOURCES, largest_bytes=1)
    made = pusher(sender, three, encoder=encoder, monotonic_s=lambda: now[0])
    trouble = made._send(three(), sender, 30.0, last=False)
    assert trouble == Trouble("late", "not all requests of an export were made within 30 s")
    assert sender.sent.qsize() == 2


def test_deltas_of_exports_that_failed_are_told_when_the_receiver_is_back(pusher: Any) -> None:
    script = iter([TAKEN, REFUSED, REFUSED, REFUSED])
    sender = FakeSender(lambda: next(script, TAKEN))
    pusher(sender, Growing(), encoder=Encoder(RESOURCES, deltas=Deltas())).start()
    assert [value(sender.sent.get(timeout=PATIENCE_S)) for _ in range(6)] == [1.0, 1.0, 2.0, 3.0, 4.0, 1.0]


# ---------------------------------------------------------------------------- the end


def test_at_the_end_the_newest_is_exported_once_more(pusher: Any) -> None:
    sender, growing = FakeSender(), Growing()
    made = pusher(sender, growing, interval_s=3600.0)
    made.start()
    assert value(sender.sent.get(timeout=PATIENCE_S)) == 1.0
    assert stop(made, 4.0)
    assert value(sender.sent.get(timeout=PATIENCE_S)) == 2.0
    assert sender.timeouts_s[0] == 10.0
    assert 0 < sender.timeouts_s[1] <= 4.0


def test_a_pusher_that_was_never_started_can_be_stopped(pusher: Any) -> None:
    assert stop(pusher(FakeSender(), Growing()))


def test_an_export_given_up_at_the_end_is_no_trouble_if_the_last_one_arrives(
    pusher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first sender hangs until it is closed; the one for the last export works."""
    hanging, good = FakeSender(), FakeSender()

    def hang() -> Delivery:
        hanging.closed.wait(PATIENCE_S)
        return REFUSED

    hanging.answer = hang
    senders = iter([hanging, good])
    made = pusher(hanging, Growing())
    made._open_sender = lambda _: next(senders)
    made._sender = next(senders)
    made.start()
    hanging.sent.get(timeout=PATIENCE_S)
    assert stop(made, 2.0)
    assert value(good.sent.get(timeout=PATIENCE_S)) == 2.0
    assert (made.exports_ok, made.exports_failed, lines(caplog)) == (1, 0, [])


def test_an_export_that_does_not_end_is_left_to_itself_and_that_is_told(
    pusher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    sender = FakeSender(lambda: TAKEN if released.wait(PATIENCE_S) else REFUSED)
    made = pusher(sender, Growing())
    made.start()
    sender.sent.get(timeout=PATIENCE_S)
    assert not stop(made, 0.05)
    released.set()
    assert lines(caplog) == ["the last export to here is given up: there is no answer"]


# ---------------------------------------------------------------------------- with the official exporters


@pytest.fixture
def exporting() -> Iterator[Callable[..., Exporting]]:
    """All pushers of a configuration."""
    made: list[Exporting] = []

    def make(collect: Callable[[], Collection | None], **flags: str) -> Exporting:
        words = {key.replace("_", "-"): text for key, text in flags.items()}
        each = Exporting(load(words, {}).config, RESOURCES, collect, SystemClock())
        made.append(each)
        return each

    yield make
    for each in made:
        each.stop(0.0)
        for left in each.pushers:  # its receiver is gone by now
            if left._thread.ident is not None:
                left._thread.join(PATIENCE_S)
        each._log.remove()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_totals_are_right_when_the_receiver_comes_back(
    exporting: Any, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    caplog.set_level(logging.INFO)
    collector: HttpCollector | GrpcCollector = HttpCollector() if protocol.startswith("http") else GrpcCollector()
    flags = {"otlp_endpoint": collector.url, "otlp_protocol": protocol, "export_interval": "100ms"}
    try:
        made = exporting(Growing(), otlp_temporality="delta", **flags)
        if isinstance(collector, HttpCollector):
            collector.answer = lambda number: Answer(400) if 1 <= number < 4 else Answer()
        made.start()
        collector.arrived.get(timeout=PATIENCE_S)
        if isinstance(collector, GrpcCollector):
            collector.refusal = grpc.StatusCode.PERMISSION_DENIED, "no"
        for _ in range(3):
            collector.arrived.get(timeout=PATIENCE_S)
        if isinstance(collector, GrpcCollector):
            collector.refusal = None
        for _ in range(2):
            collector.arrived.get(timeout=PATIENCE_S)
        made.stop(5.0)
    finally:
        collector.close()
    (pusher,) = made.pushers
    told = [seen.request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0] for seen in collector.seen]
    # A receiver keeps what it took: the newest of those that begin at the same time.
    kept = {point.start_time_unix_nano: point.as_double for point in told}
    assert sum(kept.values()) == made._collect.count
    assert pusher.exports_failed >= 2
    assert [line.partition(": ")[0] for line in lines(caplog)] == [
        f"export to {collector.url} fails",
        f"export to {collector.url} is ok again",
    ]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("receiver", ["silent", "hanging", "busy", "absent"])
def test_stopping_is_bounded_whatever_the_receiver_does(
    exporting: Any, caplog: pytest.LogCaptureFixture, protocol: str, receiver: str
) -> None:
    hole, collector, asked = BlackHole(), HttpCollector(), threading.Semaphore(0)
    collector.always(Answer(hang=True) if receiver == "hanging" else Answer(503, headers={"Retry-After": "5"}))
    urls = {"silent": hole.url, "hanging": collector.url, "busy": collector.url, "absent": unused_url()}
    flags = {"otlp_protocol": protocol, "otlp_timeout": "10m", "export_timeout": "10m"}
    growing = Growing()

    def collect() -> Collection:
        asked.release()
        return growing()

    try:
        made = exporting(collect, otlp_endpoint=urls[receiver], **flags)
        made.start()
        assert asked.acquire(timeout=PATIENCE_S)  # an export is under way, and would be for ten minutes
        began_s = time.monotonic()
        made.stop(0.5)
        assert time.monotonic() - began_s < 10.0  # generous: the machine is shared
    finally:
        hole.close()
        collector.close()
    assert all(record.exc_info is None for record in caplog.records)


def test_a_dead_receiver_delays_only_its_own_exporter_and_has_one_thread(
    exporting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    hole = BlackHole()
    try:
        made = exporting(Growing(), exporters="otlp,console", otlp_endpoint=hole.url, export_interval="100ms")
        _, console = made.pushers
        made.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while console.exports_ok < 5 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        named = [thread for thread in threading.enumerate() if thread.name.startswith("otel-gpu-push")]
        made.stop(0.5)
    finally:
        hole.close()
    assert console.exports_ok >= 5
    assert len({thread.name for thread in named}) == len(named)
    assert f"otel-gpu-push {hole.url}" in {thread.name for thread in named}
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = printed[0]["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]
    assert first["name"] == "gpu.workload.energy"
    assert len(printed) == console.exports_ok


@pytest.mark.parametrize(("exporters", "targets"), [("none", []), ("prometheus", []), ("console", ["console"])])
def test_only_what_is_chosen_is_pushed(exporting: Any, exporters: str, targets: list[str]) -> None:
    assert [each.target for each in exporting(Growing(), exporters=exporters).pushers] == targets


def test_the_log_shows_no_secret_of_the_endpoint(exporting: Any) -> None:
    made = exporting(Growing(), otlp_endpoint="http://127.0.0.1:1/x?token=secret")
    assert [each.target for each in made.pushers] == ["http://127.0.0.1:1/x?…"]


# ---------------------------------------------------------------------------- what exporters log


def test_warnings_of_others_go_their_usual_way(caplog: pytest.LogCaptureFixture) -> None:
    log = ExporterLog()
    log.install()
    try:
        logging.getLogger("opentelemetry.sdk.somewhere").warning("of general %s", "interest")
        with log.heard() as heard:
            logging.getLogger("urllib3.connectionpool").warning("about\nthis export")
    finally:
        log.remove()
    logging.getLogger("opentelemetry.sdk.somewhere").warning("afterwards")
    assert lines(caplog) == ["of general interest", "afterwards"]
    assert heard == ["about this export"]
