"""Laws of what is kept over restarts: whenever an agent is killed, the next goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import DriverFacts, MigAccess, Snapshot, SourceOutcome, SourceState
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.cycle_reader import CycleReader
from otel_gpu.state.cycle_text import CycleText
from otel_gpu.state.recovery import LOCK, number_text
from tests.depth import DEPTH
from tests.property.histories import WORKLOADS, histories, options, standing_histories, thorough
from tests.state_dirs import books, counters, fallen, killed, open_keeper, recovered, with_driver

few = settings(thorough, max_examples=8 * DEPTH)
"""Every cycle of these is written to disk, and read from it."""


def comparable(snapshot: Snapshot) -> Snapshot:
    """The same without NaN, which equals nothing."""
    gpus = (replace(gpu, power_w=None) if gpu.power_w != gpu.power_w else gpu for gpu in snapshot.gpus)
    return replace(snapshot, gpus=tuple(gpus))


@thorough
@given(histories(), st.booleans())
def test_a_snapshot_comes_back_from_the_journal_as_it_was(history: list[Snapshot], complete: bool) -> None:
    for snapshot in map(comparable, history):
        facts = {
            pid: replace(process, mig_access=frozenset({MigAccess(0, 1, None), MigAccess(0, 1, 0)}))
            for pid, process in snapshot.processes.items()
        }
        whole = replace(
            snapshot,
            processes=facts,
            driver=DriverFacts("570.1", None),
            pids_complete=complete,
            names_pending=frozenset(ref.key for ref in WORKLOADS[:1]),
            sources=(SourceOutcome("nvml", SourceState.DEGRADED, "why \udcff\n", 0.1, 3),),
        )
        for each in (snapshot, whole):
            written = to_json(each)
            back = from_json(Snapshot, written)
            assert "\n" not in written
            assert written.isascii()
            assert back == each


@thorough
@given(histories(least=2))
def test_a_line_of_the_journal_is_the_whole_cycle_while_no_line_is_in_the_file(history: list[Snapshot]) -> None:
    text = CycleText()
    for snapshot in history:
        for each in (snapshot, snapshot, replace(snapshot, infers=False)):
            assert text.of(each) == to_json(replace(each, sources=()))


@thorough
@given(standing_histories(least=3), st.data())
def test_cycles_are_read_from_the_lines_of_files_that_begin_anywhere_as_they_were(
    history: list[Snapshot], data: st.DataObject
) -> None:
    """Some lines are lost on their way to the file; nothing later rests on them."""
    text, reader = CycleText(), CycleReader()
    for number, snapshot in enumerate(map(comparable, history), data.draw(st.integers(1, 1 << 60))):
        event = data.draw(st.sampled_from(("", "", "another file", "lost", "lost with its file")))
        if "lost" in event:
            text.of(snapshot if data.draw(st.booleans()) else comparable(data.draw(st.sampled_from(history))))
        if "file" in event:
            text.begin_file()
            reader = CycleReader()
        line = text.of(snapshot)
        text.written(number)
        back = reader.of(number, line.encode("ascii"))
        assert back == replace(snapshot, sources=())
        if event == "another file":
            assert line == to_json(replace(snapshot, sources=()))


@thorough
@given(histories(least=2), options)
def test_what_is_to_be_saved_does_not_change_while_it_is_written(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    attributor = Attributor(chosen)
    saved = []
    for snapshot in history:
        attributor.observe(snapshot)
        state = attributor.to_state()
        saved.append((state, json.dumps(state)))
    for state, written in saved:
        assert json.dumps(state) == written


@few
@given(standing_histories(least=2), options, st.data())
def test_killed_after_any_cycle_the_books_are_recovered_as_they_were(
    history: list[Snapshot], chosen: AttributionOptions, data: st.DataObject
) -> None:
    """Saved whole in some cycles, in others journalled only."""
    straight = Attributor(chosen)
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        keeper = open_keeper(path, chosen)
        for snapshot in with_driver(history):
            keeper.observe(snapshot)
            straight.observe(snapshot)
            found = recovered(killed(path, keeper), chosen)
            assert found is not None
            assert books(found.attributor) == books(straight)
        keeper.close()
        found = recovered(path, data.draw(options))
        assert found is not None
        assert json.loads(books(found.attributor)) == json.loads(books(straight))


@few
@given(standing_histories(least=3), options, st.lists(st.booleans(), min_size=7, max_size=7), st.data())
def test_over_any_number_of_restarts_no_counter_falls_and_everything_adds_up(
    history: list[Snapshot], chosen: AttributionOptions, restarts: list[bool], data: st.DataObject
) -> None:
    """An agent that was restarted and killed again is recovered as well: that it was away is in the journal, too."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        keeper = open_keeper(path, chosen)
        told: dict[tuple[object, ...], tuple[int, ...]] = {}
        for number, snapshot in enumerate(with_driver(history)):
            if number and restarts[number]:
                path, before = killed(path, keeper, number), keeper
                before.close()
                if data.draw(st.booleans()):  # other options, which have a say in what comes, not in what was
                    chosen = replace(chosen, retention_s=60.0, energy_policy=data.draw(options).energy_policy)
                keeper = open_keeper(path, chosen)
            answer = keeper.observe(snapshot)
            assert fallen(told, counters(answer)) == []
            assert [gpu.energy_error_mj for gpu in answer.gpus] == [0] * len(answer.gpus)
            assert answer.epoch_ns == history[0].wall_ns
            told |= counters(answer)
            found = recovered(killed(path, keeper, 99), chosen)
            assert found is not None
            assert books(found.attributor) == books(keeper._attributor)
        keeper.close()


