from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from otel_gpu.metrics.selfstats import SelfAccount
from otel_gpu.model import Report, SourceOutcome, SourceState
from tests.unit.metrics.builders import STARTED_NS, answer


def account() -> SelfAccount:
    return SelfAccount(started_ns=STARTED_NS, cpu_s=lambda: 1.5, memory_bytes=lambda: None)


def cycle(at_ns: int, **errors: int) -> Report:
    sources = [SourceOutcome(name, SourceState.OK, errors=count) for name, count in errors.items()]
    return answer(sources=sources, at_ns=at_ns)


def test_errors_of_cycles_add_up_by_source_from_0() -> None:
    own = account()
    own.observe(cycle(1, nvml=0, procfs=2))
    assert own.stats().source_errors == {"nvml": 0, "procfs": 2}
    own.observe(cycle(2, nvml=1, procfs=3))
    assert own.stats().source_errors == {"nvml": 1, "procfs": 5}


def test_a_cycle_shown_twice_or_late_counts_once() -> None:
    own = account()
    for at_ns in (5, 5, 4, 5):
        own.observe(cycle(at_ns, nvml=1))
    assert own.stats().source_errors == {"nvml": 1}


class SlowSources(tuple[SourceOutcome, ...]):  # noqa: SLOT001 - a tuple's subclass has no slots for a thread
    """Sources during whose reading another thread does ``work``, if it can."""

    work: threading.Thread

    def __iter__(self) -> Iterator[SourceOutcome]:
        self.work.start()
        self.work.join(0.2)
        return super().__iter__()


def test_cycles_that_two_threads_observe_at_the_same_time_both_count() -> None:
    own = account()
    sources = SlowSources(cycle(1, nvml=1).sources)
    sources.work = threading.Thread(target=own.observe, args=[cycle(2, nvml=1)])
    own.observe(replace(cycle(1), sources=sources))
    sources.work.join()
    assert own.stats().source_errors == {"nvml": 2}


def test_a_source_that_is_gone_keeps_its_count() -> None:
    own = account()
    own.observe(cycle(1, nvml=1, names=1))
    own.observe(cycle(2, nvml=1))
    assert own.stats().source_errors == {"nvml": 2, "names": 1}


def test_figures_are_read_on_demand_and_a_snapshot_of_them_does_not_change() -> None:
    spent = [1.0]
    own = SelfAccount(started_ns=STARTED_NS, cpu_s=lambda: spent[0], memory_bytes=lambda: 7)
    own.observe(cycle(1, nvml=1))
    before = own.stats()
    spent[0] = 2.0
    own.observe(cycle(2, nvml=1))
    after = own.stats()
    assert (before.cpu_s, before.source_errors) == (1.0, {"nvml": 1})
    assert (after.cpu_s, after.source_errors) == (2.0, {"nvml": 2})
    assert (after.started_ns, after.memory_bytes) == (STARTED_NS, 7)
