"""Figures that no journal has are marked on another medium, and state from before is not resumed."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState
from otel_gpu.state import gap_marker as gap_marker_module
from otel_gpu.state import store as store_module
from otel_gpu.state.deadline_store import NullStore
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.gap_marker import NAME, GapMarker, marker_directories
from otel_gpu.state.persistent import PersistentAttributor
from tests.state_dirs import BOOT, OPTIONS, StatefulAgent, attribution, counters, fallen, killed, recovered
from tests.unit.state.lives import OTHER_BOOT, files, full, is_fresh, outcome, read_only, run, world


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "run/otel-gpu"


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)


def stateless(runtime: Path) -> PersistentAttributor:
    """An agent without a state directory."""
    return PersistentAttributor(OPTIONS, NullStore(GapMarker((runtime,), BOOT)), ManualClock())


# ---------------------------------------------------------------------------- stale state


def run_read_only(monkeypatch: pytest.MonkeyPatch, agent: StatefulAgent, *at_s: float) -> Any:
    """The last Report of cycles in which the state directory is read-only."""
    remove = PrivateDirectory.remove

    def remove_markers_only(self: PrivateDirectory, name: str) -> None:
        (remove if name.startswith(NAME) else read_only)(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", read_only)
        patch.setattr(PrivateDirectory, "remove", remove_markers_only)
        return run(agent, *at_s)


def test_state_is_not_resumed_from_a_file_system_that_was_read_only_for_a_while(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0, 5, 35, 40)
    last = run_read_only(monkeypatch, agent, 45, 50, 55)
    assert outcome(last)[0] is SourceState.UNAVAILABLE
    assert "what was saved before cannot be removed" in (outcome(last)[1] or "")
    left = killed(path, agent)
    assert recovered(left) is not None, "the file itself is valid"
    with caplog.at_level(logging.INFO, "otel_gpu.state"):
        again = StatefulAgent(left, markers=[runtime])
        assert is_fresh(run(again, 60))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("is not used, counters start at 0: figures were exported since that are in no journal")
    assert fallen(counters(last), counters(run(again, 65))) == []


def test_a_later_checkpoint_is_resumed(path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0, 5, 35)
    run_read_only(monkeypatch, agent, 40, 45)
    last = run(agent, 70, 75, 76)
    after = run(StatefulAgent(killed(path, agent), markers=[runtime]), 80)
    assert after.epoch_ns == last.epoch_ns == world(0).wall_ns
    assert fallen(counters(last), counters(after)) == []
    run_read_only(monkeypatch, agent, 85)
    assert is_fresh(run(StatefulAgent(killed(path, agent, 1), markers=[runtime]), 90)), "and lost again"


def test_state_is_not_resumed_after_a_run_without_a_state_directory(path: Path, runtime: Path) -> None:
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5, 10)
    first.close()
    between = stateless(runtime)
    last = run(between, 15, 20, 25)
    assert not [source for source in last.sources if source.name == "state"], "it has none"
    between.close()
    after = run(StatefulAgent(path, markers=[runtime]), 30)
    assert is_fresh(after)
    assert fallen(counters(last), counters(after)) == []


def test_a_run_without_a_state_directory_does_not_affect_the_state_of_another_agent(path: Path, runtime: Path) -> None:
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5)
    run(stateless(runtime), 10)
    last = run(first, 15)
    after = run(StatefulAgent(killed(path, first), markers=[runtime]), 20)
    assert after.epoch_ns == last.epoch_ns
    assert fallen(counters(last), counters(after)) == []


def test_a_run_that_has_exported_nothing_changes_nothing(path: Path, runtime: Path) -> None:
    """For example where no driver responds."""
    first = StatefulAgent(path, markers=[runtime])
    last = run(first, 0, 5)
    first.close()
    stateless(runtime).observe(world(10, driver=None))
    assert run(StatefulAgent(path, markers=[runtime]), 15).epoch_ns == last.epoch_ns


def test_an_agent_that_is_killed_while_it_waits_for_the_directory_leaves_the_state_of_the_other(
    path: Path, runtime: Path
) -> None:
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5)
    run(StatefulAgent(path, may_wait=True, markers=[runtime]), 10)
    last = run(first, 15)
    first.close()
    assert run(StatefulAgent(path, markers=[runtime]), 20).epoch_ns == last.epoch_ns


def test_state_of_another_agent_that_cannot_be_removed_is_not_resumed_after_a_take_over(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5)
    second = StatefulAgent(path, may_wait=True, markers=[runtime])
    run(second, 10)
    run(first, 15)
    first.close()
    assert files(path) == ["state"]
    last = run_read_only(monkeypatch, second, 20)
    after = run(StatefulAgent(killed(path, second), markers=[runtime]), 25)
    assert is_fresh(after), "the checkpoint of the first is newer than the first mark of the second"
    assert fallen(counters(last), counters(after)) == []
    run(second, 25)
    assert outcome(run(second, 26))[0] is SourceState.UNAVAILABLE


def test_the_first_cycle_without_a_journal_is_marked_before_it_is_attributed(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Attributor.observe
    seen: list[int | None] = []

    def look(self: Attributor, snapshot: Any) -> Any:
        seen.append(GapMarker((runtime,), BOOT).marked_ns())
        return observe(self, snapshot)

    agent = StatefulAgent(path, markers=[runtime])
    monkeypatch.setattr(Attributor, "observe", look)
    run(agent, 0, 5)
    monkeypatch.setattr(store_module, "write_all", full)
    run(agent, 10, 15)
    assert seen == [None, None, world(10).monotonic_ns, world(10).monotonic_ns], "once, and in time"


def test_state_that_was_not_resumed_and_could_not_be_removed_is_not_resumed_later(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if a price changes and then changes back."""
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5)
    first.close()
    second = StatefulAgent(path, replace(OPTIONS, prices=Prices("EUR", {"": 1.0})), markers=[runtime])
    run_read_only(monkeypatch, second, 10)
    assert files(path) == ["state"]
    assert is_fresh(run(StatefulAgent(killed(path, second), markers=[runtime]), 15))


