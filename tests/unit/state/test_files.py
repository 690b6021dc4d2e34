"""Private files of the agent."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.state.files import PrivateDirectory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path: Path) -> PrivateDirectory:
    return PrivateDirectory.open(tmp_path / "state")


def test_a_directory_is_created_with_its_parents_for_its_owner_alone(tmp_path: Path) -> None:
    PrivateDirectory.open(tmp_path / "a/b/state")
    assert mode(tmp_path / "a/b/state") == 0o700


def test_the_mode_of_a_directory_that_others_may_enter_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    PrivateDirectory.open(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700


def test_a_symbolic_link_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, target in (("link", "there"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(tmp_path / target)
        with pytest.raises(Unavailable, match="symbolic link"):
            PrivateDirectory.open(tmp_path / name)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(Unavailable, match="it is not a directory"):
        PrivateDirectory.open(tmp_path / "state")


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(Unavailable, match="belongs to user"):
        PrivateDirectory.open(tmp_path)


def test_files_are_for_their_owner_alone(directory: PrivateDirectory) -> None:
    directory.write("a", b"first")
    directory.write("a", b"second")
    assert directory.read("a") == b"second"
    assert mode(directory.path / "a") == 0o600
    os.close(directory.create("b"))
    assert mode(directory.path / "b") == 0o600
    with pytest.raises(FileExistsError):
        directory.create("b")
    assert directory.names() == ["a", "b"]


def test_links_pipes_and_files_of_others_are_not_read(
    directory: PrivateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x", encoding="ascii")
    (directory.path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(directory.path / "pipe")
    directory.write("file", b"x")
    with pytest.raises(ValueError, match="symbolic link"):
        directory.read("link")
    with pytest.raises(ValueError, match="not a regular file"):
        directory.read("pipe")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ValueError, match="belongs to user"):
        directory.read("file")


def test_writing_does_not_follow_a_symbolic_link(directory: PrivateDirectory, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept", encoding="ascii")
    (directory.path / "a").symlink_to(target)
    directory.write("a", b"new")
    assert target.read_text(encoding="ascii") == "kept"
    assert directory.read("a") == b"new"


def test_a_lock_of_another_user_is_refused(directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have created it while the directory was writable for others, and may hold the lock."""
    (directory.path / "lock").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(Unavailable, match=r"lock: it belongs to user \d+; remove it"):
            directory.lock("lock")
    os.close(directory.lock("lock"))  # nothing holds it


def test_a_lock_that_is_not_a_file_of_the_directory_alone_is_refused(
    directory: PrivateDirectory, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("kept", encoding="ascii")
    (directory.path / "soft").symlink_to(target)
    (directory.path / "hard").hardlink_to(target)
    os.mkfifo(directory.path / "pipe")
    for name, problem in (
        ("soft", "it is a symbolic link"),
        ("hard", "it is a hard link"),
        ("pipe", "it is not a regular file"),
    ):
        with pytest.raises(Unavailable, match=f"{name}: {problem}; remove it"):
            directory.lock(name)


def test_a_lock_is_held_once(directory: PrivateDirectory) -> None:
    held = directory.lock("lock")
    with pytest.raises(BlockingIOError):
        directory.lock("lock")
    os.close(held)
    os.close(directory.lock("lock"))


def test_a_file_that_grows_while_it_is_read_is_refused(
    directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("a", b"0123456789")
    original = os.fstat

    def fstat_then_grow(descriptor: int) -> os.stat_result:
        found = original(descriptor)
        with (directory.path / "a").open("ab") as file:
            file.write(b"0123456789")
        return found

    monkeypatch.setattr(os, "fstat", fstat_then_grow)
    with pytest.raises(ValueError, match="over 15 bytes"):
        directory.read("a", most_bytes=15)
