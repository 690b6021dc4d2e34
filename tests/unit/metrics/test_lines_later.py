"""Lines of answers that only go on: made when somebody asks for them, and metrics do not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.collection import Family
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.layout import Layout
from otel_gpu.metrics.points import Reading, families
from otel_gpu.model import Attribution, LaterLines, Moved, ProcessAttribution, WorkloadAttribution
from tests.unit.attribution.played import Played
from tests.unit.attribution.test_stillness import nothing, settled
from tests.unit.metrics.builders import STATS

PRICED = AttributionOptions(prices=Prices("EUR", {"": 3600.0}))


class NeverMade:
    """Lines of which only what is new may be asked for."""

    def __init__(self, lines: LaterLines) -> None:
        self._lines = lines

    @property
    def moved_processes(self) -> Moved:
        return self._lines.moved_processes

    @property
    def moved_parts(self) -> Moved:
        return self._lines.moved_parts

    def processes(self) -> tuple[ProcessAttribution, ...]:
        raise AssertionError("processes were made")

    def workloads(self) -> tuple[WorkloadAttribution, ...]:
        raise AssertionError("workloads were made")


class Collected:
    """Collections one after the other."""

    def __init__(self) -> None:
        self._layout, self._columns = Layout(), Columns()

    def __call__(self, answer: Attribution) -> list[Family]:
        reading = Reading.of(answer, STATS, currency="EUR", layout=self._layout)
        return families(METRICS, reading, self._columns)


def told(found: list[Family] | tuple[Family, ...]) -> list[str]:
    return [repr((each.metric.name, each.points)) for each in found]


def later(answer: Attribution) -> LaterLines:
    assert answer.later is not None
    return answer.later


def test_metrics_of_still_cycles_are_told_without_making_anybodys_line() -> None:
    played, collected = settled(), Collected()
    collected(nothing(played))
    for _ in range(3):
        answer = nothing(played)
        expected = told(collect(Reading.of(replace(answer), STATS, currency="EUR")).families)
        bare = copy.copy(answer).with_later(NeverMade(later(answer)))
        assert told(collected(bare)) == expected
        with pytest.raises(AssertionError, match="processes were made"):
            _ = bare.processes


def test_costs_move_with_what_they_are_of() -> None:
    played, collected = Played(PRICED), Collected()
    for _ in range(6):
        nothing(played)
    amounts = []
    for _ in range(3):
        answer = nothing(played)
        found = {each.metric.name: each for each in collected(answer)}
        assert told(list(found.values())) == told(collect(Reading.of(answer, STATS, currency="EUR")).families)
        amounts.append(sum(found["gpu.workload.cost"].values))
    assert amounts[0] < amounts[1] < amounts[2]


def test_a_line_is_made_once_and_says_what_the_columns_say() -> None:
    answer = nothing(settled())
    assert answer.processes is answer.processes
    moved = later(answer).moved_processes
    assert [each.idle_s for each in answer.processes] == list(moved.idle_s)
    assert [each.energy for each in answer.processes] == list(moved.energy)
    totals = [each.totals for each in answer.processes if each.totals is not None]
    assert [each.energy.estimated_mj for each in totals] == list(moved.estimated_mj)
    assert [each.idle_us for each in totals] == list(moved.idle_us)
    parts = [part for workload in answer.workloads for part in workload.gpus]
    assert [part.totals and part.totals.billed_idle_us for part in parts] == list(
        later(answer).moved_parts.billed_idle_us
    )


def test_what_an_answer_says_does_not_change_with_the_next_one() -> None:
    played = settled()
    first, again = nothing(played), Collected()
    before = copy.copy(first)
    told_before = told(again(first))
    nothing(played)
    assert (before.processes, before.workloads) == (first.processes, first.workloads)
    assert told(Collected()(first)) == told_before


def test_who_is_made_from_such_an_answer_has_lines_of_its_own() -> None:
    answer = nothing(settled())
    fewer = replace(answer, processes=answer.processes[1:])
    assert fewer.later is None
    assert len(fewer.processes) == len(answer.processes) - 1
    assert fewer.workloads == answer.workloads
    assert fewer != answer
    assert replace(fewer, processes=answer.processes) == answer


def test_there_is_no_other_attribute() -> None:
    answer = nothing(settled())
    with pytest.raises(AttributeError, match="no attribute 'neighbours'"):
        getattr(answer, "neighbours")  # noqa: B009 - a name that the checker would refuse
