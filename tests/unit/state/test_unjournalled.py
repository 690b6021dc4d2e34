"""Figures that no journal has are noted on another medium, and state from before is not trusted."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState
from otel_gpu.state import store as store_module
from otel_gpu.state import unjournalled as unjournalled_module
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.prompt import Nowhere
from otel_gpu.state.unjournalled import NAME, Unjournalled, note_places
from tests.state_dirs import BOOT, OPTIONS, books, counters, fallen, killed, open_awaiting, open_keeper, recovered
from tests.unit.state.lives import files, full, is_fresh, outcome, read_only, run, world

OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "run/otel-gpu"


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)


def unkept(notes: Path) -> Keeper:
    """An agent without a state directory."""
    return Keeper(OPTIONS, Nowhere(Unjournalled((notes,), BOOT)), ManualClock())


# ---------------------------------------------------------------------------- state that is no longer true


def lose(monkeypatch: pytest.MonkeyPatch, keeper: Keeper, *at_s: float) -> Any:
    """The last answer of cycles in which nothing can be written or removed in the state directory."""
    remove = PrivateDirectory.remove

    def remove_notes_only(self: PrivateDirectory, name: str) -> None:
        (remove if name.startswith(NAME) else read_only)(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", read_only)
        patch.setattr(PrivateDirectory, "remove", remove_notes_only)
        return run(keeper, *at_s)


def test_a_file_system_that_was_read_only_for_a_while_is_not_believed(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = open_keeper(path, notes=[notes])
    run(keeper, 0, 5, 35, 40)
    told = lose(monkeypatch, keeper, 45, 50, 55)
    assert outcome(told)[0] is SourceState.UNAVAILABLE
    assert "what was saved before cannot be removed" in (outcome(told)[1] or "")
    left = killed(path, keeper)
    assert recovered(left) is not None, "the file itself is as good as ever"
    with caplog.at_level(logging.INFO, "otel_gpu.state"):
        again = open_keeper(left, notes=[notes])
        assert is_fresh(run(again, 60))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("is not taken up, counters start at 0: figures were told since that are in no journal")
    assert fallen(counters(told), counters(run(again, 65))) == []


def test_what_was_saved_whole_after_that_is_gone_on_from(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = open_keeper(path, notes=[notes])
    run(keeper, 0, 5, 35)
    lose(monkeypatch, keeper, 40, 45)
    told = run(keeper, 70, 75)
    after = run(open_keeper(killed(path, keeper), notes=[notes]), 80)
    assert after.epoch_ns == told.epoch_ns == world(0).wall_ns
    assert fallen(counters(told), counters(after)) == []
    lose(monkeypatch, keeper, 85)
    assert is_fresh(run(open_keeper(killed(path, keeper, 1), notes=[notes]), 90)), "and lost again"


def test_a_run_without_state_between_two_with_it_is_noticed(path: Path, notes: Path) -> None:
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5, 10)
    first.close()
    between = unkept(notes)
    told = run(between, 15, 20, 25)
    assert not [source for source in told.sources if source.name == "state"], "nobody asked for one"
    between.close()
    after = run(open_keeper(path, notes=[notes]), 30)
    assert is_fresh(after)
    assert fallen(counters(told), counters(after)) == []


def test_a_run_without_state_beside_one_with_it_takes_nothing_away(path: Path, notes: Path) -> None:
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5)
    run(unkept(notes), 10)
    told = run(first, 15)
    after = run(open_keeper(killed(path, first), notes=[notes]), 20)
    assert after.epoch_ns == told.epoch_ns
    assert fallen(counters(told), counters(after)) == []


def test_a_run_that_has_told_nothing_takes_nothing_away(path: Path, notes: Path) -> None:
    """As where its port is taken, or no driver is there."""
    first = open_keeper(path, notes=[notes])
    told = run(first, 0, 5)
    first.close()
    unkept(notes).observe(world(10, driver=None))
    assert run(open_keeper(path, notes=[notes]), 15).epoch_ns == told.epoch_ns


def test_who_waits_for_a_directory_and_is_killed_before_it_is_free_leaves_what_the_other_saves(
    path: Path, notes: Path
) -> None:
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5)
    run(open_awaiting(path, notes=[notes]), 10)
    told = run(first, 15)
    first.close()
    assert run(open_keeper(path, notes=[notes]), 20).epoch_ns == told.epoch_ns


def test_who_waits_takes_the_directory_in_its_next_cycle_and_what_it_cannot_remove_is_not_believed(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5)
    second = open_awaiting(path, notes=[notes])
    run(second, 10)
    run(first, 15)
    first.close()
    assert files(path) == ["state"]
    told = lose(monkeypatch, second, 20)
    after = run(open_keeper(killed(path, second), notes=[notes]), 25)
    assert is_fresh(after), "what the first saved was later than the note of the second's first cycle"
    assert fallen(counters(told), counters(after)) == []
    run(second, 25)
    assert outcome(run(second, 26))[0] is SourceState.UNAVAILABLE


def test_it_is_noted_before_anybody_sees_the_first_such_figure(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Attributor.observe
    seen: list[int | None] = []

    def look(self: Attributor, snapshot: Any) -> Any:
        seen.append(Unjournalled((notes,), BOOT).since_ns())
        return observe(self, snapshot)

    keeper = open_keeper(path, notes=[notes])
    monkeypatch.setattr(Attributor, "observe", look)
    run(keeper, 0, 5)
    monkeypatch.setattr(store_module, "write_all", full)
    run(keeper, 10, 15)
    assert seen == [None, None, world(10).monotonic_ns, world(10).monotonic_ns], "once, and in time"


def test_books_that_were_never_removed_for_another_price_do_not_come_back_with_the_old_one(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be removed at a start is as untrue as what could not be removed later."""
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5)
    first.close()
    second = open_keeper(path, notes=[notes])
    monkeypatch.setattr(Keeper, "_not_taken_up", lambda *_: "prices have changed")
    lose(monkeypatch, second, 10)
    monkeypatch.undo()
    assert files(path) == ["state"]
    assert is_fresh(run(open_keeper(killed(path, second), notes=[notes]), 15))


