"""Journals have a largest size, which a start can read; what is larger is not read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from otel_gpu.model import SourceState
from otel_gpu.state import recovery as recovery_module
from otel_gpu.state import store as store_module
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.recovery import LARGEST_JOURNALS_BYTES, NotTrusted
from tests.state_dirs import counters, killed, open_keeper, recovered
from tests.unit.state.lives import files, full, is_fresh, outcome, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def journals_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.glob("journal-*"))


def test_a_disk_is_not_filled_with_journals(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)
    run(keeper, 0)
    most_bytes = 5 * (path / "journal-000001").stat().st_size
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", most_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        for number in range(1, 20):
            answer = run(keeper, 35 * number)
            if outcome(answer)[0] is SourceState.UNAVAILABLE:
                break
            assert journals_bytes(path) <= most_bytes, "a start can read what an agent leaves"
    assert outcome(answer)[1] == (
        f"nothing is saved: {path}: the journal is too large, since {path}: No space left on device"
    )
    assert number > 1
    assert "journal-000001" not in files(path)
    run(keeper, 1000)
    assert outcome(run(keeper, 1001)) == (SourceState.OK, None), "room again"


def test_what_was_saved_whole_does_not_count_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)
    run(keeper, 0)
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", 5 * journals_bytes(path))
    for number in range(1, 20):
        assert outcome(run(keeper, 35 * number)) == (SourceState.OK, None)


def test_nor_what_many_short_lives_had_journalled_when_it_was_made_one_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for life in range(3 * store_module.MOST_JOURNALS):
        keeper = open_keeper(path)
        assert outcome(run(keeper, 10 * life)) == (SourceState.OK, None)
        path = killed(path, keeper, life % 2)
        keeper.close()
        if life == 0:
            most_bytes = round((store_module.MOST_JOURNALS + 1.5) * journals_bytes(path))
            monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", most_bytes)


def test_what_an_earlier_life_has_journalled_counts_as_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_keeper(path)
    run(first, 0, 5, 10)
    left = killed(path, first)
    monkeypatch.setattr(store_module, "MOST_JOURNALLED_BYTES", journals_bytes(left) + 100)
    keeper = open_keeper(left)
    told = run(keeper, 15)
    assert "the journal is too large, since saving takes too long" in (outcome(told)[1] or "")
    assert sum(sum(sums) for sums in counters(told).values()), "they went on"
    run(keeper, 45, 50)
    assert outcome(run(keeper, 55)) == (SourceState.OK, None)


def test_a_journal_that_is_too_large_to_be_read_is_set_aside_unread(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is read takes memory, and an agent that is killed for it is started again, time and again."""
    first = open_keeper(path)
    run(first, 0, 5)
    left = killed(path, first)
    os.truncate(left / "journal-000001", 200 << 20)
    with caplog.at_level(logging.WARNING):
        assert is_fresh(run(open_keeper(left), 10))
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"and counters start at 0: it has {200 << 20} bytes, and no more than {LARGEST_JOURNALS_BYTES} are read"
    )
    assert (left / "journal.rejected").stat().st_size == 200 << 20


def test_journals_that_are_too_large_together_are_not_read_either(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for life in range(2):
        keeper = open_keeper(path)
        told = run(keeper, 10 * life, 10 * life + 5)
        path = killed(path, keeper, life)
    assert files(path) == ["journal-000001", "journal-000002"]
    both_bytes = journals_bytes(path)
    monkeypatch.setattr(recovery_module, "LARGEST_JOURNALS_BYTES", both_bytes)
    assert run(open_keeper(killed(path, keeper, 3)), 20).epoch_ns == told.epoch_ns
    monkeypatch.setattr(recovery_module, "LARGEST_JOURNALS_BYTES", both_bytes - 1)
    with pytest.raises(NotTrusted, match="are read"):
        recovered(path)
