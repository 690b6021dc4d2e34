"""Connections and event streams of the engine's client."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from pathlib import Path

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.sources.names.docker.client import EngineClient
from otel_gpu.sources.names.docker.registry import ACTIONS
from tests.docker_api import Bad, DockerApi, serving_docker
from tests.waiting import until


def test_events_without_chunks_are_returned_one_by_one(api: DockerApi) -> None:
    """HTTP/1.0: the stream ends with the connection, and its length is unknown."""
    api.chunked = False
    with closing(EngineClient(api.base_url, tls=None, timeout_s=5.0)) as engine:
        events = engine.events(ACTIONS, quiet_s=30.0)
        until(lambda: api.streams)
        read = iter(events)
        for line in (b"one\n", b"two\n"):
            api.say(line)
            assert next(read) == line.strip()
        api.drop_events()
        assert list(read) == []
        events.release()


def test_events_may_arrive_for_longer_than_the_timeout(api: DockerApi) -> None:
    """Their timeout is for the head, and then for each event."""
    with closing(EngineClient(api.base_url, tls=None, timeout_s=5.0)) as engine:
        events = engine.events(ACTIONS, quiet_s=0.5)
        until(lambda: api.streams)
        read = iter(events)
        started_s = time.monotonic()
        while time.monotonic() - started_s < 1.0:
            api.say(b"one\n")
            assert next(read) == b"one"
            time.sleep(0.1)
        assert list(read) == []
        events.release()


def test_a_stream_of_events_whose_head_arrives_byte_by_byte_ends_at_the_deadline(api: DockerApi) -> None:
    api.bad["/events"] = Bad(drips=b"HTTP/1.1 200 OK\r\nX: ")
    with (
        closing(EngineClient(api.base_url, tls=None, timeout_s=5.0)) as engine,
        pytest.raises(Unavailable, match="/events"),
    ):
        engine.events(ACTIONS, quiet_s=0.3)


def test_a_refused_connection_leaks_no_socket(socket_path: Path) -> None:
    """The engine may end between two requests. A socket that is not closed is a warning, and an error here."""
    with serving_docker(DockerApi(), socket_path):
        engine = EngineClient(f"unix://{socket_path}", tls=None, timeout_s=5.0)
    for _ in range(3):
        with pytest.raises(Unavailable, match="connection refused"):
            engine.containers()
    gc.collect()
    engine.close()