def test_the_note_of_another_boot_says_nothing(path: Path, notes: Path) -> None:
    first = open_keeper(path, notes=[notes])
    told = run(first, 0, 5)
    first.close()
    Unjournalled((notes,), OTHER_BOOT).note(world(50).monotonic_ns)
    assert run(open_keeper(path, notes=[notes]), 60).epoch_ns == told.epoch_ns


# ---------------------------------------------------------------------------- the note


def test_of_two_notes_the_later_moment_counts_whichever_was_written_last(notes: Path) -> None:
    note = Unjournalled((notes,), BOOT)
    assert note.since_ns() is None
    for moment_ns, expected_ns in ((7, 7), (5, 7), (9, 9)):
        note.note(moment_ns)
        assert note.since_ns() == expected_ns
    assert [each.name for each in notes.iterdir()] == [NAME]
    assert (notes.stat().st_mode & 0o777, (notes / NAME).stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("content", [b"", b"[", b'["x"]', b'{"a": 1}', b'[1, "x"]'])
def test_a_note_that_cannot_be_read_lets_nothing_be_trusted_until_there_is_another(
    path: Path, notes: Path, content: bytes
) -> None:
    first = open_keeper(path, notes=[notes])
    run(first, 0, 5)
    copy = killed(path, first)
    notes.mkdir(mode=0o700)
    (notes / NAME).write_bytes(content)
    assert is_fresh(run(open_keeper(copy, notes=[notes]), 10))
    Unjournalled((notes,), BOOT).note(world(3).monotonic_ns)
    assert not is_fresh(run(open_keeper(killed(path, first, 1), notes=[notes]), 10))


def link(notes: Path) -> str:
    (notes.parent / "real").mkdir(mode=0o700)
    notes.symlink_to(notes.parent / "real")
    return "it is a symbolic link"


def writable(notes: Path) -> str:
    notes.mkdir()
    notes.chmod(0o770)
    return "others may write to it"


def no_directory(notes: Path) -> str:
    notes.touch()
    return "it is no directory"


def no_way(notes: Path) -> str:
    notes.parent.rmdir()
    return "No such file or directory"


@pytest.mark.parametrize("make", [link, writable, no_directory, no_way])
def test_a_directory_that_is_not_ours_alone_is_left_as_it_is_and_one_warning_says_so(
    notes: Path, make: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    because = make(notes)
    before = notes.lstat().st_mode if notes.is_symlink() or notes.exists() else None
    note = Unjournalled((notes,), BOOT)
    note.note(5)
    note.note(6)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{notes}: {because}" in record.getMessage()
    assert note.since_ns() is None
    assert before == (notes.lstat().st_mode if before is not None else None)
    assert not (notes / NAME).exists()


def test_a_directory_that_cannot_be_entered_is_anothers_and_says_nothing(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where ``sudo -u`` keeps the XDG_RUNTIME_DIR of who calls it."""
    first = open_keeper(path)
    told = run(first, 0, 5)
    first.close()
    locked = Path("/locked/otel-gpu")
    stat = Path.stat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    assert run(open_keeper(path, notes=[locked, notes]), 10).epoch_ns == told.epoch_ns


def test_one_place_of_several_is_enough_and_each_that_can_be_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = tmp_path / "away/otel-gpu", tmp_path / "run/a", tmp_path / "run/b"
    Unjournalled(places, BOOT).note(5)
    assert not caplog.records
    assert [Unjournalled((place,), BOOT).since_ns() for place in places] == [None, 5, 5]
    assert Unjournalled(places, BOOT).since_ns() == 5


def test_a_runtime_directory_that_hangs_keeps_nobody_waiting(
    notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(unjournalled_module, "NOTE_S", 0.02)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (go_on.wait(30), fsync(descriptor)))
    Unjournalled((notes,), BOOT).note(5)
    go_on.set()
    assert "no answer within" in caplog.text


def test_where_it_cannot_be_read_whether_there_is_a_note_nothing_is_trusted(
    path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_keeper(path)
    run(first, 0, 5)
    first.close()
    notes.mkdir(mode=0o700)
    go_on = threading.Event()
    read = PrivateDirectory.read

    def hang(self: PrivateDirectory, *which: Any) -> bytes:
        if self.path == notes:
            assert go_on.wait(30)
        return read(self, *which)

    monkeypatch.setattr(unjournalled_module, "NOTE_S", 0.02)
    monkeypatch.setattr(PrivateDirectory, "read", hang)
    with caplog.at_level(logging.INFO, "otel_gpu.state"):
        assert is_fresh(run(open_keeper(path, notes=[notes]), 10))
    go_on.set()
    assert "whether figures were told since that are in no journal cannot be read" in caplog.text


def test_of_agents_that_were_killed_as_they_noted_something_no_more_is_left_than_of_one(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "rename", read_only)
        for pid in range(3):
            patch.setattr(os, "getpid", lambda pid=pid: 4000 + pid)
            Unjournalled((notes,), BOOT).note(5)
    assert len(list(notes.iterdir())) == 1
    Unjournalled((notes,), BOOT).note(5)
    assert [each.name for each in notes.iterdir()] == [NAME]


def test_two_that_note_at_once_write_one_after_the_other(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has begun to write is not named a note by the other."""
    inside, most = [0], [0]
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        write(self, name, content)
        inside[0] -= 1

    monkeypatch.setattr(PrivateDirectory, "write", slow)
    monkeypatch.setattr(unjournalled_module, "NOTE_S", 30.0)
    threads = [threading.Thread(target=Unjournalled((notes,), BOOT).note, args=(ns,)) for ns in (7, 9, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert Unjournalled((notes,), BOOT).since_ns() == 9


def test_a_unit_has_one_place_and_others_those_where_a_unit_may_look() -> None:
    host = Path("/run/otel-gpu")
    assert note_places({"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/a"),)
    assert note_places({"XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/user/0/otel-gpu"), host)
    assert note_places({}) == note_places({"RUNTIME_DIRECTORY": "relative"}) == (host,)
    longer = f"/run/{'long' * 30}"
    assert note_places({"RUNTIME_DIRECTORY": longer}) == (Path(longer),), "than a socket's path may be"


def test_the_link_that_systemd_makes_for_a_user_of_its_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("private")
    (place,) = note_places({"RUNTIME_DIRECTORY": str(tmp_path / "link")})
    Unjournalled((place,), BOOT).note(5)
    assert (tmp_path / "private" / NAME).is_file()


def test_without_a_note_books_are_recovered_as_they_were(path: Path, notes: Path) -> None:
    keeper = open_keeper(path, notes=[notes])
    run(keeper, 0, 5, 35, 40)
    found = recovered(killed(path, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)
    assert not notes.exists()
