from __future__ import annotations

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import HOST_WORKLOAD, MigAccess, ProcessKey, SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import ProcessSource
from otel_gpu.sources.proc.source import ProcfsSource
from tests.proc_tree import UVM, ProcTree, Reads, maps_line, mig_nodes

CONTAINER = "0123456789abcdef" * 4
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")


# ---------------------------------------------------------------------------- facts


def test_the_source_satisfies_the_protocol(source: ProcfsSource) -> None:
    as_protocol: ProcessSource = source
    assert as_protocol.name == "procfs"


def test_facts_of_a_cuda_process_are_complete(tree: ProcTree, source: ProcfsSource) -> None:
    tree.set_mig_minors()
    directory = tree.add(
        7,
        comm=b"train",
        start_ticks=1_250,
        cgroup=f"0::/system.slice/docker-{CONTAINER}.scope\n",
        fds=[*CUDA_FDS, "/dev/nvidia3", *mig_nodes((0, 1, 0))],
        maps=maps_line(0x200000000, 1 << 21) + maps_line(0x7F0000000000, 4096, "/usr/lib/libcuda.so.1"),
    )
    read = source.read([7])
    assert (read.state, read.reason, read.errors) == (SourceState.OK, None, 0)
    facts = read.processes[7]
    assert facts.key == ProcessKey(7, 1_250)
    assert facts.name == "train"
    assert facts.start_time_s == 1_700_000_012.5
    assert facts.owner_uid == directory.stat().st_uid
    assert facts.workload == WorkloadRef(WorkloadKind.CONTAINER, CONTAINER, runtime="docker")
    assert facts.gpu_minors_open == {0, 3}
    assert facts.mig_access == {MigAccess(0, 1, None), MigAccess(0, 1, 0)}
    assert facts.uvm_open
    assert facts.uvm_mapping_bytes == 1 << 21
    assert facts.alive


def test_a_process_without_an_open_gpu_is_returned_if_asked_for(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7)
    facts = source.read([7]).processes[7]
    assert facts.gpu_minors_open == frozenset()
    assert not facts.uvm_open
    assert facts.uvm_mapping_bytes is None
    assert facts.workload == HOST_WORKLOAD


def test_processes_with_an_open_gpu_are_returned_without_being_asked_for(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS)
    tree.add(8, fds=["/dev/nvidia1"])
    tree.add(9)
    assert set(source.read([]).processes) == {7, 8}


def test_a_monitor_with_only_the_control_node_is_not_reported(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=["/dev/nvidiactl"])
    assert source.read([]).processes == {}


def test_pids_that_do_not_exist_are_absent_without_an_error(source: ProcfsSource) -> None:
    read = source.read([4242, 0, -1])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.OK, 0)


def test_an_open_uvm_node_without_a_mapping_has_zero_bytes_mapped(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS, maps="")
    assert source.read([]).processes[7].uvm_mapping_bytes == 0


def test_a_zombie_is_not_alive(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, state="Z", fds=())
    assert source.read([7]).processes[7].alive is False


def test_undecodable_bytes_of_a_name_are_replaced(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, comm=b"a) (\xff\nb")
    assert source.read([7]).processes[7].name == "a) (\ufffd\nb"


def test_capability_nodes_without_an_instance_give_no_access(tree: ProcTree, source: ProcfsSource) -> None:
    tree.set_mig_minors()
    tree.add(7, fds=[*CUDA_FDS, "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap999999"])
    assert source.read([]).processes[7].mig_access == frozenset()


def test_without_a_driver_capability_nodes_give_no_access(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=[*CUDA_FDS, *mig_nodes((0, 1, 0))])
    read = source.read([])
    assert (read.processes[7].mig_access, read.state) == (frozenset(), SourceState.OK)


def test_another_cgroup_parser_can_be_given(tree: ProcTree, clock: ManualClock) -> None:
    tree.add(7, cgroup=b"0::/x\xff\n")
    seen: list[str] = []

    def parse(text: str) -> WorkloadRef:
        seen.append(text)
        return WorkloadRef(WorkloadKind.LXC, "box")

    facts = ProcfsSource(tree.root, clock, own_proc=tree.root, parse_workload=parse).read([7]).processes[7]
    assert facts.workload.id == "box"
    assert seen == ["0::/x\ufffd\n"]


# ---------------------------------------------------------------------------- changes


def test_name_and_start_time_never_change(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, comm=b"bash", fds=CUDA_FDS)
    first = source.read([]).processes[7]
    tree.add(7, comm=b"python3", fds=CUDA_FDS)
    tree.set_btime(1_700_000_500)
    again = source.read([]).processes[7]
    assert (again.name, again.start_time_s) == ("bash", first.start_time_s)


