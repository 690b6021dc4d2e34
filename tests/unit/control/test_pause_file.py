"""Saved pauses: which ones are restored and which are ignored."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.control.pause_file import PauseFile
from otel_gpu.sources.pause import Pause
from tests.proc_tree import ProcTree

BOOT = "00000000-0000-4000-8000-000000000001"
SINCE_S = 1_700_000_000.0
HOUR_NS = 3_600_000_000_000
PAUSE = Pause(SINCE_S, SINCE_S + 3600, until_ns=HOUR_NS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.write("sys/kernel/random/boot_id", f"{BOOT}\n")
    return tree


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def file(directory: Path, clock: ManualClock, proc: ProcTree) -> PauseFile:
    return PauseFile(directory, clock, own_proc=proc.root)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("pause", [PAUSE, Pause(SINCE_S, None)])
def test_a_saved_pause_is_loaded_from_a_private_file(pause: Pause, file: PauseFile, directory: Path) -> None:
    assert file.load() is None
    file.save(pause)
    assert file.load() == pause
    assert [path.name for path in directory.iterdir()] == ["paused"]
    assert (directory / "paused").stat().st_mode & 0o777 == 0o600
    file.save(None)
    file.save(None)
    assert file.load() is None
    assert list(directory.iterdir()) == []


def test_a_pause_ends_by_the_monotonic_clock(file: PauseFile, clock: ManualClock, directory: Path) -> None:
    file.save(PAUSE)
    clock.step_wall(86_400)
    clock.advance(3599)
    loaded = file.load()
    assert loaded is not None
    assert (loaded.until_ns, loaded.until_s) == (HOUR_NS, SINCE_S + 86_400 + 3600)  # by the wall clock of now
    clock.advance(1)
    assert file.load() is None
    assert list(directory.iterdir()) == []


def test_held_device_nodes_are_not_saved(file: PauseFile) -> None:
    file.save(Pause(SINCE_S, None, ("/dev/nvidia0",)))
    assert file.load() == Pause(SINCE_S, None)


def test_a_pause_of_another_boot_is_ignored(
    file: PauseFile, proc: ProcTree, caplog: pytest.LogCaptureFixture, directory: Path
) -> None:
    file.save(PAUSE)
    proc.write("sys/kernel/random/boot_id", "99999999-0000-4000-8000-000000000001\n")
    assert file.load() is None
    assert warnings(caplog) == [f"{directory}/paused is ignored and the agent is not paused: from another boot"]


def put(content: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        path.chmod(0o600)

    return write


def link(path: Path) -> None:
    put(GOOD)(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def readable(path: Path) -> None:
    put(GOOD)(path)
    path.chmod(0o644)


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


GOOD = {"boot_id": BOOT, "since_s": SINCE_S, "until_s": None, "until_ns": None}
INVALID = {
    "empty": put(""),
    "no JSON": put("paused"),
    "not UTF-8": lambda path: (path.write_bytes(b"\xff\xfe"), path.chmod(0o600)),
    "nested": put("[" * 4000),
    "a list": put([GOOD]),
    "no boot": put({**GOOD, "boot_id": None}),
    "no start": put({**GOOD, "since_s": "yesterday"}),
    "no number": put({**GOOD, "since_s": float("nan")}),
    "no end": put({"boot_id": BOOT, "since_s": SINCE_S}),
    "a boolean": put({**GOOD, "until_ns": True}),
    "an end beyond every clock": put({**GOOD, "until_ns": 10**400}),
    "an end before every clock": put({**GOOD, "until_ns": -(10**400)}),
    "too late": put({**GOOD, "until_ns": 8 * 86_400 * 10**9}),
    "too long": put({**GOOD, "x": "x" * 5000}),
    "a link": link,
    "a pipe": pipe,
    "a directory": lambda path: path.mkdir(mode=0o700),
    "not private": readable,
}


@pytest.mark.parametrize("content", INVALID)
def test_an_invalid_file_is_ignored_with_one_warning_and_replaced_by_the_next_pause(
    content: str, file: PauseFile, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    INVALID[content](directory / "paused")
    assert file.load() is None
    (line,) = warnings(caplog)
    assert line.startswith(f"{directory}/paused is ignored and the agent is not paused: ")
    assert "\n" not in line
    if content != "a directory":
        file.save(PAUSE)
        assert file.load() == PAUSE


def test_a_directory_writable_by_others_is_not_trusted(
    file: PauseFile, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.save(PAUSE)
    directory.chmod(0o777)
    assert file.load() is None
    file.save(PAUSE)
    ignored, lost = warnings(caplog)
    assert "is writable by other users" in ignored
    assert lost.startswith("a restart of the agent would end this pause: ")


def test_a_missing_directory_gives_a_warning_when_saving(
    file: PauseFile, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.rmdir()
    assert file.load() is None
    assert warnings(caplog) == []
    file.save(PAUSE)
    assert warnings(caplog) == [
        f"a restart of the agent would end this pause: {directory}/paused: No such file or directory"
    ]
