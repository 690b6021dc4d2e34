from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState
from otel_gpu.sources.proc.files import (
    DeviceKind,
    DeviceNode,
    FileId,
    parse_device_link,
    parse_maps,
    parse_stat,
)
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import ProcessTable
from tests.proc_tree import ProcTree, maps_line, stat_text

no_deadline = settings(deadline=None)  # the machine may be busy
ticks = st.integers(min_value=0, max_value=2**63 - 1)


# Parts of the real formats, so that garbage resembles them.
@no_deadline
@given(comm=st.binary(max_size=15), start_ticks=ticks, pid=st.integers(min_value=1, max_value=2**22))
def test_any_name_and_start_time_are_parsed(comm: bytes, start_ticks: int, pid: int) -> None:
    stat = parse_stat(stat_text(pid, comm, start_ticks=start_ticks))
    assert stat is not None
    assert (stat.comm, stat.start_ticks) == (comm, start_ticks)


@no_deadline
@given(prefix=st.text().filter(lambda text: "\x00" not in text), number=st.integers(0, 255), deleted=st.booleans())
def test_a_gpu_node_is_recognised_below_any_prefix(prefix: str, number: int, deleted: bool) -> None:
    node = parse_device_link(f"{prefix}/dev/nvidia{number}{' (deleted)' if deleted else ''}")
    assert node == DeviceNode(DeviceKind.GPU, number)


@no_deadline
@given(st.lists(st.tuples(st.integers(0, 2**47), st.integers(1, 2**47), st.booleans())))
def test_mapped_bytes_are_the_sum_of_the_uvm_lines(mappings: list[tuple[int, int, bool]]) -> None:
    lines = [
        maps_line(start, size, "/dev/nvidia-uvm" if uvm else "/usr/lib/x.so").encode() for start, size, uvm in mappings
    ]
    assert parse_maps(lines, frozenset({FileId(0, 5, 512)})) == sum(size for _, size, uvm in mappings if uvm)


@no_deadline
@given(st.lists(st.dictionaries(st.integers(1, 30), st.integers(1, 5), max_size=20), max_size=20))
def test_the_table_holds_the_last_listing_and_offers_each_process_once(listings: list[dict[int, int]]) -> None:
    table = ProcessTable()
    for now_ns, listed in enumerate(listings):
        table.update(listed, now_ns)
        assert {process.pid for process in table} == listed.keys()
        offered = [process.pid for process in table.to_scan(now_ns)]
        assert sorted(offered) == sorted(listed)
        for pid in offered[:3]:
            stat = parse_stat(stat_text(pid, start_ticks=listed[pid]))
            assert stat is not None
            table.identify(pid, stat, now_ns)


names = st.sampled_from(["stat", "cgroup", "status", "maps", "fd", "comm"])
content = st.binary(max_size=200) | st.none()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.tuples(st.integers(1, 5), names), content, max_size=20), st.booleans())
def test_the_source_never_raises(files: dict[tuple[int, str], bytes | None], whole: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        tree = ProcTree(root)
        if whole:
            tree.add(6, fds=["/dev/nvidia0", "/dev/nvidia-uvm"])
        tree.remove(1)
        for (pid, name), data in files.items():
            if data is None:
                (root / str(pid) / name).mkdir(parents=True)
            else:
                tree.write(f"{pid}/{name}", data)
        source = ProcfsSource(root, ManualClock(), descriptors_per_process=2)
        for _ in range(2):
            read = source.read(range(8))
            assert (6 in read.processes) is whole
            assert (read.reason is None) is (read.state is SourceState.OK)
            assert read.reason is None or "\n" not in read.reason
