"""Who ends is known without asking for each, and nobody is taken for his successor."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.sources.vigil import Vigil, most_to_watch


@pytest.fixture
def two() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that wait to be killed."""
    processes = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it, without anybody having waited for it."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_ends_is_told_once_and_is_watched_no_more(two: list[subprocess.Popen[bytes]]) -> None:
    first, second = two
    vigil = Vigil(10)
    for process in two:
        vigil.watch(process.pid)
    assert vigil.ended() == []
    kill(first)
    assert vigil.ended() == [first.pid]
    assert vigil.ended() == []
    assert first.pid not in vigil
    assert second.pid in vigil


def test_who_is_gone_or_one_too_many_is_not_watched(two: list[subprocess.Popen[bytes]]) -> None:
    first, second = two
    vigil = Vigil(1)
    first.kill()
    first.wait()
    vigil.watch(first.pid)
    assert first.pid not in vigil
    vigil.watch(second.pid)
    vigil.watch(os.getpid())
    assert second.pid in vigil
    assert os.getpid() not in vigil


def test_where_there_are_no_pidfds_nobody_is_watched(
    two: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> int:
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refused)
    vigil = Vigil(10)
    vigil.watch(two[0].pid)
    assert two[0].pid not in vigil
    assert vigil.ended() == ()


def test_no_file_stays_open_after_an_end_or_after_the_vigil(two: list[subprocess.Popen[bytes]]) -> None:
    before = open_files()
    vigil = Vigil(10)
    for process in two:
        vigil.watch(process.pid)
        vigil.watch(process.pid)
    assert open_files() == before + 1 + 2
    kill(two[0])
    vigil.ended()
    assert open_files() == before + 1 + 1
    del vigil
    assert open_files() == before


@pytest.mark.parametrize(("limit", "most"), [(1024, 256), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)])
def test_a_part_of_the_files_that_may_be_open_is_for_it(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert most_to_watch() == most


def test_who_ends_is_told_once_though_a_forked_worker_has_a_copy_of_what_is_watched(
    two: list[subprocess.Popen[bytes]],
) -> None:
    first, second = two
    vigil = Vigil(10)
    for process in two:
        vigil.watch(process.pid)
    worker = os.fork()
    if worker == 0:
        signal.pause()
    try:
        kill(first)
        assert vigil.ended() == [first.pid]
        assert vigil.ended() == []
        kill(second)
        assert vigil.ended() == [second.pid]
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_nobody_is_watched_where_python_was_built_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    vigil = Vigil(most_to_watch())
    vigil.watch(os.getpid())
    assert (most_to_watch(), os.getpid() in vigil) == (0, False)