@few
@given(standing_histories(least=3), options, st.sampled_from((6.0, 30.0, 1e9)), st.data())
def test_killed_as_it_writes_a_cycle_the_books_are_those_of_the_cycle_before(
    history: list[Snapshot], chosen: AttributionOptions, save_every_s: float, data: st.DataObject
) -> None:
    """Nobody was told of that cycle; whoever comes next goes on from there, in a file of its own."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        keeper = open_keeper(path, chosen, save_every_s=save_every_s)
        before: str | None = None
        for number, snapshot in enumerate(with_driver(history)):
            keeper.observe(snapshot)
            left = torn(killed(path, keeper, number), number, data)
            if left is not None:
                found = recovered(left, chosen)
                assert (None if found is None else books(found.attributor)) == before
                again = open_keeper(left, chosen)
                again.observe(snapshot)
                again.observe(replace(snapshot, monotonic_ns=snapshot.monotonic_ns + 1))
                found = recovered(killed(left, again, 99), chosen)
                assert found is not None
                assert books(found.attributor) == books(again._attributor)
            before = books(keeper._attributor)
        keeper.close()


def torn(left: Path, told: int, data: st.DataObject) -> Path | None:
    """The directory where its last line is cut off somewhere; ``None`` if that one is saved, and no line."""
    journal = max(left.glob("journal-*"))
    content = journal.read_bytes()
    begin = content.rindex(b"\n", 0, -1) + 1 if content.count(b"\n") > 1 else len(content)
    if begin == len(content):
        return None
    journal.write_bytes(content[: data.draw(st.integers(begin, len(content) - 1))])
    (left / LOCK).write_bytes(number_text(told))
    return left


def played(module: str, *arguments: str) -> str:
    """What a program of the tests says, which is killed if it takes for ever."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_killed_a_dozen_times_no_counter_of_a_real_agent_falls_and_not_a_millijoule_is_missing() -> None:
    """CI kills two hundred, through a whole day."""
    assert " 0 wrong" in played("kill_run", "--kills", str(12 * DEPTH), "--hours", "1")


@pytest.mark.long
def test_damaged_directories_are_never_trusted_and_never_fatal() -> None:
    """CI damages ten thousand."""
    assert " 0 failures" in played("fuzz_state", "--inputs", str(150 * DEPTH))
