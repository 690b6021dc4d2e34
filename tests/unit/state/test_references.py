"""A journal whose lines refer to each other: within one file, to what is there, and to nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.model import Snapshot
from otel_gpu.state import store as store_module
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.journal import Journal, line, parse_journal
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.recovery import NotTrusted
from otel_gpu.state.saved import STATE_FORMAT, Kept, SavedHead, Shown, saved_text
from tests.builders import DRIVER, facts, listed
from tests.state_dirs import AGENT, BOOT, OPTIONS, books, killed, open_keeper, recovered, settle
from tests.unit.attribution.played import CYCLE_MJ, gpu_with
from tests.unit.state.lives import files, full, is_fresh, run, world

HERE = world(0, gpu_with(*(listed(pid) for pid in range(1, 9))))
HERE = replace(HERE, processes={pid: facts(pid) for pid in range(1, 9)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def still(at_s: float, of: Snapshot = HERE) -> Snapshot:
    """A cycle in which only time and a counter have gone on."""
    then = world(at_s)
    (gpu,) = of.gpus
    moved = replace(gpu, taken_at_ns=then.gpus[0].taken_at_ns, energy_mj=round(at_s / 5 * CYCLE_MJ) + 1)
    return replace(of, wall_ns=then.wall_ns, monotonic_ns=then.monotonic_ns, gpus=(moved,))


def told(keeper: Keeper, *at_s: float, of: Snapshot = HERE) -> None:
    for each in at_s:
        keeper.observe(still(each, of))
    settle(keeper)


def journal_of(path: Path, name: str) -> Journal:
    journal = parse_journal((path / name).read_bytes())
    assert journal is not None
    return journal


def assert_recovered(path: Path, keeper: Keeper) -> None:
    found = recovered(killed(path, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)


def test_a_cycle_in_which_nobody_comes_or_goes_is_a_short_line(path: Path) -> None:
    keeper = open_keeper(path)
    told(keeper, 100, 105, 110)
    told(keeper, 115, 120, of=replace(HERE, processes={**HERE.processes, 9: facts(9)}))
    first, second, third, come, last = journal_of(path, "journal-000001").lines
    assert len(second) == len(third) < len(first) / 4
    assert len(second) < len(come) < len(first), "what stays where it is is not told again"
    assert len(last) == len(second)
    assert_recovered(path, keeper)


def test_every_file_begins_in_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)  # both journals stay
        told(keeper, 100, 105, 130, 135, 140)
    first, second = (journal_of(path, name).lines for name in files(path))
    assert len(second[0]) > 4 * len(second[1])
    assert len(first[0]) == len(second[0])
    assert_recovered(path, keeper)
    told(keeper, 170, 175)
    assert files(path) == ["journal-000003", "state"]
    assert_recovered(path, keeper)


def head_fails(patch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, content: bytes) -> None:
        if BOOT.encode() in content:
            write_all(descriptor, content[:20])
            full()
        write_all(descriptor, content)

    patch.setattr(store_module, "write_all", fail)


def create_fails(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivateDirectory, "create", full)


@pytest.mark.parametrize("failure", [head_fails, create_fails])
def test_where_another_file_cannot_be_begun_the_lines_of_this_one_are_referred_to(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: Callable[[pytest.MonkeyPatch], None]
) -> None:
    keeper = open_keeper(path)
    told(keeper, 0, 5)
    with monkeypatch.context() as patch:
        failure(patch)
        told(keeper, 30, 35)
    lines = journal_of(path, "journal-000001").lines
    assert len(lines) == 4
    assert len(lines[3]) < len(lines[0]) / 4
    assert_recovered(path, keeper)
    told(keeper, 60, 65)
    assert_recovered(path, keeper)


@pytest.mark.parametrize("written_bytes", [0, 100])
def test_after_a_line_that_failed_nothing_refers_to_it_or_to_what_was_before(
    path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    keeper = open_keeper(path)
    told(keeper, 0, 5)

    def fail(descriptor: int, content: bytes) -> None:
        write_all(descriptor, content[:written_bytes])
        full()

    come = replace(HERE, processes={**HERE.processes, 9: facts(9)})
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", fail)
        told(keeper, 10, of=come)
    assert files(path) == []
    told(keeper, 15, 30, 35, 40, of=come)
    (name,) = (name for name in files(path) if name != "state")
    first, second = journal_of(path, name).lines
    assert len(first) > 4 * len(second)
    assert_recovered(path, keeper)


def test_what_is_saved_in_the_middle_of_a_file_is_gone_on_from_by_the_lines_after_it(path: Path) -> None:
    keeper, straight = open_keeper(path), Attributor(OPTIONS)
    for number in range(3):
        straight.observe(still(5 * number))
        keeper.observe(still(5 * number))
    epoch_ns = still(0).wall_ns
    head = SavedHead(STATE_FORMAT, AGENT, BOOT, DRIVER.driver_version, epoch_ns, 3, None, "journal-000001")
    saved = saved_text(head, Kept(straight.to_state(), Shown(HERE.processes)))
    told(keeper, 15, 20)
    left = killed(path, keeper)
    (left / "state").write_bytes(saved)
    found = recovered(left)
    assert found is not None
    assert found.number == 5
    assert books(found.attributor) == books(keeper._attributor)


def other_line(number: int) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(b",1,", b",%d," % number)


@pytest.mark.parametrize(
    "change",
    [*map(other_line, (0, 2, 3, 4, 99)), lambda text: text.replace(b",1,", b",true,")],
    ids=["the first line", "one that refers", "itself", "a later one", "none", "no number"],
)
def test_a_journal_that_refers_to_what_is_not_there_is_set_aside_with_one_line_of_the_log(
    path: Path, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksums are right, so it was not the disk."""
    keeper = open_keeper(path)
    told(keeper, 0, 5, 10)
    left = killed(path, keeper)
    journal = left / "journal-000001"
    *lines, last = journal.read_bytes().splitlines(keepends=True)
    text = last.rstrip(b"\n").split(b" ", 2)[2]
    assert change(text) != text
    journal.write_bytes(b"".join(lines) + line(3, change(text).decode()))
    with pytest.raises(NotTrusted, match="a cycle in it cannot be told again: "):
        recovered(left)
    with caplog.at_level(logging.INFO):
        again = open_keeper(left)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert is_fresh(run(again, 60))
    assert (left / "journal.rejected").exists()


