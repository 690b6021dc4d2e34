"""Laws of what is kept from cycle to cycle: it saves work, and changes nothing."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hypothesis import given, settings

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import Snapshot
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
