"""Books that outlive the agent: when they are taken up, when not, and what is on disk meanwhile."""

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

from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy, Prices
from otel_gpu.errors import Unavailable
from otel_gpu.model import DriverFacts, EnergySplit, GpuHealth, GpuReading, Report, Snapshot, SourceState
from otel_gpu.state import store as store_module
from otel_gpu.state.codec import to_json
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.journal import line
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.recovery import NotTrusted
from tests.state_dirs import OPTIONS, books, counters, fallen, killed, open_awaiting, open_keeper, recovered, settle
from tests.unit.attribution.played import CYCLE_MJ
from tests.unit.state.lives import ONE, files, full, is_fresh, outcome, run, world

OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


# ---------------------------------------------------------------------------- going on


def test_an_agent_goes_on_where_one_was_killed(path: Path) -> None:
    keeper = open_keeper(path)
    before = run(keeper, 0, 5, 10)
    after = run(open_keeper(killed(path, keeper)), 60)
    assert after.epoch_ns == before.epoch_ns
    assert after.gpus[0].energy == EnergySplit(10 * CYCLE_MJ, 0, 0, 10 * CYCLE_MJ), "two were there"
    assert counters(after).keys() == counters(before).keys()
    assert fallen(counters(before), counters(after)) == []
    assert after.window_s is None
    assert outcome(after) == (SourceState.OK, None)


def test_who_was_alone_before_and_after_has_what_was_drawn_between(path: Path) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5, reading=ONE)
    keeper.close()
    settle(keeper)
    after = run(open_keeper(path), 105, reading=ONE)
    assert after.gpus[0].energy == EnergySplit(20 * CYCLE_MJ, 20 * CYCLE_MJ, 0, 0)


def test_every_30_s_the_books_are_saved_and_the_journal_begins_anew(path: Path) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5, 10)
    assert files(path) == ["journal-000001"]
    run(keeper, 30)
    assert files(path) == ["journal-000002", "state"]
    run(keeper, 35)
    found = recovered(killed(path, keeper))
    assert found is not None
    assert found.number == 5
    assert books(found.attributor) == books(keeper._attributor)


def test_at_the_end_everything_is_in_one_file_and_after_that_nothing_is_written(path: Path) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    keeper.close()
    keeper.close()
    settle(keeper)
    assert files(path) == ["state"]
    content = (path / "state").read_bytes()
    run(keeper, 60)
    assert files(path) == ["state"]
    assert (path / "state").read_bytes() == content


def test_killed_between_any_two_steps_of_saving_it_goes_on_all_the_same(path: Path) -> None:
    """Before the books have their name, and before the old journal is gone."""
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    earlier = killed(path, keeper, 1)
    run(keeper, 35, 40)
    later = killed(path, keeper, 2)
    whole = books(keeper._attributor)
    before, after = killed(path, keeper, 3), killed(path, keeper, 4)
    (before / "state").rename(before / "state.new")
    for each in (before, after):
        # The third cycle is in the journal that was current then.
        third = PrivateDirectory.open(earlier).read("journal-000001") + line(3, to_json(replace(world(35), sources=())))
        (each / "journal-000001").write_bytes(third)
    for each in (before, after, later):
        found = recovered(each)
        assert found is not None
        assert books(found.attributor) == whole


def test_a_cycle_that_was_torn_was_never_shown_and_is_not_missed(path: Path) -> None:
    keeper = open_keeper(path)
    before = run(keeper, 0, 5)
    copy = killed(path, keeper)
    with (copy / "journal-000001").open("ab") as journal:
        journal.write(b'1234abcd 3 [17000000000,"')
    again = open_keeper(copy)
    after = run(again, 20, 25)
    assert fallen(counters(before), counters(after)) == []
    found = recovered(killed(copy, again))
    assert found is not None
    assert books(found.attributor) == books(again._attributor), "the torn line is followed by another run's file"


