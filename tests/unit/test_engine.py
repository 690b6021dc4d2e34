from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.engine import CLOSING_S, SHORTEST_WINDOW_S, Engine
from otel_gpu.model import (
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
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources import late
from otel_gpu.sources.base import Claim, GpuRead, Known, NameRead, ProcessRead
from otel_gpu.sources.late import Lookout
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
    """Its closing waits for others."""

    def __init__(self, told: threading.Barrier) -> None:
        super().__init__()
        self._told = told

    def close(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._told.wait()
            super().close()


class World:
    """An engine on sources that answer what they are told."""

    def __init__(self, *gpus: GpuRead, processes: Sequence[ProcessRead] = (), names: Sequence[FakeNames] = ()) -> None:
        self.clock = ManualClock()
        self.gpus = FakeGpus(*gpus)
        self.processes = FakeProcesses(*processes)
        self.engine = Engine(gpus=self.gpus, processes=self.processes, names=names, clock=self.clock)

    def next(self) -> Report:
        """The answer of a cycle some time later."""
        self.clock.advance(FAR_S)
        return self.engine.sample()


def only(answer: Report) -> ProcessReport:
    (process,) = active(answer)
    return process


def active(answer: Report) -> list[ProcessReport]:
    """Who is there now, without those who ended within the retention."""
    return [process for process in answer.processes if process.active]


def identity(process: ProcessReport) -> tuple[object, ...]:
    return process.key, process.name, process.start_time_s, process.workload, process.gpu_uuid, process.memory_bytes


# ---------------------------------------------------------------------------- passes


def test_a_sample_reads_each_source_once() -> None:
    names = FakeNames()
    world = World(gpu_read(gpu(0), gpu(1)), names=[names])
    for expected in (1, 2, 3):
        world.next()
        assert (world.gpus.reads, world.processes.reads, names.reads) == (expected, expected, expected)


def test_before_the_first_pass_there_is_no_answer_and_no_age() -> None:
    world = World()
    assert (world.engine.latest, world.engine.age_s()) == (None, None)


def test_the_newest_answer_is_kept_and_ages() -> None:
    world = World(gpu_read(gpu(0)))
    answer = world.engine.sample()
    world.clock.advance(2.5)
    assert world.engine.latest is answer
    assert world.engine.age_s() == 2.5


@pytest.mark.parametrize("pause_s", [0.0, 0.5, SHORTEST_WINDOW_S - 0.001])
def test_an_answer_younger_than_the_shortest_window_is_given_again(pause_s: float) -> None:
    world = World(gpu_read(gpu(0)))
    first = world.engine.sample()
    world.clock.advance(pause_s)
    assert world.engine.sample() is first
    assert world.gpus.reads == 1


def test_no_window_is_shorter_than_a_second_however_often_one_asks() -> None:
    world = World(gpu_read(gpu(0)))
    windows = set()
    for _ in range(100):
        world.clock.advance(0.3)
        windows.add(world.engine.sample().window_s)
    assert windows == {None, 1.2}


def test_a_stepped_wall_clock_changes_no_window() -> None:
    world = World(gpu_read(gpu(0)))
    world.next()
    world.clock.step_wall(-86_400)
    assert world.next().window_s == FAR_S


def test_passes_never_overlap_whoever_asks_at_once() -> None:
    running, most, entered = 0, 0, threading.Barrier(4, timeout=30)
    clock = ManualClock()

    def read() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        clock.advance(FAR_S)
        running -= 1

    engine = Engine(gpus=FakeGpus(on_read=read), processes=FakeProcesses(), clock=clock)

    def ask() -> None:
        entered.wait()
        for _ in range(25):
            engine.sample()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_a_pass_that_fails_leaves_the_last_answer_and_the_next_one_works() -> None:
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


def test_who_came_or_went_in_a_pass_that_failed_is_seen_by_the_next() -> None:
    """/proc tells the same again, in the same object: nothing else says that nobody has taken it in."""
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


def test_closing_lets_go_of_the_driver() -> None:
    world = World()
    world.engine.close()
    assert world.gpus.closed


# ---------------------------------------------------------------------------- what is asked of whom


def test_every_pid_the_driver_speaks_of_is_looked_up() -> None:
    row = UtilizationRow(4, 0, 50, 0, 0, 0)
    reading = gpu(
        0, [listed(1), listed(1), listed(2)], mig=[mig("MIG-1", (1, 0), [listed(3)]), mig("MIG-2", (2, 0), None)]
    )
    busy = replace(gpu(1, None), utilization=UtilizationRead(0, 0, (row,)))
    world = World(gpu_read(reading, busy))
    world.next()
    assert world.processes.asked == [{1, 2, 3, 4}]


def test_names_are_asked_for_the_workloads_that_are_there() -> None:
    names = FakeNames()
    world = World(gpu_read(gpu(0, [listed(1)])), processes=[process_read(facts(1, CONTAINER))], names=[names])
    world.next()
    assert names.asked == [{CONTAINER}]


def test_names_of_several_sources_are_merged_and_the_first_to_know_counts() -> None:
    names = WorkloadNames(container="from cri")
    first = FakeNames(NameRead({CONTAINER_ID: Known(CONTAINER, names)}), name="cri")
    other = WorkloadNames(container="from docker")
    second = FakeNames(NameRead({CONTAINER_ID: Known(CONTAINER, other)}), name="docker")
    world = World(gpu_read(gpu(0, [listed(1)])), processes=[process_read(facts(1, CONTAINER))], names=[first, second])
    answer = world.next()
    assert [workload.names for workload in answer.workloads] == [names]
    assert [(source.name, source.state) for source in answer.sources[2:]] == [
        ("cri", SourceState.OK),
        ("docker", SourceState.DEGRADED),
    ]


def test_who_was_given_a_gpu_and_has_no_process_is_there_and_allocated() -> None:
    given = Known(CONTAINER, WorkloadNames(container="waits"), since_s=1.0, claims=(Claim("0"),))
    world = World(gpu_read(gpu(0)), names=[FakeNames(NameRead({CONTAINER_ID: given}))])
    world.next()
    [workload] = world.next().workloads
    assert workload.display_name == "waits"
    [part] = workload.gpus
    assert (part.state, part.active, part.allocation) == (GpuState.ALLOCATED, True, 1.0)


def test_who_is_held_back_is_asked_for_though_it_has_left() -> None:
    names = FakeNames(
        NameRead(pending=frozenset({CONTAINER_ID})),
        NameRead({CONTAINER_ID: Known(CONTAINER, WorkloadNames(container="brief"))}),
    )
    world = World(
        gpu_read(gpu(0, [listed(1)])), gpu_read(gpu(0)),
        processes=[process_read(facts(1, CONTAINER)), process_read()], names=[names],
    )  # fmt: skip
    assert [workload.held for workload in world.next().workloads] == [True]
    [workload] = world.next().workloads
    assert (workload.display_name, workload.held) == ("brief", False)
    assert names.asked == [{CONTAINER}, {CONTAINER}]


def test_closing_tells_everybody_before_it_waits_for_anybody() -> None:
    """Each of them returns when all of them were told: one after the other, none ever would."""
    told = threading.Barrier(16, timeout=30)
    names = [Hung(told) for _ in range(16)]
    engine = Engine(gpus=FakeGpus(), processes=FakeProcesses(), names=names, clock=ManualClock())
    engine.close()
    assert [each.closed for each in names] == [True] * 16


def test_closing_waits_for_all_together_and_leaves_those_who_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waited.append(timeout))
    told = threading.Barrier(17, timeout=30)
    engine = Engine(
        gpus=FakeGpus(), processes=FakeProcesses(), names=[Hung(told) for _ in range(16)], clock=ManualClock()
    )
    engine.close()  # the seventeenth never comes
    told.abort()
    assert len(waited) == 16
    assert all(timeout is not None and 0.0 <= timeout <= CLOSING_S for timeout in waited)
    assert waited == sorted(waited, key=lambda timeout: -(timeout or 0.0))  # one deadline, for all of them


def test_closing_needs_no_threads_where_none_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names = [FakeNames(), FakeNames()]
    Engine(gpus=FakeGpus(), processes=FakeProcesses(), names=names, clock=ManualClock()).close()
    assert all(each.closed for each in names)


# ---------------------------------------------------------------------------- who comes later


class Found(Lookout):
    """A lookout that finds whoever is given to it, and says who is pending as it is told to."""

    def __init__(self) -> None:
        super().__init__(lambda _: late.Found(), ManualClock())
        self.asked: list[set[WorkloadRef]] = []
        self.pending: frozenset[str] = frozenset()
        self.ended = False

    def look_for(self, nameless: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        self.asked.append(set(nameless))
        return NameRead(pending=self.pending)

    def close(self) -> None:
        self.ended = True


def looking(names: Sequence[FakeNames], *processes: ProcessFacts) -> tuple[Engine, Found, ManualClock]:
    lookout, clock = Found(), ManualClock()
    listing = [listed(facts.key.pid) for facts in processes]
    engine = Engine(
        gpus=FakeGpus(gpu_read(gpu(0, listing))),
        processes=FakeProcesses(process_read(*processes)),
        names=names,
        lookout=lookout,
        clock=clock,
    )
    return engine, lookout, clock


def test_who_comes_later_is_asked_from_then_on_and_listed_under_its_own_name() -> None:
    docker = FakeNames(NameRead({CONTAINER_ID: Known(CONTAINER, WorkloadNames(container="web"))}), name="docker")
    engine, lookout, clock = looking([FakeNames(name="cri")], facts(1, CONTAINER))
    lookout.pending = frozenset({CONTAINER_ID})
    first = engine.sample()
    assert [source.name for source in first.sources[2:]] == ["cri", "environment"]
    lookout._sources, lookout.pending = (docker,), frozenset()
    clock.advance(FAR_S)
    answer = engine.sample()
    assert [source.name for source in answer.sources[2:]] == ["cri", "docker", "environment"]
    [workload] = answer.workloads
    assert (workload.display_name, workload.naming) == ("web", 0)  # and it was not renamed
    engine.close()
    assert docker.closed
    assert lookout.ended


def test_somebody_is_looked_for_who_knows_containers_and_jobs_without_a_name() -> None:
    named = WorkloadRef(WorkloadKind.CONTAINER, "d" * 64)
    job = WorkloadRef(WorkloadKind.SLURM_JOB, "7")
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "x.service")
    cri = FakeNames(NameRead({named.id: Known(named, WorkloadNames(container="web"))}))
    everybody = [CONTAINER, named, job, unit]
    engine, lookout, _ = looking([cri], *(facts(pid, ref) for pid, ref in enumerate(everybody, 1)))
    engine.sample()
    assert lookout.asked == [{CONTAINER, job}]


def test_a_workload_without_a_name_is_held_back_while_somebody_is_looked_for_and_no_longer_than_others() -> None:
    engine, lookout, clock = looking([], facts(1, CONTAINER), facts(2))
    lookout.pending = frozenset({CONTAINER_ID})
    held = []
    for _ in range(3):
        held.append({workload.ref: workload.held for workload in engine.sample().workloads}[CONTAINER])
        clock.advance(FAR_S)
    assert held == [True, True, False]


def test_closing_lets_go_of_everybody() -> None:
    names = FakeNames()
    world = World(gpu_read(gpu(0)), names=[names])
    world.engine.close()
    assert names.closed


def test_the_driver_is_told_as_the_source_told_it() -> None:
    assert World(gpu_read(gpu(0))).next().driver == DRIVER


# ---------------------------------------------------------------------------- how the sources did


def test_each_source_has_its_outcome_and_the_time_it_took() -> None:
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
    answer = engine.sample()
    assert answer.sources == (
        SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: lost", 0.25, 1),
        SourceOutcome("procfs", SourceState.UNAVAILABLE, "no /proc", 0.5, 2),
        SourceOutcome("names", SourceState.OK, None, 0.125, 0),
    )
    assert answer.monotonic_ns == 0  # an answer is as old as the beginning of its pass


def test_without_proc_the_figures_of_the_driver_stand_all_the_same() -> None:
    world = World(
        gpu_read(gpu(0, [listed(1, GIB)])), processes=[process_read(state=SourceState.UNAVAILABLE, reason="no /proc")]
    )
    process = only(world.next())
    assert (process.memory_bytes, process.workload.id) == (GIB, "unidentified")


# ---------------------------------------------------------------------------- those who leave


def test_a_process_that_has_left_keeps_its_identity_for_as_long_as_the_driver_lists_it() -> None:
    world = World(gpu_read(gpu(0, [listed(7, GIB)])), processes=[process_read(facts(7, CONTAINER)), process_read()])
    before = identity(only(world.next()))
    for _ in range(5):
        assert identity(only(world.next())) == before


def test_a_process_that_the_driver_forgot_is_forgotten() -> None:
    present, absent = gpu_read(gpu(0, [listed(7, GIB)])), gpu_read(gpu(0, []))
    world = World(present, present, absent, present, processes=[process_read(facts(7, CONTAINER)), process_read()])
    assert [only(world.next()).workload for _ in range(2)] == [CONTAINER, CONTAINER]
    assert active(world.next()) == []
    assert only(world.next()).workload.id == "unidentified"


def test_a_pid_that_is_used_again_is_somebody_else_at_once() -> None:
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


def test_a_process_that_has_left_has_no_device_open_any_more() -> None:
    """It is listed on GPU 0 still; that it had GPU 1 open too is over."""
    world = World(
        gpu_read(gpu(0, [listed(7, GIB)]), gpu(1)),
        processes=[process_read(facts(7, CONTAINER, opens={0, 1}, uvm=True)), process_read()],
    )
    assert [process.gpu_uuid for process in active(world.next())] == ["GPU-0", "GPU-1"]
    assert [process.gpu_uuid for process in active(world.next())] == ["GPU-0"]


def test_a_process_that_comes_back_into_sight_is_the_one_it_was() -> None:
    there = process_read(facts(7, CONTAINER, opens={0}, uvm=True))
    world = World(gpu_read(gpu(0, [listed(7, GIB)])), processes=[there, process_read(), there])
    answers = [identity(only(world.next())) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


# ---------------------------------------------------------------------------- in a pid namespace of its own


def blind(*known: ProcessFacts, are_own: bool = True) -> ProcessRead:
    """What ``/proc`` says to an agent in a pid namespace of its own."""
    return replace(process_read(*known), state=SourceState.DEGRADED, pids_complete=False, pids_are_own=are_own)


def by_driver(version: str, *gpus: GpuReading) -> GpuRead:
    return replace(gpu_read(*gpus), driver=DriverFacts(version, None))


def test_the_snapshot_says_whether_the_driver_may_hide_processes() -> None:
    for read, expected in ((process_read(), True), (blind(), False)):
        world = World(gpu_read(gpu(0)), processes=[read])
        world.next()
        assert world.engine._snapshot is not None
        assert world.engine._snapshot.pids_complete is expected


def test_a_host_pid_is_not_matched_with_the_container_process_of_the_same_number() -> None:
    world = World(by_driver("535.104.05", gpu(0, [listed(1, GIB), listed(3, 2 * GIB)])), processes=[blind(facts(1))])
    for _ in range(2):
        answer = world.next()
        assert {process.workload for process in answer.processes} == {UNIDENTIFIED_WORKLOAD}
        assert [(p.key.pid, p.name, p.memory_bytes) for p in answer.processes] == [(1, None, GIB), (3, None, 2 * GIB)]


def test_who_has_a_gpu_open_is_known_without_the_drivers_pids() -> None:
    holder = facts(9, CONTAINER, opens={0}, uvm=True)
    world = World(by_driver("535.104.05", gpu(0, [listed(1, GIB)])), processes=[blind(facts(1), holder)])
    found = {process.key.pid: process.workload for process in world.next().processes}
    assert found == {1: UNIDENTIFIED_WORKLOAD, 9: CONTAINER}


def test_a_driver_that_lists_the_callers_own_is_matched_with_the_agents_own_proc() -> None:
    world = World(by_driver("565.57.01", gpu(0, [listed(7, GIB)])), processes=[blind(facts(7, CONTAINER))])
    process = only(world.next())
    assert (process.workload, process.memory_bytes) == (CONTAINER, GIB)


def test_a_process_that_has_left_is_not_found_again_under_a_number_that_means_somebody_else() -> None:
    """Pid 7 of the container held the GPU and is gone; the driver's 7 is the host's."""
    holder = blind(facts(7, CONTAINER, opens={0}, uvm=True))
    none, somebody = by_driver("535.104.05", gpu(0)), by_driver("535.104.05", gpu(0, [listed(7, GIB)]))
    world = World(none, somebody, processes=[holder, blind()])
    assert only(world.next()).workload == CONTAINER
    assert only(world.next()).workload == UNIDENTIFIED_WORKLOAD


def test_utilisation_of_pids_that_are_nobodys_here_is_not_told_rather_than_zero() -> None:
    row = UtilizationRow(7, 0, 50, 0, 0, 0)
    busy = replace(gpu(0, [listed(7)]), utilization=UtilizationRead(0, 0, (row,)))
    for version, told in (("565.57.01", False), ("570.86.10", True)):
        world = World(by_driver(version, busy), processes=[blind(facts(7, CONTAINER))])
        assert (world.next().gpus[0].reading.utilization is not None) is told


def test_nobody_has_left_because_nobody_could_look() -> None:
    """One cycle without /proc must not cost a hidden holder what is known of it."""
    hidden = process_read(facts(7, CONTAINER, opens={0}, uvm=True))
    unreadable = process_read(state=SourceState.UNAVAILABLE, reason="no /proc")
    world = World(gpu_read(gpu(0, [], memory=memory(used_gib=20))), processes=[hidden, unreadable, hidden])
    held = [world.next().workloads[0].gpus[0].inferred_bytes for _ in range(3)]
    assert held == [20 * GIB] * 3


def test_processes_are_the_same_object_while_the_same_is_told_of_them_in_whatever_order() -> None:
    one, two = facts(1), facts(2, CONTAINER)
    seen: list[Mapping[int, ProcessFacts]] = []
    reads = [process_read(one, two), process_read(replace(two), one), process_read(one), process_read(one, two)]
    world = World(gpu_read(gpu(0, [listed(1)])), processes=reads)
    observe = world.engine._attributor.observe

    def noting(snapshot: Snapshot) -> Report:
        seen.append(snapshot.processes)
        return observe(snapshot)

    world.engine._attributor.observe = noting  # type: ignore[method-assign]
    for _ in reads:
        world.next()
    assert seen[1] is seen[0]
    assert [sorted(each) for each in seen[2:]] == [[1], [1, 2]]
