from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.control import client, server
from otel_gpu.control.client import ask
from otel_gpu.control.server import ControlServer
from otel_gpu.errors import Unavailable

Handlers = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]


def echo(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"heard": request.get("word")}


def refuse(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Unavailable("not now")


def stumble(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise KeyError("a bug")


HANDLERS: Handlers = {"echo": echo, "refuse": refuse, "stumble": stumble}


@contextmanager
def listening(path: Path, users: frozenset[int] | None = None) -> Iterator[ControlServer]:
    control = ControlServer(path, HANDLERS, users=users)
    control.start()
    try:
        yield control
    finally:
        control.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "c.sock"


def raw(path: Path, *parts: bytes, end: bool = False) -> dict[str, Any]:
    """Send bytes as they are; the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        for part in parts:
            connection.sendall(part)
        if end:
            connection.shutdown(socket.SHUT_WR)
        answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        return answer


def test_a_request_is_answered(path: Path) -> None:
    with listening(path):
        assert ask([path], {"command": "echo", "word": "hä"}) == {"ok": True, "heard": "hä"}


def test_the_socket_is_its_owners_alone_and_goes_when_it_is_closed(path: Path) -> None:
    with listening(path):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()


def test_a_user_who_is_neither_root_nor_the_agents_own_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(path, users=frozenset({os.geteuid() + 1})), pytest.raises(Unavailable, match="only root"):
        ask([path], {"command": "echo"})
    assert f"user {os.geteuid()} " in caplog.text


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"rubbish\n", "bad request"),
        (b"[]\n", "not a JSON object"),
        (b'{"command": 3}\n', "echo, refuse, stumble"),
        (b'{"command": "reboot"}\n', "echo, refuse, stumble"),
        (b"\xff\xfe\n", "bad request"),
        (b"[" * 4000 + b"\n", "bad request"),
        (b"x" * 4097, "more than 4096 bytes"),
        (b'{"command": "refuse"}\n', "not now"),
        (b'{"command": "stumble"}\n', "internal error: KeyError"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(path: Path, sent: bytes, said: str) -> None:
    with listening(path):
        answer = raw(path, sent)
        assert answer["ok"] is False
        assert said in answer["error"]
        assert ask([path], {"command": "echo"})["ok"] is True  # and the next one is heard


def test_who_hangs_up_or_dawdles_holds_up_nobody_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_S", 0.2)
    with listening(path):
        assert raw(path, b'{"comm', end=True)["error"].startswith("bad request")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(str(path))
            slow.sendall(b"{")
            assert ask([path], {"command": "echo"})["ok"] is True


def test_the_socket_of_an_agent_that_died_is_replaced(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with listening(path):
        assert ask([path], {"command": "echo"})["ok"] is True


def test_the_socket_of_a_living_agent_is_left_alone(path: Path) -> None:
    with listening(path):
        with pytest.raises(Unavailable, match="another agent listens there"):
            ControlServer(path, HANDLERS)
        assert ask([path], {"command": "echo"})["ok"] is True


def test_a_socket_that_somebody_else_has_put_there_since_is_not_taken_away(path: Path) -> None:
    with listening(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(str(path))
    assert path.exists()


def link(path: Path) -> None:
    path.symlink_to(path.parent / "target")


def file(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize("make", [link, file])
def test_what_is_no_socket_is_neither_followed_nor_replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir(mode=0o700)
    make(path)
    with pytest.raises(Unavailable, match="is no socket"):
        ControlServer(path, HANDLERS)
    assert path.is_symlink() or path.read_text() == "mine"


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "here").symlink_to(tmp_path / "there")
    with pytest.raises(Unavailable, match="here"):
        ControlServer(tmp_path / "here/c.sock", HANDLERS)


def test_a_directory_that_others_can_write_to_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(Unavailable, match="can be written to by others"):
        ControlServer(path, HANDLERS)


def test_a_directory_that_somebody_keeps_locked_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOCKED_S", 0.1)
    path.parent.mkdir(mode=0o700)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="is locked by another process"):
            ControlServer(path, HANDLERS)
    finally:
        os.close(directory)


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        ControlServer(tmp_path / "a/b/c.sock", HANDLERS)


def test_of_many_agents_that_start_at_once_one_listens(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    made: list[ControlServer] = []
    refused: list[str] = []

    def start() -> None:
        try:
            made.append(ControlServer(path, HANDLERS))
        except Unavailable as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = made
    assert len(refused) == 5
    one.start()
    assert ask([path], {"command": "echo"})["ok"] is True
    one.close()


def test_without_an_agent_every_place_that_was_tried_is_named(tmp_path: Path) -> None:
    places = [tmp_path / "a.sock", tmp_path / "b" / "c.sock"]
    with pytest.raises(Unavailable, match=r"no running agent was found: .*a\.sock: nobody listens; .*c\.sock: nobody"):
        ask(places, {"command": "echo"})
    with pytest.raises(Unavailable, match="switched off"):
        ask([], {"command": "echo"})


def test_an_agent_at_the_second_place_is_found(path: Path, tmp_path: Path) -> None:
    with listening(path):
        assert ask([tmp_path / "nobody.sock", path], {"command": "echo"})["ok"] is True


def test_an_agent_that_does_not_answer_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWER_S", 0.1)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(str(path))
        mute.listen(1)
        with pytest.raises(Unavailable, match="gave no answer: timed out"):
            ask([path], {"command": "echo"})