@pytest.mark.parametrize("saved", [False, True], ids=["none was saved", "the books were saved before"])
def test_a_journal_that_was_cut_between_two_cycles_is_not_gone_on_from(path: Path, saved: bool) -> None:
    keeper = open_keeper(path)
    last = run(keeper, 0, 5, *([40] if saved else []), 45, 50)
    settle(keeper)
    left = killed(path, keeper)
    name = max(name for name in files(left) if name.startswith("journal-"))
    *whole, _, end = (left / name).read_bytes().split(b"\n")
    (left / name).write_bytes(b"\n".join((*whole, end)))
    with pytest.raises(NotTrusted, match="cycles were told that it does not have"):
        recovered(left)
    again = open_keeper(left)
    anew = run(again, 60, 65)
    assert anew.epoch_ns > last.epoch_ns
    found = recovered(killed(left, again, 2))
    assert found is not None
    assert books(found.attributor) == books(again._attributor), "what is written from then on is trusted"


def test_a_cycle_that_is_torn_in_the_middle_of_a_run_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed as it writes goes on in no other file: something else has been there."""
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        run(keeper, 35, 40)
    left = killed(path, keeper)
    assert files(left) == ["journal-000001", "journal-000002"]
    assert recovered(left) is not None
    with (left / "journal-000001").open("ab") as journal:
        journal.write(b"0")
    with pytest.raises(NotTrusted, match="a cycle before it is torn") as caught:
        recovered(left)
    assert caught.value.file == "journal-000002"


# ---------------------------------------------------------------------------- not going on


def left(path: Path, options: AttributionOptions = OPTIONS) -> Report:
    """What an agent told that saved, went on, and was killed."""
    keeper = open_keeper(path, options)
    answer = run(keeper, 0, 5, 35, 40)
    shutil.rmtree(path.with_name("copy"), ignore_errors=True)
    killed(path, keeper).rename(path.with_name("copy"))
    return answer


@pytest.mark.parametrize(
    ("start", "because"),
    [
        (lambda copy: open_keeper(copy, boot_id=OTHER_BOOT), "another boot"),
        (lambda copy: open_keeper(copy, agent="2.0"), "version 1.2.3 was ended before it could save"),
        (lambda copy: open_keeper(copy, replace(OPTIONS, prices=Prices("EUR", {"": 1.0}))), "prices have changed"),
    ],
    ids=["boot", "version", "prices"],
)
def test_what_is_not_ours_to_go_on_from_starts_at_0(
    path: Path, start: Callable[[Path], Keeper], because: str, caplog: pytest.LogCaptureFixture
) -> None:
    left(path)
    with caplog.at_level(logging.INFO):
        keeper = start(path.with_name("copy"))
        assert is_fresh(run(keeper, 60))
    assert because in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert files(path.with_name("copy")) == ["journal-000003"]
    assert run(keeper, 65).epoch_ns > world(40).wall_ns


def test_another_driver_starts_at_0_and_one_that_was_loaded_meanwhile_does_not(path: Path) -> None:
    new = DriverFacts("580.1", None)
    left(path)
    copy = path.with_name("copy")
    changed = Path(shutil.copytree(copy, path.with_name("changed")))
    assert is_fresh(open_keeper(copy).observe(world(60, driver=new)))
    keeper = open_keeper(changed)
    keeper.observe(world(60))
    keeper.observe(world(65, driver=new))
    answer = open_keeper(killed(changed, keeper)).observe(world(70, driver=new))
    assert answer.epoch_ns == world(0).wall_ns


def test_an_agent_that_started_itself_anew_for_another_driver_keeps_its_totals(path: Path) -> None:
    """Its counters begin anew, at whatever they show; and killed again, it is recovered."""
    new = DriverFacts("580.1", None)
    before = left(path)
    copy = path.with_name("copy")
    keeper = open_keeper(copy, renewed=True)
    answer = keeper.observe(world(60, driver=new))
    assert answer.epoch_ns == before.epoch_ns
    assert answer.gpus[0].energy is None
    assert {key: counters(answer)[key] for key in counters(before)} == counters(before)
    keeper.observe(world(65, driver=new))
    found = recovered(killed(copy, keeper))
    assert found is not None
    assert found.driver_version == new.driver_version
    assert books(found.attributor) == books(keeper._attributor)


def test_time_that_is_another_starts_at_0(path: Path) -> None:
    left(path)
    assert is_fresh(open_keeper(path.with_name("copy")).observe(world(10)))


def test_an_upgraded_agent_goes_on_from_what_was_saved_at_the_end(path: Path) -> None:
    keeper = open_keeper(path)
    before = run(keeper, 0, 5, 35)
    keeper.close()
    settle(keeper)
    after = run(open_keeper(path, agent="2.0"), 60)
    assert after.epoch_ns == before.epoch_ns
    assert fallen(counters(before), counters(after)) == []


def test_other_options_count_from_now_on_and_not_for_what_was_told(path: Path) -> None:
    before = left(path)
    other = AttributionOptions(EnergyPolicy.NONE, retention_s=1, max_processes=0, max_workloads=0)
    after = run(open_keeper(path.with_name("copy"), other), 60)
    assert after.epoch_ns == before.epoch_ns
    assert fallen(counters(before), counters(after)) == []
    assert counters(after).keys() >= {key for key in counters(before) if key[0] == "gpu"}


def test_until_a_driver_tells_its_version_nothing_is_decided_and_nothing_written(path: Path) -> None:
    before = left(path)
    copy = path.with_name("copy")
    there = {name: (copy / name).read_bytes() for name in files(copy)}
    keeper = open_keeper(copy)
    answer = keeper.observe(world(50, driver=None))
    assert counters(answer) == {}
    assert keeper.watched_pids == {1, 2}
    assert {name: (copy / name).read_bytes() for name in files(copy)} == there
    (reading,) = world(52).gpus
    away = GpuReading(reading.identity, reading.taken_at_ns, GpuHealth.FAILED, "away", xid_errors=1)
    answer = keeper.observe(replace(world(52), gpus=(away,), driver=None))
    assert [(gpu.reading.health, gpu.reading.reason) for gpu in answer.gpus] == [(GpuHealth.FAILED, "away")]
    assert counters(answer) == {}
    assert {name: (copy / name).read_bytes() for name in files(copy)} == there
    assert keeper.observe(world(55)).epoch_ns == before.epoch_ns
    again = killed(copy, keeper, 5)
    early = open_keeper(again)
    early.observe(world(60, driver=None))
    early.close()
    assert run(open_keeper(again), 70).epoch_ns == before.epoch_ns


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


def other_books(copy: Path) -> str:
    def change(content: bytes) -> bytes:
        head, saved, *rest = content.splitlines()
        return b"\n".join([head, json.dumps(json.loads(saved) | {"ledger": 5}).encode(), *rest, b""])

    return rewrite_state(copy, change)


def rewrite_state(copy: Path, change: Callable[[bytes], bytes]) -> str:
    """Something else, with a checksum that is right."""
    content = change((copy / "state").read_bytes().partition(b"\n")[2])
    (copy / "state").write_bytes(b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode(), content))
    return "state"


@pytest.mark.parametrize(
    "damage",
    [damage_state, damage_journal, lose_state, lose_journal, foreign_state, linked_state, future_state, other_books],
    ids=lambda function: function.__name__,
)
def test_damage_is_set_aside_with_one_warning_and_never_trusted(
    path: Path, damage: Callable[[Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    left(path)
    copy = path.with_name("copy")
    name = damage(copy)
    with caplog.at_level(logging.WARNING):
        keeper = open_keeper(copy)
    (record,) = caplog.records
    assert str(copy / name) in record.getMessage()
    assert is_fresh(run(keeper, 60))
    aside = f"{name.partition('-')[0]}.rejected"
    assert [each.partition("-")[0] for each in files(copy) if each != aside] == ["journal"]
    assert (copy / aside).is_symlink() or (copy / aside).is_file()
    run(keeper, 65)
    found = recovered(killed(copy, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)


@pytest.mark.parametrize("name", ["journal-999999", "journal-999999999999", "journal-0000001", "journal-1"])
def test_an_odd_name_beside_the_journals_lets_no_counter_fall(path: Path, name: str) -> None:
    path.mkdir(mode=0o700)
    (path / name).touch()
    told: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for life in range(3):
        keeper = open_keeper(path)
        now = counters(run(keeper, *(5.0 * (10 * life + cycle) for cycle in range(4))))
        assert not fallen(told, now)
        told, path = now, killed(path, keeper, life)
    assert told


def test_of_damaged_files_only_the_newest_is_kept(path: Path) -> None:
    for number in range(3):
        left(path)
        shutil.rmtree(path)
        path.with_name("copy").rename(path)
        (path / "state").write_text(f"{number}", encoding="ascii")
        open_keeper(path).close()
    assert files(path) == ["state.rejected"]
    assert (path / "state.rejected").read_text(encoding="ascii") == "2"


# ---------------------------------------------------------------------------- a disk that fails


def test_on_a_full_disk_nothing_false_is_left_figures_go_on_and_saving_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5, 35)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", full)
        answer = run(keeper, 40)
        assert files(path) == []
        assert outcome(answer) == (SourceState.UNAVAILABLE, f"nothing is saved: {path}: No space left on device")
        assert answer.gpus[0].energy is not None
        assert answer.gpus[0].energy.delta_mj == CYCLE_MJ
        assert outcome(run(keeper, 45, 70))[0] is SourceState.UNAVAILABLE
        assert recovered(killed(path, keeper)) is None
    assert outcome(run(keeper, 75))[0] is SourceState.UNAVAILABLE, "it is tried again when it is due"
    run(keeper, 101)
    assert outcome(run(keeper, 105)) == (SourceState.OK, None)
    found = recovered(killed(path, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)


def test_a_cycle_that_cannot_be_written_down_is_told_all_the_same(path: Path) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    odd: Any = {1: object()}
    answer = keeper.observe(replace(world(10), names=odd))
    assert outcome(answer)[0] is SourceState.UNAVAILABLE
    assert files(path) == []


def test_what_comes_after_the_end_is_told_and_touches_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is closed, and its descriptor may be somebody else's by then."""
    early, late = open_keeper(path / "a"), open_keeper(path / "b")
    run(late, 0, 5)
    for keeper in (early, late):
        keeper.close()
    for name in ("write", "create", "rename", "remove", "sync"):
        monkeypatch.setattr(PrivateDirectory, name, full)
    assert early.observe(world(10)).gpus
    assert late.observe(world(10)).gpus
    monkeypatch.setattr(type(late._attributor), "observe", full)
    with pytest.raises(OSError, match="space"):
        late.observe(world(15))


