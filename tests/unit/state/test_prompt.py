"""A disk that hangs: no cycle waits for it twice, nothing false is left, and it is used again when it answers."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.errors import OtelGpuError
from otel_gpu.model import SourceState
from otel_gpu.sources.workers import Pending
from otel_gpu.state import store as store_module
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.prompt import PromptStore
from otel_gpu.state.saved import Kept, Shown, parse_saved
from otel_gpu.state.unjournalled import Unjournalled
from tests.state_dirs import BOOT, OPTIONS, books, counters, fallen, killed, open_keeper, open_store, recovered, settle
from tests.unit.attribution.played import CYCLE_MJ
from tests.unit.state.lives import files, is_fresh, outcome, run, world

SOON_S = 0.02


class Disk:
    """Hangs while it is told to; whoever wrote meanwhile has done so when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self._answers = threading.Event()
        self._answers.set()

    def hang(self) -> None:
        self._answers.clear()

    def go_on(self) -> None:
        self._answers.set()

    def wait(self) -> None:
        if not self._answers.is_set():
            self.asked += 1
            assert self._answers.wait(30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()

    def write(descriptor: int, content: bytes) -> None:
        disk.wait()
        write_all(descriptor, content)

    monkeypatch.setattr(store_module, "write_all", write)
    yield disk
    disk.go_on()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "run"


def hurried(path: Path, notes: Path) -> Keeper:
    """An agent that waits for no disk."""
    store = PromptStore(open_store(path), Unjournalled((notes,), BOOT), deadline_s=SOON_S, start_s=SOON_S)
    return Keeper(OPTIONS, store, ManualClock())


def answered(keeper: Keeper) -> None:
    """Wait for what the disk has to do."""
    store = keeper._store
    assert isinstance(store, PromptStore)
    under_way = store._worker._current
    assert under_way is not None
    with suppress(OtelGpuError):
        under_way.result(time.monotonic() + 30)
    assert under_way.finished


def test_one_cycle_waits_for_a_disk_that_hangs_and_the_others_go_on(path: Path, notes: Path, disk: Disk) -> None:
    keeper = open_keeper(path, notes=[notes])
    before = run(keeper, 0, 5, 35)
    keeper._store._deadline_s = SOON_S  # type: ignore[union-attr]
    disk.hang()
    told = [keeper.observe(world(at_s)) for at_s in (40, 45, 50, 70, 100)]
    assert disk.asked == 1, "no second write is queued behind the first"
    hangs = SourceState.UNAVAILABLE, f"nothing is saved: {path}: the disk does not answer"
    assert [outcome(each) for each in told] == [hangs] * 5
    assert fallen(counters(before), counters(told[-1])) == []
    assert told[-1].gpus[0].energy is not None
    assert Unjournalled((notes,), BOOT).since_ns() == world(40).monotonic_ns


def test_killed_while_the_disk_hangs_nothing_there_is_believed(path: Path, notes: Path, disk: Disk) -> None:
    keeper = hurried(path, notes)
    keeper.observe(world(0))
    keeper.observe(world(5))
    disk.hang()
    told = [keeper.observe(world(at_s)) for at_s in (10, 15)][-1]
    hanging = killed(path, keeper, 1)
    disk.go_on()
    answered(keeper)
    arrived = killed(path, keeper, 2)
    for number, left in enumerate((hanging, arrived)):
        found = recovered(left)
        assert found is not None
        assert found.number == 2 + number, "the line arrives when somebody has been shown another one"
        after = run(open_keeper(left, notes=[notes]), 20)
        assert is_fresh(after)
        assert fallen(counters(told), counters(after)) == []


def test_when_it_answers_again_what_it_has_goes_and_everything_is_saved_whole(
    path: Path, notes: Path, disk: Disk
) -> None:
    keeper = hurried(path, notes)
    keeper.observe(world(0))
    disk.hang()
    for at_s in (5, 10, 15):
        keeper.observe(world(at_s))
    disk.go_on()
    answered(keeper)
    keeper.observe(world(20))
    answered(keeper)
    assert files(path) == []
    assert outcome(keeper.observe(world(25)))[0] is SourceState.UNAVAILABLE
    keeper._store._deadline_s = 30  # type: ignore[union-attr]
    run(keeper, 30)
    told = run(keeper, 35, 40)
    assert outcome(told) == (SourceState.OK, None)
    left = killed(path, keeper)
    found = recovered(left)
    assert found is not None
    assert found.number == 9, "every cycle has its number, on disk or not"
    assert books(found.attributor) == books(keeper._attributor)
    assert fallen(counters(told), counters(run(open_keeper(left, notes=[notes]), 45))) == []


def test_a_disk_that_hangs_when_the_journal_begins_anew_is_not_waited_for_either(
    path: Path, notes: Path, disk: Disk
) -> None:
    keeper = hurried(path, notes)
    keeper.observe(world(0))
    disk.hang()
    with_it = keeper._store._store._number  # type: ignore[union-attr]
    keeper._store.save(keeper._kept, keeper._run)  # type: ignore[arg-type]
    assert with_it == 1
    told = [keeper.observe(world(at_s)) for at_s in (5, 10)]
    assert disk.asked == 1
    assert outcome(told[-1])[0] is SourceState.UNAVAILABLE
    assert Unjournalled((notes,), BOOT).since_ns() == world(5).monotonic_ns
    disk.go_on()
    answered(keeper)
    assert is_fresh(run(open_keeper(killed(path, keeper), notes=[notes]), 15))


def hung_once(keeper: Keeper, disk: Disk) -> None:
    """A cycle for which the disk hung, and two in which it has come back and was cleared."""
    keeper.observe(world(0))
    disk.hang()
    keeper.observe(world(5))
    disk.go_on()
    answered(keeper)
    keeper.observe(world(10))
    answered(keeper)
    keeper.observe(world(15))


def test_a_disk_that_hangs_a_second_time_is_believed_as_little_as_after_the_first(
    path: Path, notes: Path, disk: Disk
) -> None:
    """The books are on their way when it hangs, and arrive when later figures were told: the reason is the same."""
    keeper = hurried(path, notes)
    hung_once(keeper, disk)
    disk.hang()
    keeper._store.save(keeper._kept, keeper._run)  # type: ignore[arg-type]
    told = [keeper.observe(world(at_s)) for at_s in (20, 25)][-1]
    assert Unjournalled((notes,), BOOT).since_ns() == world(20).monotonic_ns
    disk.go_on()
    answered(keeper)
    left = killed(path, keeper)
    assert recovered(left) is not None, "it arrived"
    after = run(open_keeper(left, notes=[notes]), 30)
    assert is_fresh(after)
    assert fallen(counters(told), counters(after)) == []


def test_what_arrives_late_is_removed_at_the_end_and_the_books_are_saved_as_they_are(
    path: Path, notes: Path, disk: Disk
) -> None:
    """Whether or not it could be noted."""
    keeper = hurried(path, notes)
    hung_once(keeper, disk)
    disk.hang()
    keeper._store.save(keeper._kept, keeper._run)  # type: ignore[arg-type]
    told = keeper.observe(world(20))
    disk.go_on()
    answered(keeper)
    settle(keeper)
    keeper._store.close(keeper._kept, keeper._run, 15.0)
    after = run(open_keeper(path), 25)
    assert after.epoch_ns == told.epoch_ns
    assert fallen(counters(told), counters(after)) == []


def test_a_disk_that_hangs_at_the_start_costs_the_counters_and_not_the_start(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_keeper(path)
    run(first, 0, 5)
    first.close()
    go_on = threading.Event()
    read = PrivateDirectory.read

    def slow(self: PrivateDirectory, name: str) -> bytes:
        if self.path == path:
            assert go_on.wait(30)
        return read(self, name)

    monkeypatch.setattr(PrivateDirectory, "read", slow)
    keeper = hurried(path, notes)
    told = keeper.observe(world(10))
    assert is_fresh(told)
    assert outcome(told)[0] is SourceState.UNAVAILABLE
    go_on.set()
    answered(keeper)
    assert is_fresh(run(open_keeper(killed(path, keeper), notes=[notes]), 15))
    keeper.observe(world(20))
    answered(keeper)
    assert files(path) == [], "and what could not be read in time is not for the next one"


def test_an_end_does_not_wait_for_a_disk_that_hangs(path: Path, notes: Path, disk: Disk) -> None:
    keeper = hurried(path, notes)
    keeper.observe(world(0))
    disk.hang()
    keeper.observe(world(5))
    keeper.close()
    assert disk.asked == 1
    assert keeper.observe(world(10)).gpus


def test_a_cycle_makes_one_call_and_the_thread_ends_with_the_keeper(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    keeper = open_keeper(path)
    run(keeper, 0)
    store = keeper._store
    assert isinstance(store, PromptStore)
    start = store._worker.start

    def counted(call: Callable[[], Any]) -> Pending[Any]:
        calls.append(call)
        return start(call)

    monkeypatch.setattr(store._worker, "start", counted)
    run(keeper, 5, 10)
    assert len(calls) == 2
    keeper.close()
    settle(keeper)
    thread = store._worker._thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


# ---------------------------------------------------------------------------- who dies young


@pytest.mark.long
def test_an_agent_that_dies_young_time_and_again_leaves_few_files_and_no_counter_falls(path: Path) -> None:
    told: dict[tuple[Any, ...], tuple[int, ...]] = {}
    most = 0
    for life in range(100):
        keeper = open_keeper(path)
        now = counters(run(keeper, 10 * life, 10 * life + 5))
        assert fallen(told, now) == []
        assert told.keys() <= now.keys()
        old, told = path, now
        path = killed(path, keeper, life % 2)
        keeper.close()
        most = max(most, len(files(path)))
        assert old != path
    assert 2 < most <= store_module.MOST_JOURNALS + 2
    (of_the_gpu,) = (sums for key, sums in told.items() if key[0] == "gpu")
    assert sum(of_the_gpu) == 199 * CYCLE_MJ, "of 100 lives, all"


def test_journals_without_a_cycle_do_not_add_up_either(path: Path) -> None:
    for _ in range(30):
        keeper = open_keeper(path)
        keeper._begin(world(0))
        assert len(files(path)) <= store_module.MOST_JOURNALS + 1
        keeper._store.close(keeper._kept, None, 1.0)


def test_where_many_journals_cannot_be_made_one_file_they_are_good_as_they_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for life in range(12):
        keeper = open_keeper(path)
        told = run(keeper, 10 * life)
        path = killed(path, keeper, life % 2)
        keeper.close()
        if life == 8:
            monkeypatch.setattr(PrivateDirectory, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    assert len(files(path)) > store_module.MOST_JOURNALS
    keeper = open_keeper(path)
    after = run(keeper, 130)
    assert fallen(counters(told), counters(after)) == []
    assert after.epoch_ns == told.epoch_ns


# ---------------------------------------------------------------------------- set aside


def test_a_directory_in_the_place_of_what_was_set_aside_is_told_of_as_it_is(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_keeper(path)
    run(first, 0, 5)
    first.close()
    (path / "state.rejected/x").mkdir(parents=True)
    (path / "state").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        keeper = open_keeper(path)
    (record,) = caplog.records
    assert f"{path}/state is not trusted, is removed, since it cannot be named {path}/state.rejected (" in (
        record.getMessage()
    )
    assert outcome(run(keeper, 10)) == (SourceState.OK, None)
    assert files(path) == ["journal-000001", "state.rejected"]


def test_directories_in_both_places_are_told_of_and_nothing_is_kept(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("state/x", "state.rejected/x"):
        (path / name).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        keeper = open_keeper(path)
    (record,) = caplog.records
    assert f"{path}/state is not trusted, cannot be removed (Is a directory), and" in record.getMessage()
    assert outcome(run(keeper, 10))[0] is SourceState.UNAVAILABLE


def test_whom_proc_showed_is_saved_and_a_file_without_it_is_read(path: Path) -> None:
    """A state file may have been written before it was."""
    keeper = open_keeper(path)
    run(keeper, 0, 35)
    found = recovered(killed(path, keeper))
    assert found is not None
    assert found.shown.processes == world(35).processes == keeper.known_processes
    _, head, saved, shown, _ = (path / "state").read_bytes().splitlines()
    assert shown.startswith(b"[")
    content = b"%b\n%b\n" % (head, saved)
    earlier = parse_saved(b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode(), content))
    assert earlier.kept == Kept(json.loads(saved), Shown())
