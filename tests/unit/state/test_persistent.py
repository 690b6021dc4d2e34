"""Counters across restarts: when state is resumed, when it is not, and what is on disk meanwhile."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy
from otel_gpu.errors import Unavailable
from otel_gpu.model import DriverFacts, EnergySplit, GpuHealth, GpuReading, Report, Snapshot, SourceState
from otel_gpu.state import store as store_module
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.recovery import UntrustedState
from tests.state_dirs import OPTIONS, StatefulAgent, attribution, counters, fallen, killed, recovered
from tests.unit.attribution.played import CYCLE_MJ
from tests.unit.state.lives import ONE, OTHER_BOOT, files, full, is_fresh, outcome, run, world


def assert_recovers(path: Path, agent: StatefulAgent) -> None:
    """After a kill now, exactly the state of the agent is recovered."""
    found = recovered(killed(path, agent))
    assert found is not None
    assert attribution(found.attributor) == agent.attribution


# ---------------------------------------------------------------------------- state that is resumed


def test_counters_continue_after_a_kill(path: Path) -> None:
    agent = StatefulAgent(path)
    before = run(agent, 0, 5, 10)
    after = run(StatefulAgent(killed(path, agent)), 60)
    assert after.epoch_ns == before.epoch_ns
    assert after.gpus[0].energy == EnergySplit(10 * CYCLE_MJ, 0, 0, 10 * CYCLE_MJ), "two processes shared it"
    assert counters(after).keys() == counters(before).keys()
    assert fallen(counters(before), counters(after)) == []
    assert after.window_s is None
    assert outcome(after) == (SourceState.OK, None)


def test_energy_of_the_time_without_an_agent_goes_to_the_only_process_before_and_after(path: Path) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5, reading=ONE)
    agent.close()
    agent.settle()
    after = run(StatefulAgent(path), 105, reading=ONE)
    assert after.gpus[0].energy == EnergySplit(20 * CYCLE_MJ, 20 * CYCLE_MJ, 0, 0)


def test_a_checkpoint_is_written_every_30_s_and_replaces_the_journal_with_the_next_cycle(path: Path) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5, 10)
    assert files(path) == ["journal-000001"]
    run(agent, 30)
    assert files(path) == ["journal-000001", "journal-000002", "state.new"]
    assert_recovers(path, agent)
    run(agent, 35)
    assert files(path) == ["journal-000002", "state"]
    found = recovered(killed(path, agent))
    assert found is not None
    assert found.number == 5
    assert attribution(found.attributor) == agent.attribution


def test_a_clean_stop_leaves_one_file_and_nothing_is_written_after_it(path: Path) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    agent.close()
    agent.close()
    agent.settle()
    assert files(path) == ["state"]
    content = (path / "state").read_bytes()
    run(agent, 60)
    assert files(path) == ["state"]
    assert (path / "state").read_bytes() == content


def test_state_is_recovered_after_a_kill_between_any_two_steps_of_a_checkpoint(path: Path) -> None:
    """Before the checkpoint has its name, and before the old journal is removed."""
    agent = StatefulAgent(path)
    run(agent, 0, 5, 35)
    written = killed(path, agent, 1)
    assert files(written) == ["journal-000001", "journal-000002", "state.new"]
    after_three = agent.attribution
    run(agent, 40)
    in_place = killed(path, agent, 2)
    assert files(in_place) == ["journal-000002", "state"]
    shutil.copy(written / "journal-000001", in_place)
    for left, expected in ((written, after_three), (in_place, agent.attribution)):
        found = recovered(left)
        assert found is not None
        assert attribution(found.attributor) == expected


@pytest.mark.parametrize("left_bytes", [None, 20], ids=["after the head", "within the head"])
def test_a_journal_that_was_cut_before_its_first_cycle_is_reported_in_one_line(
    path: Path, caplog: pytest.LogCaptureFixture, left_bytes: int | None
) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5, 10)
    left = killed(path, agent)
    journal = (left / "journal-000001").read_bytes()
    (left / "journal-000001").write_bytes(journal[: journal.index(b"\n") + 1 if left_bytes is None else left_bytes])
    with caplog.at_level(logging.INFO):
        assert is_fresh(run(StatefulAgent(left), 15))
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{left}/journal-000001 is not trusted and is now {left}/journal.rejected, "
        "counters start at 0: it has 0 of the 3 cycles that were exported"
    )


def test_files_that_are_missing_are_reported_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    left = killed(path, agent)
    (left / "journal-000001").unlink()
    with caplog.at_level(logging.INFO):
        StatefulAgent(left).close()  # it ends before the driver responds
        StatefulAgent(left).close()
        StatefulAgent(path.with_name("new")).close()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"state in {left} is not used, counters start at 0: it has 0 of the 2 cycles that were exported"
    )


def test_a_torn_last_line_is_ignored_because_its_cycle_was_never_exported(path: Path) -> None:
    agent = StatefulAgent(path)
    before = run(agent, 0, 5)
    copy = killed(path, agent)
    with (copy / "journal-000001").open("ab") as journal:
        journal.write(b'1234abcd 3 [17000000000,"')
    again = StatefulAgent(copy)
    after = run(again, 20, 25)
    assert fallen(counters(before), counters(after)) == []
    found = recovered(killed(copy, again))
    assert found is not None
    assert attribution(found.attributor) == again.attribution, "a journal of the next run follows the torn line"


@pytest.mark.parametrize("saved", [False, True], ids=["no checkpoint", "checkpoint"])
def test_a_journal_that_was_cut_between_two_lines_is_not_trusted(path: Path, saved: bool) -> None:
    agent = StatefulAgent(path)
    last = run(agent, 0, 5, *([40] if saved else []), 45, 50)
    agent.settle()
    left = killed(path, agent)
    name = max(name for name in files(left) if name.startswith("journal-"))
    *whole, _, end = (left / name).read_bytes().split(b"\n")
    (left / name).write_bytes(b"\n".join((*whole, end)))
    with pytest.raises(UntrustedState, match=r"it has \d of the \d cycles that were exported"):
        recovered(left)
    again = StatefulAgent(left)
    fresh = run(again, 60, 65)
    assert fresh.epoch_ns > last.epoch_ns
    found = recovered(killed(left, again, 2))
    assert found is not None
    assert attribution(found.attributor) == again.attribution, "what is written after that is trusted"


def test_a_torn_line_in_the_middle_of_a_run_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is killed while it writes does not continue in another file."""
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        run(agent, 35, 40)
    left = killed(path, agent)
    assert files(left) == ["journal-000001", "journal-000002"]
    assert recovered(left) is not None
    with (left / "journal-000001").open("ab") as journal:
        journal.write(b"0")
    with pytest.raises(UntrustedState, match="a cycle before it is torn") as caught:
        recovered(left)
    assert caught.value.file == "journal-000002"


