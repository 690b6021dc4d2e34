"""The saved state: restored whole or refused, over restarts and reboots, and bounded in size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.interval import EnergyMeter
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import (
    UNIDENTIFIED_WORKLOAD,
    AccountingRecord,
    EnergySplit,
    GpuReading,
    MethodEnergy,
    ProcessReport,
    WorkloadGpu,
    WorkloadNames,
)
from tests.builders import GIB, WALL_NS, gpu, listed, memory, mig
from tests.unit.attribution.played import (
    CYCLE_MJ,
    JOB,
    WEB,
    Played,
    assert_adds_up,
    energy_mj,
    gpu_with,
    old,
    process,
    time_us,
    totals,
    workload,
)

NAMES = {"web": WorkloadNames(container="web-1", pod="web-0")}
BOTH = gpu_with(listed(1), listed(2))
TWO = [old(1, WEB), old(2, JOB)]


def plain(attributor: Attributor) -> Any:
    return json.loads(json.dumps(attributor.to_state()))


def size(played: Played) -> int:
    """Size of the state without the dropped accounts, which have their own bound."""
    state = plain(played.attributor)
    for kind in ("processes", "workloads"):
        assert len(state["ledger"][kind].pop("gone")) <= 2000
    return len(json.dumps(state))


def busy_host() -> Played:
    """A host with overflow, hidden memory, MIG, a renamed workload, ended processes, and accounting records."""
    played = Played(AttributionOptions(max_processes=3, max_workloads=2))
    hidden = old(4, JOB)._replace(gpu_minors_open=frozenset({0}), uvm_open=True, uvm_mapping_bytes=GIB)
    record = AccountingRecord(77, WALL_NS // 1000 + 6_000_000, 1000, 50, None, None, running=False)
    for number in range(4):
        one = gpu_with(listed(1), listed(2), listed(3, None), *([listed(5)] if number < 3 else []), used_gib=20)
        one = replace(one, utilization=played.rows((1, 30), (2, 20)), accounting=(record,))
        two = gpu(1, (), memory=memory(used_gib=4), mig=[mig("MIG-1", (1, 0), [listed(6)])])
        names = NAMES if number < 2 else {"web": WorkloadNames(container="web-2")}
        processes = [*TWO, old(3), hidden, old(6), *([old(5)] if number < 3 else [])]
        played.next(one, two, processes=processes, names=names, looked_up=True)
    return played


# ---------------------------------------------------------------------------- saving and restoring


def test_the_state_is_plain_data_and_is_restored_unchanged() -> None:
    played = busy_host()
    saved = plain(played.attributor)
    played.restart()
    assert plain(played.attributor) == saved


def test_before_the_first_cycle_there_is_nothing_to_save() -> None:
    assert Attributor().to_state() == {}
    restored = Attributor.from_state(AttributionOptions(), {}, now_ns=5, same_boot=True)
    assert restored.to_state() == {}


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in plain data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def with_junk(text: str, path: tuple[Any, ...], junk: Any) -> Any:
    data = json.loads(text)
    if not path:
        return junk
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return data


JUNK: tuple[Any, ...] = (None, -1, 1.5, "x", [], {}, float("inf"), 10**400)


@pytest.mark.parametrize(
    "junk",
    [pytest.param(junk, marks=() if junk in ("x", -1) else pytest.mark.long) for junk in JUNK],
    ids=[repr(junk)[:8] for junk in JUNK],
)
def test_junk_anywhere_in_the_state_is_refused_or_harmless(junk: Any) -> None:
    played = busy_host()
    text, options, now_ns = json.dumps(played.attributor.to_state()), played.options, round(played.at_s * 1e9)
    accepted = 0
    for path in paths(json.loads(text)):
        try:
            restored = Attributor.from_state(options, with_junk(text, path, junk), now_ns=now_ns, same_boot=True)
        except ValueError:
            continue
        accepted += 1
        resumed = Played(options)
        resumed.attributor, resumed.at_s = restored, played.at_s
        for _ in range(2):
            reading = replace(gpu_with(listed(1), listed(2), used_gib=20), utilization=resumed.rows((1, 30)))
            report = resumed.next(reading, processes=TWO, names=NAMES)
        parts: list[ProcessReport | WorkloadGpu] = [part for w in report.workloads for part in w.gpus]
        for part in (*parts, *report.processes):
            assert min(energy_mj(part), time_us(part)) >= 0, path
        assert resumed.attributor.to_state(), path
    assert accepted < len(list(paths(json.loads(text)))) / 2


# ---------------------------------------------------------------------------- restarts and reboots


ONE = gpu_with(listed(1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BOTH, BOTH, id="two"),
        pytest.param(ONE, BOTH, id="one came"),
        pytest.param(BOTH, ONE, id="one left"),
        pytest.param(ONE, gpu_with(listed(2)), id="another one"),
        pytest.param(gpu_with(), gpu_with(), id="no process"),
        pytest.param(ONE, replace(ONE, processes=None), id="lists not reported"),
        pytest.param(ONE, gpu_with(listed(1), used_gib=9), id="unexplained memory"),
    ],
)
def test_energy_while_the_agent_was_away_is_unattributed_unless_one_process_was_alone_before_and_after(
    before: GpuReading, after: GpuReading
) -> None:
    played = Played()
    for _ in range(3):
        first = played.next(before, processes=TWO)
    played.restart(away_s=60)
    second = played.next(after, processes=TWO)
    assert second.gpus[0].energy == EnergySplit(13 * CYCLE_MJ, 0, 0, 13 * CYCLE_MJ)
    assert_adds_up(second)
    assert second.gpus[0].totals is not None
    assert second.gpus[0].totals.total_mj == 15 * CYCLE_MJ
    for each in first.processes:
        assert totals(process(second, each.key.pid)).energy == totals(each).energy
        assert totals(process(second, each.key.pid)).since_ns == totals(each).since_ns


def test_a_restart_without_a_gap_changes_nothing() -> None:
    played, straight = Played(), Played()
    for each in (played, straight):
        for _ in range(3):
            each.next(BOTH, processes=TWO)
    played.restart()
    assert played.next(BOTH, processes=TWO).gpus[0].energy == straight.next(BOTH, processes=TWO).gpus[0].energy


def test_time_between_runs_changes_no_account_and_no_baseline() -> None:
    played = Played()
    for _ in range(3):
        before = played.next(replace(BOTH, utilization=played.rows((1, 40), (2, 40))), processes=TWO)
    learned = plain(played.attributor)["gpus"]["GPU-0"]
    played.restart(away_s=600)
    after = played.next(BOTH, processes=TWO)
    assert time_us(process(after, 1)) == time_us(process(before, 1)) + 5_000_000
    restarted = plain(played.attributor)["gpus"]["GPU-0"]
    assert restarted["baseline"] == learned["baseline"]


def test_energy_while_the_agent_was_away_is_inferred_for_one_hidden_process_before_and_after() -> None:
    played = Played()
    hidden = old(4, JOB)._replace(gpu_minors_open=frozenset({0}), uvm_open=True, uvm_mapping_bytes=GIB)
    for _ in range(3):
        played.next(gpu_with(used_gib=20), processes=[hidden])
    played.restart(away_s=60)
    report = played.next(gpu_with(used_gib=20), processes=[hidden])
    assert process(report, 4).energy == MethodEnergy(0, 0, 13 * CYCLE_MJ)


def test_energy_while_the_agent_was_away_is_estimated_for_a_process_alone_before_and_after() -> None:
    played = Played()
    for _ in range(3):
        played.next(gpu_with(listed(1)), processes=[old(1)])
    played.restart(away_s=3600)
    report = played.next(gpu_with(listed(1)), processes=[old(1)])
    assert process(report, 1).energy == MethodEnergy(0, 721 * CYCLE_MJ, 0)
    report = played.next(gpu_with(listed(1)), processes=[old(1)])
    assert process(report, 1).energy == MethodEnergy(CYCLE_MJ, 0, 0)


def test_after_a_reboot_totals_are_kept_counters_have_a_new_base_and_the_gap_has_no_energy() -> None:
    played = Played()
    for _ in range(3):
        before = played.next(BOTH, processes=TWO)
    played.restart(away_s=600, same_boot=False)
    same, other = TWO[0]._replace(key=TWO[0].key._replace(start_ticks=77)), old(3, JOB)
    reports = [played.next(gpu_with(listed(1), listed(3)), processes=[same, other]) for _ in range(2)]
    assert reports[0].gpus[0].energy is None, "the counter may have been reset at any time"
    assert reports[0].anomalies == 0
    for id_ in ("web", "job"):
        totals_mj = [energy_mj(workload(report, id_)) for report in (before, *reports)]
        assert totals_mj[0] == totals_mj[1] < totals_mj[2] <= totals_mj[0] + CYCLE_MJ
    assert [process(report, 2).active for report in reports] == [False, False]
    assert [energy_mj(process(report, 2)) for report in reports] == [energy_mj(process(before, 2))] * 2
    assert_adds_up(reports[1])


def test_after_a_reboot_a_counter_below_the_old_one_is_no_reset() -> None:
    played = Played()
    for _ in range(3):
        played.next(gpu_with(listed(1)), processes=[old(1)])
    played.restart(same_boot=False)
    for counter_mj in (5, 1_000_005):
        report = played.next(replace(gpu_with(listed(1)), energy_mj=counter_mj), processes=[old(1)])
    assert report.anomalies == 0
    assert energy_mj(process(report, 1)) == 3 * CYCLE_MJ


# ---------------------------------------------------------------------------- from power to counter


def metered(*readings: tuple[float, float | None, int | None]) -> list[int | None]:
    """Millijoules of each reading of (seconds, watts, counter)."""
    meter = EnergyMeter()
    deltas_mj = []
    for at_s, power_w, counter_mj in readings:
        reading: GpuReading = replace(gpu(power_w=power_w, energy_mj=counter_mj), taken_at_ns=round(at_s * 1e9))
        interval = meter.read(reading)
        deltas_mj.append(None if interval is None else interval.delta_mj)
    return deltas_mj


def test_no_interval_is_lost_when_a_counter_takes_over_from_power() -> None:
    deltas_mj = metered((0, 100.0, None), (5, 100.0, None), (10, 100.0, 7_000), (15, 100.0, 507_000))
    assert deltas_mj == [None, 500_000, 500_000, 500_000]


def test_the_last_known_power_counts_until_the_counter_takes_over() -> None:
    assert metered((0, 100.0, None), (5, None, 7_000), (10, None, 507_000)) == [None, 500_000, 500_000]


def test_an_interval_without_the_counter_is_covered_by_the_next() -> None:
    assert metered((0, 100.0, 0), (5, 100.0, None), (10, 100.0, 900_000)) == [None, None, 900_000]


# ---------------------------------------------------------------------------- bounds

ENOUGH = 3_000_000


def test_state_is_bounded_with_thousands_of_accounting_records() -> None:
    played = Played(AttributionOptions(max_processes=200))
    played.next(gpu_with())
    sizes = []
    for cycle in range(10):
        start_us = WALL_NS // 1000 + round((played.at_s + 1) * 1e6)
        records = tuple(
            AccountingRecord(1000 + 2000 * cycle + n, start_us, 1000, 100, None, None, running=False)
            for n in range(2000)
        )
        report = played.next(replace(gpu_with(), accounting=records))
        sizes.append(size(played))
    assert totals(workload(report, UNIDENTIFIED_WORKLOAD.id)).compute_us == 20_000 * 1_000_000
    assert len(report.processes) == 201
    assert sizes[-1] <= 1.05 * sizes[3], "4,096 pids and the accounts of the ledger"
    assert max(sizes) < ENOUGH


def test_state_is_bounded_with_a_workload_that_is_renamed_in_every_cycle() -> None:
    played = Played(AttributionOptions(retention_s=60))
    sizes = []
    for cycle in range(60):
        names = {"web": WorkloadNames(container=f"name-{cycle:04}")}
        report = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], names=names, looked_up=True)
        assert_adds_up(report)
        sizes.append(size(played))
    assert len(report.workloads) <= 14
    assert max(sizes[30:]) <= 1.05 * max(sizes[:30])


def test_state_is_bounded_with_instances_that_are_created_again_in_every_cycle() -> None:
    played = Played(AttributionOptions(retention_s=60, max_processes=1))
    sizes = []
    for cycle in range(60):
        instance = mig(f"MIG-{cycle:04}", (1, 0), [listed(1)], memory=memory(total_gib=10, used_gib=1))
        reading = gpu(0, (), memory=memory(used_gib=1), mig=[instance])
        report = played.next(reading, processes=[old(1, WEB)])
        assert_adds_up(report)
        sizes.append(size(played))
    assert max(sizes[30:]) <= 1.05 * max(sizes[:30])
