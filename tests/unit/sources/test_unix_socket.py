"""Connections to unix sockets: every way a path fails has one text."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.sources.unix_socket import NO_LISTENER, NotASocketError, connect, failure_reason


def nothing(_: Path) -> None:
    """Nothing is at the path."""


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


def server_ended(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "x.sock"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (nothing, "no such file"),
        (below_a_file, "no such file"),
        (Path.mkdir, "is a directory, not a socket: a mount created it while there was no socket"),
        (Path.touch, "is a file, not a socket"),
        (server_ended, "connection refused: no process listens on it"),
    ],
)
def test_a_path_without_a_server_has_a_reason(path: Path, make: Callable[[Path], None], reason: str) -> None:
    make(path)
    with pytest.raises((*NO_LISTENER, NotASocketError)) as raised:
        connect(path)
    assert failure_reason(raised.value) == reason
    assert isinstance(raised.value, NotASocketError) == ("not a socket" in reason)


def test_a_full_queue_fails_at_once(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with connect(path), pytest.raises(BlockingIOError) as raised:
            connect(path)
    assert failure_reason(raised.value) == "the server does not accept connections"


def test_other_errors_keep_the_text_of_the_system() -> None:
    assert failure_reason(PermissionError(13, "Permission denied")) == "permission denied"
    assert failure_reason(OSError(40, "Too many levels of symbolic links")) == "Too many levels of symbolic links"
    assert failure_reason(OSError("AF_UNIX path too long")) == "AF_UNIX path too long"