# ---------------------------------------------------------------------------- state that is not resumed


def left(path: Path, options: AttributionOptions = OPTIONS) -> Report:
    """The last Report of an agent that was killed after a checkpoint and more cycles; its directory is ``copy``."""
    agent = StatefulAgent(path, options)
    report = run(agent, 0, 5, 35, 40)
    shutil.rmtree(path.with_name("copy"), ignore_errors=True)
    killed(path, agent).rename(path.with_name("copy"))
    return report


@pytest.mark.parametrize(
    ("start", "because"),
    [
        (lambda copy: StatefulAgent(copy, boot_id=OTHER_BOOT), "another boot"),
        (lambda copy: StatefulAgent(copy, agent="2.0"), "version 1.2.3 ended before it could save"),
        (lambda copy: StatefulAgent(copy, replace(OPTIONS, prices=Prices("EUR", {"": 1.0}))), "prices have changed"),
    ],
    ids=["boot", "version", "prices"],
)
def test_counters_start_at_0_with_one_line_in_the_log(
    path: Path, start: Callable[[Path], StatefulAgent], because: str, caplog: pytest.LogCaptureFixture
) -> None:
    left(path)
    with caplog.at_level(logging.INFO):
        agent = start(path.with_name("copy"))
        assert is_fresh(run(agent, 60))
    assert because in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert files(path.with_name("copy")) == ["journal-000003"]
    assert run(agent, 65).epoch_ns > world(40).wall_ns


def test_counters_start_at_0_with_another_driver_but_not_if_it_was_loaded_while_the_agent_ran(path: Path) -> None:
    new = DriverFacts("580.1")
    left(path)
    copy = path.with_name("copy")
    changed = Path(shutil.copytree(copy, path.with_name("changed")))
    assert is_fresh(StatefulAgent(copy).observe(world(60, driver=new)))
    agent = StatefulAgent(changed)
    agent.observe(world(60))
    agent.observe(world(65, driver=new))
    report = StatefulAgent(killed(changed, agent)).observe(world(70, driver=new))
    assert report.epoch_ns == world(0).wall_ns


