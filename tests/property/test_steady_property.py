"""Laws of state between cycles: what is saved is everything that later reports depend on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import Report, Snapshot
from tests.depth import DEPTH
from tests.property.histories import histories, options, thorough
from tests.property.steady import steady_histories

more_thorough = settings(thorough, max_examples=100 * DEPTH)


def state(attributor: Attributor) -> Any:
    return json.loads(json.dumps(attributor.to_state()))


@more_thorough
@given(steady_histories() | histories(steps_s=(5, 1)), options)
def test_a_restart_before_every_cycle_changes_neither_reports_nor_state(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    """An attributor restarted before every cycle has only the saved state. Nothing else may have an effect."""
    straight, restarted = Attributor(chosen), Attributor(chosen)
    before_ns = 0
    for snapshot in history:
        saved = state(restarted)
        assert saved == state(straight)
        restarted = Attributor.from_state(chosen, saved, now_ns=before_ns, same_boot=True)
        assert state(restarted) == saved
        assert text(restarted.observe(snapshot)) == text(straight.observe(snapshot))
        before_ns = snapshot.monotonic_ns


@more_thorough
@given(steady_histories(), st.sets(st.integers(0, 60), max_size=6), st.sets(st.integers(0, 60), max_size=2), options)
def test_reading_state_and_reports_late_changes_nothing(
    history: list[Snapshot], saves: set[int], restarts: set[int], chosen: AttributionOptions
) -> None:
    """Saving the state has no effect on later reports, and a report does not change after it was built."""
    always, rarely = Attributor(chosen), Attributor(chosen)
    at_once, later = [], []
    for number, snapshot in enumerate(history):
        at_once.append(text(always.observe(snapshot)))
        later.append(rarely.observe(snapshot))
        saved = state(always)
        if number in saves | restarts:
            assert state(rarely) == saved
        if number in restarts:
            always, rarely = (
                Attributor.from_state(chosen, saved, now_ns=snapshot.monotonic_ns, same_boot=True) for _ in range(2)
            )
    assert state(rarely) == state(always)
    assert [text(report) for report in later] == at_once
    assert all(gpu.energy_error_mj == 0 for report in later for gpu in report.gpus)


def text(report: Report) -> str:
    """Everything in a report."""
    return repr(report)