def test_a_line_of_another_file_is_not_referred_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the number fits: the file before this one has it, and may be gone."""
    monkeypatch.setattr(PrivateDirectory, "write", full)
    keeper = open_keeper(path)
    told(keeper, 0, 5, 30, 35)
    left = killed(path, keeper)
    second = journal_of(left, "journal-000002")
    (text,) = second.lines
    head, _ = (left / "journal-000002").read_bytes().splitlines(keepends=True)
    _, referring, _ = journal_of(left, "journal-000001").lines
    assert len(referring) < len(text)
    (left / "journal-000002").write_bytes(head + line(4, referring.decode()))
    with pytest.raises(NotTrusted, match="refers to") as caught:
        recovered(left)
    assert caught.value.file == "journal-000002"


def test_a_journal_of_the_format_before_this_is_gone_on_from(path: Path) -> None:
    """The version that wrote it may have this one's name; what was saved whole has its own format, as ever."""
    keeper = open_keeper(path)
    any_text: Any = keeper._store._store._text  # type: ignore[union-attr]
    any_text.written = lambda number: None  # every line is in full
    told(keeper, 0, 5, 10)
    left = killed(path, keeper)
    journal = left / "journal-000001"
    first, *rest = journal.read_bytes().splitlines(keepends=True)
    assert len({len(each) // 100 for each in rest}) == 1
    head = first.rstrip(b"\n").split(b" ", 2)[2]
    assert head.startswith(b"[2,")
    journal.write_bytes(line(0, head.decode().replace("[2,", "[1,", 1)) + b"".join(rest))
    again = open_keeper(left)
    assert again.observe(still(15)).epoch_ns == still(0).wall_ns
    again.observe(still(20))
    assert_recovered(left, again)
    keeper.close()
    settle(keeper)
    assert b"\n[1," in (path / "state").read_bytes()
