"""Names from an engine with faults: each has a reason, and loses only what it must."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.backoff import Backoff
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.docker import DockerSource
from tests.docker_api import Bad, DockerApi, container_id, serving_docker
from tests.unit.sources.names.docker.conftest import MakeSource, first_read, names, unavailable
from tests.waiting import until

INSPECT = "/containers/{id}/json"


# ---------------------------------------------------------------------------- no engine there


def test_a_missing_socket_is_a_reason(socket_path: Path, make_source: MakeSource) -> None:
    reason = unavailable(make_source(f"unix://{socket_path}"))
    assert reason == f"{socket_path}: no such file; check that the engine runs and its socket is mounted here"


def test_a_file_in_place_of_the_socket_is_a_reason(socket_path: Path, make_source: MakeSource) -> None:
    socket_path.write_text("not a socket", encoding="ascii")
    assert "is a file, not a socket" in unavailable(make_source(f"unix://{socket_path}"))


def test_a_directory_in_place_of_the_socket_is_a_reason(socket_path: Path, make_source: MakeSource) -> None:
    socket_path.mkdir()
    assert "is a directory, not a socket" in unavailable(make_source(f"unix://{socket_path}"))


def test_a_socket_without_a_server_is_a_reason(socket_path: Path, make_source: MakeSource) -> None:
    with serving_docker(DockerApi(), socket_path):
        pass
    assert "connection refused" in unavailable(make_source(f"unix://{socket_path}"))


def test_a_socket_without_permission_is_a_reason(
    api: DockerApi, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("otel_gpu.sources.names.docker.client._Connection.connect", denied)  # root may open anything
    assert "permission denied; add the agent's user to the socket's group" in unavailable(make_source(api.base_url))


@pytest.mark.parametrize("base_url", ["ssh://root@gpu-1", "npipe:////./pipe/docker_engine", "fd://", "", "unix://"])
def test_an_unsupported_address_is_a_reason(base_url: str, make_source: MakeSource) -> None:
    assert unavailable(make_source(base_url))


def test_an_engine_that_never_answers_is_unavailable(api: DockerApi, make_source: MakeSource) -> None:
    api.bad["/version"] = Bad(never=True)
    source = make_source(api.base_url, timeout_s=0.3)
    assert "no answer to GET /version within 0.3 s" in unavailable(source)
    ref = WorkloadRef(WorkloadKind.CONTAINER, container_id(1), runtime="docker")
    assert not source.read({ref: (1,)}).pending


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status": b"HTTP/1.1 2",
    "headers": OK + b"X: ",
    "body": OK + b"Content-Length: 1000000\r\n\r\n",
    "size of a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n",
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n",
    "trailer": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    "refusal": b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n",
}
"""Beginnings of answers that never end, each by the part that follows byte by byte."""


@pytest.mark.parametrize("drips", DRIPS.values(), ids=DRIPS)
@pytest.mark.parametrize("path", ["/version", "/containers/json"])
def test_an_answer_that_arrives_byte_by_byte_ends_at_the_deadline(
    path: str, drips: bytes, api: DockerApi, make_source: MakeSource
) -> None:
    api.bad[path] = Bad(drips=drips)
    started_s = time.monotonic()
    assert f"no answer to GET {path} within 0.3 s" in unavailable(make_source(api.base_url, timeout_s=0.3))
    assert time.monotonic() - started_s < 5


def test_an_inspection_that_arrives_byte_by_byte_ends_at_the_deadline(api: DockerApi, make_source: MakeSource) -> None:
    stuck, other = api.run(1, "stuck"), api.run(2, "other")
    api.bad[f"/containers/{stuck}/json"] = Bad(drips=DRIPS["body"])
    read = first_read(make_source(api.base_url, timeout_s=0.3))
    assert read.known.keys() == {other}
    assert read.errors == 1


def test_close_does_not_wait_for_an_engine(api: DockerApi, make_source: MakeSource) -> None:
    api.bad["/version"] = Bad(never=True)
    source = make_source(api.base_url, timeout_s=60.0)
    source.read({})
    until(lambda: api.count("/version"))
    closing = threading.Thread(target=source.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


# ---------------------------------------------------------------------------- answers that are none

HTML = Bad(b"<html><body>Sign in</body></html>")


@pytest.mark.parametrize(
    ("path", "bad", "said"),
    [
        ("/version", HTML, "the answer to GET /version is not JSON"),
        ("/version", Bad(b"[1]"), "the server is not a Docker or Podman engine"),
        ("/version", Bad(b'{"ApiVersion": 7}'), "the server is not a Docker or Podman engine"),
        ("/version", Bad(b'{"ApiVersion": "new"}'), "GET /version"),
        ("/version", Bad(b'{"ApiVersion": "1.41"}', promised=500), "was cut off"),
        ("/version", Bad(status=301), "GET /version"),
        ("/containers/json", HTML, "the answer to GET /containers/json is not JSON"),
        ("/containers/json", Bad(b'[{"Id": "0000'), "the answer to GET /containers/json is not JSON"),
        ("/containers/json", Bad(b"[]", promised=100), "the answer to GET /containers/json was cut off"),
        ("/containers/json", Bad(b'{"message": "no"}'), "the answer to GET /containers/json is not a list"),
        ("/containers/json", Bad(b"nope", status=403), "is forbidden; allow GET on version, containers"),
        ("/containers/json", Bad(b'{"message": "boom"}', status=500), "HTTP status 500: boom"),
        ("/containers/json", Bad(b'["boom"]', status=500), "HTTP status 500"),
        ("/containers/json", Bad(b"{}", status=404), "HTTP status 404"),
    ],
)
def test_an_invalid_answer_is_a_reason(path: str, bad: Bad, said: str, api: DockerApi, make_source: MakeSource) -> None:
    api.bad[path] = bad
    assert said in unavailable(make_source(api.base_url))


@pytest.mark.parametrize("path", ["/version", "/containers/json"])
def test_an_answer_that_is_too_large_is_a_reason(
    path: str, api: DockerApi, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.sources.names.docker.client._MAX_ANSWER_BYTES", 1 << 20)
    api.bad[path] = Bad(b"[" + b" " * (1 << 20))
    assert unavailable(make_source(api.base_url)).endswith(f"the answer to GET {path} is over 1 MiB")


def test_invalid_entries_of_the_list_are_skipped_and_counted(api: DockerApi, make_source: MakeSource) -> None:
    key = api.run(1, "llm")
    entries = [None, 7, {"Id": 9}, {"Id": key, "Names": 3, "State": "running", "Status": []}]
    api.bad["/containers/json"] = Bad(json.dumps(entries).encode())
    read = first_read(make_source(api.base_url))
    assert read.known[key].names.container == "llm"
    assert (read.state, read.errors) == (SourceState.DEGRADED, 3)
    assert read.reason == "an entry of the list of containers has no id"


@pytest.mark.parametrize("bad", [HTML, Bad(b"{}", status=500), Bad(b"{", promised=9), Bad(never=True)])
def test_a_failed_inspection_does_not_lose_other_containers(bad: Bad, api: DockerApi, make_source: MakeSource) -> None:
    stuck, other = api.run(1, "stuck"), api.run(2, "other")
    api.bad[f"/containers/{stuck}/json"] = bad
    source = make_source(api.base_url, timeout_s=0.3)
    read = first_read(source)
    assert read.known.keys() == {other}
    assert (read.state, read.errors) == (SourceState.DEGRADED, 1)
    assert read.reason is not None
    assert f"GET /containers/{stuck[:12]}/json" in read.reason
    asked = WorkloadRef(WorkloadKind.CONTAINER, stuck, runtime="docker")
    assert not source.read({asked: (1,)}).pending


def test_an_engine_that_fails_every_inspection_is_unavailable(api: DockerApi, make_source: MakeSource) -> None:
    for number in range(20):
        api.bad[f"/containers/{api.run(number, f'job-{number}')}/json"] = HTML
    assert "is not JSON" in unavailable(make_source(api.base_url))
    assert api.count(INSPECT) == 6


def test_containers_inspected_before_the_engine_is_lost_are_known(api: DockerApi, make_source: MakeSource) -> None:
    said = api.run(1, "said")
    for number in range(2, 20):
        api.bad[f"/containers/{api.run(number, f'job-{number}')}/json"] = HTML
    source = make_source(api.base_url)
    assert unavailable(source)
    assert source.read({}).known.keys() == {said}


def test_a_cut_label_is_a_reason_while_its_container_exists(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    key = api.run(1, "llm", Config={"Labels": {"team": "x" * 10_240}})
    source = make_source(api.base_url, labels=["team"], clock=clock)
    read = first_read(source)
    assert (read.state, read.errors) == (SourceState.DEGRADED, 1)
    assert read.reason is not None
    assert "label team has 10,240 bytes" in read.reason
    api.start(2, "two")
    until(lambda: "two" in names(source))
    again = source.read({})
    assert (again.state, again.reason, again.errors) == (SourceState.DEGRADED, read.reason, 0)
    api.die(key)
    api.destroy(key)
    until(lambda: not source.read({}).known[key].running)
    clock.advance(61)
    api.start(3, "three")
    until(lambda: source.read({}).state is SourceState.OK)


# ---------------------------------------------------------------------------- events


def test_an_invalid_event_is_counted_and_the_next_one_is_applied(api: DockerApi, make_source: MakeSource) -> None:
    source = make_source(api.base_url)
    assert source.wait(10)
    api.say(b'{"Type": "container", "Action": "sta\n')
    key = api.run(1, "llm")
    half = json.dumps({"Type": "container", "Action": "start", "Actor": {"ID": key}}).encode() + b"\n\n"
    api.say(half[:20])
    api.say(half[20:])
    until(lambda: "llm" in names(source))
    read = source.read({})
    assert (read.state, read.reason) == (SourceState.DEGRADED, "an event is not valid")


def test_without_events_containers_are_listed_often(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    api.run(1, "one")
    api.bad["/events"] = Bad(b"no", status=403)
    source = make_source(api.base_url, clock=clock)
    read = first_read(source)
    assert names(source) == {"one"}
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "GET /events is forbidden" in read.reason
    assert "listed every 15 s instead" in read.reason
    key = api.run(2, "two")
    clock.advance(16)
    source.read({WorkloadRef(WorkloadKind.CONTAINER, container_id(9)): (1,)})
    until(lambda: key in source.read({}).known)


def test_events_without_an_answer_take_one_thread_and_lose_no_names(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    api.run(1, "one")
    api.bad["/events"] = Bad(never=True)
    source = make_source(api.base_url, clock=clock, timeout_s=0.2)
    read = first_read(source)
    assert read.reason is not None
    assert "no answer to GET /events within 0.2 s" in read.reason
    for round_number in range(2, 5):
        clock.advance(16)
        source.read({WorkloadRef(WorkloadKind.CONTAINER, container_id(100 + round_number)): (1,)})
        until(lambda expected=round_number: api.count("/containers/json") == expected)  # type: ignore[misc]
    assert api.count("/events") == 1
    assert names(source) == {"one"}


def woken(source: DockerSource, clock: ManualClock, number: int) -> None:
    """Let 16 s pass, and have the thread notice."""
    clock.advance(16)
    source.read({WorkloadRef(WorkloadKind.CONTAINER, container_id(number)): (1,)})


def test_containers_are_listed_often_until_a_stream_is_stable(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    api.run(1, "one")
    source = make_source(api.base_url, clock=clock)
    assert first_read(source).state is SourceState.OK
    states = []
    for round_number in range(1, 4):
        api.drop_events()
        # The end of an engine is known at once; a new stream is not requested at once.
        until(lambda expected=2 * round_number: api.count("/containers/json") == expected)  # type: ignore[misc]
        until(lambda: source.read({}).state is SourceState.DEGRADED)
        states.append(source.read({}).state)
        assert api.count("/events") == round_number
        api.run(10 + round_number, f"silent-{round_number}")
        woken(source, clock, 100 + round_number)  # the next stream is on trial
        until(lambda expected=f"silent-{round_number}": expected in names(source))  # type: ignore[misc]
        until(lambda: len(api.streams) == 1)
        states.append(source.read({}).state)
    assert set(states) == {SourceState.DEGRADED}
    read = source.read({})
    assert read.reason == "GET /events ends within 10 s; containers are listed every 15 s instead"
    api.start(20, "later")
    until(lambda: "later" in names(source))
    woken(source, clock, 200)  # this one has lasted
    until(lambda: source.read({}).state is SourceState.OK)
    assert api.count(INSPECT) == 5 + 4  # the four new ones, and each container once


def test_a_stream_that_ends_early_is_one_error(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    source = make_source(api.base_url, clock=clock)
    assert first_read(source).errors == 0
    api.drop_events()
    errors = 0

    def listed(times: int) -> bool:
        nonlocal errors
        errors += source.read({}).errors
        return api.count("/containers/json") == times and source.read({}).state is SourceState.DEGRADED

    until(lambda: listed(2))
    woken(source, clock, 100)
    until(lambda: listed(3) and bool(api.streams))
    errors += source.read({}).errors
    assert errors == 1


def test_a_stream_that_ends_with_its_engine_is_tried_again(socket_path: Path, make_source: MakeSource) -> None:
    with serving_docker(DockerApi(), socket_path) as api:
        source = make_source(api.base_url)
        assert source.wait(10)
    until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
    with serving_docker(DockerApi(), socket_path):
        until(lambda: source.read({}).state is not SourceState.UNAVAILABLE)
        assert source.read({}).state is SourceState.OK
        source.close()


@pytest.mark.parametrize(("base_url", "longest_s"), [("unix:///run/none.sock", 2.0), ("tcp://127.0.0.1:1", 30.0)])
def test_the_pause_before_a_unix_socket_is_tried_again_stays_short(
    base_url: str, longest_s: float, make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    paused = threading.Event()
    failed = Backoff.failed

    def noted(self: Backoff) -> float:
        pauses.append(failed(self))
        if len(pauses) == 8:
            paused.set()
        return 0.001

    monkeypatch.setattr(Backoff, "failed", noted)
    source = make_source(base_url)
    source.read({})
    assert paused.wait(20)
    source.close()
    assert pauses[7] == longest_s


def test_a_stream_that_a_proxy_cuts_is_opened_again_at_once(api: DockerApi, make_source: MakeSource) -> None:
    clock = ManualClock()
    source = make_source(api.base_url, clock=clock)
    assert source.wait(10)
    clock.advance(11)
    key = api.run(1, "missed")
    api.drop_events()
    until(lambda: key in source.read({}).known)
    read = source.read({})
    assert read == NameRead(known=read.known, speaker=read.speaker)


def test_after_a_loss_containers_are_listed_again_without_inspections(
    socket_path: Path, make_source: MakeSource
) -> None:
    api = DockerApi()
    same, gone, restarted = (api.run(number, f"job-{number}") for number in (1, 2, 3))
    with serving_docker(api, socket_path):
        source = make_source(api.base_url)
        assert source.wait(10)
    until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
    assert len(source.read({}).known) == 3
    del api.containers[gone]
    api.containers[same]["Name"] = "/renamed"
    new = api.run(4, "new")
    api.run(3, "job-3", State={"StartedAt": "2026-02-02T00:00:00Z"}, Status="Up 3 seconds")
    api.requests.clear()
    with serving_docker(api, socket_path):
        until(lambda: source.read({}).state is SourceState.OK)
        known = source.read({}).known
        assert known[same].names.container == "renamed"
        assert not known[gone].running
        assert known[new].running
        assert known[restarted].since_s == 1769990400.0
        assert api.count(INSPECT) == 2
        # It listens again.
        api.rename(new, "newer")
        until(lambda: "newer" in names(source))
        source.close()


def test_nothing_is_pending_while_the_engine_is_lost(socket_path: Path, make_source: MakeSource) -> None:
    with serving_docker(DockerApi(), socket_path) as api:
        source = make_source(api.base_url)
        assert source.wait(10)
    until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
    assert not source.read({WorkloadRef(WorkloadKind.CONTAINER, container_id(1), runtime="docker"): (1,)}).pending
