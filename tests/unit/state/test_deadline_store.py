"""A disk that hangs: no cycle waits for it twice, no stale file is trusted, and it is used again when it responds."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.model import NO_PROCESSES, SourceState
from otel_gpu.state import store as store_module
from otel_gpu.state.checkpoint import CheckpointData, parse_checkpoint
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.gap_marker import GapMarker
from otel_gpu.state.store import InUse, Run
from tests.state_dirs import (
    BOOT,
    OPTIONS,
    PATIENT_S,
    StatefulAgent,
    attribution,
    counters,
    fallen,
    killed,
    recovered,
)
from tests.unit.attribution.played import CYCLE_MJ
from tests.unit.state.lives import files, is_fresh, outcome, run, world

SHORT_S = 0.02
RUN = Run(world(0).wall_ns, None, OPTIONS)


class Disk:
    """A disk whose journal hangs on request. A write that hung is done when the disk responds again."""

    def __init__(self) -> None:
        self.hung_writes = 0
        self._writes_left: int | None = None
        self._responds = threading.Event()

    def hang(self, agent: StatefulAgent, after_writes: int = 0) -> None:
        self._responds.clear()
        self._writes_left = after_writes
        agent.store.deadline_s = SHORT_S

    def respond(self, agent: StatefulAgent) -> None:
        self.release()
        agent.store.deadline_s = PATIENT_S
        agent.settle()

    def release(self) -> None:
        self._writes_left = None
        self._responds.set()

    def wait(self) -> None:
        if self._writes_left is None:
            return
        if self._writes_left > 0:
            self._writes_left -= 1
            return
        self.hung_writes += 1
        assert self._responds.wait(30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()

    def write(descriptor: int, content: bytes) -> None:
        disk.wait()
        write_all(descriptor, content)

    monkeypatch.setattr(store_module, "write_all", write)
    yield disk
    disk.release()


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "run"


def marked_ns(runtime: Path) -> int | None:
    return GapMarker((runtime,), BOOT).marked_ns()


def test_one_cycle_waits_for_a_disk_that_hangs_and_no_other(path: Path, runtime: Path, disk: Disk) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    before = run(agent, 0, 5, 35)
    disk.hang(agent)
    reports = [agent.observe(world(at_s)) for at_s in (40, 45, 50, 70, 100)]
    assert disk.hung_writes == 1, "no second write waits behind the first"
    hung = SourceState.UNAVAILABLE, f"nothing is saved: {path}: the disk does not respond"
    assert [outcome(each) for each in reports] == [hung] * 5
    assert fallen(counters(before), counters(reports[-1])) == []
    assert reports[-1].gpus[0].energy is not None
    assert marked_ns(runtime) == world(40).monotonic_ns


def test_after_a_kill_while_the_disk_hangs_no_file_is_trusted(path: Path, runtime: Path, disk: Disk) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0, 5)
    disk.hang(agent)
    last = [agent.observe(world(at_s)) for at_s in (10, 15)][-1]
    while_hung = killed_at_once(path, 1)
    disk.respond(agent)
    afterwards = killed(path, agent, 2)
    for number, left in enumerate((while_hung, afterwards)):
        found = recovered(left)
        assert found is not None
        assert found.number == 2 + number, "the line is written after another cycle was exported"
        after = run(StatefulAgent(left, markers=[runtime]), 20)
        assert is_fresh(after)
        assert fallen(counters(last), counters(after)) == []


def killed_at_once(path: Path, number: int) -> Path:
    """The directory that a kill leaves while the disk hangs."""
    return Path(shutil.copytree(path, path.with_name(f"{path.name}-{number}")))


def test_a_disk_that_responds_again_is_cleared_and_gets_a_checkpoint(path: Path, runtime: Path, disk: Disk) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0)
    disk.hang(agent)
    for at_s in (5, 10, 15):
        agent.observe(world(at_s))
    disk.respond(agent)
    run(agent, 20)
    assert files(path) == []
    assert outcome(run(agent, 25))[0] is SourceState.UNAVAILABLE
    report = run(agent, 30, 35, 40)
    assert outcome(report) == (SourceState.OK, None)
    left = killed(path, agent)
    found = recovered(left)
    assert found is not None
    assert found.number == 9, "every cycle has a number, on disk or not"
    assert attribution(found.attributor) == agent.attribution
    assert fallen(counters(report), counters(run(StatefulAgent(left, markers=[runtime]), 45))) == []


def test_no_cycle_waits_for_a_disk_that_hangs_with_a_new_journal(path: Path, runtime: Path, disk: Disk) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0)
    disk.hang(agent, after_writes=1)
    reports = [agent.observe(world(at_s)) for at_s in (30, 35, 40)]
    assert disk.hung_writes == 1
    assert outcome(reports[0]) == (SourceState.OK, None)
    assert outcome(reports[-1])[0] is SourceState.UNAVAILABLE
    assert marked_ns(runtime) == world(35).monotonic_ns
    disk.respond(agent)
    assert is_fresh(run(StatefulAgent(killed(path, agent), markers=[runtime]), 45))


def hang_once(agent: StatefulAgent, disk: Disk) -> None:
    """A cycle for which the disk hangs, and two in which it responds and is cleared."""
    run(agent, 0)
    disk.hang(agent)
    agent.observe(world(5))
    disk.respond(agent)
    run(agent, 10, 15)


def test_a_disk_that_hangs_a_second_time_is_marked_again(path: Path, runtime: Path, disk: Disk) -> None:
    """The checkpoint is newer than the first mark, and later cycles are exported without a journal."""
    agent = StatefulAgent(path, markers=[runtime])
    hang_once(agent, disk)
    run(agent, 30)
    disk.hang(agent)
    last = [agent.observe(world(at_s)) for at_s in (35, 40)][-1]
    assert marked_ns(runtime) == world(35).monotonic_ns
    disk.respond(agent)
    left = killed(path, agent)
    assert recovered(left) is not None, "the checkpoint and the late line are there"
    after = run(StatefulAgent(left, markers=[runtime]), 45)
    assert is_fresh(after)
    assert fallen(counters(last), counters(after)) == []


def test_close_removes_what_was_written_late_and_writes_a_checkpoint(path: Path, disk: Disk) -> None:
    """With or without a marker."""
    agent = StatefulAgent(path)
    hang_once(agent, disk)
    run(agent, 30)
    disk.hang(agent)
    last = agent.observe(world(35))
    disk.respond(agent)
    agent.close()
    agent.settle()
    after = run(StatefulAgent(path), 40)
    assert after.epoch_ns == last.epoch_ns
    assert fallen(counters(last), counters(after)) == []


def test_a_disk_that_hangs_does_not_delay_the_start_and_counters_start_at_0(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    first.close()
    responds = threading.Event()
    read = PrivateDirectory.read

    def slow(self: PrivateDirectory, *arguments: Any) -> bytes:
        if self.path == path:
            assert responds.wait(30)
        return read(self, *arguments)

    monkeypatch.setattr(PrivateDirectory, "read", slow)
    agent = StatefulAgent(path, markers=[runtime], start_s=0.5)
    report = agent.observe(world(10))
    assert is_fresh(report)
    assert outcome(report)[0] is SourceState.UNAVAILABLE
    responds.set()
    assert is_fresh(run(StatefulAgent(killed(path, agent), markers=[runtime]), 15))
    run(agent, 20)
    assert files(path) == [], "the next agent does not find what could not be read in time"


def test_close_does_not_wait_for_a_disk_that_hangs(path: Path, runtime: Path, disk: Disk) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0)
    disk.hang(agent)
    agent.observe(world(5))
    agent.close()
    assert disk.hung_writes == 1
    assert agent.observe(world(10)).gpus


def test_close_holds_the_lock_until_a_slow_checkpoint_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another agent would write under the same name."""
    responds = threading.Event()
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        assert responds.wait(30)
        write(self, name, content)

    agent = StatefulAgent(path)
    agent.observe(world(0))
    monkeypatch.setattr(PrivateDirectory, "write", slow)
    agent.observe(world(35))
    last = agent.observe(world(40))
    started_s = time.monotonic()
    agent.close()
    assert time.monotonic() - started_s < 5
    with pytest.raises(InUse):
        StatefulAgent(path)
    responds.set()
    agent.settle()
    after = run(StatefulAgent(path), 45)
    assert after.epoch_ns == last.epoch_ns
    assert fallen(counters(last), counters(after)) == []


