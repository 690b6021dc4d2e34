from __future__ import annotations

from otel_gpu.model import UnreadableReason
from otel_gpu.sources.proc.files import DeviceKind, DeviceNode, DeviceScan, Stat
from otel_gpu.sources.proc.table import YOUNG_NS, Fault, ProcessTable, TrackedProcess

GPU0 = DeviceNode(DeviceKind.GPU, 0)
GPU1 = DeviceNode(DeviceKind.GPU, 1)
CONTROL = DeviceNode(DeviceKind.CONTROL)


def stat(start_ticks: int = 100, flags: int = 0) -> Stat:
    return Stat(b"x", "S", flags, 1, start_ticks)


def scan_all(table: ProcessTable, now_ns: int = 0, limit: int = 1000) -> list[int]:
    """Scan as the source does, and return the pids."""
    pids = [process.pid for process in table.to_scan(now_ns)][:limit]
    for pid in pids:
        table.identify(pid, stat(), now_ns)
    return pids


def table_of(*pids: int) -> ProcessTable:
    table = ProcessTable()
    table.update({pid: pid for pid in pids}, now_ns=0)
    return table


# ---------------------------------------------------------------------------- processes


def test_a_pid_with_another_start_is_another_process() -> None:
    table = table_of(7)
    table.identify(7, stat(start_ticks=100), now_ns=0).name = "old"
    assert table.identify(7, stat(start_ticks=100), now_ns=1).name == "old"
    reused = table.identify(7, stat(start_ticks=200), now_ns=2)
    assert reused.name is None
    assert reused.appeared_ns == 2
    assert len(table) == 1


def test_a_kernel_thread_with_another_inode_is_scanned_again() -> None:
    table = table_of(7)
    table.identify(7, stat(flags=0x00200000), now_ns=0)
    assert scan_all(table) == []
    table.update({7: 8}, now_ns=1)
    assert scan_all(table) == [7]


def test_a_process_with_another_inode_keeps_what_is_known_of_it() -> None:
    table = table_of(7)
    table.identify(7, stat(start_ticks=100), now_ns=0).name = "frozen"
    table.update({7: 8}, now_ns=1)
    assert table.identify(7, stat(start_ticks=100), now_ns=1).name == "frozen"


# ---------------------------------------------------------------------------- open devices


def test_a_node_in_a_slice_counts_at_once_until_a_complete_scan_without_it() -> None:
    process = TrackedProcess(7, 7, None)
    process.add_scan(DeviceScan(frozenset({GPU0}), 10, 10))
    assert process.nodes == {GPU0}
    process.add_scan(DeviceScan(frozenset({GPU1}), 10, 0))
    assert process.nodes == {GPU0, GPU1}
    process.add_scan(DeviceScan(frozenset(), 10, 10))
    assert process.nodes == {GPU0, GPU1}
    process.add_scan(DeviceScan(frozenset({GPU1}), 10, 0))
    assert process.nodes == {GPU1}
    process.add_scan(DeviceScan(frozenset(), 10, 0))
    assert not process.is_holder


def test_device_numbers_are_returned_by_kind_of_node() -> None:
    process = TrackedProcess(7, 7, None)
    process.add_scan(DeviceScan(frozenset({GPU0, GPU1, CONTROL, DeviceNode(DeviceKind.MIG_CAPABILITY, 12)}), 4, 0))
    assert process.numbers(DeviceKind.GPU) == {0, 1}
    assert process.numbers(DeviceKind.MIG_CAPABILITY) == {12}
    assert process.numbers(DeviceKind.CONTROL) == frozenset()


# ---------------------------------------------------------------------------- order of the scan


def test_new_processes_come_first_then_young_ones_then_the_rest() -> None:
    table = table_of(1, 2)
    scan_all(table)
    table.update({1: 1, 2: 2, 3: 3}, now_ns=10)
    assert scan_all(table, 10) == [3, 1, 2]
    table.update({1: 1, 2: 2, 3: 3, 4: 4}, now_ns=20)
    assert scan_all(table, 20) == [4, 3, 1, 2]


def test_processes_of_the_first_listing_are_not_young() -> None:
    table = table_of(*range(1, 9))
    assert scan_all(table, limit=8) == [1, 2, 3, 4, 5, 6, 7, 8]
    table.update({**{pid: pid for pid in range(1, 9)}, 9: 9}, now_ns=1)
    assert scan_all(table, 1, limit=3) == [9, 1, 2]


def test_a_process_is_young_for_a_minute() -> None:
    table = table_of(1)
    scan_all(table)
    table.update({1: 1, 2: 2}, now_ns=0)
    scan_all(table, limit=1)
    assert scan_all(table, YOUNG_NS - 1) == [2, 1]
    assert scan_all(table, YOUNG_NS) == [2, 1]  # none is young any more: 2 was scanned before 1


def test_the_rest_take_turns() -> None:
    table = table_of(1, 2, 3, 4, 5)
    scan_all(table)
    assert [scan_all(table, limit=2) for _ in range(3)] == [[1, 2], [3, 4], [5, 1]]


def test_every_fourth_process_is_one_of_the_rest_while_many_are_new() -> None:
    table = table_of(1, 2)
    scan_all(table)
    table.update({pid: pid for pid in range(1, 100)}, now_ns=1)
    assert scan_all(table, 1, limit=8) == [3, 4, 5, 1, 6, 7, 8, 2]


def test_kernel_threads_and_holders_are_not_scanned() -> None:
    table = table_of(1, 2, 3)
    scan_all(table)
    table.identify(2, stat(flags=0x00200000), now_ns=0)
    table.identify(3, stat(), now_ns=0).add_scan(DeviceScan(frozenset({GPU0}), 1, 0))
    assert scan_all(table) == [1]


def test_a_process_that_cannot_be_read_waits_its_turn() -> None:
    table = table_of(1, 2)
    table.record_failure(1, Fault(UnreadableReason.HIDDEN, "Operation not permitted"))
    assert scan_all(table) == [2, 1]
