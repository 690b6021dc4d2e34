from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.control.server import ControlServer
from otel_gpu.control.socket_path import ControlSocket
from otel_gpu.doctor import keeping
from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.doctor.keeping import examine_control, examine_state
from otel_gpu.settings_state import StateDir
from tests.kubelet_servers import socket_directory
from tests.state_dirs import BOOT, StatefulAgent


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc that tells which boot this is."""
    path = tmp_path / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text(f"{BOOT}\n", encoding="utf-8")
    return tmp_path / "proc"


def state(path: Path | None, proc: Path, clock: ManualClock | None = None) -> Finding:
    return examine_state(StateDir(path), {}, proc, clock or ManualClock())


# ---------------------------------------------------------------------------- state


def test_without_a_state_directory_it_is_told_what_that_means(proc: Path) -> None:
    found = state(None, proc)
    assert found.verdict is Verdict.UNUSED
    assert "start at 0" in found.found
    assert found.fix is not None
    assert "--state-dir" in found.fix


def test_a_directory_that_can_be_made_is_well_and_is_not_made(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "a/b"
    assert state(path, proc) == Finding("state", Verdict.OK, f"{path}: not there yet, and can be made")
    assert not path.parent.exists()


def test_what_is_saved_is_told_with_its_age(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    StatefulAgent(path).close()
    assert "nothing is saved yet" in state(path, proc).found
    (path / "journal-000001").touch()
    assert "a journal, not yet saved whole" in state(path, proc).found
    (path / "state").write_bytes(b"x" * 2048)
    os.utime(path / "state", (1_700_000_000, 1_700_000_000))
    clock = ManualClock(1_700_000_042 * 10**9)
    assert state(path, proc, clock).found == f"{path}: saved 42 s ago, 2 KiB"


def test_a_file_that_was_set_aside_is_told(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "state.rejected").touch()
    found = state(tmp_path, proc)
    assert found.verdict is Verdict.OK
    assert "state.rejected was damaged and set aside" in found.found
    assert found.fix is not None


def test_looking_takes_no_lock_and_changes_nothing(proc: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    agent = StatefulAgent(path)
    try:
        before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir())
        assert state(path, proc).verdict is Verdict.OK
        assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir()) == before
    finally:
        agent.close()


def test_a_link_a_file_and_somebody_elses_directory_degrade_each_with_its_fix(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    link, file = state(tmp_path / "link", proc), state(tmp_path / "file", proc)
    assert (link.verdict, file.verdict) == (Verdict.DEGRADED, Verdict.DEGRADED)
    assert "it is a symbolic link" in link.found
    assert link.fix == f"--state-dir {tmp_path / 'real'}"
    assert "it is no directory" in file.found
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    other = state(tmp_path / "real", proc)
    assert f"it belongs to user {user - 1}, and this is user {user}" in other.found
    assert other.fix is not None
    assert f"chown -R {user} {tmp_path / 'real'}" in other.fix


def test_what_may_not_be_written_to_degrades(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(keeping, "_may_write", lambda _: False)
    there, away = state(tmp_path / "state", proc), state(tmp_path / "a b", proc)
    assert (there.verdict, away.verdict) == (Verdict.DEGRADED, Verdict.DEGRADED)
    assert "it is not writable" in there.found
    assert f"cannot be made in {tmp_path}" in away.found
    assert away.fix == f"as root: install -d -o {os.geteuid()} -m 700 '{tmp_path / 'a b'}'"


def test_without_the_id_of_the_boot_nothing_can_be_kept(tmp_path: Path) -> None:
    found = state(tmp_path, tmp_path / "none")
    assert found.verdict is Verdict.DEGRADED
    assert "does not tell which boot this is" in found.found


# ---------------------------------------------------------------------------- control


@pytest.fixture
def directory() -> Iterator[Path]:
    """One whose sockets have short enough names."""
    with socket_directory() as path:
        yield path


def control(path: Path | None) -> Finding:
    return examine_control(ControlSocket(path), {})


def test_an_agent_that_listens_is_found_and_goes_on_listening(directory: Path) -> None:
    server = ControlServer(directory / "c.sock", {"pause": lambda _: {}})
    server.start()
    try:
        for _ in range(2):
            assert control(directory / "c.sock") == Finding(
                "control", Verdict.OK, f"an agent listens at {directory / 'c.sock'}"
            )
    finally:
        server.stop()


def test_without_an_agent_it_is_told_where_one_would_listen(directory: Path) -> None:
    for path in (directory / "c.sock", directory / "new/c.sock"):
        assert control(path) == Finding("control", Verdict.OK, f"no agent runs; one would listen at {path}")
    assert list(directory.iterdir()) == []


def test_a_socket_that_a_dead_agent_left_is_in_nobodys_way(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(directory / "c.sock"))
    assert control(directory / "c.sock").verdict is Verdict.OK


def test_a_directory_that_others_may_write_to_or_that_cannot_be_made_degrades(directory: Path) -> None:
    directory.chmod(0o777)
    found = control(directory / "c.sock")
    assert (found.verdict, found.fix is not None) == (Verdict.DEGRADED, True)
    assert "others may write to it" in found.found
    away = control(directory / "no/such/c.sock")
    assert away.verdict is Verdict.DEGRADED
    assert "cannot be made" in away.found


def test_switched_off_it_is_unused() -> None:
    assert control(None).verdict is Verdict.UNUSED


def test_an_agent_that_takes_no_connection_is_not_waited_for(directory: Path) -> None:
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
    assert "resource temporarily unavailable" in found.found
