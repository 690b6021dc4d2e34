"""The ring of samples and the rows computed from it."""

from __future__ import annotations

from otel_gpu.model import UtilizationRow
from otel_gpu.sources.sim.ring import Engines, Sample, SampleRing


def sample(taken_us: int, pid: int, sm: int, memory: int = 0) -> Sample:
    engines = Engines(sm, memory, 0, 0)
    return Sample(taken_us, engines, ((pid, engines),) if pid else ())


def ring(*samples: Sample, size: int = 72) -> SampleRing:
    made = SampleRing(size)
    for one in samples:
        made.add(one)
    return made


def test_a_row_is_the_pids_sum_over_all_samples_of_the_window() -> None:
    """By hand: of four samples after 100, pid 7 has 90 + 80, pid 8 has 70, and the fourth has no credits."""
    samples = ring(
        sample(100, 7, 100, 50),
        sample(200, 7, 90, 41),
        sample(300, 8, 70, 30),
        sample(400, 7, 80, 40),
        sample(500, 0, 0),
    )
    assert samples.rows(100) == (
        UtilizationRow(7, 400, 170 // 4, 81 // 4, 0, 0),
        UtilizationRow(8, 300, 70 // 4, 30 // 4, 0, 0),
    )
    assert (170 // 4, 70 // 4) == (42, 17)


def test_the_window_excludes_its_start() -> None:
    samples = ring(sample(100, 7, 50), sample(200, 7, 30))
    assert [row.sm_percent for row in samples.rows(99)] == [40]
    assert [row.sm_percent for row in samples.rows(100)] == [30]
    assert samples.rows(200) == ()


def test_a_window_without_work_has_no_rows() -> None:
    assert ring(sample(100, 0, 0), sample(200, 0, 0)).rows(0) == ()


def test_only_the_latest_samples_are_kept() -> None:
    samples = ring(*(sample(100 * k, k, 100) for k in range(1, 11)), size=4)
    assert [row.pid for row in samples.rows(0)] == [7, 8, 9, 10]
    assert {row.sm_percent for row in samples.rows(0)} == {25}


def test_engines_of_a_sample_may_be_credited_to_different_pids() -> None:
    both = Sample(100, Engines(60, 20, 30, 0), ((7, Engines(60, 20, 0, 0)), (8, Engines(0, 0, 30, 0))))
    assert ring(both).rows(0) == (UtilizationRow(7, 100, 60, 20, 0, 0), UtilizationRow(8, 100, 0, 0, 30, 0))


def test_the_mean_includes_work_without_credits() -> None:
    samples = ring(Sample(100, Engines(60, 20, 0, 10), ()), sample(200, 7, 20))
    assert samples.mean(0) == (40, 10, 0, 5)
    assert samples.mean(200) == (0, 0, 0, 0)
