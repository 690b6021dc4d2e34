from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from otel_gpu.agent.engine import SHORTEST_WINDOW_S, AttributionRules, Engine
from otel_gpu.attribution.attributor import Attributor
from otel_gpu.clock import ManualClock
from otel_gpu.model import (
    NO_PROCESSES,
    UNIDENTIFIED_WORKLOAD,
    DriverFacts,
    GpuReading,
    GpuState,
    ProcessFacts,
    ProcessReport,
    Report,
    Snapshot,
    SourceOutcome,
    SourceState,
    UnreadableReason,
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import Claim, GpuRead, NameRead, NameSource, ProcessRead, WorkloadInfo
from otel_gpu.sources.names.discovery import DiscoveredSources, SourceDiscovery
from otel_gpu.sources.names.factory import CLOSE_TIMEOUT_S
from tests.builders import (
    CONTAINER,
    CONTAINER_ID,
    DRIVER,
    GIB,
    FakeGpus,
    FakeNames,
    FakeProcesses,
    facts,
    gpu,
    gpu_read,
    listed,
    memory,
    mig,
    process_read,
)

FAR_S = 10.0


class Hung(FakeNames):
    """A name source whose ``close`` waits until others are closing too."""

    def __init__(self, closing: threading.Barrier) -> None:
        super().__init__()
        self._closing = closing

    def close(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._closing.wait()
            super().close()


class Recorder(Attributor):
    """Attribution rules that keep every Snapshot."""

    known_processes = NO_PROCESSES

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[Snapshot] = []

    def observe(self, snapshot: Snapshot) -> Report:
        self.snapshots.append(snapshot)
        return super().observe(snapshot)


class World:
    """An engine on scripted sources."""

    def __init__(
        self,
        *gpus: GpuRead,
        processes: Sequence[ProcessRead] = (),
        names: Sequence[FakeNames] = (),
        rules: AttributionRules | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.gpus = FakeGpus(*gpus)
        self.processes = FakeProcesses(*processes)
        self.engine = Engine(gpus=self.gpus, processes=self.processes, names=names, clock=self.clock, rules=rules)

    def next(self) -> Report:
        """The Report of a cycle ``FAR_S`` later."""
        self.clock.advance(FAR_S)
        return self.engine.sample()


def only(report: Report) -> ProcessReport:
    (process,) = active(report)
    return process


def active(report: Report) -> list[ProcessReport]:
    """Processes that are running, without those that ended within the retention."""
    return [process for process in report.processes if process.active]


def identity(process: ProcessReport) -> tuple[object, ...]:
    return process.key, process.name, process.start_time_s, process.workload, process.gpu_uuid, process.memory_bytes


# ---------------------------------------------------------------------------- cycles


@pytest.mark.parametrize("are_own", [True, False])
def test_processes_with_a_figure_count_as_measured_once_their_pids_are_trusted(*, are_own: bool) -> None:
    """In a pid namespace of its own, an agent cannot tell which process an old driver means."""
    read = process_read(facts(1), facts(2))
    world = World(
        gpu_read(gpu(0, [listed(1), listed(2, None)])),
        processes=[replace(read, pids_complete=are_own, pids_are_own=are_own)],
    )
    for _ in range(3):
        world.next()
    assert world.processes.measured == [set(), *[{1} if are_own else set()] * 2]


def test_a_sample_reads_each_source_once() -> None:
    names = FakeNames()
    world = World(gpu_read(gpu(0), gpu(1)), names=[names])
    for expected in (1, 2, 3):
        world.next()
        assert (world.gpus.reads, world.processes.reads, names.reads) == (expected, expected, expected)


def test_before_the_first_cycle_there_is_no_report_and_no_age() -> None:
    world = World()
    assert (world.engine.latest, world.engine.age_s()) == (None, None)


def test_the_newest_report_is_kept_and_ages() -> None:
    world = World(gpu_read(gpu(0)))
    report = world.engine.sample()
    world.clock.advance(2.5)
    assert world.engine.latest is report
    assert world.engine.age_s() == 2.5


@pytest.mark.parametrize("pause_s", [0.0, 0.5, SHORTEST_WINDOW_S - 0.001])
def test_a_report_younger_than_the_shortest_window_is_returned_again(pause_s: float) -> None:
    world = World(gpu_read(gpu(0)))
    first = world.engine.sample()
    world.clock.advance(pause_s)
    assert world.engine.sample() is first
    assert world.gpus.reads == 1
    world.clock.advance(SHORTEST_WINDOW_S - pause_s)
    assert world.engine.sample().window_s == SHORTEST_WINDOW_S


def test_a_stepped_wall_clock_changes_no_window() -> None:
    world = World(gpu_read(gpu(0)))
    world.next()
    world.clock.step_wall(-86_400)
    assert world.next().window_s == FAR_S


def test_cycles_never_overlap_when_several_threads_sample() -> None:
    running, most, entered = 0, 0, threading.Barrier(4, timeout=30)
    clock = ManualClock()

    def read() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        clock.advance(FAR_S)
        running -= 1

    engine = Engine(gpus=FakeGpus(on_read=read), processes=FakeProcesses(), clock=clock)

    def sample() -> None:
        entered.wait()
        for _ in range(25):
            engine.sample()

    threads = [threading.Thread(target=sample, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_a_cycle_that_fails_leaves_the_last_report_and_the_next_one_works() -> None:
    failing = False

    def read() -> None:
        if failing:
            raise RuntimeError("a bug")

    clock = ManualClock()
    engine = Engine(gpus=FakeGpus(gpu_read(gpu(0)), on_read=read), processes=FakeProcesses(), clock=clock)
    first = engine.sample()
    clock.advance(FAR_S)
    failing = True
    with pytest.raises(RuntimeError, match="a bug"):
        engine.sample()
    assert engine.latest is first
    failing = False
    assert engine.sample().window_s == FAR_S


def test_processes_that_start_or_exit_in_a_failed_cycle_are_seen_by_the_next() -> None:
    """The failed cycle must leave no state behind."""
    failing = False

    def read() -> None:
        if failing:
            raise RuntimeError("a bug")

    here = [process_read(*map(facts, pids)) for pids in ((1, 2), (2, 3))]
    both = gpu_read(gpu(0, [listed(2), listed(3)]))
    names = FakeNames(on_read=read)
    world = World(gpu_read(gpu(0, [listed(1), listed(2)])), both, processes=[here[0], *here[1:] * 3], names=[names])
    world.next()
    failing = True
    with pytest.raises(RuntimeError, match="a bug"):
        world.next()
    failing = False
    for _ in range(2):
        assert [(each.key.pid, each.name) for each in active(world.next())] == [(2, "python3"), (3, "python3")]


# ---------------------------------------------------------------------------- what is asked of each source


def test_every_pid_of_the_driver_is_looked_up() -> None:
    row = UtilizationRow(4, 0, 50, 0, 0, 0)
    reading = gpu(
        0, [listed(1), listed(1), listed(2)], mig=[mig("MIG-1", (1, 0), [listed(3)]), mig("MIG-2", (2, 0), None)]
    )
    busy = replace(gpu(1, None), utilization=UtilizationRead(0, 0, (row,)))
    world = World(gpu_read(reading, busy))
    world.next()
    assert world.processes.asked == [{1, 2, 3, 4}]


def test_names_are_read_for_the_workloads_on_gpus() -> None:
    names = FakeNames()
    world = World(gpu_read(gpu(0, [listed(1)])), processes=[process_read(facts(1, CONTAINER))], names=[names])
    world.next()
    assert names.asked == [{CONTAINER}]


def test_the_first_of_two_contradicting_name_sources_wins() -> None:
    names = WorkloadNames(container="from cri")
    first = FakeNames(NameRead({CONTAINER_ID: WorkloadInfo(CONTAINER, names)}), name="cri")
    other = WorkloadNames(container="from docker")
    second = FakeNames(NameRead({CONTAINER_ID: WorkloadInfo(CONTAINER, other)}), name="docker")
    world = World(gpu_read(gpu(0, [listed(1)])), processes=[process_read(facts(1, CONTAINER))], names=[first, second])
    report = world.next()
    assert [workload.names for workload in report.workloads] == [names]
    assert [(source.name, source.state) for source in report.sources[2:]] == [
        ("cri", SourceState.OK),
        ("docker", SourceState.DEGRADED),
    ]


def test_a_workload_with_a_grant_and_no_process_is_allocated() -> None:
    granted = WorkloadInfo(CONTAINER, WorkloadNames(container="waits"), since_s=1.0, claims=(Claim("0"),))
    world = World(gpu_read(gpu(0)), names=[FakeNames(NameRead({CONTAINER_ID: granted}))])
    world.next()
    [workload] = world.next().workloads
    assert workload.display_name == "waits"
    [part] = workload.gpus
    assert (part.state, part.active, part.allocation) == (GpuState.ALLOCATED, True, 1.0)


def test_a_held_workload_is_looked_up_after_it_has_ended() -> None:
    names = FakeNames(
        NameRead(pending=frozenset({CONTAINER_ID})),
        NameRead({CONTAINER_ID: WorkloadInfo(CONTAINER, WorkloadNames(container="brief"))}),
    )
    world = World(
        gpu_read(gpu(0, [listed(1)])), gpu_read(gpu(0)),
        processes=[process_read(facts(1, CONTAINER)), process_read()], names=[names],
    )  # fmt: skip
    assert [workload.awaiting_names for workload in world.next().workloads] == [True]
    [workload] = world.next().workloads
    assert (workload.display_name, workload.awaiting_names) == ("brief", False)
    assert names.asked == [{CONTAINER}, {CONTAINER}]


def test_close_reaches_every_source_before_it_waits_for_one() -> None:
    """Each source returns once all of them are closing: one after the other, none would."""
    closing = threading.Barrier(16, timeout=30)
    names = [Hung(closing) for _ in range(16)]
    engine = Engine(gpus=FakeGpus(), processes=FakeProcesses(), names=names, clock=ManualClock())
    engine.close()
    assert [each.closed for each in names] == [True] * 16


def test_close_has_one_deadline_and_leaves_sources_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waited.append(timeout))
    closing = threading.Barrier(17, timeout=30)
    engine = Engine(
        gpus=FakeGpus(), processes=FakeProcesses(), names=[Hung(closing) for _ in range(16)], clock=ManualClock()
    )
    engine.close()  # the seventeenth never comes
    closing.abort()
    assert len(waited) == 16
    assert all(timeout is not None and 0.0 <= timeout <= CLOSE_TIMEOUT_S for timeout in waited)
    assert waited == sorted(waited, key=lambda timeout: -(timeout or 0.0))  # one deadline, for all of them


def test_close_works_without_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names = [FakeNames(), FakeNames()]
    Engine(gpus=FakeGpus(), processes=FakeProcesses(), names=names, clock=ManualClock()).close()
    assert all(each.closed for each in names)


# ---------------------------------------------------------------------------- sources discovered later


class FakeDiscovery(SourceDiscovery):
    """Source discovery whose results the test sets."""

    def __init__(self) -> None:
        super().__init__(lambda _: DiscoveredSources(), ManualClock())
        self.asked: list[set[WorkloadRef]] = []
        self.pending: frozenset[str] = frozenset()
        self.found: tuple[NameSource, ...] = ()
        self.is_closed = False

    @property
    def sources(self) -> tuple[NameSource, ...]:
        return self.found

    def search_for(self, unnamed: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        self.asked.append(set(unnamed))
        return NameRead(pending=self.pending)

    def close(self) -> None:
        self.is_closed = True


def discovering(names: Sequence[FakeNames], *processes: ProcessFacts) -> tuple[Engine, FakeDiscovery, ManualClock]:
    discovery, clock = FakeDiscovery(), ManualClock()
    listing = [listed(facts.key.pid) for facts in processes]
    engine = Engine(
        gpus=FakeGpus(gpu_read(gpu(0, listing))),
        processes=FakeProcesses(process_read(*processes)),
        names=names,
        discovery=discovery,
        clock=clock,
    )
    return engine, discovery, clock


def test_a_discovered_source_is_read_from_then_on_and_has_its_own_outcome() -> None:
    docker = FakeNames(NameRead({CONTAINER_ID: WorkloadInfo(CONTAINER, WorkloadNames(container="web"))}), name="docker")
    engine, discovery, clock = discovering([FakeNames(name="cri")], facts(1, CONTAINER))
    discovery.pending = frozenset({CONTAINER_ID})
    first = engine.sample()
    assert [source.name for source in first.sources[2:]] == ["cri", "environment"]
    discovery.found, discovery.pending = (docker,), frozenset()
    clock.advance(FAR_S)
    report = engine.sample()
    assert [source.name for source in report.sources[2:]] == ["cri", "docker", "environment"]
    [workload] = report.workloads
    assert (workload.display_name, workload.naming) == ("web", 0)  # and it was not renamed
    engine.close()
    assert docker.closed
    assert discovery.is_closed


def test_discovery_is_asked_for_containers_and_jobs_without_a_name() -> None:
    named = WorkloadRef(WorkloadKind.CONTAINER, "d" * 64)
    job = WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "x.service")
    cri = FakeNames(NameRead({named.id: WorkloadInfo(named, WorkloadNames(container="web"))}))
    workloads = [CONTAINER, named, job, unit]
    engine, discovery, _ = discovering([cri], *(facts(pid, ref) for pid, ref in enumerate(workloads, 1)))
    engine.sample()
    assert discovery.asked == [{CONTAINER, job}]


def test_a_workload_without_a_name_is_held_during_discovery_and_no_longer_than_others() -> None:
    engine, discovery, clock = discovering([], facts(1, CONTAINER), facts(2))
    discovery.pending = frozenset({CONTAINER_ID})
    held = []
    for _ in range(3):
        held.append({workload.ref: workload.awaiting_names for workload in engine.sample().workloads}[CONTAINER])
        clock.advance(FAR_S)
    assert held == [True, True, False]


def test_the_report_has_the_driver_versions() -> None:
    assert World(gpu_read(gpu(0))).next().driver == DRIVER


# ---------------------------------------------------------------------------- outcomes of sources


def test_each_source_has_an_outcome_with_its_duration() -> None:
    clock = ManualClock()
    engine = Engine(
        gpus=FakeGpus(
            GpuRead(state=SourceState.DEGRADED, reason="GPU 1: lost", errors=1), on_read=lambda: clock.advance(0.25)
        ),
        processes=FakeProcesses(
            ProcessRead(state=SourceState.UNAVAILABLE, reason="no /proc", errors=2), on_read=lambda: clock.advance(0.5)
        ),
        names=[FakeNames(on_read=lambda: clock.advance(0.125))],
        clock=clock,
    )
    report = engine.sample()
    assert report.sources == (
        SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: lost", 0.25, 1),
        SourceOutcome("procfs", SourceState.UNAVAILABLE, "no /proc", 0.5, 2, blind=True),
        SourceOutcome("names", SourceState.OK, None, 0.125, 0),
    )
    assert report.monotonic_ns == 0  # a Report is as old as the start of its cycle


def test_unreadable_processes_are_counted_for_every_reason_while_the_process_source_answers() -> None:
    unreadable = {"timed_out": 1, UnreadableReason.TOO_LARGE: 2}
    counted = process_read(state=SourceState.DEGRADED, reason="3 processes")
    away = process_read(state=SourceState.UNAVAILABLE, reason="no /proc")
    reads = [replace(each, unreadable=unreadable) for each in (counted, away)]
    world = World(gpu_read(gpu(0)), processes=[*reads, process_read()])
    none = dict.fromkeys(("denied", "hidden", "timed_out", "too_large", "malformed", "unidentified"), 0)
    assert world.next().unreadable == none | {"timed_out": 1, "too_large": 2}
    assert world.next().unreadable == {}
    assert world.next().unreadable == none


def test_without_proc_the_figures_of_the_driver_are_reported() -> None:
    world = World(
        gpu_read(gpu(0, [listed(1, GIB)])), processes=[process_read(state=SourceState.UNAVAILABLE, reason="no /proc")]
    )
    process = only(world.next())
    assert (process.memory_bytes, process.workload.id) == (GIB, "unidentified")


# ---------------------------------------------------------------------------- processes that exit


def test_an_exited_process_keeps_its_identity_while_the_driver_lists_it() -> None:
    world = World(gpu_read(gpu(0, [listed(7, GIB)])), processes=[process_read(facts(7, CONTAINER)), process_read()])
    before = identity(only(world.next()))
    for _ in range(5):
        assert identity(only(world.next())) == before


def test_an_exited_process_is_forgotten_once_the_driver_drops_it() -> None:
    present, absent = gpu_read(gpu(0, [listed(7, GIB)])), gpu_read(gpu(0, []))
    world = World(present, present, absent, present, processes=[process_read(facts(7, CONTAINER)), process_read()])
    assert [only(world.next()).workload for _ in range(2)] == [CONTAINER, CONTAINER]
    assert active(world.next()) == []
    assert only(world.next()).workload.id == "unidentified"


def test_a_reused_pid_is_a_new_process_at_once() -> None:
    world = World(
        gpu_read(gpu(0, [listed(7, GIB)])),
        processes=[
            process_read(facts(7, CONTAINER, start_ticks=100)),
            process_read(facts(7, name="sh", start_ticks=900)),
        ],
    )
    world.next()
    process = only(world.next())
    assert (process.key.start_ticks, process.name, process.workload.id) == (900, "sh", "host")


def test_an_exited_process_has_no_device_open() -> None:
    """The driver still lists it on GPU 0; GPU 1, which it had open, is closed."""
    world = World(
        gpu_read(gpu(0, [listed(7, GIB)]), gpu(1)),
        processes=[process_read(facts(7, CONTAINER, opens={0, 1}, uvm=True)), process_read()],
    )
    assert [process.gpu_uuid for process in active(world.next())] == ["GPU-0", "GPU-1"]
    assert [process.gpu_uuid for process in active(world.next())] == ["GPU-0"]


def test_a_process_that_proc_shows_again_keeps_its_identity() -> None:
    there = process_read(facts(7, CONTAINER, opens={0}, uvm=True))
    world = World(gpu_read(gpu(0, [listed(7, GIB)])), processes=[there, process_read(), there])
    identities = [identity(only(world.next())) for _ in range(3)]
    assert identities[0] == identities[1] == identities[2]


# ---------------------------------------------------------------------------- in a private pid namespace


def blind(*known: ProcessFacts, are_own: bool = True) -> ProcessRead:
    """What ``/proc`` shows to an agent in a private pid namespace."""
    return replace(process_read(*known), state=SourceState.DEGRADED, pids_complete=False, pids_are_own=are_own)


def by_driver(version: str, *gpus: GpuReading) -> GpuRead:
    return replace(gpu_read(*gpus), driver=DriverFacts(version))


def test_the_snapshot_says_whether_the_driver_may_hide_processes() -> None:
    for read, expected in ((process_read(), True), (blind(), False)):
        rules = Recorder()
        World(gpu_read(gpu(0)), processes=[read], rules=rules).next()
        assert [snapshot.pids_complete for snapshot in rules.snapshots] == [expected]


def test_a_host_pid_is_not_matched_with_the_same_pid_of_the_container() -> None:
    world = World(by_driver("535.104.05", gpu(0, [listed(1, GIB), listed(3, 2 * GIB)])), processes=[blind(facts(1))])
    for _ in range(2):
        report = world.next()
        assert {process.workload for process in report.processes} == {UNIDENTIFIED_WORKLOAD}
        assert [(p.key.pid, p.name, p.memory_bytes) for p in report.processes] == [(1, None, GIB), (3, None, 2 * GIB)]


def test_a_process_with_an_open_gpu_is_known_without_the_drivers_pids() -> None:
    holder = facts(9, CONTAINER, opens={0}, uvm=True)
    world = World(by_driver("535.104.05", gpu(0, [listed(1, GIB)])), processes=[blind(facts(1), holder)])
    found = {process.key.pid: process.workload for process in world.next().processes}
    assert found == {1: UNIDENTIFIED_WORKLOAD, 9: CONTAINER}


def test_pids_of_a_driver_that_lists_the_callers_namespace_are_matched_with_proc() -> None:
    world = World(by_driver("565.57.01", gpu(0, [listed(7, GIB)])), processes=[blind(facts(7, CONTAINER))])
    process = only(world.next())
    assert (process.workload, process.memory_bytes) == (CONTAINER, GIB)


def test_an_exited_process_is_not_matched_with_the_same_pid_of_the_host() -> None:
    """Pid 7 of the container held the GPU and has exited; the driver's pid 7 is the host's."""
    holder = blind(facts(7, CONTAINER, opens={0}, uvm=True))
    none, other = by_driver("535.104.05", gpu(0)), by_driver("535.104.05", gpu(0, [listed(7, GIB)]))
    world = World(none, other, processes=[holder, blind()])
    assert only(world.next()).workload == CONTAINER
    assert only(world.next()).workload == UNIDENTIFIED_WORKLOAD


def test_utilisation_of_pids_of_another_namespace_is_absent_rather_than_zero() -> None:
    row = UtilizationRow(7, 0, 50, 0, 0, 0)
    busy = replace(gpu(0, [listed(7)]), utilization=UtilizationRead(0, 0, (row,)))
    for version, is_present in (("565.57.01", False), ("570.86.10", True)):
        world = World(by_driver(version, busy), processes=[blind(facts(7, CONTAINER))])
        assert (world.next().gpus[0].reading.utilization is not None) is is_present


def test_processes_persist_while_proc_cannot_be_read() -> None:
    """A hidden process keeps its inferred memory through a cycle without /proc."""
    hidden = process_read(facts(7, CONTAINER, opens={0}, uvm=True))
    unreadable = process_read(state=SourceState.UNAVAILABLE, reason="no /proc")
    world = World(gpu_read(gpu(0, [], memory=memory(used_gib=20))), processes=[hidden, unreadable, hidden])
    held = [world.next().workloads[0].gpus[0].inferred_bytes for _ in range(3)]
    assert held == [20 * GIB] * 3


def test_a_snapshot_has_the_processes_of_its_cycle() -> None:
    one, two = facts(1), facts(2, CONTAINER)
    reads = [process_read(one, two), process_read(two, one), process_read(one), process_read(one, two)]
    rules = Recorder()
    world = World(gpu_read(gpu(0, [listed(1)])), processes=reads, rules=rules)
    for _ in reads:
        world.next()
    assert [snapshot.processes for snapshot in rules.snapshots] == [read.processes for read in reads]


def test_a_snapshot_is_not_changed_by_later_cycles() -> None:
    rules = Recorder()
    world = World(
        gpu_read(gpu(0, [listed(1)])),
        processes=[process_read(facts(1, CONTAINER)), process_read(), process_read(facts(1, start_ticks=900))],
        names=[
            FakeNames(NameRead({CONTAINER_ID: WorkloadInfo(CONTAINER, WorkloadNames(container="web"))}), NameRead())
        ],
        rules=rules,
    )
    seen = []
    for _ in range(3):
        world.next()
        seen.append((dict(rules.snapshots[-1].processes), dict(rules.snapshots[-1].names)))
    assert [(snapshot.processes, snapshot.names) for snapshot in rules.snapshots] == seen
    assert [snapshot.processes[1].alive for snapshot in rules.snapshots] == [True, False, True]