def test_an_agent_that_restarts_itself_for_another_driver_keeps_its_totals(path: Path) -> None:
    """Hardware counters start again at any value, and the state is recovered after another kill."""
    new = DriverFacts("580.1")
    before = left(path)
    copy = path.with_name("copy")
    agent = StatefulAgent(copy, renewed=True)
    report = agent.observe(world(60, driver=new))
    assert report.epoch_ns == before.epoch_ns
    assert report.gpus[0].energy is None
    assert {key: counters(report)[key] for key in counters(before)} == counters(before)
    agent.observe(world(65, driver=new))
    found = recovered(killed(copy, agent))
    assert found is not None
    assert found.driver_version == new.driver_version
    assert attribution(found.attributor) == agent.attribution


def test_counters_start_at_0_if_monotonic_time_is_before_the_last_cycle(path: Path) -> None:
    left(path)
    assert is_fresh(StatefulAgent(path.with_name("copy")).observe(world(10)))


def test_an_upgraded_agent_resumes_the_checkpoint_of_a_clean_stop(path: Path) -> None:
    agent = StatefulAgent(path)
    before = run(agent, 0, 5, 35)
    agent.close()
    agent.settle()
    after = run(StatefulAgent(path, agent="2.0"), 60)
    assert after.epoch_ns == before.epoch_ns
    assert fallen(counters(before), counters(after)) == []


def test_other_options_apply_from_the_restart_on_and_change_no_counter(path: Path) -> None:
    before = left(path)
    other = AttributionOptions(EnergyPolicy.NONE, retention_s=1, max_processes=0, max_workloads=0)
    after = run(StatefulAgent(path.with_name("copy"), other), 60)
    assert after.epoch_ns == before.epoch_ns
    assert fallen(counters(before), counters(after)) == []
    assert counters(after).keys() >= {key for key in counters(before) if key[0] == "gpu"}


def test_until_a_driver_responds_state_is_neither_resumed_nor_written(path: Path) -> None:
    before = left(path)
    copy = path.with_name("copy")
    there = {name: (copy / name).read_bytes() for name in files(copy)}
    agent = StatefulAgent(copy)
    report = agent.observe(world(50, driver=None))
    assert counters(report) == {}
    assert agent.watched_pids == {1, 2}
    assert {name: (copy / name).read_bytes() for name in files(copy)} == there
    (reading,) = world(52).gpus
    away = GpuReading(reading.identity, reading.taken_at_ns, GpuHealth.FAILED, "away", xid_errors=1)
    report = agent.observe(replace(world(52), gpus=(away,), driver=None))
    assert [(gpu.reading.health, gpu.reading.reason) for gpu in report.gpus] == [(GpuHealth.FAILED, "away")]
    assert counters(report) == {}
    assert {name: (copy / name).read_bytes() for name in files(copy)} == there
    assert agent.observe(world(55)).epoch_ns == before.epoch_ns
    again = killed(copy, agent, 5)
    early = StatefulAgent(again)
    early.observe(world(60, driver=None))
    early.close()
    assert run(StatefulAgent(again), 70).epoch_ns == before.epoch_ns


# ---------------------------------------------------------------------------- damage


def damage_state(copy: Path) -> str:
    content = (copy / "state").read_bytes()
    (copy / "state").write_bytes(content.replace(b'"anomalies":0', b'"anomalies":7'))
    return "state"


def damage_journal(copy: Path) -> str:
    (copy / "journal-000002").write_bytes(b"hello\n")
    return "journal-000002"


def lose_state(copy: Path) -> str:
    (copy / "state").unlink()
    return "journal-000002"


def lose_journal(copy: Path) -> str:
    (copy / "journal-000002").unlink()
    return "state"


def foreign_state(copy: Path) -> str:
    (copy / "state").write_text('{"version": 3}\n', encoding="ascii")
    return "state"


def linked_state(copy: Path) -> str:
    (copy / "state").rename(copy.with_name("elsewhere"))
    (copy / "state").symlink_to(copy.with_name("elsewhere"))
    return "state"


def future_state(copy: Path) -> str:
    return rewrite_state(copy, lambda content: content.replace(b"[1,", b"[2,", 1))


def other_attribution(copy: Path) -> str:
    def change(content: bytes) -> bytes:
        head, saved, *rest = content.splitlines()
        return b"\n".join([head, json.dumps(json.loads(saved) | {"ledger": 5}).encode(), *rest, b""])

    return rewrite_state(copy, change)