def test_a_mark_of_another_boot_is_ignored(path: Path, runtime: Path) -> None:
    first = StatefulAgent(path, markers=[runtime])
    last = run(first, 0, 5)
    first.close()
    GapMarker((runtime,), OTHER_BOOT).mark(world(50).monotonic_ns)
    assert run(StatefulAgent(path, markers=[runtime]), 60).epoch_ns == last.epoch_ns


# ---------------------------------------------------------------------------- the marker


def test_the_later_of_two_marks_counts_whichever_is_written_last(runtime: Path) -> None:
    marker = GapMarker((runtime,), BOOT)
    assert marker.marked_ns() is None
    for moment_ns, expected_ns in ((7, 7), (5, 7), (9, 9)):
        marker.mark(moment_ns)
        assert marker.marked_ns() == expected_ns
    assert [each.name for each in runtime.iterdir()] == [NAME]
    assert (runtime.stat().st_mode & 0o777, (runtime / NAME).stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("content", [b"", b"[", b'["x"]', b'{"a": 1}', b'[1, "x"]'])
def test_no_state_is_resumed_while_the_mark_cannot_be_read(path: Path, runtime: Path, content: bytes) -> None:
    first = StatefulAgent(path, markers=[runtime])
    run(first, 0, 5)
    copy = killed(path, first)
    runtime.mkdir(mode=0o700)
    (runtime / NAME).write_bytes(content)
    assert is_fresh(run(StatefulAgent(copy, markers=[runtime]), 10))
    GapMarker((runtime,), BOOT).mark(world(3).monotonic_ns)
    assert not is_fresh(run(StatefulAgent(killed(path, first, 1), markers=[runtime]), 10))


def link(runtime: Path) -> str:
    (runtime.parent / "real").mkdir(mode=0o700)
    runtime.symlink_to(runtime.parent / "real")
    return "it is a symbolic link"


def writable(runtime: Path) -> str:
    runtime.mkdir()
    runtime.chmod(0o770)
    return "other users may write to it"


def no_directory(runtime: Path) -> str:
    runtime.touch()
    return "it is not a directory"


def no_way(runtime: Path) -> str:
    runtime.parent.rmdir()
    return "No such file or directory"


@pytest.mark.parametrize("make", [link, writable, no_directory, no_way])
def test_a_directory_that_is_not_private_is_left_as_it_is_with_one_warning(
    runtime: Path, make: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    because = make(runtime)
    before = runtime.lstat().st_mode if runtime.is_symlink() or runtime.exists() else None
    marker = GapMarker((runtime,), BOOT)
    marker.mark(5)
    marker.mark(6)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{runtime}: {because}" in record.getMessage()
    assert marker.marked_ns() is None
    assert before == (runtime.lstat().st_mode if before is not None else None)
    assert not (runtime / NAME).exists()


def test_a_runtime_directory_that_cannot_be_entered_is_ignored(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sudo -u`` may keep the XDG_RUNTIME_DIR of the calling user."""
    first = StatefulAgent(path)
    last = run(first, 0, 5)
    first.close()
    locked = Path("/locked/otel-gpu")
    stat = Path.stat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    assert run(StatefulAgent(path, markers=[locked, runtime]), 10).epoch_ns == last.epoch_ns


def test_a_mark_is_written_to_every_directory_and_one_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directories = tmp_path / "away/otel-gpu", tmp_path / "run/a", tmp_path / "run/b"
    GapMarker(directories, BOOT).mark(5)
    assert not caplog.records
    assert [GapMarker((each,), BOOT).marked_ns() for each in directories] == [None, 5, 5]
    assert GapMarker(directories, BOOT).marked_ns() == 5


def test_a_runtime_directory_that_hangs_delays_no_cycle(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    responds = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(gap_marker_module, "DEADLINE_S", 0.02)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (responds.wait(30), fsync(descriptor)))
    GapMarker((runtime,), BOOT).mark(5)
    responds.set()
    assert "no answer within" in caplog.text


def test_no_state_is_resumed_while_the_runtime_directory_hangs(
    path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    first.close()
    runtime.mkdir(mode=0o700)
    responds = threading.Event()
    read = PrivateDirectory.read

    def hang(self: PrivateDirectory, *which: Any) -> bytes:
        if self.path == runtime:
            assert responds.wait(30)
        return read(self, *which)

    monkeypatch.setattr(gap_marker_module, "DEADLINE_S", 0.02)
    monkeypatch.setattr(PrivateDirectory, "read", hang)
    with caplog.at_level(logging.INFO, "otel_gpu.state"):
        assert is_fresh(run(StatefulAgent(path, markers=[runtime]), 10))
    responds.set()
    assert "the marker of figures that are in no journal cannot be read" in caplog.text


def test_agents_that_are_killed_while_they_mark_leave_one_draft(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "rename", read_only)
        for pid in range(3):
            patch.setattr(os, "getpid", lambda pid=pid: 4000 + pid)
            GapMarker((runtime,), BOOT).mark(5)
    assert len(list(runtime.iterdir())) == 1
    GapMarker((runtime,), BOOT).mark(5)
    assert [each.name for each in runtime.iterdir()] == [NAME]


def test_agents_that_mark_at_once_write_one_after_the_other(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent renames the draft of another."""
    inside, most = [0], [0]
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        write(self, name, content)
        inside[0] -= 1

    monkeypatch.setattr(PrivateDirectory, "write", slow)
    monkeypatch.setattr(gap_marker_module, "DEADLINE_S", 30.0)
    threads = [threading.Thread(target=GapMarker((runtime,), BOOT).mark, args=(ns,)) for ns in (7, 9, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert GapMarker((runtime,), BOOT).marked_ns() == 9


def test_a_unit_has_one_runtime_directory_and_other_agents_mark_where_units_look() -> None:
    host = Path("/run/otel-gpu")
    assert marker_directories({"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/0"}) == (
        Path("/run/a"),
    )
    assert marker_directories({"XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/user/0/otel-gpu"), host)
    assert marker_directories({}) == marker_directories({"RUNTIME_DIRECTORY": "relative"}) == (host,)
    longer = f"/run/{'long' * 30}"
    assert marker_directories({"RUNTIME_DIRECTORY": longer}) == (Path(longer),), (
        "longer than the path of a socket may be"
    )


def test_the_link_that_systemd_creates_for_a_dynamic_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("private")
    (each,) = marker_directories({"RUNTIME_DIRECTORY": str(tmp_path / "link")})
    GapMarker((each,), BOOT).mark(5)
    assert (tmp_path / "private" / NAME).is_file()


def test_nothing_is_marked_while_the_journal_works(path: Path, runtime: Path) -> None:
    agent = StatefulAgent(path, markers=[runtime])
    run(agent, 0, 5, 35, 40)
    found = recovered(killed(path, agent))
    assert found is not None
    assert attribution(found.attributor) == agent.attribution
    assert not runtime.exists()