def test_the_start_time_of_a_process_that_appears_after_a_clock_step_follows_the_new_clock(
    tree: ProcTree, source: ProcfsSource
) -> None:
    source.read([])
    tree.set_btime(1_700_000_500)
    tree.add(7, start_ticks=100)
    assert source.read([7]).processes[7].start_time_s == 1_700_000_501.0


def test_a_reused_pid_is_a_new_process_at_once(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, comm=b"old", start_ticks=100, fds=CUDA_FDS, cgroup="0::/system.slice/old.service\n")
    source.read([])
    tree.add(7, comm=b"new", start_ticks=200)
    read = source.read([7])
    facts = read.processes[7]
    assert (facts.key, facts.name) == (ProcessKey(7, 200), "new")
    assert facts.gpu_minors_open == frozenset()
    assert facts.workload == HOST_WORKLOAD
    assert source.read([]).processes == {}


def test_a_process_that_moves_to_a_container_belongs_to_it_in_the_next_cycle(
    tree: ProcTree, source: ProcfsSource
) -> None:
    tree.add(7, fds=CUDA_FDS, cgroup="0::/system.slice/containerd.service\n")
    assert source.read([]).processes[7].workload.kind is WorkloadKind.SYSTEMD_UNIT
    tree.add(7, fds=CUDA_FDS, cgroup=f"0::/docker/{CONTAINER}\n")
    assert source.read([]).processes[7].workload.id == CONTAINER


def test_an_exited_process_keeps_its_workload(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, cgroup=f"4:memory:/docker/{CONTAINER}\n")
    source.read([7])
    tree.add(7, state="Z", cgroup="4:memory:/\n")
    assert source.read([7]).processes[7].workload.id == CONTAINER


def test_a_process_that_closes_its_gpu_is_no_longer_returned(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS)
    source.read([])
    tree.set_fds(7, ["/dev/null"])
    assert source.read([]).processes == {}


def test_access_to_another_instance_is_seen_in_the_next_cycle(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=[*CUDA_FDS, *mig_nodes((0, 1, 0))])
    source.read([])
    tree.set_mig_minors()  # the driver had no MIG instances before
    tree.set_fds(7, [*CUDA_FDS, *mig_nodes((1, 2, 3))])
    assert source.read([]).processes[7].mig_access == {MigAccess(1, 2, None), MigAccess(1, 2, 3)}
    tree.set_fds(7, CUDA_FDS)
    assert source.read([]).processes[7].mig_access == frozenset()


def test_a_mapping_that_grows_is_seen_in_the_next_cycle(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    source.read([])
    tree.add(7, fds=CUDA_FDS, maps=maps_line(0x1000, 8192))
    assert source.read([]).processes[7].uvm_mapping_bytes == 8192


def test_nothing_is_kept_of_ended_processes(tree: ProcTree, source: ProcfsSource) -> None:
    for pid in range(100, 150):
        tree.add(pid, fds=CUDA_FDS)
    assert len(source.read([]).processes) == 50
    for pid in range(100, 150):
        tree.remove(pid)
    assert source.read([]).processes == {}
    assert [process.pid for process in source._table] == [1]


# ---------------------------------------------------------------------------- budget of the scan


def test_a_scan_of_a_large_host_opens_no_more_than_its_budget(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 400):
        tree.add(pid, fds=["/dev/null"] * 5)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=20)
    reads = Reads(monkeypatch)
    for _ in range(3):
        reads.count.clear()
        source.read([])
        assert reads.count["scandir"] == 1 + 20  # the listing, and the descriptor directories
        assert reads.count["readlink"] <= 1 + 20 * 5  # the agent's pid namespace once, and the descriptors
        # The root for the listing and for the processes, its stat in the first cycle, and for each process its
        # directory, stat and descriptor directory.
        assert reads.count["open"] <= 3 + 20 * 3


def test_a_scan_reads_no_more_descriptors_than_its_budget(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 130):
        tree.add(pid, fds=["/dev/null"] * 50)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, descriptors_per_cycle=200, descriptors_per_process=60)
    reads = Reads(monkeypatch)
    for _ in range(5):
        reads.count.clear()
        source.read([])
        assert 100 <= reads.count["readlink"] <= 200


