from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from weakref import WeakSet

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.config import load
from otel_gpu.export.batches import Batch
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.otlp import OtlpSender
from otel_gpu.export.push import ExportPipeline, Pusher, next_due_s
from otel_gpu.export.sender import ACCEPTED, Attempt, ExportFailure, ExportResult
from otel_gpu.metrics.labels import Attributes
from otel_gpu.metrics.series import Collection, Point
from tests.unit.export.collectors import Answer, BlackHole, GrpcCollector, HttpCollector, unused_url
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, identity, one_gauge

PATIENCE_S = 20.0
"""How long a test waits for what must happen. No test asserts how soon it does."""

REFUSED = ExportResult(accepted=False, failure=ExportFailure("503", "HTTP 503"))


class FakeSender:
    """Returns ``answer()``, and records requests and the timeouts it was opened with."""

    def __init__(self, answer: Callable[[], ExportResult] = lambda: ACCEPTED) -> None:
        self.answer = answer
        self.sent: queue.Queue[Batch] = queue.Queue()
        self.timeouts_s: list[float] = []
        self.closed = threading.Event()

    def open(self, timeout_s: float) -> FakeSender:
        self.timeouts_s.append(timeout_s)
        return self

    def send(self, batch: Batch) -> ExportResult:
        self.sent.put(batch)
        return self.answer()

    def close(self) -> None:
        self.closed.set()


class Growing:
    """A new collection on each call, with a counter that has grown by 1 J."""

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
        open_sender: Callable[[float], FakeSender] | None = None,
        **others: Any,
    ) -> Pusher:
        times = {"export_timeout_s": 30.0, "request_timeout_s": 10.0, "monotonic_s": time.monotonic, **others}
        each = Pusher("here", open_sender or sender.open, collect, RESOURCES, interval_s=interval_s, **times)
        made.append(each)
        return each

    yield make
    for each in made:
        stop(each)


def stop(pusher: Pusher, timeout_s: float = 5.0) -> bool:
    pusher.begin_stop(timeout_s)
    return pusher.finish_stop()


def once(found: Collection) -> Callable[[], Collection | None]:
    """This collection once, and then none."""
    left = [found]
    return lambda: left.pop() if left else None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def value(batch: Batch) -> float:
    (block,) = batch.blocks
    (point,) = block.points
    return point.value


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# ---------------------------------------------------------------------------- when


def test_the_first_export_follows_the_first_collection_at_once(pusher: Any) -> None:
    sender, samples = FakeSender(), iter([None, None, one_gauge()])
    pusher(sender, lambda: next(samples, one_gauge()), interval_s=3600.0).start()
    assert value(sender.sent.get(timeout=PATIENCE_S)) == 1.0


