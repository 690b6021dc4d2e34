"""Journals and checkpoints of one directory: failures between two files, and lines that are not valid."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.state import store as store_module
from otel_gpu.state.checkpoint import CHECKPOINT_FORMAT, CheckpointData, CheckpointHead, checkpoint_text
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.journal import line, parse_journal
from otel_gpu.state.recovery import UntrustedState
from tests.builders import DRIVER
from tests.state_dirs import AGENT, BOOT, OPTIONS, StatefulAgent, attribution, killed, recovered
from tests.unit.state.lives import files, full, is_fresh, run, world


def assert_recovers(path: Path, agent: StatefulAgent) -> None:
    """After a kill now, exactly the state of the agent is recovered."""
    found = recovered(killed(path, agent))
    assert found is not None
    assert attribution(found.attributor) == agent.attribution


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
def test_the_journal_continues_if_the_next_one_cannot_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: Callable[[pytest.MonkeyPatch], None]
) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    with monkeypatch.context() as patch:
        failure(patch)
        run(agent, 30, 35)
    journal = parse_journal((path / "journal-000001").read_bytes())
    assert journal is not None
    assert journal.last == 4
    assert_recovers(path, agent)
    run(agent, 60, 65)
    assert_recovers(path, agent)


@pytest.mark.parametrize("written_bytes", [0, 100])
def test_after_a_failed_line_the_next_checkpoint_makes_the_directory_valid_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)

    def fail(descriptor: int, content: bytes) -> None:
        write_all(descriptor, content[:written_bytes])
        full()

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", fail)
        run(agent, 10)
    assert files(path) == []
    run(agent, 15, 30, 35, 40)
    assert_recovers(path, agent)


def test_replay_begins_after_the_cycle_of_the_checkpoint(path: Path) -> None:
    """A checkpoint may be of any cycle of a journal."""
    agent, straight = StatefulAgent(path), Attributor(OPTIONS)
    for at_s in (0, 5, 10):
        straight.observe(world(at_s))
    run(agent, 0, 5, 10, 15, 20)
    head = CheckpointHead(
        CHECKPOINT_FORMAT, AGENT, BOOT, DRIVER.driver_version, world(0).wall_ns, 3, None, "journal-000001"
    )
    left = killed(path, agent)
    (left / "state").write_bytes(checkpoint_text(head, CheckpointData(straight.to_state(), world(10).processes)))
    found = recovered(left)
    assert found is not None
    assert found.number == 5
    assert attribution(found.attributor) == agent.attribution


@pytest.mark.parametrize("text", ["[]", "{}", "[1]", "null", "[" * 5000])
def test_a_line_that_is_no_cycle_is_set_aside_with_one_warning(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right, so the disk is not the cause."""
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    left = killed(path, agent)
    with (left / "journal-000001").open("ab") as journal:
        journal.write(line(3, text))
    with pytest.raises(UntrustedState, match="a cycle in it cannot be replayed: "):
        recovered(left)
    with caplog.at_level(logging.INFO):
        again = StatefulAgent(left)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert is_fresh(run(again, 60))
    assert (left / "journal.rejected").exists()
