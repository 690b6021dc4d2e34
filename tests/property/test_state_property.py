"""Laws of state across restarts: after a kill at any moment the next agent continues where it was."""

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
from otel_gpu.state.journal import cycle_line, line, parse_journal
from otel_gpu.state.recovery import LOCK, number_text
from tests.depth import DEPTH
from tests.property.histories import WORKLOADS, histories, options, thorough
from tests.state_dirs import StatefulAgent, attribution, counters, fallen, killed, recovered, with_driver

CLOCK_MOVES_S = (5, 5, 1, 60, 3600 * 5)
"""Steps of histories in which no two cycles have the same monotonic time, as an engine's cycles never have."""

few = settings(thorough, max_examples=8 * DEPTH)
"""Every cycle of these is written to disk and read back."""


def comparable(snapshot: Snapshot) -> Snapshot:
    """The same without NaN, which equals nothing."""
    gpus = (replace(gpu, power_w=None) if gpu.power_w != gpu.power_w else gpu for gpu in snapshot.gpus)
    return replace(snapshot, gpus=tuple(gpus))


@thorough
@given(histories(), st.booleans())
def test_a_snapshot_is_read_from_the_journal_as_it_was_written(history: list[Snapshot], complete: bool) -> None:
    for snapshot in map(comparable, history):
        facts = {
            pid: process._replace(mig_access=frozenset({MigAccess(0, 1, None), MigAccess(0, 1, 0)}))
            for pid, process in snapshot.processes.items()
        }
        whole = replace(
            snapshot,
            processes=facts,
            driver=DriverFacts("570.1"),
            pids_complete=complete,
            names_pending=frozenset(ref.key for ref in WORKLOADS[:1]),
            sources=(SourceOutcome("nvml", SourceState.DEGRADED, "why \udcff\n", 0.1, 3),),
        )
        for each in (snapshot, whole):
            content = cycle_line(8, each)
            assert content.isascii()
            assert content.count(b"\n") == 1
            journal = parse_journal(line(7, "[]") + content)
            assert journal is not None
            assert list(journal.snapshots(7)) == [replace(each, sources=())]


@thorough
@given(histories(least=2), options)
def test_state_does_not_change_while_it_is_written(history: list[Snapshot], chosen: AttributionOptions) -> None:
    attributor = Attributor(chosen)
    saved = []
    for snapshot in history:
        attributor.observe(snapshot)
        state = attributor.to_state()
        saved.append((state, json.dumps(state)))
    for state, written in saved:
        assert json.dumps(state) == written


@few
@given(histories(CLOCK_MOVES_S, least=2), options, st.data())
def test_after_a_kill_in_any_cycle_the_state_is_recovered_as_it_was(
    history: list[Snapshot], chosen: AttributionOptions, data: st.DataObject
) -> None:
    """With a checkpoint in some cycles, and in others the journal alone."""
    straight = Attributor(chosen)
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        agent = StatefulAgent(path, chosen)
        for snapshot in with_driver(history):
            agent.observe(snapshot)
            straight.observe(snapshot)
            found = recovered(killed(path, agent), chosen)
            assert found is not None
            assert attribution(found.attributor) == attribution(straight)
        agent.close()
        found = recovered(path, data.draw(options))
        assert found is not None
        assert json.loads(attribution(found.attributor)) == json.loads(attribution(straight))


@few
@given(histories(least=3), options, st.lists(st.booleans(), min_size=7, max_size=7), st.data())
def test_across_any_number_of_restarts_no_counter_falls_and_everything_adds_up(
    history: list[Snapshot], chosen: AttributionOptions, restarts: list[bool], data: st.DataObject
) -> None:
    """The state of an agent that was restarted and killed again is recovered: the journal has the resumption, too."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        agent = StatefulAgent(path, chosen)
        exported: dict[tuple[object, ...], tuple[int, ...]] = {}
        for number, snapshot in enumerate(with_driver(history)):
            if number and restarts[number]:
                path, before = killed(path, agent, number), agent
                before.close()
                if data.draw(st.booleans()):  # other options, which apply to later cycles only
                    chosen = replace(chosen, retention_s=60.0, energy_policy=data.draw(options).energy_policy)
                agent = StatefulAgent(path, chosen)
            report = agent.observe(snapshot)
            assert fallen(exported, counters(report)) == []
            assert [gpu.energy_error_mj for gpu in report.gpus] == [0] * len(report.gpus)
            assert report.epoch_ns == history[0].wall_ns
            exported |= counters(report)
            found = recovered(killed(path, agent, 99), chosen)
            assert found is not None
            assert attribution(found.attributor) == agent.attribution
        agent.close()


@few
@given(histories(least=3), options, st.sampled_from((6.0, 30.0, 1e9)), st.data())
def test_after_a_kill_within_a_line_the_state_is_that_of_the_cycle_before(
    history: list[Snapshot], chosen: AttributionOptions, checkpoint_every_s: float, data: st.DataObject
) -> None:
    """That cycle was never exported. The next agent continues from there, in a file of its own."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "state"
        agent = StatefulAgent(path, chosen, checkpoint_every_s=checkpoint_every_s)
        before: str | None = None
        for number, snapshot in enumerate(with_driver(history)):
            agent.observe(snapshot)
            left = torn(killed(path, agent, number), number, data)
            if left is not None:
                found = recovered(left, chosen)
                assert (None if found is None else attribution(found.attributor)) == before
                again = StatefulAgent(left, chosen)
                again.observe(snapshot)
                again.observe(replace(snapshot, monotonic_ns=snapshot.monotonic_ns + 1))
                found = recovered(killed(left, again, 99), chosen)
                assert found is not None
                assert attribution(found.attributor) == again.attribution
            before = agent.attribution
        agent.close()


def torn(left: Path, exported: int, data: st.DataObject) -> Path | None:
    """The directory with its last line cut somewhere; ``None`` if the last cycle is in a checkpoint."""
    journal = max(left.glob("journal-*"))
    content = journal.read_bytes()
    begin = content.rindex(b"\n", 0, -1) + 1 if content.count(b"\n") > 1 else len(content)
    if begin == len(content):
        return None
    journal.write_bytes(content[: data.draw(st.integers(begin, len(content) - 1))])
    (left / LOCK).write_bytes(number_text(exported))
    return left


def played(module: str, *arguments: str) -> str:
    """The output of a program of the tests, with a limit of time."""
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
def test_no_counter_falls_and_no_millijoule_is_missing_after_a_dozen_kills_of_a_real_agent() -> None:
    """CI kills two hundred times, through a whole day."""
    assert " 0 wrong" in played("kill_run", "--kills", str(12 * DEPTH), "--hours", "1")


@pytest.mark.long
def test_damaged_directories_are_never_trusted_and_never_fatal() -> None:
    """CI damages ten thousand."""
    assert " 0 failures" in played("fuzz_state", "--inputs", str(150 * DEPTH))
