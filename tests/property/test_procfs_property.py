from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState
from otel_gpu.sources.hostfacts import parse_gpu_information, parse_mig_minors, parse_namespace_inode, parse_nspid
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.procfs_files import (
    DeviceKind,
    is_root_cgroup,
    parse_btime,
    parse_device_link,
    parse_fd_size,
    parse_maps,
    parse_stat,
)
from otel_gpu.sources.procfs_scan import S_NS, STEADY, Pace, ProcessTable
from tests.procfs_tree import ProcTree, maps_line, stat_text

unhurried = settings(deadline=None)  # the machine that runs this may be busy
ticks = st.integers(min_value=0, max_value=2**63 - 1)
# Pieces of the real formats, so that garbage comes near to them.
near_text = st.lists(
    st.sampled_from(
        ["/dev/", "nvidia", "nvidia-uvm", "nvidia-caps/", "-cap", "0", "12", " (deleted)", "btime ", "FDSize:"]
    )
    | st.sampled_from(
        ["gpu0/", "gi1/", "ci0/", "access", " ", "\t", "\n", ":", "-", "pid:[", "]", "Device Minor: ", "("]
    )
    | st.text(max_size=3)
).map("".join)
any_text = st.text() | near_text
any_bytes = st.binary() | near_text.map(lambda text: text.encode("utf-8", "surrogatepass"))


@unhurried
@given(comm=st.binary(max_size=15), start_ticks=ticks, pid=st.integers(min_value=1, max_value=2**22))
def test_stat_gives_back_any_name_and_start(comm: bytes, start_ticks: int, pid: int) -> None:
    stat = parse_stat(stat_text(pid, comm, start_ticks=start_ticks))
    assert stat is not None
    assert (stat.comm, stat.start_ticks) == (comm, start_ticks)


@unhurried
@given(any_bytes)
def test_parsers_of_bytes_never_raise(data: bytes) -> None:
    stat = parse_stat(data)
    assert stat is None or stat.start_ticks >= 0
    mapped_bytes = parse_maps(data.splitlines(keepends=True))
    assert mapped_bytes == 0 or (mapped_bytes > 0 and b"nvidia-uvm" in data)
    assert parse_btime(data) is None or b"btime" in data
    assert parse_fd_size(data) is None or b"FDSize" in data


@unhurried
@given(any_text)
def test_parsers_of_text_never_raise(text: str) -> None:
    assert parse_device_link(text) is None or "/dev/nvidia" in text
    assert parse_namespace_inode(text) is None or ":[" in text
    assert parse_gpu_information(text) is None or "GPU-" in text
    assert all(minor >= 0 for minor in parse_mig_minors(text))
    assert parse_nspid(text) == () or "NSpid" in text
    assert not is_root_cgroup(text) or ":/" in text


@unhurried
@given(prefix=st.text().filter(lambda text: "\x00" not in text), number=st.integers(0, 255), deleted=st.booleans())
def test_a_gpu_node_is_recognised_below_any_prefix(prefix: str, number: int, deleted: bool) -> None:
    node = parse_device_link(f"{prefix}/dev/nvidia{number}{' (deleted)' if deleted else ''}")
    assert node == (DeviceKind.GPU, number)


@unhurried
@given(st.lists(st.tuples(st.integers(0, 2**47), st.integers(1, 2**47), st.booleans())))
def test_mapped_bytes_are_the_sum_of_the_uvm_lines(mappings: list[tuple[int, int, bool]]) -> None:
    lines = [
        maps_line(start, size, "/dev/nvidia-uvm" if uvm else "/usr/lib/x.so").encode() for start, size, uvm in mappings
    ]
    assert parse_maps(lines) == sum(size for _, size, uvm in mappings if uvm)


@unhurried
@given(st.lists(st.dictionaries(st.integers(1, 30), st.integers(1, 5), max_size=20), max_size=20))
def test_the_table_holds_exactly_what_was_listed_last_and_offers_each_once(listings: list[dict[int, int]]) -> None:
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


pids = st.integers(1, 6)
turns = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("list"), st.dictionaries(pids, st.integers(1, 2), max_size=6)),
    st.tuples(st.just("identify"), pids),
    st.tuples(st.just("fail"), pids),
    st.tuples(st.just("pass"), pids),
)


class Turns:
    """A table under a sequence of events, and the processes it offers for a scan."""

    def __init__(self, *, looks_each_time: bool) -> None:
        self._table = ProcessTable()
        self._looks_each_time = looks_each_time
        self._now_ns = 0

    def offered(self, kind: str, what: Any) -> list[int]:
        process = self._table.get(what) if isinstance(what, int) else None
        stat = parse_stat(stat_text(7, start_ticks=1))
        assert stat is not None
        if kind == "wait":
            self._now_ns += what * S_NS
        elif kind == "list":
            self._table.update(what, self._now_ns)
        elif process is not None and kind == "identify":
            self._table.identify(what, stat, self._now_ns).turn_ns = self._now_ns
        elif process is not None and kind == "fail":
            self._table.failed(what, None)
        elif process is not None:
            process.turn_ns = self._now_ns
            self._table.passed(process)
        pace = (
            Pace(settled_ns=30 * S_NS) if self._looks_each_time else STEADY
        )  # a new pace makes the table look at all processes
        return [process.pid for process in self._table.to_scan(self._now_ns, pace)]


@unhurried
@given(st.lists(turns, max_size=40))
def test_offered_processes_do_not_depend_on_the_remembered_schedule(
    history: list[tuple[str, Any]],
) -> None:
    assert STEADY.settled_ns == 30 * S_NS
    remembering, looking = Turns(looks_each_time=False), Turns(looks_each_time=True)
    for kind, what in [("list", {1: 1, 2: 1}), ("identify", 1), ("identify", 2), ("wait", 70), *history]:
        assert remembering.offered(kind, what) == looking.offered(kind, what)


names = st.sampled_from(["stat", "cgroup", "status", "maps", "fd", "comm"])
content = st.binary(max_size=200) | st.none()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.tuples(st.integers(1, 5), names), content, max_size=20), st.booleans())
def test_no_tree_makes_the_source_raise(files: dict[tuple[int, str], bytes | None], whole: bool) -> None:
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
