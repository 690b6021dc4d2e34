"""The size of journals: a checkpoint comes early if they are large, and a start replays no more than it can."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.model import SourceState
from otel_gpu.state import recovery as recovery_module
from otel_gpu.state import store as store_module
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.recovery import LARGEST_JOURNALS_BYTES, UntrustedState
from tests.state_dirs import StatefulAgent, counters, killed, recovered
from tests.unit.state.lives import files, full, is_fresh, outcome, run


def journals_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.glob("journal-*"))


def test_a_checkpoint_is_written_early_if_the_journal_is_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0)
    monkeypatch.setattr(store_module, "CHECKPOINT_AFTER_BYTES", 3 * journals_bytes(path))
    run(agent, 1)
    assert files(path) == ["journal-000001"]
    run(agent, 2, 3, 4, 5)
    assert files(path) == ["journal-000002", "state"]


def test_early_checkpoints_that_fail_are_not_tried_in_every_cycle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0)
    monkeypatch.setattr(store_module, "CHECKPOINT_AFTER_BYTES", 3 * journals_bytes(path))
    attempts = []

    def fail(*_: Any) -> int:
        attempts.append(1)
        return full()

    monkeypatch.setattr(PrivateDirectory, "create", fail)
    run(agent, *range(1, 13))
    assert 2 <= len(attempts) <= 4, "one after each three cycles or so, not one in every cycle"


def test_journals_are_bounded_while_checkpoints_fail(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0)
    most_bytes = 5 * (path / "journal-000001").stat().st_size
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", most_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        for number in range(1, 20):
            report = run(agent, 35 * number)
            if outcome(report)[0] is SourceState.UNAVAILABLE:
                break
            assert journals_bytes(path) <= most_bytes
    assert outcome(report)[1] == (
        f"nothing is saved: {path}: the journal is too large, because {path}: No space left on device"
    )
    assert number > 1
    assert "journal-000001" not in files(path)
    run(agent, 1000)
    assert outcome(run(agent, 1001)) == (SourceState.OK, None), "there is space again"


def test_cycles_that_a_checkpoint_has_do_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0)
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", 5 * journals_bytes(path))
    for number in range(1, 20):
        assert outcome(run(agent, 35 * number)) == (SourceState.OK, None)


def test_journals_of_many_short_runs_do_not_count_once_a_checkpoint_replaces_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3 * store_module.MOST_JOURNALS):
        agent = StatefulAgent(path)
        assert outcome(run(agent, 10 * number)) == (SourceState.OK, None)
        path = killed(path, agent, number % 2)
        agent.close()
        if number == 0:
            most_bytes = round((store_module.MOST_JOURNALS + 2) * journals_bytes(path))
            monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", most_bytes)


def test_the_journal_of_an_earlier_run_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5, 10)
    left = killed(path, first)
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", journals_bytes(left) + 100)
    agent = StatefulAgent(left)
    report = run(agent, 15)
    assert "the journal is too large, because a checkpoint takes too long" in (outcome(report)[1] or "")
    assert sum(sum(sums) for sums in counters(report).values()), "counters continue"
    run(agent, 45, 50)
    assert outcome(run(agent, 55)) == (SourceState.OK, None)


def test_a_journal_that_is_too_large_is_set_aside_unread(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading it takes memory, and an agent that is killed for that is started again and again."""
    first = StatefulAgent(path)
    run(first, 0, 5)
    left = killed(path, first)
    os.truncate(left / "journal-000001", 200 << 20)
    with caplog.at_level(logging.WARNING):
        assert is_fresh(run(StatefulAgent(left), 10))
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"counters start at 0: it has {200 << 20} bytes, the limit is {LARGEST_JOURNALS_BYTES}"
    )
    assert (left / "journal.rejected").stat().st_size == 200 << 20


def test_a_journal_that_was_set_aside_does_not_count_if_another_file_cannot_be_removed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    left = killed(path, first)
    os.truncate(left / "journal-000001", 200 << 20)
    (left / "journal-000002").mkdir()  # it cannot be removed
    agent = StatefulAgent(left)
    (record,) = caplog.records
    assert "/journal-000001 is not trusted and not all files can be removed (Is a directory)" in record.getMessage()
    assert outcome(run(agent, 10)) == (SourceState.UNAVAILABLE, f"nothing is saved: {left}: Is a directory")
    (left / "journal-000002").rmdir()
    run(agent, 40)
    assert outcome(run(agent, 45)) == (SourceState.OK, None), "the first checkpoint makes the directory valid again"
    assert (left / "journal.rejected").stat().st_size == 200 << 20


def test_journals_that_are_too_large_together_are_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        agent = StatefulAgent(path)
        report = run(agent, 10 * number, 10 * number + 5)
        path = killed(path, agent, number)
    assert files(path) == ["journal-000001", "journal-000002"]
    both_bytes = journals_bytes(path)
    monkeypatch.setattr(recovery_module, "LARGEST_JOURNALS_BYTES", both_bytes)
    assert run(StatefulAgent(killed(path, agent, 3)), 20).epoch_ns == report.epoch_ns
    monkeypatch.setattr(recovery_module, "LARGEST_JOURNALS_BYTES", both_bytes - 1)
    with pytest.raises(UntrustedState, match="the limit is"):
        recovered(path)