def test_the_threads_end_with_the_agent(path: Path) -> None:
    before = set(threading.enumerate())
    agent = StatefulAgent(path)
    run(agent, 0, 35)
    threads = set(threading.enumerate()) - before
    assert {thread.name for thread in threads} == {"otel-gpu-journal", "otel-gpu-checkpoint"}
    agent.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# ---------------------------------------------------------------------------- many short runs


@pytest.mark.long
def test_an_agent_killed_soon_after_every_start_leaves_few_files_and_no_counter_falls(path: Path) -> None:
    before: dict[tuple[Any, ...], tuple[int, ...]] = {}
    most = 0
    for number in range(100):
        agent = StatefulAgent(path)
        now = counters(run(agent, 10 * number, 10 * number + 5))
        assert fallen(before, now) == []
        assert before.keys() <= now.keys()
        old, before = path, now
        path = killed(path, agent, number % 2)
        agent.close()
        most = max(most, len(files(path)))
        assert old != path
    assert 2 < most <= store_module.MOST_JOURNALS + 2
    (of_the_gpu,) = (sums for key, sums in before.items() if key[0] == "gpu")
    assert sum(of_the_gpu) == 199 * CYCLE_MJ, "of 100 runs, all"


def test_journals_without_a_cycle_do_not_accumulate(path: Path) -> None:
    for _ in range(30):
        agent = StatefulAgent(path)
        agent.store.begin(0, RUN)
        assert len(files(path)) <= store_module.MOST_JOURNALS + 1
        agent.close()
        agent.settle()