def rewrite_state(copy: Path, change: Callable[[bytes], bytes]) -> str:
    """Change the content, with a valid checksum."""
    content = change((copy / "state").read_bytes().partition(b"\n")[2])
    (copy / "state").write_bytes(b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode(), content))
    return "state"


@pytest.mark.parametrize(
    "damage",
    [
        damage_state,
        damage_journal,
        lose_state,
        lose_journal,
        foreign_state,
        linked_state,
        future_state,
        other_attribution,
    ],
    ids=lambda function: function.__name__,
)
def test_a_damaged_file_is_set_aside_with_one_warning(
    path: Path, damage: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    left(path)
    copy = path.with_name("copy")
    name = damage(copy)
    with caplog.at_level(logging.WARNING):
        agent = StatefulAgent(copy)
    (record,) = caplog.records
    assert str(copy / name) in record.getMessage()
    assert is_fresh(run(agent, 60))
    aside = f"{name.partition('-')[0]}.rejected"
    assert [each.partition("-")[0] for each in files(copy) if each != aside] == ["journal"]
    assert (copy / aside).is_symlink() or (copy / aside).is_file()
    run(agent, 65)
    found = recovered(killed(copy, agent))
    assert found is not None
    assert attribution(found.attributor) == agent.attribution


@pytest.mark.parametrize("name", ["journal-999999", "journal-999999999999", "journal-0000001", "journal-1"])
def test_no_counter_falls_beside_a_file_with_an_odd_name(path: Path, name: str) -> None:
    path.mkdir(mode=0o700)
    (path / name).touch()
    before: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for life in range(3):
        agent = StatefulAgent(path)
        now = counters(run(agent, *(5.0 * (10 * life + cycle) for cycle in range(4))))
        assert not fallen(before, now)
        before, path = now, killed(path, agent, life)
    assert before


def test_only_the_newest_damaged_file_is_kept(path: Path) -> None:
    for number in range(3):
        left(path)
        shutil.rmtree(path)
        path.with_name("copy").rename(path)
        (path / "state").write_text(f"{number}", encoding="ascii")
        StatefulAgent(path).close()
    assert files(path) == ["state.rejected"]
    assert (path / "state.rejected").read_text(encoding="ascii") == "2"


# ---------------------------------------------------------------------------- a disk that fails


def test_on_a_full_disk_no_stale_file_is_left_and_a_later_checkpoint_is_tried(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5, 35)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", full)
        report = run(agent, 40)
        assert files(path) == []
        assert outcome(report) == (SourceState.UNAVAILABLE, f"nothing is saved: {path}: No space left on device")
        assert report.gpus[0].energy is not None
        assert report.gpus[0].energy.delta_mj == CYCLE_MJ
        assert outcome(run(agent, 45, 70))[0] is SourceState.UNAVAILABLE
        with pytest.raises(UntrustedState, match="it has 0 of the 6 cycles"):
            recovered(killed(path, agent))
    assert outcome(run(agent, 75))[0] is SourceState.UNAVAILABLE, "tried again when it is due"
    run(agent, 101)
    assert outcome(run(agent, 105)) == (SourceState.OK, None)
    assert_recovers(path, agent)


def test_a_cycle_that_cannot_be_encoded_is_still_reported(path: Path) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    odd: Any = {1: object()}
    report = agent.observe(replace(world(10), names=odd))
    assert outcome(report)[0] is SourceState.UNAVAILABLE
    assert files(path) == []


def test_a_cycle_after_close_is_reported_and_touches_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is closed, and its descriptor may belong to another file by then."""
    early, late = StatefulAgent(path / "a"), StatefulAgent(path / "b")
    run(late, 0, 5)
    for agent in (early, late):
        agent.close()
    for name in ("write", "create", "rename", "remove"):
        monkeypatch.setattr(PrivateDirectory, name, full)
    assert early.observe(world(10)).gpus
    assert late.observe(world(10)).gpus
    monkeypatch.setattr(Attributor, "observe", full)
    with pytest.raises(OSError, match="space"):
        late.observe(world(15))


def test_counters_start_at_0_if_the_rules_cannot_resume_the_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(path)
    agent = StatefulAgent(path.with_name("copy"))
    with monkeypatch.context() as patch:
        patch.setattr("otel_gpu.state.persistent.resume", full)
        assert is_fresh(agent.observe(world(60)))
    run(agent, 65)
    found = recovered(killed(path.with_name("copy"), agent))
    assert found is not None
    assert attribution(found.attributor) == agent.attribution


def test_close_does_not_wait_for_a_cycle_that_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    responds, is_waiting = threading.Event(), threading.Event()
    agent = StatefulAgent(path)
    run(agent, 0, 5)

    def wait(*_: Any) -> None:
        is_waiting.set()
        assert responds.wait(30)

    monkeypatch.setattr(store_module, "write_all", wait)
    cycle = threading.Thread(target=agent.observe, args=(world(10),))
    cycle.start()
    assert is_waiting.wait(30)
    agent.close()
    assert files(path) == ["journal-000001"]
    responds.set()
    cycle.join()


def test_the_journal_continues_while_checkpoints_fail(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        run(agent, 35)
        report = run(agent, 40, 70, 75)
    assert outcome(report) == (SourceState.DEGRADED, f"the journal grows: {path}: No space left on device")
    assert_recovers(path, agent)
    run(agent, 105)
    assert outcome(run(agent, 110)) == (SourceState.OK, None)
    assert len(files(path)) == 2


def test_a_checkpoint_in_progress_is_not_put_in_place_after_the_journal_has_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be trusted after a restart, and cycles were exported since that no file has."""
    responds = threading.Event()
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        write(self, name, content)
        assert responds.wait(30)

    agent = StatefulAgent(path)
    run(agent, 0, 5)
    monkeypatch.setattr(PrivateDirectory, "write", slow)
    agent.observe(world(35))
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", full)
        agent.observe(world(40))
    responds.set()
    agent.settle()
    with pytest.raises(UntrustedState, match="it has 0 of the 3 cycles"):
        recovered(killed(path, agent))
    run(agent, 45)
    assert files(path) == []


def test_the_journal_continues_while_the_disk_is_slow_to_write_a_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = threading.Event()
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        assert responds.wait(30)
        write(self, name, content)

    agent = StatefulAgent(path)
    monkeypatch.setattr(PrivateDirectory, "write", slow)
    for at_s in (0, 5, 35, 40, 70):
        agent.observe(world(at_s))
    assert outcome(agent.observe(world(75)))[0] is SourceState.DEGRADED
    responds.set()
    agent.settle()
    assert outcome(agent.observe(world(80))) == (SourceState.OK, None)
    assert_recovers(path, agent)


def test_checkpoints_are_written_if_no_thread_can_be_started(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    run(agent, 0, 35, 40)
    assert files(path) == ["journal-000002", "state"]


def test_a_cycle_that_cannot_be_attributed_is_not_replayed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StatefulAgent(path)
    run(agent, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(Attributor, "observe", full)
        with pytest.raises(OSError, match="space"):
            agent.observe(world(10))
    assert files(path) == []
    run(agent, 40, 45)
    assert files(path) == ["journal-000002", "state"]


def test_two_agents_never_share_a_directory(path: Path) -> None:
    first = StatefulAgent(path)
    run(first, 0)
    with pytest.raises(Unavailable, match="another otel-gpu uses it"):
        StatefulAgent(path)
    first.close()
    assert run(StatefulAgent(path), 5).epoch_ns == world(0).wall_ns


def test_a_second_agent_saves_its_counters_once_the_first_has_ended(path: Path) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    second = StatefulAgent(path, may_wait=True)
    waits = SourceState.UNAVAILABLE, f"nothing is saved: {path}: another otel-gpu uses it"
    assert outcome(run(second, 10, 15)) == waits
    run(second, 45)
    assert outcome(run(second, 50)) == waits
    run(first, 55)
    first.close()
    first.settle()
    before = counters(run(second, 80, 85, 90))
    assert outcome(run(second, 95)) == (SourceState.OK, None)
    third = StatefulAgent(killed(path, second))
    assert not fallen(before, counters(run(third, 100)))
    assert run(third, 105).epoch_ns == world(10).wall_ns


@pytest.mark.parametrize("saved", [False, True])
def test_an_agent_that_is_killed_while_it_takes_over_leaves_nothing_of_the_other(path: Path, saved: bool) -> None:
    first = StatefulAgent(path)
    run(first, 0, 5)
    second = StatefulAgent(path, may_wait=True)
    run(second, 10, 15)
    first.close()
    first.settle()
    before = counters(run(second, 45, 50) if saved else run(second, 45))
    copy = killed(path, second)
    assert ("state" in files(copy)) == saved
    after = run(StatefulAgent(copy), 55)
    assert not fallen(before, counters(after))
    assert after.epoch_ns == world(10 if saved else 55).wall_ns


def test_a_directory_that_becomes_free_at_the_end_gets_the_last_checkpoint(path: Path) -> None:
    first = StatefulAgent(path)
    second = StatefulAgent(path, may_wait=True)
    before = counters(run(second, 10, 15))
    first.close()
    second.close()
    second.settle()
    after = run(StatefulAgent(path), 20)
    assert not fallen(before, counters(after))
    assert after.epoch_ns == world(10).wall_ns


# ---------------------------------------------------------------------------- XID errors


def with_xids(at_s: float, errors: int | None, last_xid: int | None = None) -> Snapshot:
    """A cycle with this count of the source since the agent started."""
    cycle = world(at_s)
    return replace(cycle, gpus=tuple(replace(gpu, xid_errors=errors, last_xid=last_xid) for gpu in cycle.gpus))


def xids(report: Report) -> tuple[int | None, int | None, int]:
    """Errors, the last code, and the start of the counter."""
    (gpu,) = report.gpus
    return gpu.reading.xid_errors, gpu.reading.last_xid, report.epoch_ns


@pytest.mark.parametrize("saved", [False, True], ids=["journal", "checkpoint"])
def test_xid_errors_continue_across_restarts(path: Path, saved: bool) -> None:
    began_ns = world(0).wall_ns
    agent = StatefulAgent(path, checkpoint_every_s=30 if saved else 3600)
    assert xids(agent.observe(with_xids(0, 0))) == (0, None, began_ns)
    assert xids(agent.observe(with_xids(31, 2, 79))) == (2, 79, began_ns)
    for life in (1, 2):  # each counts from 0 again
        path = killed(path, agent, life)
        agent = StatefulAgent(path, checkpoint_every_s=30 if saved else 3600)
        assert xids(agent.observe(with_xids(60 * life, None))) == (3 * life - 1, 79, began_ns), "a lost GPU"
        assert agent.restored is not None
        assert xids(agent.restored)[0] == 3 * life - 1
        assert xids(agent.observe(with_xids(60 * life + 5, 0))) == (3 * life - 1, 79, began_ns)
        assert xids(agent.observe(with_xids(60 * life + 40, 3, 79))) == (3 * life + 2, 79, began_ns)
    agent.close()
    agent.settle()
    last = StatefulAgent(path)
    assert xids(last.observe(with_xids(200, 1, 48))) == (9, 48, began_ns)


def test_xid_errors_start_at_0_with_all_other_counters(path: Path) -> None:
    agent = StatefulAgent(path)
    agent.observe(with_xids(0, 7, 79))
    copy = killed(path, agent)
    report = StatefulAgent(copy).observe(replace(with_xids(5, 0), driver=DriverFacts("580.1")))
    assert xids(report) == (0, None, world(5).wall_ns)


def test_a_checkpoint_without_xid_errors_is_resumed(path: Path) -> None:
    agent = StatefulAgent(path)
    agent.observe(with_xids(0, 7, 79))
    agent.close()
    agent.settle()
    rewrite_state(path, lambda content: b"\n".join(content.splitlines()[:3]) + b"\n")
    report = StatefulAgent(path).observe(with_xids(5, 1, 48))
    assert xids(report) == (1, 48, world(0).wall_ns)


@pytest.mark.parametrize("line", [b'[[["GPU-0",[-1,79]]]]', b'[[["GPU-0",[1]]]]', b"[]", b"[[]]\n[[]]"])
def test_invalid_xid_errors_are_not_trusted(path: Path, line: bytes) -> None:
    agent = StatefulAgent(path)
    agent.observe(with_xids(0, 7, 79))
    agent.close()
    agent.settle()
    rewrite_state(path, lambda content: b"\n".join([*content.splitlines()[:3], line, b""]))
    assert is_fresh(StatefulAgent(path).observe(world(5)))
    assert "state.rejected" in files(path)


# ---------------------------------------------------------------------------- the start of deltas


def test_the_restored_report_is_what_was_exported_last(path: Path) -> None:
    before = left(path)
    agent = StatefulAgent(path.with_name("copy"))
    run(agent, 60)
    restored = agent.restored
    assert restored is not None
    assert restored.wall_ns == before.wall_ns
    assert counters(restored) == counters(before)


def test_there_is_no_restored_report_if_no_state_was_resumed(path: Path) -> None:
    left(path)
    agent = StatefulAgent(path.with_name("copy"), boot_id=OTHER_BOOT)
    run(agent, 60)
    assert agent.restored is None
