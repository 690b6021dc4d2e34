"""Another user who takes the place of the agent, of its directories or of its lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.control.server import ControlServer
from otel_gpu.errors import Unavailable
from otel_gpu.state.files import PrivateDirectory
from tests.cli import otel_gpu

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes users"),
]

OTHER_UID: Final = 65_533
LISTENER: Final = """
import os, socket, sys
os.setgroups([]), os.setresgid(*3 * [int(sys.argv[2])]), os.setresuid(*3 * [int(sys.argv[2])])
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
print(connection.recv(4096).decode().strip(), flush=True)
connection.sendall(b'{"ok": true, "since": 1700000000, "until": null, "held": []}\\n')
"""


@contextmanager
def listener(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another user's process that answers as an agent would."""
    words = [sys.executable, "-c", LISTENER, str(path), str(OTHER_UID)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["/tmp", "/run"])
def directory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of the other user: below /tmp anyone can create it, below /run only root."""
    made = Path(tempfile.mkdtemp(prefix="og-", dir=request.param))
    os.chown(made, OTHER_UID, OTHER_UID)
    yield made
    shutil.rmtree(made)


def test_a_listener_of_another_user_is_accepted_only_in_a_directory_that_it_was_given(directory: Path) -> None:
    path = directory / "control.sock"
    with listener(path) as process:
        result = otel_gpu("pause", "--control-socket", str(path))
        assert process.stdout is not None
        received = process.stdout.readline()
    if directory.parent == Path("/run"):
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith("paused since ")
        assert "pause" in received
    else:
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        assert f"user {OTHER_UID} listens there, and may not be the agent; run this as that user" in result.stderr
        assert received.strip() == ""


def test_a_link_that_another_user_created_is_not_followed_to_a_listener(directory: Path) -> None:
    """The directory of the socket is the other user's own, and the link is in a directory that is open to all."""
    link = Path(tempfile.mkdtemp(prefix="og-", dir="/tmp"))
    link.rmdir()
    link.symlink_to(directory)
    os.chown(link, OTHER_UID, OTHER_UID, follow_symlinks=False)
    try:
        with listener(directory / "control.sock"):
            result = otel_gpu("pause", "--control-socket", str(link / "control.sock"))
    finally:
        link.unlink()
    assert (result.returncode, result.stdout) == (1, "")
    assert "may not be the agent" in result.stderr


def test_the_agent_does_not_listen_in_a_directory_of_another_user(directory: Path) -> None:
    with pytest.raises(Unavailable, match=f"{directory} belongs to user {OTHER_UID}"):
        ControlServer(directory / "control.sock", {})


def test_the_agent_does_not_use_a_state_directory_or_lock_of_another_user(directory: Path) -> None:
    with pytest.raises(Unavailable, match=f"{directory}: it belongs to user {OTHER_UID}"):
        PrivateDirectory.open(directory)
    (directory / "lock").touch(mode=0o666)
    os.chown(directory / "lock", OTHER_UID, OTHER_UID)
    os.chown(directory, 0, 0)
    directory.chmod(0o777)
    own = PrivateDirectory.open(directory)
    with pytest.raises(Unavailable, match=f"{directory}/lock: it belongs to user {OTHER_UID}; remove it"):
        own.lock("lock")
    own.close()
