"""What changes rarely is read rarely, and nothing that matters is missed for it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import ProcessFacts
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.procfs_files import _lines_with, parse_maps
from otel_gpu.sources.procfs_scan import STEADY, stamp
from tests.procfs_tree import UVM, ProcTree, Reads, maps_line

IDS = [f"{number:064x}" for number in range(3)]
PID = 16
"""Its turn is the first of eight: what is read of it is due when the pace says so, and not before."""
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")


def cgroup(number: int) -> str:
    return f"0::/system.slice/docker-{IDS[number]}.scope\n"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    for pid in range(100, 120):
        tree.add(pid)
    return tree


@pytest.fixture
def source(tree: ProcTree, clock: ManualClock) -> ProcfsSource:
    return ProcfsSource(tree.root, clock, own_proc=tree.root, ticks_per_second=100, pace=STEADY)


def facts_after(source: ProcfsSource, clock: ManualClock, seconds: int) -> ProcessFacts:
    """What is told of the process so much later, with a cycle every second until then."""
    for _ in range(seconds):
        clock.advance(1)
        read = source.read([PID])
    return read.processes[PID]


def test_a_usual_cycle_opens_no_file_of_a_process_and_every_tenth_its_stat_and_its_descriptors(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 120):
        tree.remove(pid)
    facts_after(source, clock, 3)  # twice in full, for its cgroup counts from the second look on
    opened = []
    for _ in range(20):
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            facts_after(source, clock, 1)
            opened.append(reads.count["open"] - 1)  # /proc itself
    assert opened.count(0) == 18
    assert sum(opened) == 2 * 3  # its directory, stat and descriptors


def test_mappings_are_read_every_half_minute_also_of_a_process_that_is_as_large_as_it_was(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    """Managed memory may be mapped over what was reserved for it before, which changes no size."""
    tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096), size_bytes=1 << 30)
    facts_after(source, clock, 2)
    tree.write(f"{PID}/maps", maps_line(0x10000, 8192))
    assert facts_after(source, clock, 34).uvm_mapping_bytes == 8192


def test_what_is_due_of_many_processes_is_not_due_at_once(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = range(200, 280)
    for pid in pids:
        tree.add(pid, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    looked: list[int] = []
    for _ in range(90):
        clock.advance(1)
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            source.read(pids)
            looked.append(reads.count["readlink"] // len(CUDA_FDS))
    usual = looked[30:]
    assert sum(usual) >= len(pids) * (len(usual) // 10)  # each at least every ten seconds
    assert max(usual) <= len(pids) // 3


def test_who_was_not_looked_at_in_time_takes_his_turn_anew() -> None:
    pace_ns = 8_000
    on_time = {stamp(pid, 10_000, pace_ns, 18_500) for pid in range(8)}
    late = {stamp(pid, 10_000, pace_ns, 40_000) for pid in range(8)}
    first = {stamp(pid, None, pace_ns, 40_000) for pid in range(8)}
    assert on_time == {18_500}
    assert late == first == {40_000 - 1_000 * turn for turn in range(8)}


def test_what_has_not_changed_is_the_same_object(source: ProcfsSource, clock: ManualClock) -> None:
    assert facts_after(source, clock, 2) is facts_after(source, clock, 1)


def test_mappings_and_cgroups_are_read_again_within_half_a_minute(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 2)
    tree.write(f"{PID}/maps", maps_line(0x10000, 8192))
    tree.write(f"{PID}/cgroup", cgroup(1))
    soon = facts_after(source, clock, 5)
    assert (soon.uvm_mapping_bytes, soon.workload.id) == (4096, IDS[0])
    later = facts_after(source, clock, 26)
    assert (later.uvm_mapping_bytes, later.workload.id) == (8192, IDS[1])


def test_a_gpu_that_is_closed_is_noticed_within_ten_seconds(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 2)
    tree.set_fds(PID, ["/dev/null"])
    assert not facts_after(source, clock, 10).gpu_minors_open


def test_who_has_run_for_long_and_opens_a_gpu_is_noticed_within_half_a_minute(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 2)
    tree.set_fds(110, CUDA_FDS)
    for _ in range(31):
        clock.advance(1)
        read = source.read([PID])
    assert read.processes[110].gpu_minors_open == {0}


def test_who_is_new_is_looked_at_in_every_cycle_for_a_minute(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 2)
    tree.add(8)
    facts_after(source, clock, 30)
    tree.set_fds(8, CUDA_FDS)
    clock.advance(1)
    assert source.read([PID]).processes[8].gpu_minors_open == {0}
    tree.write("8/cgroup", cgroup(2))
    clock.advance(1)
    assert source.read([PID]).processes[8].workload.id == IDS[2]


def test_an_end_and_a_pid_used_again_are_noticed_at_once(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 3)
    tree.add(PID, state="Z", cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    assert not facts_after(source, clock, 1).alive
    tree.add(PID, start_ticks=5_000, cgroup=cgroup(1), fds=["/dev/null"])
    other = facts_after(source, clock, 1)
    assert (other.key.start_ticks, other.workload.id, other.gpu_minors_open) == (5_000, IDS[1], frozenset())


@pytest.mark.parametrize("block_bytes", [16, 100, 1 << 16])
def test_lines_are_found_wherever_a_block_ends(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr("otel_gpu.sources.procfs_files._MAPS_BUFFER_BYTES", block_bytes)
    lines = [maps_line(0x10000 * n, 4096 * n, UVM if n % 3 == 0 else "/lib/libnvidia-uvm.so") for n in range(1, 50)]
    text = "".join(lines).encode()
    if block_bytes < 100:  # no line of ours fits: whatever is found must be part of the text
        assert all(line in text for line in _lines_with(b"nvidia-uvm", io.BytesIO(text)))
        return
    assert parse_maps(_lines_with(b"nvidia-uvm", io.BytesIO(text))) == sum(4096 * n for n in range(3, 50, 3))
    assert [*_lines_with(b"nvidia-uvm", io.BytesIO(text))] == [line.encode() for line in lines]


def test_of_who_has_no_gpu_open_only_the_descriptors_are_looked_at(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_after(source, clock, 3)
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        for _ in range(60):
            clock.advance(1)
            source.read([])
        mine = reads.count["open"]
    for pid in range(100, 120):
        tree.remove(pid)
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        for _ in range(60):
            clock.advance(1)
            source.read([])
        others = mine - reads.count["open"]
    assert 20 * 2 <= others <= 20 * 3  # each of them twice or three times in a minute, by one directory


def test_who_has_more_descriptors_than_are_read_at_once_is_gone_through_to_the_end(
    tree: ProcTree, clock: ManualClock
) -> None:
    tree.set_fds(110, ["/dev/null"])
    source = ProcfsSource(
        tree.root, clock, own_proc=tree.root, ticks_per_second=100, descriptors_per_process=8, pace=STEADY
    )
    for _ in range(3):
        clock.advance(1)
        source.read([])
    tree.set_fds(110, [*["/dev/null"] * 20, "/dev/nvidia1"])
    tree.write("110/status", "FDSize:\t64\n")
    for _ in range(45):
        clock.advance(1)
        read = source.read([])
    assert read.processes[110].gpu_minors_open == {1}
