"""The three sources of a simulated host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import (
    DeviceMemory,
    GpuReading,
    ListedProcess,
    MigAccess,
    ProcessKey,
    ProcessKind,
    SourceState,
    UtilizationRead,
    WorkloadNames,
)
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Points
from otel_gpu.sources.sim.truth import PJ_PER_MJ
from otel_gpu.sources.sim.world import ProcessSpec, Visibility
from tests.unit.sources.sim.builders import GIB, container, gpu, mig_gpu, process, start, use, world

WALL_US = 1_700_000_000_000_000


def reading(host: SimulatedHost) -> GpuReading:
    return host.gpu_source().read().gpus[0]


def utilization(of: GpuReading) -> UtilizationRead:
    assert of.utilization is not None
    return of.utilization


# ---------------------------------------------------------------------------- the driver


def test_used_memory_includes_hidden_processes() -> None:
    host, clock = start(
        world(
            process(1, use(memory=2 * GIB)),
            process(2, use(memory=3 * GIB, visibility=Visibility.HIDDEN)),
            process(3, use(memory=GIB, visibility=Visibility.NO_FIGURE)),
            process(4, use(memory=5 * GIB, context=False)),
        )
    )
    clock.advance(1.0)
    seen = reading(host)
    assert seen.memory == DeviceMemory(16 * GIB, 6 * GIB, 9 * GIB, GIB)
    assert seen.processes == (
        ListedProcess(1, ProcessKind.COMPUTE, 2 * GIB),
        ListedProcess(3, ProcessKind.COMPUTE, None),
    )


def test_a_process_is_in_the_list_of_each_of_its_kinds() -> None:
    both = use(memory=GIB, kinds=(ProcessKind.COMPUTE, ProcessKind.GRAPHICS))
    host, _ = start(world(process(1, both), process(2, use(memory=GIB, kinds=(ProcessKind.MPS,)))))
    listed = reading(host).processes
    assert listed is not None
    assert [(one.kind, one.pid) for one in listed] == [("compute", 1), ("graphics", 1), ("mps", 2)]


def test_a_process_is_listed_from_its_start_until_its_end() -> None:
    host, clock = start(world(process(1, use(memory=Points(((0.0, GIB), (5.0, 0.0)))), start_s=2.0, end_s=9.0)))
    counts = []
    for _ in range(10):
        counts.append(len(reading(host).processes or ()))
        clock.advance(1.0)
    assert counts == [0, 0, 1, 1, 1, 1, 1, 1, 1, 0]


def test_the_energy_counter_has_the_specified_start_and_agrees_with_the_truth() -> None:
    host, clock = start(world(process(1, use(0.5)), gpus=(gpu(energy_start_mj=5_000_000),)))
    clock.advance(7.3)
    energy_mj = reading(host).energy_mj
    assert energy_mj is not None
    assert energy_mj - 5_000_000 == host.truth().gpus[0].total_pj // PJ_PER_MJ


def test_a_gpu_without_a_counter_has_power_only() -> None:
    host, clock = start(world(process(1, use(0.5)), gpus=(gpu(energy_start_mj=None),)))
    clock.advance(5.0)
    assert reading(host).energy_mj is None
    assert reading(host).power_w == pytest.approx(40.0 + 20.0 + 50.0)


def test_device_utilisation_covers_the_last_second() -> None:
    host, clock = start(world(process(1, use(0.5, bandwidth_ratio=0.8, encoder_ratio=0.2)), gpus=(gpu(),)))
    clock.advance(5.0)
    seen = reading(host)
    assert (seen.gpu_ratio, seen.memory_controller_ratio, seen.encoder_ratio, seen.decoder_ratio) == (0.5, 0.4, 0.1, 0)
    assert (seen.sm_clock_mhz, seen.memory_clock_mhz, seen.power_limit_w) == (1410, 1215, 1000.0)
    assert (seen.ecc_corrected, seen.ecc_uncorrected, seen.xid_errors, seen.last_xid) == (0, 0, 0, None)
    assert seen.taken_at_ns == clock.monotonic_ns()


def test_utilisation_is_read_since_the_latest_row_or_a_second_before_the_last_read() -> None:
    working = use(Points(((0.0, 1.0), (10.0, 1.0), (10.0, 0.0))))
    host, clock = start(world(process(1, working)))
    source = host.gpu_source()
    reads = []
    for _ in range(5):
        clock.advance(4.0)
        reads.append(utilization(source.read().gpus[0]))
    assert [read.read_at_us - WALL_US for read in reads] == [4_000_000, 8_000_000, 12_000_000, 16_000_000, 20_000_000]
    first, second, third, fourth, fifth = (read.since_us - WALL_US for read in reads)
    assert first == 3_000_000
    assert second == 28 * 139_000, "the newest row of the first read"
    assert third == 57 * 139_000
    assert (fourth, fifth) == (11_000_000, 15_000_000), "after a quiet spell, a second before the last read"
    assert [[row.sm_percent for row in read.rows] for read in reads] == [[100], [100], [51], [], []]


def test_two_gpu_sources_do_not_share_their_timestamps() -> None:
    host, clock = start(world(process(1, use(1.0))))
    first, second = host.gpu_source(), host.gpu_source()
    for _ in range(3):
        clock.advance(2.0)
        first.read()
    assert utilization(second.read().gpus[0]).since_us == WALL_US + 5_000_000


def test_under_mig_instances_have_memory_and_processes_and_no_utilisation() -> None:
    spec = world(
        process(1, use(0.5, memory=3 * GIB, gpu_instance_id=1)),
        process(2, use(0.5, memory=2 * GIB, gpu_instance_id=2)),
        process(3, use(0.5, memory=GIB, gpu_instance_id=2, visibility=Visibility.HIDDEN)),
        gpus=(mig_gpu(),),
    )
    host, clock = start(spec)
    clock.advance(3.0)
    seen = reading(host)
    assert seen.mig is not None
    large, small = seen.mig
    assert (large.uuid, large.profile, large.sm_count) == ("MIG-1", "3g.8gb", 60)
    assert large.processes == (ListedProcess(1, ProcessKind.COMPUTE, 3 * GIB, 1, 0),)
    assert small.processes == (ListedProcess(2, ProcessKind.COMPUTE, 2 * GIB, 2, 0),)
    assert small.memory == DeviceMemory(4 * GIB, 3 * GIB, GIB, 0)
    assert seen.processes == (*large.processes, *small.processes)
    assert seen.memory is not None
    assert seen.memory.used_bytes == 6 * GIB
    assert (seen.utilization, seen.gpu_ratio, seen.encoder_ratio) == (None, None, None)
    assert seen.power_w == pytest.approx(60.0 + 100.0 * (0.5 * 0.6 + 0.2))
    facts = host.process_source().read(()).processes
    assert facts[1].mig_access == {MigAccess(0, 1, None), MigAccess(0, 1, 0)}
    assert facts[2].mig_access == facts[3].mig_access == {MigAccess(0, 2, None), MigAccess(0, 2, 0)}


def test_the_driver_has_a_version_and_the_sources_are_ok() -> None:
    host, _ = start(world(process(1, use())))
    read = host.gpu_source().read()
    assert read.driver is not None
    assert read.driver.driver_version == "570.124.06"
    assert (read.state, host.process_source().read(()).state) == (SourceState.OK, SourceState.OK)
    names = [source.name for source in (host.gpu_source(), host.process_source(), host.name_source())]
    assert names == ["sim", "procfs", "names"]


# ---------------------------------------------------------------------------- processes and names


def test_processes_with_an_open_device_are_found_and_others_only_by_pid() -> None:
    host, _ = start(
        world(
            process(1, use()),
            process(2, use(visibility=Visibility.HIDDEN)),
            process(3, use(context=False)),
            process(4),
            process(5),
        )
    )
    assert set(host.process_source().read((4, 99)).processes) == {1, 2, 3, 4}


def test_simulated_process_facts_equal_facts_from_proc() -> None:
    uses = use(memory=4 * GIB, uvm_factor=1.25), use(memory=2 * GIB, gpu=1)
    host, _ = start(world(process(7, *uses, start_s=-8.25), gpus=(gpu(0), gpu(1))))
    facts = host.process_source().read(()).processes[7]
    assert facts.key == ProcessKey(7, round((5 * 86_400 - 8.25) * 100))
    assert facts.start_time_s == pytest.approx(WALL_US / 1e6 - 8.25)
    assert (facts.name, facts.owner_uid, facts.workload) == ("p7", 1000, container("c7").ref)
    assert facts.gpu_minors_open == {0, 1}
    assert facts.uvm_open
    assert facts.uvm_mapping_bytes == 7 * GIB


def test_unreadable_or_missing_mappings_are_absent() -> None:
    host, _ = start(
        world(process(1, use(uvm_factor=None)), process(2, use(opens_uvm=False)), process(3, use(memory=0)))
    )
    facts = host.process_source().read(()).processes
    assert {pid: (one.uvm_open, one.uvm_mapping_bytes) for pid, one in facts.items()} == {
        1: (True, None),
        2: (False, None),
        3: (True, 0),
    }


def test_a_reused_pid_is_another_process() -> None:
    first, second = process(5, use(), end_s=3.0), replace(process(5, use(), start_s=6.0), name="other")
    host, clock = start(world(first, second))
    source = host.process_source()
    seen = []
    for _ in range(4):
        facts = source.read((5,)).processes.get(5)
        seen.append(facts and (facts.name, facts.key.start_ticks - 43_200_000))
        clock.advance(2.0)
    assert seen == [("p5", 0), ("p5", 0), None, ("other", 600)]
    keys = [one.key for one in host.truth().gpus[0].processes]
    assert len(keys) == 2


def test_running_workloads_have_names() -> None:
    nameless = ProcessSpec(3, "x", replace(container("c3"), names=None), (use(),))
    host, clock = start(world(process(1, use()), process(2, use(), end_s=5.0), nameless))
    first, second = (container(name).ref for name in ("c1", "c2"))
    source = host.name_source()
    assert source.wait(0.0)
    known = source.read({}).known
    assert {id_: one.names for id_, one in known.items()} == {
        first.id: WorkloadNames(container="c1"),
        second.id: WorkloadNames(container="c2"),
    }
    clock.advance(3.0)
    assert source.read({}).known is known
    clock.advance(3.0)
    assert set(source.read({}).known) == {first.id}


# ---------------------------------------------------------------------------- time


def test_the_truth_of_any_time_is_available_without_advancing_the_world() -> None:
    host, clock = start(world(process(1, use(0.4))))
    clock.advance(10.0)
    before = host.truth()
    assert host.truth(at_s=4.0).gpus[0].busy_s == pytest.approx(1.6)
    assert host.truth(at_s=2_000.0).gpus[0].busy_s == pytest.approx(800.0)
    assert host.truth() == before


def test_a_step_of_the_wall_clock_has_no_effect() -> None:
    host, clock = start(world(process(1, use(0.4))))
    source = host.gpu_source()
    for step_s in (0.0, -3_600.0, 90_000.0):
        clock.step_wall(step_s)
        clock.advance(5.0)
        read = utilization(source.read().gpus[0])
        assert read.rows[0].timestamp_us <= read.read_at_us
        assert read.read_at_us == WALL_US + clock.monotonic_ns() // 1000
    assert host.truth().gpus[0].busy_s == pytest.approx(6.0)


def test_the_world_waits_while_the_clock_is_behind() -> None:
    clock = ManualClock()
    host = SimulatedHost(world(process(1, use(0.4))), clock)
    clock.advance(10.0)
    before = host.truth()
    clock.advance(-4.0)
    assert host.truth() == before
    assert set(host.process_source().read(()).processes) == {1}


def test_a_world_with_an_age_has_a_history_at_the_first_read() -> None:
    spec = replace(world(process(1, use(0.4))), age_s=30.0)
    host, _ = start(spec)
    seen = reading(host)
    assert len(utilization(seen).rows) == 1
    assert host.truth().at_s == 30.0
    assert utilization(seen).read_at_us == WALL_US
    assert host.process_source().read(()).processes[1].start_time_s == pytest.approx(WALL_US / 1e6 - 30.0)


def test_the_specification_can_set_the_wall_clock() -> None:
    host, clock = start(replace(world(process(1, use(1.0))), wall_start_ns=1_600_000_000_000_000_000))
    clock.advance(2.0)
    assert utilization(reading(host)).read_at_us == 1_600_000_002_000_000
