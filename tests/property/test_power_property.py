"""Laws of power: baselines and learned watts stay in bounds for any input; energy divides the same in parts."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.apportion import apportion, whole_weights
from otel_gpu.attribution.energy import Consumer, EnergyDivider, Interval, Method
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.options import EnergyPolicy
from otel_gpu.attribution.power.baseline import Baseline, Origin
from otel_gpu.attribution.power.learned import MAX_FACTOR, MIN_FACTOR, LearnedPower
from otel_gpu.attribution.power.regression import MAX_TRACKED
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef
from tests.depth import DEPTH
from tests.unit.attribution.power.test_learned import keys

ANYTHING = st.floats(allow_nan=True, allow_infinity=True)
POWERS = st.floats(20.0, 700.0) | ANYTHING
LIMITS = st.none() | st.floats(100.0, 700.0) | ANYTHING
LENGTHS = st.sampled_from([0.0, 0.2, 1.0, 5.0, 5.0, 5.0, 20.0, 3600.0, 86_400.0]) | ANYTHING
RATIOS = st.sampled_from([0.0, 0.0, 0.003, 0.1, 0.4, 1.0]) | st.floats(0.0, 1.1) | ANYTHING

QUIET = st.fixed_dictionaries(
    {
        "power_w": st.floats(20.0, 90.0),
        "utilization": st.just(0.0),
        "resident": st.booleans(),
        "power_limit_w": st.just(400.0),
        "dt_s": st.just(5.0),
    }
)
INTERVALS = QUIET | st.fixed_dictionaries(
    {
        "power_w": POWERS,
        "utilization": st.none() | RATIOS,
        "resident": st.booleans(),
        "power_limit_w": LIMITS,
        "dt_s": LENGTHS,
    }
)

KEYS = st.builds(ProcessKey, st.integers(1, 6), st.integers(1, 2))
SHARES = st.dictionaries(KEYS, st.floats(0.0, 0.25), max_size=4) | st.dictionaries(KEYS, RATIOS, max_size=8)
LESSONS = st.fixed_dictionaries(
    {
        "shares": SHARES,
        "power_w": st.floats(100.0, 300.0) | POWERS,
        "power_limit_w": LIMITS,
        "context_power_w": st.floats(0.0, 90.0) | ANYTHING,
        "samples": st.sampled_from([0, 7, 36, 36, 72]) | ANYTHING,
        "dt_s": st.just(5.0) | LENGTHS,
        "sm_clock_mhz": st.none() | st.sampled_from([210, 900, 1200, 1410]) | st.integers(-1, 1 << 40),
    }
)
EVENTS = st.lists(LESSONS | st.sets(KEYS, max_size=3), max_size=40)


def play(model: LearnedPower, event: Any) -> None:
    """Observe an interval, or forget processes that have ended."""
    if isinstance(event, set):
        model.forget(event)
    else:
        model.observe(**event)


def lowest_credible_w(intervals: list[dict[str, Any]], *, resident: bool) -> float:
    """The lowest power of plausible intervals: a bound of the estimate unless it was observed."""
    return min(
        (
            one["power_w"]
            for one in intervals
            if 0 < one["power_w"] <= 1e5
            and 1.0 <= one["dt_s"] < math.inf
            and (one["utilization"] is None or 0 <= one["utilization"] <= 1.05)
            and (one["resident"] or not resident)
        ),
        default=math.inf,
    )


@given(st.lists(INTERVALS, max_size=60), st.floats(0.0, 1.0))
def test_a_baseline_is_a_power_and_contexts_only_add_to_it(intervals: list[dict[str, Any]], fraction: float) -> None:
    baseline = Baseline(fraction)
    for n, interval in enumerate(intervals, start=1):
        baseline.observe(**interval)
        now = baseline.estimate()
        assert 0.0 <= now.idle_power_w <= now.context_power_w < math.inf
        if now.context_power_origin is not Origin.OBSERVED:
            assert now.context_power_w <= lowest_credible_w(intervals[:n], resident=True)
        if now.idle_power_origin is not Origin.OBSERVED:
            assert now.idle_power_w <= max(lowest_credible_w(intervals[:n], resident=False), 0.0)


@given(st.lists(INTERVALS, max_size=40), st.lists(INTERVALS, max_size=20))
def test_a_restored_baseline_continues_like_the_original(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    baseline = Baseline()
    for interval in before:
        baseline.observe(**interval)
    copy = Baseline.from_state(json.loads(json.dumps(baseline.to_state(), allow_nan=False)))
    for interval in after:
        baseline.observe(**interval)
        copy.observe(**interval)
        assert copy.estimate() == baseline.estimate()
    assert copy.to_state() == baseline.to_state()


@given(st.lists(INTERVALS, max_size=300))
@settings(max_examples=20)
def test_a_baselines_state_is_bounded(intervals: list[dict[str, Any]]) -> None:
    baseline = Baseline()
    for _ in range(3):
        for interval in intervals:
            baseline.observe(**interval)
    state = baseline.to_state()
    assert len(state["idle_w"]) <= 60
    assert len(state["held_w"]) <= 60
    assert len(state["ranges"]) <= 15


@given(EVENTS, st.sets(KEYS))
def test_factors_stay_between_a_third_and_three(events: list[Any], asked: set[ProcessKey]) -> None:
    model = LearnedPower()
    for event in events:
        play(model, event)
        assert 0.0 <= model.gate <= 1.0
        factors = model.factors(asked)
        assert factors.keys() == asked
        assert all(MIN_FACTOR <= factor <= MAX_FACTOR for factor in factors.values())
        assert len(keys(model)) <= MAX_TRACKED


@given(EVENTS)
def test_forgetting_all_processes_leaves_none(events: list[Any]) -> None:
    model = LearnedPower()
    for event in events:
        play(model, event)
    model.forget(keys(model))
    state = model.to_state()
    assert keys(model) == set()
    assert (state["keys"], state["noise"], state["pending_work_s"]) == ([], [], [])


@given(st.lists(LESSONS, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_processes_within_an_interval_does_not_matter(lessons: list[dict[str, Any]], dice: Any) -> None:
    one, other = LearnedPower(), LearnedPower()
    for lesson in lessons:
        items = list(lesson["shares"].items())
        dice.shuffle(items)
        one.observe(**lesson)
        other.observe(**{**lesson, "shares": dict(items)})
    assert one.to_state() == other.to_state()
    assert one.factors(keys(one)) == other.factors(keys(other))


@given(EVENTS, EVENTS)
def test_a_restored_model_continues_like_the_original(before: list[Any], after: list[Any]) -> None:
    model = LearnedPower()
    for event in before:
        play(model, event)
    copy = LearnedPower.from_state(json.loads(json.dumps(model.to_state(), allow_nan=False)))
    assert copy.factors(keys(model)) == model.factors(keys(model))
    for event in after:
        play(model, event)
        play(copy, event)
        assert copy.factors(keys(model)) == model.factors(keys(model))
    assert copy.to_state() == model.to_state()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | ANYTHING | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(Baseline().to_state())), JSON, st.lists(INTERVALS, max_size=5))
def test_a_changed_baseline_state_is_refused_or_works(name: str, value: Any, intervals: list[dict[str, Any]]) -> None:
    try:
        baseline = Baseline.from_state({**Baseline().to_state(), name: value})
    except ValueError:
        return
    for interval in intervals:
        baseline.observe(**interval)
    now = baseline.estimate()
    assert 0.0 <= now.idle_power_w <= now.context_power_w < math.inf


@given(st.sampled_from(sorted(LearnedPower().to_state())), JSON, EVENTS)
def test_a_changed_learned_state_is_refused_or_works(name: str, value: Any, events: list[Any]) -> None:
    known = LearnedPower()
    for number in range(20):
        shares = {ProcessKey(1, 1): 0.1 * (number % 3), ProcessKey(2, 1): 0.1 * (number % 5)}
        known.observe(shares, power_w=150.0, power_limit_w=None, context_power_w=60.0, samples=36, dt_s=5.0)
    try:
        model = LearnedPower.from_state({**known.to_state(), name: value})
    except ValueError:
        return
    for event in events:
        play(model, event)
    assert all(MIN_FACTOR <= factor <= MAX_FACTOR for factor in model.factors(keys(model)).values())


# ---------------------------------------------------------------------------- dividing joules

ATS = st.builds(ProcessOnDevice, KEYS, st.just(DeviceKey("GPU-0", "")))
WHOLE_MS = st.integers(0, 400).map(lambda ms: 1000 * ms)
WORKLOADS = st.builds(WorkloadRef, st.just(WorkloadKind.CONTAINER), st.sampled_from(["web", "job", "etl"]))
CONSUMERS = st.builds(
    Consumer,
    at=ATS,
    workload=WORKLOADS,
    presence=st.sampled_from([0.0, 0.5, 1.0, 1.0]),
    memory_bytes=st.none() | st.integers(0, 80 << 30),
    sm_us=st.just(None) | WHOLE_MS | WHOLE_MS,
    hidden=st.sampled_from([False, False, False, True]),
)
SECONDS = st.builds(
    Interval,
    delta_mj=st.integers(0, 700_000),
    duration_s=st.just(1.0),
    consumers=st.lists(CONSUMERS, min_size=2, max_size=6, unique_by=lambda consumer: consumer.at).map(tuple),
    unidentified_sm_us=st.just(0) | WHOLE_MS,
    context_power_w=st.floats(0.0, 700.0),
)
# Equal ones are where rounding would err to the same side every time.
PIECES_MS = st.lists(st.integers(1, 10_000), min_size=1, max_size=30) | st.builds(
    lambda ms, count: [ms] * count, st.integers(1, 100), st.integers(30, 60)
)


def part_of(second: Interval, begin_ms: int, end_ms: int) -> Interval:
    """What happens from here to there if every second is like this one; the counter shows whole millijoules."""
    length_ms = end_ms - begin_ms
    return second._replace(
        delta_mj=second.delta_mj * end_ms // 1000 - second.delta_mj * begin_ms // 1000,
        duration_s=length_ms / 1000,
        consumers=tuple(
            each._replace(sm_us=None if each.sm_us is None else each.sm_us * length_ms // 1000)
            for each in second.consumers
        ),
        unidentified_sm_us=second.unidentified_sm_us * length_ms // 1000,
    )


@given(
    st.sampled_from(EnergyPolicy),
    SECONDS,
    st.dictionaries(ATS, st.floats(MIN_FACTOR, MAX_FACTOR)),
    PIECES_MS,
)
@settings(max_examples=40 * DEPTH)
def test_splitting_an_interval_moves_no_more_than_a_millijoule_per_split(
    policy: EnergyPolicy, second: Interval, factors: dict[ProcessOnDevice, float], pieces_ms: list[int]
) -> None:
    """Of constant residents, with a standing baseline and learned factors that do not change.

    Where the counter's whole millijoules do not fall below the baseline, residues keep it to two in all.
    """
    ends_ms = list(accumulate(pieces_ms))
    whole = EnergyDivider(policy).divide(part_of(second, 0, ends_ms[-1]), factors)
    divider = EnergyDivider(policy)
    split = [divider.divide(part_of(second, *ms), factors) for ms in pairwise([0, *ends_ms])]
    assert all(each.methods == whole.methods for each in split)
    moved = len(split) - 1
    if second.context_power_w * 1000 < second.delta_mj - 1000:
        moved = min(moved, 2)
    for at, mj in whole.parts_mj.items():
        assert abs(sum(each.parts_mj[at] for each in split) - mj) <= moved
    assert abs(sum(each.idle_mj for each in split) - whole.idle_mj) <= moved
    assert abs(sum(each.unattributed_mj for each in split) - whole.unattributed_mj) <= moved


@given(
    st.lists(st.tuples(ATS, WORKLOADS), min_size=2, max_size=12, unique_by=itemgetter(0)),
    st.lists(st.integers(1, 700_000), min_size=1, max_size=8),
)
@settings(max_examples=40 * DEPTH)
def test_without_work_energy_divides_equally_among_workloads_and_then_among_their_processes(
    there: list[tuple[ProcessOnDevice, WorkloadRef]], charges_mj: list[int]
) -> None:
    """The carried residues give the same parts as one apportionment of these claims."""
    consumers = tuple(Consumer(at, ref, 1.0, None, 0) for at, ref in sorted(there, key=itemgetter(0)))
    mates = Counter(consumer.workload.key for consumer in consumers)
    divider, owed = EnergyDivider(EnergyPolicy.RESIDENT), dict[int, int]()
    for delta_mj in charges_mj:
        claims = {n: delta_mj / len(mates) / mates[consumer.workload.key] for n, consumer in enumerate(consumers)}
        parts, owed = apportion(delta_mj, whole_weights(claims), owed)
        found = divider.divide(Interval(delta_mj, 1.0, consumers))
        assert found.parts_mj == {consumer.at: parts[n] for n, consumer in enumerate(consumers)}
        assert set(found.methods.values()) == {Method.ESTIMATED}
