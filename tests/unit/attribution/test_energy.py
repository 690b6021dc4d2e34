"""The division of an interval's energy."""

from __future__ import annotations

import pytest

from otel_gpu.attribution.energy import Consumer, EnergyDivider, Interval, Method
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.options import EnergyPolicy
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef

GPU = DeviceKey("GPU-0", "")
A, B, C = (ProcessOnDevice(ProcessKey(pid, 1), GPU) for pid in (1, 2, 3))


def consumer(
    at: ProcessOnDevice,
    *,
    workload: str | None = None,
    sm_us: int | None = 0,
    memory_bytes: int | None = 0,
    presence: float = 1.0,
    hidden: bool = False,
    sm_count: int | None = None,
) -> Consumer:
    ref = WorkloadRef(WorkloadKind.CONTAINER, workload or f"c{at.process.pid}")
    return Consumer(at, ref, presence, memory_bytes, sm_us, hidden=hidden, sm_count=sm_count)


def interval(*consumers: Consumer, delta_mj: int = 700_000, context_power_w: float = 0.0, **more: object) -> Interval:
    return Interval(delta_mj, 10.0, consumers, context_power_w=context_power_w, **more)  # type: ignore[arg-type]


def divide(what: Interval, policy: EnergyPolicy = EnergyPolicy.RESIDENT, **factors: float) -> dict[str, object]:
    weights = {at: factors[name] for name, at in (("a", A), ("b", B), ("c", C)) if name in factors}
    division = EnergyDivider(policy).divide(what, weights)
    assert sum(division.parts_mj.values()) + division.idle_mj + division.unattributed_mj == what.delta_mj
    return {
        **{"abc"[at.process.pid - 1]: (mj, division.methods[at].value) for at, mj in division.parts_mj.items()},
        "idle": division.idle_mj,
        "unattributed": division.unattributed_mj,
    }


def test_one_process_alone_gets_all_energy_as_measured() -> None:
    found = divide(interval(consumer(A, sm_us=5), is_exclusive=True, context_power_w=50))
    assert found == {"a": (700_000, "measured"), "idle": 0, "unattributed": 0}


def test_one_process_alone_gets_all_energy_as_measured_whether_it_works_or_not() -> None:
    divider, consumers = EnergyDivider(EnergyPolicy.RESIDENT), (consumer(A),)
    for alone, method in ((True, Method.MEASURED), (False, Method.ESTIMATED), (True, Method.MEASURED)):
        division = divider.divide(Interval(5, 1.0, consumers, is_exclusive=alone))
        assert (division.parts_mj, division.methods) == ({A: 5}, {A: method})


@pytest.mark.parametrize(("alone", "unidentified_sm_us"), [(False, 0), (True, 1)])
def test_one_process_that_may_not_have_been_alone_is_estimated(alone: bool, unidentified_sm_us: int) -> None:
    found = divide(interval(consumer(A, sm_us=10), is_exclusive=alone, unidentified_sm_us=unidentified_sm_us))
    assert isinstance(found["a"], tuple)
    assert found["a"][1] == Method.ESTIMATED


def test_70_watts_for_10_seconds_at_80_to_20_are_560_and_140_joules_by_sm() -> None:
    found = divide(interval(consumer(A, sm_us=80), consumer(B, sm_us=20), context_power_w=60), EnergyPolicy.SM)
    assert (found["a"], found["b"]) == ((560_000, "estimated"), (140_000, "estimated"))


def test_static_energy_is_equal_among_workloads_and_work_is_by_sm_share() -> None:
    found = divide(interval(consumer(A, sm_us=80), consumer(B, sm_us=20), context_power_w=30))
    assert (found["a"], found["b"]) == ((150_000 + 320_000, "estimated"), (150_000 + 80_000, "estimated"))


def test_a_pod_of_two_processes_pays_static_energy_once() -> None:
    found = divide(
        interval(
            consumer(A, workload="pod"), consumer(B, workload="pod"), consumer(C, workload="other"), delta_mj=400_000
        )
    )
    assert (found["a"], found["b"], found["c"]) == (
        (100_000, "estimated"),
        (100_000, "estimated"),
        (200_000, "estimated"),
    )


def test_a_process_present_for_half_the_time_pays_half_of_static_energy() -> None:
    found = divide(interval(consumer(A), consumer(B, presence=0.5), delta_mj=300_000))
    assert (found["a"], found["b"]) == ((200_000, "estimated"), (100_000, "estimated"))


def test_static_energy_by_memory() -> None:
    found = divide(
        interval(consumer(A, memory_bytes=30), consumer(B, memory_bytes=10), delta_mj=400), EnergyPolicy.MEMORY
    )
    assert (found["a"], found["b"]) == ((300, "estimated"), (100, "estimated"))


def test_static_energy_left_as_idle() -> None:
    found = divide(interval(consumer(A, sm_us=50), consumer(B, sm_us=50), context_power_w=30), EnergyPolicy.NONE)
    assert found == {"a": (200_000, "estimated"), "b": (200_000, "estimated"), "idle": 300_000, "unattributed": 0}


def test_nothing_is_lost_when_no_process_works() -> None:
    for policy in EnergyPolicy:
        found = divide(interval(consumer(A), consumer(B), context_power_w=10), policy)
        assert found["unattributed"] == 0
        assert found["idle"] == (700_000 if policy is EnergyPolicy.NONE else 0)


