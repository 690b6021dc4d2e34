"""Inference of memory that no listed process explains: each rule on numbers that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from otel_gpu.attribution.hidden import Candidate, CandidateId, Evidence, HiddenMemory, HiddenSplit
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice, WorkloadOnDevice
from otel_gpu.model import ProcessKey

MIB = 1 << 20
GIB = 1 << 30
DEVICE = DeviceKey("GPU-0", "")
OLD_S = 10_000.0


def pid(number: int) -> ProcessOnDevice:
    return ProcessOnDevice(ProcessKey(number, 100), DEVICE)


def pod(name: str) -> WorkloadOnDevice:
    return WorkloadOnDevice("container", name, DEVICE)


def opened(number: int, age_s: float = OLD_S, mapping: float | None = None, workload: str | None = None) -> Candidate:
    """A process with the device open; ``mapping`` in GiB."""
    return Candidate(
        pid(number),
        Evidence.DEVICE_OPEN,
        age_s,
        None if mapping is None else int(mapping * GIB),
        None if workload is None else pod(workload),
    )


def unfigured(number: int, age_s: float = OLD_S) -> Candidate:
    """A process that the driver lists without a figure."""
    return Candidate(pid(number), Evidence.NO_FIGURE, age_s)


def granted(name: str, age_s: float = OLD_S) -> Candidate:
    """A workload that was granted the GPU and has no process on it."""
    return Candidate(pod(name), Evidence.GRANTED, age_s)


class Gpu:
    """Hidden memory that is observed every five seconds; amounts in GiB."""

    def __init__(self) -> None:
        self.memory = HiddenMemory()
        self.now_s = 1000.0

    def sees(self, unknown: float, *candidates: Candidate, after_s: float = 5.0, **visible: int) -> HiddenSplit:
        self.now_s += after_s
        unknown_bytes = round(unknown * GIB)
        split = self.memory.observe(unknown_bytes=unknown_bytes, candidates=candidates, now_s=self.now_s, **visible)
        assert sum(part.bytes for part in split.inferred.values()) + split.unattributed_bytes == unknown_bytes
        assert sum(part.bytes for part in split.workloads.values()) + split.unattributed_bytes == unknown_bytes
        return split


def gib(split: HiddenSplit, *ids: CandidateId) -> list[float]:
    return [round(split.inferred[id_].bytes / GIB, 4) for id_ in ids]


def confidence(split: HiddenSplit, *ids: CandidateId) -> list[float]:
    return [round(split.inferred[id_].confidence, 4) for id_ in ids]


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def three_and_one(gpu: Gpu) -> Gpu:
    """Process 1 holds 3 GiB and process 2 holds 1 GiB for certain, and have done so for long."""
    gpu.sees(0)
    gpu.sees(3, opened(1, 3.0))
    gpu.sees(3, opened(1, 203.0), after_s=200.0)
    gpu.sees(4, opened(1, 208.0), opened(2, 3.0))
    split = gpu.sees(4, opened(1), opened(2), after_s=200.0)
    assert gib(split, pid(1), pid(2)) == [3, 1]
    assert confidence(split, pid(1), pid(2)) == [1, 1]
    return gpu


class TestFirstSight:
    def test_memory_without_candidates_is_unattributed(self, gpu: Gpu) -> None:
        split = gpu.sees(5)
        assert split.inferred == {}
        assert split.unattributed_bytes == 5 * GIB

    @pytest.mark.parametrize("unknown_bytes", [0, 1, 7, 5 * GIB + 1, 2**63, 2**80])
    def test_a_single_process_with_the_device_open_holds_all_for_certain(self, unknown_bytes: int) -> None:
        split = HiddenMemory().observe(unknown_bytes=unknown_bytes, candidates=[opened(1)], now_s=0.0)
        assert split.inferred[pid(1)].bytes == unknown_bytes
        assert split.inferred[pid(1)].confidence == 1.0
        assert split.unattributed_bytes == 0

    @pytest.mark.parametrize("count", [2, 3, 8])
    def test_indistinguishable_candidates_share_equally_with_confidence_one_in_n(self, gpu: Gpu, count: int) -> None:
        split = gpu.sees(count * 2, *(opened(n) for n in range(count)))
        assert gib(split, *map(pid, range(count))) == [2.0] * count
        assert confidence(split, *map(pid, range(count))) == [round(1 / count, 4)] * count

    def test_remaining_bytes_go_to_the_smaller_ids(self) -> None:
        split = HiddenMemory().observe(unknown_bytes=8, candidates=[opened(3), opened(1), opened(2)], now_s=0.0)
        assert [split.inferred[pid(n)].bytes for n in (1, 2, 3)] == [3, 3, 2]

    def test_memory_is_divided_by_mapping_sizes_where_there_are_any(self, gpu: Gpu) -> None:
        split = gpu.sees(8, opened(1, mapping=1.5), opened(2, mapping=4.5))
        assert gib(split, pid(1), pid(2)) == [2, 6]
        # Variance: a quarter of 8² · ¼ · ¾.
        assert confidence(split, pid(1), pid(2)) == [round(4 / (4 + 3), 4), round(36 / (36 + 3), 4)]

    def test_a_mapping_that_cannot_be_read_counts_as_a_typical_one(self, gpu: Gpu) -> None:
        split = gpu.sees(9, opened(1, mapping=1), opened(2, mapping=3), opened(3))
        assert gib(split, pid(1), pid(2), pid(3)) == [1.5, 4.5, 3]

    def test_without_any_mapping_memory_is_shared_equally(self, gpu: Gpu) -> None:
        assert gib(gpu.sees(4, opened(1, mapping=0), opened(2)), pid(1), pid(2)) == [2, 2]

    def test_forked_workers_do_not_multiply_their_workloads_share(self, gpu: Gpu) -> None:
        split = gpu.sees(6, *(opened(n, workload="a") for n in (1, 2, 3)), opened(4, workload="b"))
        assert gib(split, *map(pid, (1, 2, 3, 4))) == [1, 1, 1, 3]
        assert split.workloads[pod("a")].bytes == split.workloads[pod("b")].bytes == 3 * GIB
        assert split.workloads[pod("a")].confidence == pytest.approx(0.5)

    def test_the_sum_of_a_workload_is_certain_even_if_its_processes_are_not(self, gpu: Gpu) -> None:
        split = gpu.sees(4, opened(1, workload="a"), opened(2, workload="a"))
        assert confidence(split, pid(1), pid(2)) == [0.5, 0.5]
        assert split.workloads[pod("a")].confidence == pytest.approx(1.0)

    def test_processes_seen_on_the_gpu_share_and_a_grant_alone_does_not(self, gpu: Gpu) -> None:
        split = gpu.sees(4, unfigured(1), opened(2), granted("a"))
        assert gib(split, pid(1), pid(2), pod("a")) == [2, 2, 0]
        assert confidence(split, pid(1), pid(2)) == [0.5, 0.5]

    def test_a_grant_alone_holds_what_no_other_candidate_can_with_half_the_confidence(self, gpu: Gpu) -> None:
        split = gpu.sees(4, granted("a"), granted("b"))
        assert gib(split, pod("a"), pod("b")) == [2, 2]
        assert confidence(split, pod("a"), pod("b")) == [0.25, 0.25]
        assert confidence(Gpu().sees(4, granted("a")), pod("a")) == [0.5]


class TestLateEvidence:
    """Sources become ready one after the other, so evidence can come after the bytes it explains."""

    def test_a_grant_older_than_unexplained_bytes_may_hold_them(self, gpu: Gpu) -> None:
        gpu.sees(4)
        split = gpu.sees(4, granted("a", age_s=3600.0), after_s=600.0)
        assert gib(split, pod("a")) == [4]
        assert confidence(split, pod("a")) == [0.5]

    def test_bytes_older_than_a_candidate_are_not_its_bytes(self, gpu: Gpu) -> None:
        gpu.sees(4)
        split = gpu.sees(4, granted("a", age_s=3.0), opened(1, age_s=3.0))
        assert gib(split, pod("a"), pid(1)) == [0, 0]

    def test_a_process_seen_late_may_hold_unexplained_bytes_only_while_sources_become_ready(self) -> None:
        early, late = Gpu(), Gpu()
        early.sees(4)
        late.sees(4)
        assert gib(early.sees(4, opened(1), after_s=10.0), pid(1)) == [4]
        assert gib(late.sees(4, opened(1), after_s=100.0), pid(1)) == [0]

    def test_the_grant_of_a_workload_whose_process_has_departed_claims_nothing(self, gpu: Gpu) -> None:
        gpu.sees(4)
        gpu.sees(6, opened(1, 3.0, workload="a"))
        split = gpu.sees(4, granted("a"))
        assert gib(split, pod("a")) == [0]
        assert split.unattributed_bytes == 4 * GIB

    def test_processes_that_appear_take_over_from_their_grant(self, gpu: Gpu) -> None:
        gpu.sees(8, granted("a"), granted("b"))
        split = gpu.sees(8, opened(1, workload="a"), opened(2, workload="a"), granted("b"))
        assert gib(split, pid(1), pid(2), pod("b")) == [2, 2, 4]
        assert split.workloads[pod("a")].confidence == pytest.approx(0.5), "as uncertain as at the first look"


class TestMappings:
    def test_growth_goes_to_the_mapping_that_grew(self, gpu: Gpu) -> None:
        gpu.sees(4, opened(1, mapping=2), opened(2, mapping=2))
        split = gpu.sees(5, opened(1, mapping=2), opened(2, mapping=3.2))
        assert gib(split, pid(1), pid(2)) == [2, 3]

    @pytest.mark.parametrize(("grown", "expected"), [(0.26, [2, 3]), (0.24, [2.5, 2.5])])
    def test_a_mapping_explains_growth_if_it_covers_a_quarter_of_it(
        self, gpu: Gpu, grown: float, expected: list[float]
    ) -> None:
        gpu.sees(4, opened(1, mapping=2), opened(2, mapping=2))
        split = gpu.sees(5, opened(1, mapping=2), opened(2, mapping=2 + grown))
        assert gib(split, pid(1), pid(2)) == expected

    def test_a_fall_goes_to_the_mapping_that_shrank(self, gpu: Gpu) -> None:
        gpu.sees(4, opened(1, mapping=2), opened(2, mapping=2))
        assert gib(gpu.sees(3, opened(1, mapping=0.8), opened(2, mapping=2)), pid(1), pid(2)) == [1, 2]

    def test_a_candidate_that_freed_while_another_grew_is_found(self, gpu: Gpu) -> None:
        gpu.sees(8, opened(1, mapping=4), opened(2, mapping=4))
        split = gpu.sees(7, opened(1, mapping=2), opened(2, mapping=5))
        assert gib(split, pid(1), pid(2)) == [2, 5]

    def test_mappings_that_cancel_out_move_memory_at_a_constant_total(self, gpu: Gpu) -> None:
        gpu.sees(8, opened(1, mapping=4), opened(2, mapping=4))
        split = gpu.sees(8, opened(1, mapping=3), opened(2, mapping=5))
        assert gib(split, pid(1), pid(2)) == [3.15, 4.85]

    def test_the_resident_part_of_a_mapping_is_learned_when_it_changes_alone(self, gpu: Gpu) -> None:
        gpu.sees(0, opened(1, mapping=0), opened(2, mapping=0))
        gpu.sees(1, opened(1, mapping=2), opened(2, mapping=0))
        split = gpu.sees(3, opened(1, mapping=4), opened(2, mapping=1))
        assert gib(split, pid(1), pid(2)) == [2, 1]
        assert confidence(split, pid(1), pid(2)) == [1, 1]

    def test_the_mapping_of_an_arrival_counts_as_growth(self, gpu: Gpu) -> None:
        gpu.sees(2, opened(1, mapping=2))
        split = gpu.sees(4, opened(1, mapping=3.2), opened(2, 3.0, mapping=1.2))
        assert gib(split, pid(1), pid(2)) == [3, 1]

    def test_a_mapping_that_became_readable_has_not_grown(self, gpu: Gpu) -> None:
        gpu.sees(4, opened(1), opened(2))
        assert gib(gpu.sees(6, opened(1, mapping=5), opened(2)), pid(1), pid(2)) == [3, 3]


class TestGrowth:
    def test_growth_goes_to_an_arrival(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 2.0))
        assert gib(split, pid(1), pid(2), pid(3)) == [3, 1, 2]
        assert confidence(split, pid(1), pid(2), pid(3)) == [1, 1, 1]

    def test_candidates_that_arrived_together_share_growth(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 2.0), opened(4, 2.0))
        assert gib(split, *map(pid, (1, 2, 3, 4))) == [3, 1, 1, 1]
        # h² / (h² + 2² · ½ · ½)
        assert confidence(split, pid(1), pid(3), pid(4)) == [1, 0.5, 0.5]

    def test_an_arrival_of_the_previous_cycle_gets_growth(self, three_and_one: Gpu) -> None:
        three_and_one.sees(4, opened(1), opened(2), opened(3, 2.0))
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 7.0))
        assert gib(split, pid(1), pid(2), pid(3)) == [3, 1, 2]

    def test_a_process_of_a_moment_ago_has_not_allocated_yet(self, three_and_one: Gpu) -> None:
        three_and_one.sees(4, opened(1), opened(2), opened(3, 0.5))
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 5.5), opened(4, 0.01))
        assert gib(split, pid(3), pid(4)) == [2, 0]
        assert gib(three_and_one.sees(7, opened(1), opened(2), opened(3), opened(4, 5.0)), pid(3), pid(4)) == [2, 1]

    def test_without_clear_odds_growth_is_shared(self, three_and_one: Gpu) -> None:
        three_and_one.sees(4, opened(1), opened(2), opened(3, 5.0))
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 10.0), opened(4, 3.5))
        waited, new = (1 - math.exp(-5 / 4)) * math.exp(-5 / 20), 1 - math.exp(-3.5 / 4)
        assert gib(split, pid(3)) == [round(2 * waited / (waited + new), 4)]
        assert split.inferred[pid(3)].confidence < 0.6

    def test_of_several_arrivals_those_seen_on_the_gpu_get_growth(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 2.0), unfigured(4, 2.0), granted("a", 2.0))
        assert gib(split, pid(3), pid(4), pod("a")) == [1, 1, 0]

    def test_a_new_grant_is_an_arrival_and_an_old_one_is_not(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(6, opened(1), opened(2), granted("new", 2.0), granted("old", 3600.0))
        assert gib(split, pod("new"), pod("old")) == [2, 0]
        assert confidence(split, pod("new")) == [0.5]

    def test_a_candidate_that_started_to_grow_continues(self, three_and_one: Gpu) -> None:
        three_and_one.sees(5, opened(1), opened(2), opened(3, 2.0))
        split = three_and_one.sees(8, opened(1), opened(2), opened(3, 7.0))
        assert gib(split, pid(1), pid(2), pid(3)) == [3, 1, 4]

    def test_steady_growth_continues_and_an_arrival_gets_the_rest(self, gpu: Gpu) -> None:
        gpu.sees(0)
        for poll in range(4):
            gpu.sees(poll + 0.5, opened(1, 5.0 * poll + 2))
        split = gpu.sees(5, opened(1, 22.0), opened(2, 2.0))
        assert gib(split, pid(1), pid(2)) == [4.5, 0.5]
        split = gpu.sees(6.75, opened(1, 27.0), opened(2, 7.0))
        assert gib(split, pid(1), pid(2)) == [5.5, 1.25]

    def test_candidates_that_grow_together_slow_down_together(self, gpu: Gpu) -> None:
        gpu.sees(0)
        for poll in range(4):
            gpu.sees(poll + 0.5, opened(1, 5.0 * poll + 2))
        gpu.sees(5, opened(1, 22.0), opened(2, 2.0))
        gpu.sees(6.5, opened(1, 27.0), opened(2, 7.0))
        gpu.sees(7.25, opened(1, 32.0), opened(2, 12.0))
        split = gpu.sees(8.0, opened(1, 37.0), opened(2, 17.0))
        assert gib(split, pid(1), pid(2)) == [6.5, 1.5]

    def test_a_pace_ends_with_a_quiet_poll(self, gpu: Gpu) -> None:
        gpu.sees(0)
        for poll in range(4):
            gpu.sees(poll + 0.5, opened(1, 5.0 * poll + 2))
        gpu.sees(3.5, opened(1, 22.0))
        split = gpu.sees(5.5, opened(1, 27.0), opened(2, 2.0))
        assert gib(split, pid(1), pid(2)) == [3.5, 2]

    @pytest.mark.parametrize(("ages_s", "expected"), [((30.0, 170.0), [2, 1]), ((30.0, 45.0), [1.561, 1.439])])
    def test_a_large_rise_without_reason_goes_to_the_youngest(
        self, gpu: Gpu, ages_s: tuple[float, float], expected: list[float]
    ) -> None:
        gpu.sees(2, *(opened(n, age_s) for n, age_s in enumerate(ages_s)))
        split = gpu.sees(3, *(opened(n, age_s) for n, age_s in enumerate(ages_s)))
        assert gib(split, pid(0), pid(1)) == pytest.approx(expected, abs=0.001)

    def test_a_small_rise_without_reason_goes_to_all_by_what_they_hold(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(4.1, opened(1), opened(2))
        assert gib(split, pid(1), pid(2)) == [round(3 + 0.1 * 3.2 / 4.4, 4), round(1 + 0.1 * 1.2 / 4.4, 4)]

    def test_without_reason_weaker_evidence_gets_nothing(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(5, opened(1), opened(2), granted("old", 3600.0))
        assert gib(split, pod("old")) == [0]

    def test_memory_allocated_long_after_the_only_candidate_arrived_is_its_memory(self, gpu: Gpu) -> None:
        gpu.sees(0, opened(1))
        split = gpu.sees(3, opened(1), after_s=3600.0)
        assert gib(split, pid(1)) == [3]
        assert confidence(split, pid(1)) == [1]


class TestContextsOfMeasuredProcesses:
    def test_a_small_rise_with_a_visible_arrival_is_its_context(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(4.5, opened(1), opened(2), visible_arrivals=1)
        assert gib(split, pid(1), pid(2)) == [3, 1]
        assert split.unattributed_bytes == GIB // 2
        assert confidence(split, pid(1), pid(2)) == [1, 1]

    def test_a_large_rise_with_a_visible_arrival_is_not_its_context(self, three_and_one: Gpu) -> None:
        assert three_and_one.sees(5, opened(1), opened(2), visible_arrivals=1).unattributed_bytes == 0

    def test_a_hidden_arrival_in_the_same_cycle_comes_first(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(4.5, opened(1), opened(2), opened(3, 2.0), visible_arrivals=1)
        assert gib(split, pid(3)) == [0.5]

    def test_a_context_ends_with_its_process(self, three_and_one: Gpu) -> None:
        three_and_one.sees(4.5, opened(1), opened(2), visible_arrivals=1)
        split = three_and_one.sees(4, opened(1), opened(2), visible_departures=1)
        assert gib(split, pid(1), pid(2)) == [3, 1]
        assert split.unattributed_bytes == 0

    def test_a_late_grant_does_not_claim_contexts(self, gpu: Gpu) -> None:
        gpu.sees(0)
        gpu.sees(0.5, visible_arrivals=1)
        split = gpu.sees(0.5, granted("a"))
        assert gib(split, pod("a")) == [0]


class TestFallsAndDepartures:
    def test_a_fall_is_taken_from_all_by_what_they_hold(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(2, opened(1), opened(2))
        assert gib(split, pid(1), pid(2)) == [1.5, 0.5]
        assert 0.5 < split.inferred[pid(1)].confidence < 1.0

    def test_a_fall_is_taken_from_unexplained_bytes_too(self, gpu: Gpu) -> None:
        gpu.sees(2)
        gpu.sees(4, opened(1, 3.0), after_s=100.0)
        split = gpu.sees(2, opened(1, 8.0))
        assert gib(split, pid(1)) == [1]
        assert split.unattributed_bytes == GIB

    def test_a_departing_candidate_takes_its_part(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(1, opened(2))
        assert gib(split, pid(2)) == [1]
        assert confidence(split, pid(2)) == [1]

    def test_a_departure_corrects_the_others(self, gpu: Gpu) -> None:
        gpu.sees(9, opened(1), opened(2), opened(3))
        # Estimated at 3, it took 2: C is 18 on the diagonal and -9 elsewhere, so C·1 = (9, 9).
        split = gpu.sees(7, opened(2), opened(3))
        assert gib(split, pid(2), pid(3)) == [3.5, 3.5]
        assert confidence(split, pid(2), pid(3)) == [0.5, 0.5]

    def test_only_candidates_that_could_have_held_it_are_corrected(self, gpu: Gpu) -> None:
        gpu.sees(8, opened(1), opened(2))
        gpu.sees(10, opened(1), opened(2), opened(3, 2.0))
        split = gpu.sees(5, opened(2), opened(3))
        assert gib(split, pid(2), pid(3)) == [3, 2]
        assert confidence(split, pid(2), pid(3)) == [1, 1], "one of the two uncertain ones is left"

    def test_with_a_departure_an_arrival_gets_the_rise_if_the_rest_is_certain(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(3, opened(2), opened(3, 3.0))
        assert gib(split, pid(2), pid(3)) == [1, 2]

    def test_with_an_uncertain_departure_an_arrival_shares_the_rise(self, gpu: Gpu) -> None:
        gpu.sees(8, opened(1), opened(2))
        # 3 more than estimated; the variance of the other is 4², so 16 / (16 + 9) of it is a correction.
        split = gpu.sees(7, opened(2), opened(3, 3.0))
        assert gib(split, pid(2), pid(3)) == [5.92, 1.08]

    def test_when_all_have_departed_the_rest_is_unattributed(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(2)
        assert split.inferred == {}
        assert split.unattributed_bytes == 2 * GIB
        assert gib(three_and_one.sees(2, opened(9, 3.0)), pid(9)) == [0], "an arrival does not explain older bytes"

    def test_a_reused_pid_starts_with_nothing(self, three_and_one: Gpu) -> None:
        reused = ProcessOnDevice(ProcessKey(1, 999), DEVICE)
        split = three_and_one.sees(1, Candidate(reused, Evidence.DEVICE_OPEN, 2.0), opened(2))
        assert gib(split, reused, pid(2)) == [0, 1]


class TestDeadBand:
    def test_a_small_rise_is_shared_by_what_is_held_and_booked_when_there_is_more(self, three_and_one: Gpu) -> None:
        small = 20 * MIB / GIB
        split = three_and_one.sees(4 + small, opened(1), opened(2), opened(3, 2.0))
        assert gib(split, pid(1), pid(2), pid(3)) == [round(3 + 0.75 * small, 4), round(1 + 0.25 * small, 4), 0]
        split = three_and_one.sees(4 + 2 * small, opened(1), opened(2), opened(3, 7.0))
        assert gib(split, pid(1), pid(2), pid(3)) == [3, 1, round(2 * small, 4)]

    def test_a_small_fall_is_not_booked(self, three_and_one: Gpu) -> None:
        split = three_and_one.sees(4 - 20 * MIB / GIB, opened(1), opened(2))
        assert split.unattributed_bytes == 0
        assert gib(three_and_one.sees(4, opened(1), opened(2)), pid(1), pid(2)) == [3, 1]

    def test_a_small_rise_where_nothing_is_held_is_unattributed(self, gpu: Gpu) -> None:
        gpu.sees(0, opened(1))
        assert gpu.sees(20 * MIB / GIB, opened(1)).unattributed_bytes == 20 * MIB


class TestBadInput:
    def test_a_candidate_given_twice_counts_once_by_its_strongest_evidence(self, gpu: Gpu) -> None:
        weak = Candidate(pid(1), Evidence.GRANTED, 5.0)
        for order in ([weak, opened(1), opened(2)], [opened(2), opened(1), weak]):
            split = Gpu().sees(4, *order)
            assert gib(split, pid(1), pid(2)) == [2, 2]
            assert confidence(split, pid(1), pid(2)) == [0.5, 0.5]

    @pytest.mark.parametrize("age_s", [math.nan, math.inf, -math.inf, -5.0])
    @pytest.mark.parametrize("mapping_bytes", [-1, 2**200])
    def test_implausible_figures_are_limited(self, gpu: Gpu, age_s: float, mapping_bytes: int) -> None:
        implausible = Candidate(pid(1), Evidence.DEVICE_OPEN, age_s, mapping_bytes)
        for unknown in (1.0, 4.0, 0.0, 3.0):
            split = gpu.sees(unknown, implausible, opened(2))
            assert all(0 <= part.confidence <= 1 for part in split.inferred.values())

    def test_negative_unknown_bytes_count_as_zero(self) -> None:
        split = HiddenMemory().observe(unknown_bytes=-5, candidates=[opened(1)], now_s=0.0)
        assert split.inferred[pid(1)].bytes == split.unattributed_bytes == 0

    @pytest.mark.parametrize("after_s", [0.0, -3600.0, math.nan, 1e12])
    def test_clock_steps_do_no_harm(self, three_and_one: Gpu, after_s: float) -> None:
        split = three_and_one.sees(6, opened(1), opened(2), opened(3, 2.0), after_s=after_s)
        assert gib(split, pid(1), pid(2), pid(3)) == [3, 1, 2]


class TestRestart:
    def test_a_difference_over_the_gap_is_a_change(self, three_and_one: Gpu) -> None:
        memory = HiddenMemory.from_state(three_and_one.memory.to_state())
        split = memory.observe(
            unknown_bytes=6 * GIB, candidates=[opened(2), opened(7, 100.0)], now_s=three_and_one.now_s + 3600
        )
        assert gib(split, pid(2), pid(7)) == [1, 5]

    def test_departed_candidates_are_forgotten(self, three_and_one: Gpu) -> None:
        for number in range(10, 60):
            three_and_one.sees(4, opened(number, 1.0), opened(number + 1, 1.0))
        state = three_and_one.memory.to_state()
        assert [account["id"][0] for account in state["accounts"]] == [59, 60]
        assert len(state["covariance"]) <= 4

    def test_growth_without_a_candidate_is_saved(self) -> None:
        gpu = Gpu()
        gpu.sees(1)
        gpu.sees(3)
        state = gpu.memory.to_state()
        assert state["drift"] > 0
        assert HiddenMemory.from_state(state).to_state() == state

    @pytest.mark.parametrize("places", [(0, 9), (-1, 0)])
    def test_a_covariance_of_an_account_that_is_absent_is_refused(self, three_and_one: Gpu, places: list[int]) -> None:
        state = three_and_one.memory.to_state() | {"covariance": [[*places, 1.0]]}
        with pytest.raises(ValueError, match="hidden memory"):
            HiddenMemory.from_state(state)

    @pytest.mark.parametrize("accounts", [(0, 0), (1, 0)])
    def test_repeated_or_unsorted_accounts_are_refused(self, three_and_one: Gpu, accounts: Iterable[int]) -> None:
        state = three_and_one.memory.to_state()
        state["accounts"] = [state["accounts"][place] for place in accounts]
        with pytest.raises(ValueError, match="repeated or not sorted"):
            HiddenMemory.from_state(state)