def test_journals_stay_valid_if_they_cannot_be_replaced_by_a_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        agent = StatefulAgent(path)
        last = run(agent, 10 * number)
        path = killed(path, agent, number % 2)
        agent.close()
        if number == 8:
            monkeypatch.setattr(PrivateDirectory, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    assert len(files(path)) > store_module.MOST_JOURNALS
    agent = StatefulAgent(path)
    after = run(agent, 130)
    assert fallen(counters(last), counters(after)) == []
    assert after.epoch_ns == last.epoch_ns


# ---------------------------------------------------------------------------- set aside


def test_a_damaged_file_is_removed_if_a_directory_has_the_name_to_set_it_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    first.close()
    (path / "state.rejected/x").mkdir(parents=True)
    (path / "state").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        agent = StatefulAgent(path)
    (record,) = caplog.records
    assert f"{path}/state is not trusted and is removed, because it cannot be renamed to {path}/state.rejected (" in (
        record.getMessage()
    )
    assert outcome(run(agent, 10)) == (SourceState.OK, None)
    assert files(path) == ["journal-000001", "state.rejected"]


def test_nothing_is_saved_if_a_directory_has_the_name_of_the_checkpoint(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("state/x", "state.rejected/x"):
        (path / name).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        agent = StatefulAgent(path)
    (record,) = caplog.records
    assert f"{path}/state is not trusted and not all files can be removed (Is a directory), " in record.getMessage()
    assert outcome(run(agent, 10))[0] is SourceState.UNAVAILABLE


def test_processes_are_saved_and_a_checkpoint_without_them_is_read(path: Path) -> None:
    """Early versions did not write them."""
    agent = StatefulAgent(path)
    run(agent, 0, 35, 36)
    found = recovered(killed(path, agent))
    assert found is not None
    assert found.processes == world(36).processes == agent.known_processes
    _, head, saved, processes, _ = (path / "state").read_bytes().splitlines()
    assert processes.startswith(b"[")
    content = b"%b\n%b\n" % (head, saved)
    earlier = parse_checkpoint(b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode(), content))
    assert earlier.data == CheckpointData(json.loads(saved), NO_PROCESSES)