def test_books_that_cannot_be_gone_on_with_start_at_0(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(path)
    keeper = open_keeper(path.with_name("copy"))
    with monkeypatch.context() as patch:
        patch.setattr("otel_gpu.state.keeper.resumed", full)
        assert is_fresh(keeper.observe(world(60)))
    run(keeper, 65)
    found = recovered(killed(path.with_name("copy"), keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)


def test_an_end_does_not_wait_for_a_cycle_that_waits_for_the_disk(path: Path) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    with keeper._turn:
        keeper.close()
    assert files(path) == ["journal-000001"]


def test_books_that_cannot_be_saved_are_in_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "write", full)
        run(keeper, 35)
        answer = run(keeper, 40, 70, 75)
    assert outcome(answer) == (SourceState.DEGRADED, f"the journal grows: {path}: No space left on device")
    found = recovered(killed(path, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)
    run(keeper, 105)
    assert outcome(run(keeper, 110)) == (SourceState.OK, None)
    assert len(files(path)) == 2


def test_books_under_way_do_not_arrive_after_the_journal_has_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be trusted after a restart, and cycles were told since that nobody wrote down."""
    go_on = threading.Event()
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        write(self, name, content)
        assert go_on.wait(30)

    keeper = open_keeper(path)
    run(keeper, 0, 5)
    monkeypatch.setattr(PrivateDirectory, "write", slow)
    keeper.observe(world(35))
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_all", full)
        keeper.observe(world(40))
    go_on.set()
    settle(keeper)
    assert files(path) == []


def test_while_the_disk_is_slow_the_journal_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    write = PrivateDirectory.write

    def slow(self: PrivateDirectory, name: str, content: bytes) -> None:
        assert go_on.wait(30)
        write(self, name, content)

    keeper = open_keeper(path)
    monkeypatch.setattr(PrivateDirectory, "write", slow)
    for at_s in (0, 5, 35, 40, 70):
        keeper.observe(world(at_s))
    assert outcome(keeper.observe(world(75)))[0] is SourceState.DEGRADED
    go_on.set()
    settle(keeper)
    assert outcome(keeper.observe(world(80))) == (SourceState.OK, None)
    found = recovered(killed(path, keeper))
    assert found is not None
    assert books(found.attributor) == books(keeper._attributor)


def test_without_room_for_a_thread_books_are_saved_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    run(keeper, 0, 35)
    assert files(path) == ["journal-000002", "state"]


def test_a_cycle_that_cannot_be_booked_is_not_to_be_told_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = open_keeper(path)
    run(keeper, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(type(keeper._attributor), "observe", full)
        with pytest.raises(OSError, match="space"):
            keeper.observe(world(10))
    assert files(path) == []
    run(keeper, 40)
    assert files(path) == ["journal-000002", "state"]


def test_two_agents_never_share_a_directory(path: Path) -> None:
    first = open_keeper(path)
    run(first, 0)
    with pytest.raises(Unavailable, match="another otel-gpu uses it"):
        open_keeper(path)
    first.close()
    assert run(open_keeper(path), 5).epoch_ns == world(0).wall_ns


def test_an_agent_that_started_beside_another_keeps_its_counters_when_that_one_has_ended(path: Path) -> None:
    first = open_keeper(path)
    run(first, 0, 5)
    second = open_awaiting(path)
    waits = SourceState.UNAVAILABLE, f"nothing is saved: {path}: another otel-gpu uses it"
    assert outcome(run(second, 10, 15)) == waits
    run(second, 45)
    assert outcome(run(second, 50)) == waits
    run(first, 55)
    first.close()
    settle(first)
    told = counters(run(second, 80, 85, 90))
    assert outcome(run(second, 95)) == (SourceState.OK, None)
    third = open_keeper(killed(path, second))
    assert not fallen(told, counters(run(third, 100)))
    assert run(third, 105).epoch_ns == world(10).wall_ns


@pytest.mark.parametrize("saved", [False, True])
def test_killed_while_it_takes_over_it_leaves_nothing_of_the_other(path: Path, saved: bool) -> None:
    first = open_keeper(path)
    run(first, 0, 5)
    second = open_awaiting(path)
    run(second, 10, 15)
    first.close()
    settle(first)
    told = counters(run(second, 45, 50))
    copy = killed(path, second)
    if not saved:
        (copy / "state").unlink()
    after = run(open_keeper(copy), 55)
    assert not fallen(told, counters(after))
    assert after.epoch_ns == world(10 if saved else 55).wall_ns


def test_what_is_free_only_at_the_end_is_saved_to_then(path: Path) -> None:
    first = open_keeper(path)
    second = open_awaiting(path)
    told = counters(run(second, 10, 15))
    first.close()
    second.close()
    settle(second)
    after = run(open_keeper(path), 20)
    assert not fallen(told, counters(after))
    assert after.epoch_ns == world(10).wall_ns


# ---------------------------------------------------------------------------- errors of GPUs


def with_xids(at_s: float, errors: int | None, last_xid: int | None = None) -> Snapshot:
    """A cycle in which the source has counted so many since it was made."""
    told = world(at_s)
    return replace(told, gpus=tuple(replace(gpu, xid_errors=errors, last_xid=last_xid) for gpu in told.gpus))


def xids(answer: Report) -> tuple[int | None, int | None, int]:
    """Errors, the last of them, and since when they are counted."""
    (gpu,) = answer.gpus
    return gpu.reading.xid_errors, gpu.reading.last_xid, answer.epoch_ns


@pytest.mark.parametrize("saved", [False, True], ids=["journalled", "saved"])
def test_errors_of_gpus_go_on_over_restarts_as_every_counter_does(path: Path, saved: bool) -> None:
    began_ns = world(0).wall_ns
    keeper = open_keeper(path, save_every_s=30 if saved else 3600)
    assert xids(keeper.observe(with_xids(0, 0))) == (0, None, began_ns)
    assert xids(keeper.observe(with_xids(31, 2, 79))) == (2, 79, began_ns)
    for life in (1, 2):  # each counts from 0 again
        path = killed(path, keeper, life)
        keeper = open_keeper(path, save_every_s=30 if saved else 3600)
        assert xids(keeper.observe(with_xids(60 * life, None))) == (3 * life - 1, 79, began_ns), "a GPU that is lost"
        assert keeper.restored is not None
        assert xids(keeper.restored)[0] == 3 * life - 1
        assert xids(keeper.observe(with_xids(60 * life + 5, 0))) == (3 * life - 1, 79, began_ns)
        assert xids(keeper.observe(with_xids(60 * life + 40, 3, 79))) == (3 * life + 2, 79, began_ns)
    keeper.close()
    settle(keeper)
    last = open_keeper(path)
    assert xids(last.observe(with_xids(200, 1, 48))) == (9, 48, began_ns)


def test_errors_of_gpus_begin_anew_with_all_others_where_books_do(path: Path) -> None:
    keeper = open_keeper(path)
    keeper.observe(with_xids(0, 7, 79))
    copy = killed(path, keeper)
    answer = open_keeper(copy).observe(replace(with_xids(5, 0), driver=DriverFacts("580.1", None)))
    assert xids(answer) == (0, None, world(5).wall_ns)


def test_a_file_of_an_agent_that_did_not_know_of_errors_is_gone_on_from(path: Path) -> None:
    keeper = open_keeper(path)
    keeper.observe(with_xids(0, 7, 79))
    keeper.close()
    settle(keeper)
    rewrite_state(path, lambda content: b"\n".join(content.splitlines()[:3]) + b"\n")
    answer = open_keeper(path).observe(with_xids(5, 1, 48))
    assert xids(answer) == (1, 48, world(0).wall_ns)


@pytest.mark.parametrize("line", [b'[[["GPU-0",[-1,79]]]]', b'[[["GPU-0",[1]]]]', b"[]", b"[[]]\n[[]]"])
def test_errors_that_are_none_are_not_trusted(path: Path, line: bytes) -> None:
    keeper = open_keeper(path)
    keeper.observe(with_xids(0, 7, 79))
    keeper.close()
    settle(keeper)
    rewrite_state(path, lambda content: b"\n".join([*content.splitlines()[:3], line, b""]))
    assert is_fresh(open_keeper(path).observe(world(5)))
    assert "state.rejected" in files(path)


# ---------------------------------------------------------------------------- where deltas begin


def test_what_was_taken_up_is_told_as_it_was_last(path: Path) -> None:
    before = left(path)
    keeper = open_keeper(path.with_name("copy"))
    run(keeper, 60)
    restored = keeper.restored
    assert restored is not None
    assert restored.wall_ns == before.wall_ns
    assert counters(restored) == counters(before)


def test_nothing_is_told_of_what_was_not_taken_up(path: Path) -> None:
    left(path)
    keeper = open_keeper(path.with_name("copy"), boot_id=OTHER_BOOT)
    run(keeper, 60)
    assert keeper.restored is None