def test_before_the_first_collection_nothing_is_sent_and_nothing_fails(
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


def test_a_collection_is_exported_once(pusher: Any) -> None:
    asked, sender = threading.Semaphore(0), FakeSender()

    def collect() -> Collection:
        asked.release()
        return one_gauge()

    made = pusher(sender, collect)
    made.start()
    assert all(asked.acquire(timeout=PATIENCE_S) for _ in range(4))
    stop(made)
    assert sender.sent.qsize() == 1


@pytest.mark.parametrize(
    ("now_s", "expected_s"), [(100.0, 110.0), (105.0, 110.0), (125.0, 130.0), (130.0, 140.0), (131.0, 140.0)]
)
def test_exports_that_were_due_during_a_slow_one_are_skipped(now_s: float, expected_s: float) -> None:
    assert next_due_s(100.0, now_s, interval_s=10.0) == expected_s


def test_requests_get_no_more_time_than_the_export(pusher: Any) -> None:
    sender = FakeSender()
    pusher(sender, Growing(), export_timeout_s=3.0, request_timeout_s=10.0)
    assert sender.timeouts_s == [3.0]


# ---------------------------------------------------------------------------- failures


def test_a_change_of_state_is_logged_once_and_so_is_the_return(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gone, busy = (
        ExportFailure("connection refused", "connection refused"),
        ExportFailure("503", "HTTP 503 Service Unavailable"),
    )
    script = iter([None, gone, gone, gone, busy, busy, None, None, gone, None])
    ended = threading.Event()

    def answer() -> ExportResult:
        failed = next(script, False)
        if failed is False:
            ended.set()
            return ACCEPTED
        return ACCEPTED if failed is None else ExportResult(accepted=False, failure=failed)  # type: ignore[arg-type]

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
    assert made.failure is None


def test_alternating_kinds_of_failure_are_each_logged_once(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    kinds = itertools.cycle(["unreachable", "protocol", "503", "unreachable"])
    sender = FakeSender(lambda: ExportResult(accepted=False, failure=ExportFailure(next(kinds), "no")))
    made = pusher(sender, Growing())
    made.start()
    for _ in range(20):
        sender.sent.get(timeout=PATIENCE_S)
    stop(made)
    assert lines(caplog) == ["export to here fails: no"] * 3
    assert made.exports_failed >= 20


def test_rejected_points_of_an_accepted_request_are_logged(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    sender = FakeSender(
        lambda: ExportResult(accepted=True, failure=ExportFailure("partial", "3 points were rejected: old"))
    )
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

    def answer() -> ExportResult:
        if where == "send":
            failing()
        return ACCEPTED

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


@pytest.mark.parametrize(("try_next", "requests"), [(True, 3), (False, 1)])
def test_after_a_refusal_the_other_requests_are_sent_only_to_an_available_receiver(
    pusher: Any, caplog: pytest.LogCaptureFixture, try_next: bool, requests: int
) -> None:
    failure = ExportFailure("400", "no")
    sender = FakeSender(lambda: ExportResult(accepted=False, failure=failure, try_next=try_next))
    made = pusher(sender, once(three()), interval_s=3600.0, largest_bytes=1)
    made.start()
    sender.sent.get(timeout=PATIENCE_S)
    stop(made)
    assert 1 + sender.sent.qsize() == requests
    assert lines(caplog) == ["export to here fails: no"]


def test_an_export_that_takes_too_long_ends_between_requests(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    def answer() -> ExportResult:
        now[0] += 20.0
        return ACCEPTED

    sender = FakeSender(answer)
    made = pusher(sender, once(three()), interval_s=3600.0, largest_bytes=1, monotonic_s=lambda: now[0])
    made.start()
    for _ in range(2):
        sender.sent.get(timeout=PATIENCE_S)
    wait_for(lambda: bool(lines(caplog)))
    assert sender.sent.qsize() == 0
    assert lines(caplog) == ["export to here fails: an export took more than 30 s"]


def test_deltas_of_failed_exports_are_sent_when_the_receiver_is_back(pusher: Any) -> None:
    script = iter([ACCEPTED, REFUSED, REFUSED, REFUSED])
    sender = FakeSender(lambda: next(script, ACCEPTED))
    pusher(sender, Growing(), deltas=Deltas()).start()
    assert [value(sender.sent.get(timeout=PATIENCE_S)) for _ in range(6)] == [1.0, 1.0, 2.0, 3.0, 4.0, 1.0]


# ---------------------------------------------------------------------------- the end


def test_at_the_end_the_newest_collection_is_exported(pusher: Any) -> None:
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


def test_an_export_interrupted_at_the_end_is_no_failure_if_the_last_one_is_accepted(
    pusher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first sender hangs until it is closed; the one for the last export works."""
    hanging, good = FakeSender(), FakeSender()

    def hang() -> ExportResult:
        hanging.closed.wait(PATIENCE_S)
        return REFUSED

    hanging.answer = hang
    senders = iter([hanging, good])
    made = pusher(hanging, Growing(), open_sender=lambda _: next(senders))
    made.start()
    hanging.sent.get(timeout=PATIENCE_S)
    assert stop(made, 2.0)
    assert value(good.sent.get(timeout=PATIENCE_S)) == 2.0
    assert (made.exports_ok, made.exports_failed, lines(caplog)) == (1, 0, [])


def test_a_last_export_that_hangs_is_abandoned_and_logged(pusher: Any, caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()
    sender = FakeSender(lambda: ACCEPTED if released.wait(PATIENCE_S) else REFUSED)
    made = pusher(sender, Growing())
    made.start()
    sender.sent.get(timeout=PATIENCE_S)
    assert not stop(made, 0.05)
    released.set()
    assert lines(caplog) == ["the last export to here is abandoned: no answer"]


# ---------------------------------------------------------------------------- with senders as configured


@pytest.fixture
def pipeline() -> Iterator[Callable[..., ExportPipeline]]:
    """All pushers of a configuration."""
    made: list[ExportPipeline] = []

    def make(collect: Callable[[], Collection | None], **flags: str) -> ExportPipeline:
        words = {key.replace("_", "-"): text for key, text in flags.items()}
        each = ExportPipeline(load(words, {}).config.export, RESOURCES, collect, time.monotonic)
        made.append(each)
        return each

    yield make
    for each in made:
        each.stop(1.0)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_totals_are_right_when_the_receiver_comes_back(
    pipeline: Any, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    caplog.set_level(logging.INFO)
    collector: HttpCollector | GrpcCollector = HttpCollector() if protocol.startswith("http") else GrpcCollector()
    flags = {"otlp_endpoint": collector.url, "otlp_protocol": protocol, "export_interval": "100ms"}
    try:
        growing = Growing()
        made = pipeline(growing, otlp_temporality="delta", **flags)
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
    metrics = [seen.request.resource_metrics[0].scope_metrics[0].metrics[0] for seen in collector.seen]
    # A receiver keeps what it accepted: the newest of the deltas with the same start.
    kept = {point.start_time_unix_nano: point.as_double for point in (metric.sum.data_points[0] for metric in metrics)}
    assert sum(kept.values()) == growing.count
    assert pusher.exports_failed >= 2
    assert [line.partition(": ")[0] for line in lines(caplog)] == [
        f"export to {collector.url} fails",
        f"export to {collector.url} is ok again",
    ]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("receiver", ["silent", "hanging", "busy", "absent"])
def test_stopping_is_bounded_whatever_the_receiver_does(
    pipeline: Any, caplog: pytest.LogCaptureFixture, protocol: str, receiver: str
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
        made = pipeline(collect, otlp_endpoint=urls[receiver], **flags)
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
    pipeline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    hole = BlackHole()
    try:
        made = pipeline(Growing(), exporters="otlp,console", otlp_endpoint=hole.url, export_interval="100ms")
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
    first = printed[0]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]
    assert first["name"] == "gpu.workload.energy"
    assert len(printed) == console.exports_ok


@pytest.mark.parametrize(("exporters", "targets"), [("none", []), ("prometheus", []), ("console", ["console"])])
def test_only_what_is_chosen_is_pushed(pipeline: Any, exporters: str, targets: list[str]) -> None:
    assert [each.target for each in pipeline(Growing(), exporters=exporters).pushers] == targets


def test_the_log_shows_no_secret_of_the_endpoint(pipeline: Any) -> None:
    made = pipeline(Growing(), otlp_endpoint="http://127.0.0.1:1/x?token=secret")
    assert [each.target for each in made.pushers] == ["http://127.0.0.1:1/x?…"]


# ---------------------------------------------------------------------------- memory


class PreparedRequest:
    """An encoded request, as a transport holds it until it is accepted."""

    alive: ClassVar[WeakSet[PreparedRequest]] = WeakSet()

    def __init__(self, request: ExportMetricsServiceRequest) -> None:
        self.body = request.SerializeToString()
        PreparedRequest.alive.add(self)

    def __call__(self, _: float) -> Attempt:
        return Attempt(ACCEPTED)


class HoldingTransport:
    """Counts the requests that exist when another is prepared."""

    def __init__(self) -> None:
        self.others: list[int] = []
        self.largest_bytes = 0

    def prepare(self, request: ExportMetricsServiceRequest) -> PreparedRequest:
        self.others.append(len(PreparedRequest.alive))
        prepared = PreparedRequest(request)
        self.largest_bytes = max(self.largest_bytes, len(prepared.body))
        return prepared

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("deltas", [None, Deltas()], ids=["cumulative", "delta"])
def test_requests_of_an_export_are_encoded_and_released_one_at_a_time(
    deltas: Deltas | None, pusher: Callable[..., Pusher]
) -> None:
    points = [Point(1.0, GPU, identity(f"{number:064x}"), START_NS) for number in range(200)]
    transport = HoldingTransport()

    def open_sender(timeout_s: float) -> OtlpSender:
        return OtlpSender(transport, RESOURCES, timeout_s, delta=deltas is not None)

    found = once(collection({"gpu.workload.energy": points}))
    made = pusher(FakeSender(), found, open_sender=open_sender, deltas=deltas, largest_bytes=4096)
    made.start()
    wait_for(lambda: made.exports_ok == 1)
    assert len(transport.others) > 10
    assert set(transport.others) == {0}
    assert transport.largest_bytes <= 4096


def test_the_memory_of_deltas_is_small() -> None:
    """Tens of thousands of counters are on a large host."""
    count = 2000
    attributes: list[Attributes] = [
        {**GPU, "process.pid": pid, "process.executable.name": "python3"} for pid in range(count)
    ]
    workload = identity("w")

    def points(value: float) -> Collection:
        found = [Point(value, each, workload, START_NS) for each in attributes]
        return collection({"gpu.process.compute.time": found}, TIME_NS + int(value))

    deltas = Deltas()
    first, second = points(1.0), points(2.0)
    tracemalloc.start()
    try:
        for each in (first, second):
            deltas.accept(deltas.growth(each))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes / count < 900
