"""The checks of a soak detect violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.attributor import Attributor
from otel_gpu.clock import ManualClock
from otel_gpu.model import UNIDENTIFIED_WORKLOAD, Report
from tests.builders import snapshot
from tests.soak import CYCLE_S
from tests.soak_host import SoakGpus, SoakHost, SoakNames, SoakProcesses
from tests.soak_judge import Audit, Footprint, not_flat

HOURS = 7 * 24
CYCLES_AN_HOUR = 3600 / CYCLE_S
IDLE = Footprint(blocks=250_000, rss_bytes=60 << 20, threads=5, descriptors=16)


def week(**per_hour: float) -> list[Footprint]:
    """A week of footprints that grow by so much an hour, and vary as workloads come and go."""
    hours = []
    for hour in range(HOURS):
        varied = replace(IDLE, blocks=IDLE.blocks + (hour * 7919 % 11 - 5) * 2_000)
        grown = {name: round(getattr(varied, name) + hour * growth) for name, growth in per_hour.items()}
        hours.append(replace(varied, **grown))
    return hours


def test_figures_that_vary_without_growth_are_flat() -> None:
    assert not_flat(week()) == []


def test_a_warm_up_is_no_leak() -> None:
    early = [replace(IDLE, blocks=100_000, rss_bytes=30 << 20, threads=2, descriptors=8)] * (HOURS // 4)
    assert not_flat(early + week()[HOURS // 4 :]) == []


def test_one_small_object_kept_per_cycle_is_found_in_a_week() -> None:
    (found,) = not_flat(week(blocks=2 * CYCLES_AN_HOUR))  # a dict and its table
    assert found.startswith("blocks grow: ")


@pytest.mark.parametrize(("name", "per_hour"), [("rss_bytes", 128 << 10), ("threads", 0.05), ("descriptors", 0.05)])
def test_memory_outside_python_threads_and_descriptors_that_grow_are_found(name: str, per_hour: float) -> None:
    (found,) = not_flat(week(**{name: per_hour}))
    assert found.startswith(f"{name} grow: ")


def test_a_soak_that_is_too_short_does_not_pass() -> None:
    assert not_flat([IDLE]) != []


# ---------------------------------------------------------------------------- counters


def played(cycles: int = 4) -> tuple[list[Report], list[dict[str, int]]]:
    """Some cycles of the soak's host, each with the expected energy of its GPUs."""
    host = SoakHost(1, ManualClock())
    engine = Engine(gpus=SoakGpus(host), processes=SoakProcesses(host), names=[SoakNames(host)], clock=host.clock)
    answers, expected = [], []
    for _ in range(cycles):
        host.clock.advance(CYCLE_S)
        answers.append(engine.sample())
        expected.append(dict(host.expected_mj))
    return answers, expected


def judged(answers: Sequence[Report], expected: Sequence[Mapping[str, int]]) -> list[str]:
    audit = Audit()
    for answer, expected_mj in zip(answers, expected, strict=True):
        audit.check(answer, expected_mj)
    return audit.wrong


def test_a_missing_millijoule_is_found() -> None:
    answers, expected = played()
    assert judged(answers, expected) == []
    uuid = answers[-1].gpus[0].identity.uuid
    expected[-1][uuid] += 1
    assert judged(answers, expected) == [f"cycle 4: {uuid}: 1 mJ are missing since the start"]


def test_energy_of_a_departed_workload_still_counts() -> None:
    answers, expected = played()
    answers[-1] = replace(answers[-1], workloads=answers[-1].workloads[1:])
    (lost,) = {part.gpu_uuid for part in answers[-2].workloads[0].gpus}
    wrong = judged(answers, expected)
    assert len(wrong) == 1  # only its energy of the last cycle is missing
    assert lost in wrong[0]


def test_a_cycle_without_a_driver_has_no_counters_and_loses_none() -> None:
    answers, expected = played()
    nothing = Attributor().observe(snapshot())
    assert nothing.gpus == ()
    assert judged([*answers[:2], nothing, *answers[2:]], [*expected[:2], expected[1], *expected[2:]]) == []


def test_counters_of_a_ledger_that_is_not_resumed_yet_are_found() -> None:
    answers, expected = played()
    audit = Audit()
    audit.check(replace(answers[0], gpus=tuple(gpu._replace(totals=None) for gpu in answers[0].gpus)), expected[0])
    audit.check_scrape("up 1\n")
    assert audit.wrong == []
    audit.check_scrape("x_total 0\n")
    assert audit.wrong == ["cycle 1: a scrape has counters of a ledger that is not resumed yet"]


def test_a_ledger_that_starts_again_is_found() -> None:
    answers, expected = played()
    answers[-1] = replace(answers[-1], epoch_ns=answers[-1].epoch_ns + 1)
    assert judged(answers, expected)[0] == "cycle 4: the ledger started again"


def test_a_counter_that_falls_is_found() -> None:
    answers, expected = played()
    assert any("fell from" in wrong for wrong in judged([answers[3], answers[2]], [expected[3], expected[2]]))


def test_a_counter_that_falls_from_one_scrape_to_the_next_is_found_and_the_agents_own_may() -> None:
    audit = Audit()
    for value in (3, 4, 4, 2):
        own = f"otel_gpu_cpu_time_seconds_total {9 - value}"
        audit.check_scrape(f'# TYPE x counter\nx_total{{a="b c"}} {value}\n{own}\n')
    assert audit.wrong == ['cycle 0: fell from 4.0 to 2.0: x_total{a="b c"}']
    audit.check_scrape("up 1\n")
    assert audit.wrong[-1].endswith("a scrape has no counters")


def test_a_series_that_ended_and_started_again_is_counted_and_has_fallen() -> None:
    answers, expected = played()
    audit = Audit()
    audit.check(answers[0], expected[0])
    audit.check_scrape("x_total 9\n")
    restarted = answers[1].workloads[0]
    totals = restarted.gpus[0].totals
    assert totals is not None
    again = restarted._replace(gpus=(restarted.gpus[0]._replace(totals=totals._replace(since_ns=totals.since_ns + 1)),))
    audit.check(replace(answers[1], workloads=(again, *answers[1].workloads[1:])), {})
    audit.check_scrape("x_total 1\n")
    assert (audit.restarted_series, audit.wrong) == (1, ["cycle 2: fell from 9.0 to 1.0: x_total"])


def test_a_series_of_unidentified_processes_may_start_again() -> None:
    answers, _ = played()
    audit = Audit()
    unidentified = [
        workload._replace(
            ref=UNIDENTIFIED_WORKLOAD,
            gpus=tuple(
                part._replace(totals=part.totals._replace(since_ns=start)) for part in workload.gpus if part.totals
            ),
        )
        for start, workload in ((5, answers[0].workloads[0]), (6, answers[1].workloads[0]))
    ]
    audit.check(replace(answers[0], workloads=(unidentified[0],)), {})
    audit.check_scrape('x_total 9\ny_total{id="unidentified"} 9\n')
    audit.check(replace(answers[1], workloads=(unidentified[1],)), {})
    audit.check_scrape('x_total 9\ny_total{id="unidentified"} 1\n')
    assert (audit.restarted_series, audit.wrong) == (0, [])
