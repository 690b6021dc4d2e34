from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.config.values import ControlSocket, StateDir
from otel_gpu.control.server import ControlServer
from otel_gpu.doctor import directories
from otel_gpu.doctor.directories import check_control_socket, check_state_directory
from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.sources import unix_socket
from otel_gpu.sources.unix_socket import Peer
from tests.kubelet_servers import socket_directory
from tests.state_dirs import BOOT, StatefulAgent


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with a boot id."""
    path = tmp_path / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text(f"{BOOT}\n", encoding="utf-8")
    return tmp_path / "proc"


def state(path: Path | None, proc: Path, clock: ManualClock | None = None) -> Finding:
    return check_state_directory(StateDir(path), {}, proc, clock or ManualClock())


# ---------------------------------------------------------------------------- state


def test_no_state_directory_is_unused_with_the_consequence(proc: Path) -> None:
    found = state(None, proc)
    assert found.verdict is Verdict.UNUSED
    assert "start at 0" in found.found
    assert "--state-dir" in (found.fix or "")


def test_a_directory_that_can_be_created_is_ok_and_is_not_created(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "a/b"
    assert state(path, proc) == Finding("state", Verdict.OK, f"{path}: does not exist yet; the agent can create it")
    assert not path.parent.exists()


def test_saved_state_is_reported_with_its_age(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    StatefulAgent(path).close()
    assert "nothing is saved yet" in state(path, proc).found
    (path / "journal-000001").touch()
    assert "a journal without a checkpoint" in state(path, proc).found
    (path / "state").write_bytes(b"x" * 2048)
    os.utime(path / "state", (1_700_000_000, 1_700_000_000))
    clock = ManualClock(1_700_000_042 * 10**9)
    assert state(path, proc, clock).found == f"{path}: saved 42 s ago, 2 KiB"


def test_a_lock_that_the_agent_refuses_is_degraded(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/lock").symlink_to("/etc/hostname")
    found = state(tmp_path / "state", proc)
    assert found.verdict is Verdict.DEGRADED
    assert f"{tmp_path}/state/lock: it is a symbolic link" in found.found
    assert found.fix == f"rm {tmp_path}/state/lock"


def test_a_rejected_file_is_reported(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "state.rejected").touch()
    found = state(tmp_path, proc)
    assert found.verdict is Verdict.OK
    assert "state.rejected was damaged and set aside" in found.found
    assert found.fix is not None


def test_the_check_takes_no_lock_and_changes_nothing(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    agent = StatefulAgent(path)
    try:
        before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir())
        assert state(path, proc).verdict is Verdict.OK
        assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir()) == before
    finally:
        agent.close()


def test_a_link_a_file_and_another_users_directory_are_degraded_each_with_its_fix(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    link, file = state(tmp_path / "link", proc), state(tmp_path / "file", proc)
    assert (link.verdict, file.verdict) == (Verdict.DEGRADED, Verdict.DEGRADED)
    assert "it is a symbolic link" in link.found
    assert link.fix == f"--state-dir {tmp_path / 'real'}"
    assert "it is not a directory" in file.found
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    other = state(tmp_path / "real", proc)
    assert f"it belongs to user {user - 1}, and doctor runs as user {user}" in other.found
    assert f"chown -R {user} {tmp_path / 'real'}" in (other.fix or "")


def test_a_directory_that_is_not_writable_is_degraded(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(directories, "_may_write", lambda _: False)
    there, away = state(tmp_path / "state", proc), state(tmp_path / "a b", proc)
    assert (there.verdict, away.verdict) == (Verdict.DEGRADED, Verdict.DEGRADED)
    assert "it is not writable" in there.found
    assert f"cannot be created in {tmp_path}" in away.found
    assert away.fix == f"as root: install -d -o {os.geteuid()} -m 700 '{tmp_path / 'a b'}'"


def test_without_a_boot_id_the_state_is_degraded(tmp_path: Path) -> None:
    found = state(tmp_path, tmp_path / "none")
    assert found.verdict is Verdict.DEGRADED
    assert "boot_id is not readable" in found.found


# ---------------------------------------------------------------------------- control


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with socket_directory() as path:
        yield path


def control(path: Path | None) -> Finding:
    return check_control_socket(ControlSocket(path), {})


def test_a_listening_agent_is_found_and_keeps_listening(directory: Path) -> None:
    server = ControlServer(directory / "c.sock", {"pause": lambda _: {}})
    server.start()
    try:
        for _ in range(2):
            assert control(directory / "c.sock") == Finding(
                "control", Verdict.OK, f"an agent listens at {directory / 'c.sock'}"
            )
    finally:
        server.stop()


def test_a_listener_of_another_user_is_not_taken_for_an_agent(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "peer", lambda _: Peer(pid=1, uid=4711))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(directory / "c.sock"))
        other.listen(1)
        found = control(directory / "c.sock")
    assert found.verdict is Verdict.DEGRADED
    assert "user 4711 listens there, and may not be the agent" in found.found


def test_without_an_agent_the_socket_it_would_use_is_reported(directory: Path) -> None:
    for path in (directory / "c.sock", directory / "new/c.sock"):
        assert control(path) == Finding("control", Verdict.OK, f"no agent is running; it would listen at {path}")
    assert list(directory.iterdir()) == []


def test_a_socket_left_by_a_dead_agent_is_ok(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(directory / "c.sock"))
    assert control(directory / "c.sock").verdict is Verdict.OK


def test_a_directory_that_other_users_can_write_or_that_cannot_be_created_is_degraded(directory: Path) -> None:
    directory.chmod(0o777)
    found = control(directory / "c.sock")
    assert (found.verdict, found.fix is not None) == (Verdict.DEGRADED, True)
    assert "other users can write to it" in found.found
    away = control(directory / "no/such/c.sock")
    assert away.verdict is Verdict.DEGRADED
    assert "cannot be created" in away.found


def test_no_control_socket_is_unused() -> None:
    assert control(None).verdict is Verdict.UNUSED


def test_an_agent_with_a_full_backlog_is_degraded(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as full:
        full.bind(str(directory / "c.sock"))
        full.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(str(directory / "c.sock"))
            found = control(directory / "c.sock")
        finally:
            for each in waiting:
                each.close()
    assert found.verdict is Verdict.DEGRADED
    assert "the server does not accept connections" in found.found