def test_the_minors_of_mig_instances_are_read_once_and_again_for_an_unknown_minor(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.set_mig_minors()
    for pid in range(100, 110):
        tree.add(pid, fds=[*CUDA_FDS, *mig_nodes((0, pid - 100, 0)), "/dev/nvidia-caps/nvidia-cap2"])
    source = ProcfsSource(tree.root, clock, own_proc=tree.root)
    reads = Reads(monkeypatch)

    def opened() -> int:
        reads.count.clear()
        assert len(source.read([]).processes) == 10
        return reads.count["open"]

    opened()
    settled = opened()
    assert opened() == settled
    tree.set_fds(100, [*CUDA_FDS, *mig_nodes((1, 3, 0))])
    assert opened() == settled  # its instance is known
    for pid in (101, 102):
        tree.set_fds(pid, [*CUDA_FDS, "/dev/nvidia-caps/nvidia-cap1"])
    assert opened() == settled + 1
    assert opened() == settled


def test_a_gpu_opened_late_is_found_within_one_round_of_the_scan(tree: ProcTree, clock: ManualClock) -> None:
    for pid in range(100, 200):
        tree.add(pid)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=10)
    for _ in range(11):
        assert source.read([]).processes == {}
    tree.set_fds(150, CUDA_FDS)
    cycles = next(cycle for cycle in range(1, 100) if 150 in source.read([]).processes)
    assert cycles <= 11


def test_a_gpu_opened_late_is_found_while_many_processes_start(tree: ProcTree, clock: ManualClock) -> None:
    tree.add(7)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=4)
    source.read([])
    tree.set_fds(7, CUDA_FDS)
    found = None
    for cycle in range(1, 10):
        for pid in range(cycle * 100, cycle * 100 + 10):
            tree.add(pid)
        clock.advance(5)
        if 7 in source.read([]).processes:
            found = cycle
            break
    assert found is not None
    assert found <= 3


def test_a_young_process_is_scanned_in_every_cycle(tree: ProcTree, clock: ManualClock) -> None:
    for pid in range(100, 200):
        tree.add(pid)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=4)
    for _ in range(40):
        source.read([])
    tree.add(300, fds=CUDA_FDS)
    tree.add(301)
    assert set(source.read([]).processes) == {300}
    clock.advance(30)
    tree.set_fds(301, CUDA_FDS)
    assert set(source.read([]).processes) == {300, 301}


def test_kernel_threads_are_read_once(tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(100, 150):
        tree.add_kernel_thread(pid)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=4)
    source.read([])
    reads = Reads(monkeypatch)
    source.read([])
    assert reads.count["open"] == 2 + 1  # the root, for the listing and for process 1, and the descriptors of that


def test_kernel_threads_do_not_use_up_the_scan_of_processes(tree: ProcTree, clock: ManualClock) -> None:
    for pid in range(100, 150):
        tree.add_kernel_thread(pid)
    tree.add(200, fds=CUDA_FDS)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=2)
    assert set(source.read([]).processes) == {200}


def test_a_process_with_many_descriptors_is_read_in_slices_next_to_others(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add(7, fds={**dict.fromkeys(range(500), "/dev/null"), 450: "/dev/nvidia0"})
    tree.add(8, fds=["/dev/nvidia1"])
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, descriptors_per_cycle=400, descriptors_per_process=100)
    reads = Reads(monkeypatch)
    found: list[set[int]] = []
    for _ in range(8):
        reads.count.clear()
        found.append(set(source.read([]).processes))
        assert reads.count["readlink"] <= 400
    assert found[:5] == [{8}, {8}, {8}, {8}, {7, 8}]
    assert all(pids == {7, 8} for pids in found[5:])


def test_processes_with_an_open_gpu_do_not_count_towards_the_budget(tree: ProcTree, clock: ManualClock) -> None:
    tree.remove(1)
    for pid in range(100, 120):
        tree.add(pid, fds=CUDA_FDS)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, processes_per_cycle=5)
    assert [len(source.read([]).processes) for _ in range(6)] == [5, 10, 15, 20, 20, 20]


def test_maps_beyond_the_budget_keep_their_figure_and_come_first_in_the_next_cycle(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (7, 8, 9):
        tree.add(pid, fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, maps_bytes_per_cycle=1)
    sizes = [{pid: facts.uvm_mapping_bytes for pid, facts in source.read([]).processes.items()} for _ in range(3)]
    assert [sorted(filter(None, each.values())) for each in sizes] == [[4096], [4096] * 2, [4096] * 3]
    for pid in (7, 8, 9):
        tree.set_maps(pid, maps_line(0x1000, 8192))
    grown = [
        {pid for pid, facts in source.read([]).processes.items() if facts.uvm_mapping_bytes == 8192} for _ in "123"
    ]
    assert [len(each) for each in grown] == [1, 2, 3]
