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

from otel_gpu.control import protocol, server
from otel_gpu.control.protocol import request
from otel_gpu.control.server import ControlServer
from otel_gpu.errors import Unavailable
from otel_gpu.sources import unix_socket
from otel_gpu.sources.unix_socket import Peer

Handlers = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]


def echo(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"word": message.get("word")}


def fail(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Unavailable("not now")


def crash(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise KeyError("a bug")


HANDLERS: Handlers = {"echo": echo, "fail": fail, "crash": crash}


@contextmanager
def listening(path: Path, users: frozenset[int] | None = None) -> Iterator[ControlServer]:
    control = ControlServer(path, HANDLERS, users=users)
    control.start()
    try:
        yield control
    finally:
        control.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "c.sock"


def raw(path: Path, *parts: bytes, end: bool = False) -> dict[str, Any]:
    """The response to raw bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        for part in parts:
            connection.sendall(part)
        if end:
            connection.shutdown(socket.SHUT_WR)
        response: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        return response


def test_a_request_gets_the_result_of_its_handler(path: Path) -> None:
    with listening(path):
        assert request([path], {"command": "echo", "word": "hä"}) == {"ok": True, "word": "hä"}


def test_the_socket_is_private_and_removed_at_close(path: Path) -> None:
    with listening(path):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()


def test_a_user_other_than_root_and_the_agents_own_is_rejected(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(path, users=frozenset({os.geteuid() + 1})), pytest.raises(Unavailable, match="only root"):
        request([path], {"command": "echo"})
    assert f"user {os.geteuid()} " in caplog.text


def test_a_listener_of_another_user_is_sent_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can create the directory of a socket in /tmp, while no agent runs."""
    monkeypatch.setattr(unix_socket, "peer", lambda _: Peer(pid=1, uid=4711))
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impostor:
        impostor.bind(str(path))
        impostor.listen(1)
        with pytest.raises(Unavailable, match=r"c\.sock: user 4711 listens there, and may not be the agent; run"):
            request([path, tmp_path / "none.sock"], {"command": "echo"})
        connection, _ = impostor.accept()
        with connection:
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"garbage\n", "bad request"),
        (b"[]\n", "not a JSON object"),
        (b'{"command": 3}\n', "echo, fail, crash"),
        (b'{"command": "reboot"}\n', "echo, fail, crash"),
        (b"\xff\xfe\n", "bad request"),
        (b"[" * 4000 + b"\n", "bad request"),
        (b"x" * 4097, "longer than 4096 bytes"),
        (b'{"command": "fail"}\n', "not now"),
        (b'{"command": "crash"}\n', "internal error: KeyError"),
    ],
)
def test_a_request_that_fails_gets_an_error(path: Path, sent: bytes, error: str) -> None:
    with listening(path):
        response = raw(path, sent)
        assert response["ok"] is False
        assert error in response["error"]
        assert request([path], {"command": "echo"})["ok"] is True  # the server continues


def test_an_incomplete_request_does_not_block_the_server(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_TIMEOUT_S", 0.2)
    with listening(path):
        assert raw(path, b'{"comm', end=True)["error"].startswith("bad request")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(str(path))
            slow.sendall(b"{")
            assert request([path], {"command": "echo"})["ok"] is True


def test_the_socket_of_a_dead_agent_is_replaced(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with listening(path):
        assert request([path], {"command": "echo"})["ok"] is True


def test_the_socket_of_a_running_agent_is_not_replaced(path: Path) -> None:
    with listening(path):
        with pytest.raises(Unavailable, match="another agent listens there"):
            ControlServer(path, HANDLERS)
        assert request([path], {"command": "echo"})["ok"] is True


def test_close_does_not_remove_the_socket_of_another_process(path: Path) -> None:
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
def test_a_link_or_file_at_the_path_is_neither_followed_nor_replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir(mode=0o700)
    make(path)
    with pytest.raises(Unavailable, match="is not a socket"):
        ControlServer(path, HANDLERS)
    assert path.is_symlink() or path.read_text() == "mine"


def test_a_linked_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "here").symlink_to(tmp_path / "there")
    with pytest.raises(Unavailable, match="here"):
        ControlServer(tmp_path / "here/c.sock", HANDLERS)


def test_a_directory_writable_by_others_is_rejected(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(Unavailable, match="is writable by other users"):
        ControlServer(path, HANDLERS)


def test_a_locked_directory_is_an_error_after_a_timeout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOCK_TIMEOUT_S", 0.1)
    path.parent.mkdir(mode=0o700)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="is locked by another process"):
            ControlServer(path, HANDLERS)
    finally:
        os.close(directory)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        ControlServer(tmp_path / "a/b/c.sock", HANDLERS)


def test_of_agents_that_start_at_once_one_listens(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    started: list[ControlServer] = []
    rejected: list[str] = []

    def start() -> None:
        try:
            started.append(ControlServer(path, HANDLERS))
        except Unavailable as error:
            rejected.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = started
    assert len(rejected) == 5
    one.start()
    assert request([path], {"command": "echo"})["ok"] is True
    one.stop()


def test_without_an_agent_the_error_names_every_path(tmp_path: Path) -> None:
    paths = [tmp_path / "a.sock", tmp_path / "b" / "c.sock"]
    with pytest.raises(
        Unavailable, match=r"no running agent was found: .*a\.sock: no agent listens there; .*c\.sock: no agent"
    ):
        request(paths, {"command": "echo"})
    with pytest.raises(Unavailable, match="turned off"):
        request([], {"command": "echo"})


def test_a_file_at_the_path_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "a.sock").touch()
    with pytest.raises(Unavailable, match=r"a\.sock: is a file, not a socket"):
        request([tmp_path / "a.sock"], {"command": "echo"})


def test_an_agent_at_the_second_path_is_found(path: Path, tmp_path: Path) -> None:
    with listening(path):
        assert request([tmp_path / "none.sock", path], {"command": "echo"})["ok"] is True


def test_an_agent_without_a_response_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_RESPONSE_TIMEOUT_S", 0.1)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen(1)
        with pytest.raises(Unavailable, match="no valid response from the agent: timed out"):
            request([path], {"command": "echo"})
