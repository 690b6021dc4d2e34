"""Files are read at their intervals, and changes are noticed within them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import ProcessFacts
from otel_gpu.sources.proc.files import BoundedText, FileId, lines_containing, parse_maps
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import STEADY, staggered
from tests.proc_tree import UVM, ProcTree, Reads, maps_line

IDS = [f"{number:064x}" for number in range(3)]
PID = 16
"""A multiple of 8: the first reads of its files are not staggered."""
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")
UVM_FILES = frozenset({FileId(0, 5, 512)})
"""``UVM_FILE`` of ``maps_line``."""


def cgroup(number: int) -> str:
    return f"0::/system.slice/docker-{IDS[number]}.scope\n"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    for pid in range(100, 120):
        tree.add(pid)
    return tree


@pytest.fixture
def source(tree: ProcTree, clock: ManualClock) -> ProcfsSource:
    return ProcfsSource(tree.root, clock, own_proc=tree.root, ticks_per_second=100, intervals=STEADY)


def facts_after(source: ProcfsSource, clock: ManualClock, seconds: int) -> ProcessFacts:
    """The facts of the process after so many cycles of one second."""
    for _ in range(seconds):
        clock.advance(1)
        read = source.read([PID])
    return read.processes[PID]


def test_a_cycle_opens_no_file_of_a_process_and_every_tenth_reads_stat_and_descriptors(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 120):
        tree.remove(pid)
    facts_after(source, clock, 3)
    opened = []
    for _ in range(20):
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            facts_after(source, clock, 1)
            opened.append(reads.count["open"] - 1)  # /proc itself
    assert opened.count(0) == 18
    # /proc for the process, its directory, stat, descriptors and cgroup, and the driver's device numbers.
    assert sum(opened) == 2 * 6


def test_reads_of_many_processes_are_spread_over_cycles(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = range(200, 280)
    for pid in pids:
        tree.add(pid, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    scanned: list[int] = []
    for _ in range(90):
        clock.advance(1)
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            source.read(pids)
            scanned.append(reads.count["readlink"] // len(CUDA_FDS))
    steady = scanned[30:]
    assert sum(steady) >= len(pids) * (len(steady) // 10)  # each at least every 10 s
    assert max(steady) <= len(pids) // 3


def test_a_process_that_was_not_read_on_time_is_staggered_again() -> None:
    interval_ns = 8_000
    on_time = {staggered(pid, 10_000, interval_ns, 18_500) for pid in range(8)}
    late = {staggered(pid, 10_000, interval_ns, 40_000) for pid in range(8)}
    first = {staggered(pid, None, interval_ns, 40_000) for pid in range(8)}
    assert on_time == {18_500}
    assert late == first == {40_000 - 1_000 * turn for turn in range(8)}


def test_facts_of_a_settled_process_are_the_same_object(source: ProcfsSource, clock: ManualClock) -> None:
    assert facts_after(source, clock, 2) is facts_after(source, clock, 1)


def test_changes_of_mappings_and_cgroups_are_noticed_within_half_a_minute(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 2)
    tree.set_maps(PID, maps_line(0x10000, 8192))
    tree.write(f"{PID}/cgroup", cgroup(1))
    soon = facts_after(source, clock, 5)
    assert (soon.uvm_mapping_bytes, soon.workload.id) == (4096, IDS[0])
    later = facts_after(source, clock, 26)
    assert (later.uvm_mapping_bytes, later.workload.id) == (8192, IDS[1])


def test_mappings_of_a_measured_process_are_not_read_and_its_descriptors_every_half_minute(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 120):
        tree.remove(pid)
    looks = []
    for second in range(91):
        clock.advance(1)
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            facts = source.read([PID], measured=[PID]).processes[PID]
        assert facts.uvm_open
        assert facts.uvm_mapping_bytes is None
        if reads.count["readlink"] >= len(CUDA_FDS):
            looks.append(second)
    assert looks == [0, 30, 60, 90]
    assert facts_after(source, clock, 1).uvm_mapping_bytes == 4096, "no longer measured: read at once"


def test_a_new_process_is_read_in_every_cycle_for_a_minute(
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


def test_another_inode_of_the_same_process_changes_no_facts(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    before = facts_after(source, clock, 3)
    tree.release(PID)
    tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    assert facts_after(source, clock, 1) == before


def test_one_read_that_is_due_leaves_the_facts_of_other_processes(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    tree.add(200, cgroup=cgroup(1), fds=CUDA_FDS)
    before = facts_after(source, clock, 70)
    tree.set_fds(200, [*CUDA_FDS, "/dev/nvidia1"])
    for _ in range(10):
        clock.advance(1)
        read = source.read([])
    assert read.processes[200].gpu_minors_open == {0, 1}
    assert read.processes[PID] == before


def test_an_unreadable_process_is_counted_between_reads_too(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock
) -> None:
    facts_after(source, clock, 3)
    tree.write(f"{PID}/stat", "no stat")
    for _ in range(60):
        clock.advance(1)
        read = source.read([PID])
    assert read.unreadable == {"malformed": 1}
    tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS)
    clock.advance(1)
    assert source.read([PID]).unreadable == {}


def test_maps_beyond_the_budget_are_read_in_the_next_cycle(tree: ProcTree, clock: ManualClock) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, maps_bytes_per_cycle=1, intervals=STEADY)
    pids = (24, 32)
    for pid in pids:
        tree.add(pid, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
    unread = []
    for _ in range(3):
        clock.advance(1)
        sizes = [facts.uvm_mapping_bytes for facts in source.read([PID, *pids]).processes.values()]
        unread.append(sizes.count(None))
    assert unread == [2, 1, 0]


@pytest.mark.parametrize("block_bytes", [100, 1 << 16])
def test_lines_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr("otel_gpu.sources.proc.files.MAPS_BLOCK_BYTES", block_bytes)
    lines = [maps_line(0x10000 * n, 4096 * n, UVM if n % 3 == 0 else "/lib/libnvidia-uvm.so") for n in range(1, 50)]
    text = "".join(lines).encode()
    blocks = list(BoundedText(io.BytesIO(text), 1 << 20).blocks())
    assert b"".join(blocks) == text
    assert [*lines_containing(b"nvidia-uvm", blocks)] == [line.encode() for line in lines]
    assert parse_maps(lines_containing(b"nvidia-uvm", blocks), UVM_FILES) == sum(4096 * n for n in range(3, 50, 3))


def test_a_line_longer_than_a_block_is_given_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.sources.proc.files.MAPS_BLOCK_BYTES", 16)
    text = maps_line(0x10000, 4096).encode() * 5
    blocks = list(BoundedText(io.BytesIO(text), 1 << 20).blocks())
    assert b"".join(blocks) == text
    assert all(line in text for line in lines_containing(b"nvidia-uvm", blocks))


@pytest.mark.parametrize(("limit_bytes", "is_cut"), [(1, True), (900, True), (1000, False), (5000, False)])
def test_a_text_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch, limit_bytes: int, is_cut: bool) -> None:
    monkeypatch.setattr("otel_gpu.sources.proc.files.MAPS_BLOCK_BYTES", 64)
    text = BoundedText(io.BytesIO(b"x\n" * 500), limit_bytes)
    read_bytes = sum(map(len, text.blocks()))
    assert min(limit_bytes, 1000) <= read_bytes == text.read_bytes <= limit_bytes + 64
    assert text.is_cut is is_cut


def test_only_the_descriptors_are_read_of_a_process_without_a_gpu(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_after(source, clock, 3)
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        for _ in range(60):
            clock.advance(1)
            source.read([])
        with_others = reads.count["open"]
    for pid in range(100, 120):
        tree.remove(pid)
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        for _ in range(60):
            clock.advance(1)
            source.read([])
        others = with_others - reads.count["open"]
    assert 20 * 2 <= others <= 20 * 3  # two or three times a minute, one directory each


def test_all_descriptors_of_a_process_with_many_are_read(tree: ProcTree, clock: ManualClock) -> None:
    tree.set_fds(110, ["/dev/null"])
    source = ProcfsSource(
        tree.root, clock, own_proc=tree.root, ticks_per_second=100, descriptors_per_process=8, intervals=STEADY
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