def test_static_energy_is_never_more_than_the_interval_has() -> None:
    found = divide(interval(consumer(A, sm_us=10), consumer(B), delta_mj=100, context_power_w=9_999))
    assert (found["a"], found["b"]) == ((50, "estimated"), (50, "estimated"))


def test_learned_factors_weigh_work_and_nothing_else() -> None:
    found = divide(interval(consumer(A, sm_us=50), consumer(B, sm_us=50), context_power_w=30), a=3.0, b=1.0)
    assert (found["a"], found["b"]) == ((150_000 + 300_000, "estimated"), (150_000 + 100_000, "estimated"))


def test_work_of_unidentified_pids_is_unattributed() -> None:
    found = divide(interval(consumer(A, sm_us=60), consumer(B, sm_us=0), unidentified_sm_us=40, context_power_w=0))
    assert found["unattributed"] == 280_000


def test_energy_without_a_consumer_is_idle() -> None:
    assert divide(interval()) == {"idle": 700_000, "unattributed": 0}


def test_energy_without_a_consumer_is_unattributed_where_memory_is_unexplained() -> None:
    assert divide(interval(has_unexplained_memory=True)) == {"idle": 0, "unattributed": 700_000}


def test_one_hidden_candidate_alone_gets_all_energy_as_inferred() -> None:
    assert divide(interval(consumer(A, hidden=True))) == {"a": (700_000, "inferred"), "idle": 0, "unattributed": 0}


def test_of_several_hidden_candidates_none_is_preferred() -> None:
    found = divide(interval(consumer(A, hidden=True), consumer(B, hidden=True)))
    assert found == {"idle": 0, "unattributed": 700_000}


def test_a_hidden_candidate_beside_a_listed_process_shares_as_inferred() -> None:
    found = divide(interval(consumer(A, sm_us=100), consumer(B, sm_us=0, hidden=True), context_power_w=70))
    assert (found["a"], found["b"]) == ((350_000, "estimated"), (350_000, "inferred"))


def test_without_figures_of_work_energy_is_divided_by_memory() -> None:
    found = divide(
        interval(consumer(A, sm_us=None, memory_bytes=75), consumer(B, sm_us=None, memory_bytes=25), context_power_w=30)
    )
    assert (found["a"], found["b"]) == ((525_000, "estimated"), (175_000, "estimated"))


def test_under_mig_energy_is_divided_by_the_instances_sms_and_then_by_memory() -> None:
    big, small = DeviceKey("GPU-0", "MIG-3g"), DeviceKey("GPU-0", "MIG-1g")
    found = EnergyDivider(EnergyPolicy.RESIDENT).divide(
        interval(
            consumer(ProcessOnDevice(ProcessKey(1, 1), big), sm_us=None, memory_bytes=30, sm_count=60),
            consumer(ProcessOnDevice(ProcessKey(2, 1), big), sm_us=None, memory_bytes=10, sm_count=60),
            consumer(ProcessOnDevice(ProcessKey(3, 1), small), sm_us=None, memory_bytes=9, sm_count=20),
            delta_mj=8_000,
        )
    )
    assert [mj for _, mj in sorted(found.parts_mj.items())] == [4_500, 1_500, 2_000]


def test_energy_of_an_anomaly_is_unattributed() -> None:
    assert divide(interval(consumer(A, sm_us=5), is_exclusive=True, anomalous=True)) == {
        "idle": 0,
        "unattributed": 700_000,
    }


def test_splitting_an_interval_moves_no_more_than_a_millijoule_per_split() -> None:
    consumers = (consumer(A, sm_us=33), consumer(B, sm_us=33), consumer(C, sm_us=1))
    whole = (
        EnergyDivider(EnergyPolicy.RESIDENT).divide(Interval(1_000_003, 10.0, consumers, context_power_w=41.7)).parts_mj
    )
    divider = EnergyDivider(EnergyPolicy.RESIDENT)
    sums = dict.fromkeys(whole, 0)
    for piece in range(1000):
        delta_mj = 1_000_003 * (piece + 1) // 1000 - 1_000_003 * piece // 1000
        for at, mj in divider.divide(Interval(delta_mj, 0.01, consumers, context_power_w=41.7)).parts_mj.items():
            sums[at] += mj
    assert all(abs(sums[at] - mj) <= 1 for at, mj in whole.items())


def test_residues_survive_a_restart() -> None:
    consumers = (consumer(A, sm_us=1), consumer(B, sm_us=2))
    straight, first = EnergyDivider(EnergyPolicy.SM), EnergyDivider(EnergyPolicy.SM)
    straight.divide(Interval(1, 1.0, consumers))
    first.divide(Interval(1, 1.0, consumers))
    second = EnergyDivider(EnergyPolicy.SM)
    second.restore(first.to_state())
    for delta_mj in (1, 1, 2, 1):
        assert second.divide(Interval(delta_mj, 1.0, consumers)) == straight.divide(Interval(delta_mj, 1.0, consumers))


def test_a_residue_belongs_to_the_process_and_not_to_its_position_among_the_consumers() -> None:
    divider = EnergyDivider(EnergyPolicy.RESIDENT)
    assert divider.divide(interval(consumer(A), consumer(B), delta_mj=3)).parts_mj == {A: 2, B: 1}
    assert divider.divide(interval(consumer(B), consumer(C), delta_mj=3)).parts_mj == {B: 2, C: 1}
    restored = EnergyDivider(EnergyPolicy.RESIDENT)
    restored.restore(divider.to_state())
    for each in (divider, restored):
        assert each.divide(interval(consumer(A), consumer(C), delta_mj=3)).parts_mj == {A: 1, C: 2}
