"""Laws of what is kept from cycle to cycle: it saves work, and changes nothing."""

from __future__ import annotations

import json
import pickle
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


def copied(snapshot: Snapshot) -> Snapshot:
    """The same in other objects, down to the last of them."""
    copy = pickle.loads(pickle.dumps(snapshot))
    assert isinstance(copy, Snapshot)
    return copy


@more_thorough
@given(steady_histories(), options)
def test_a_cycle_like_the_one_before_is_attributed_as_by_somebody_who_has_kept_nothing(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    """Who is restarted before every cycle has nothing but what is saved; what else was kept must not show."""
    kept, restarted = Attributor(chosen), Attributor(chosen)
    before_ns = 0
    for snapshot in history:
        saved = state(restarted)
        assert saved == state(kept)
        restarted = Attributor.from_state(chosen, saved, now_ns=before_ns, same_boot=True)
        assert restarted.observe(snapshot) == kept.observe(snapshot)
        before_ns = snapshot.monotonic_ns


@more_thorough
@given(steady_histories() | histories(), options)
def test_whether_what_is_told_again_is_the_same_object_does_not_matter(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    same, other = Attributor(chosen), Attributor(chosen)
    for snapshot in history:
        assert repr(same.observe(snapshot)) == repr(other.observe(copied(snapshot)))
        assert state(same) == state(other)


@more_thorough
@given(steady_histories(), st.sets(st.integers(0, 60), max_size=6), st.sets(st.integers(0, 60), max_size=2), options)
def test_whether_anybody_looks_at_the_books_does_not_matter(
    history: list[Snapshot], looks: set[int], restarts: set[int], chosen: AttributionOptions
) -> None:
    """What goes on while nothing happens is booked when somebody asks; it is what would have been booked at once.

    An answer that is read later than the next one was made tells what it would have told before.
    """
    always, rarely = Attributor(chosen), Attributor(chosen)
    at_once, later = [], []
    for number, snapshot in enumerate(history):
        at_once.append(text(always.observe(snapshot)))
        later.append(rarely.observe(snapshot))
        saved = state(always)
        if number in looks | restarts:
            assert state(rarely) == saved
        if number in restarts:
            always, rarely = (
                Attributor.from_state(chosen, saved, now_ns=snapshot.monotonic_ns, same_boot=True) for _ in range(2)
            )
    assert state(rarely) == state(always)
    assert [text(answer) for answer in later] == at_once
    assert all(gpu.energy_error_mj == 0 for answer in later for gpu in answer.gpus)


def text(answer: Report) -> str:
    """All that an answer tells."""
    return repr(answer)
