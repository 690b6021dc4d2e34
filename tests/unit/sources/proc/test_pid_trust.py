from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import DriverFacts, MigAccess, UtilizationRead, UtilizationRow
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.proc.pid_trust import (
    PidTrust,
    driver_pids,
    measured_pids,
    parse_driver_version,
    pid_trust,
    separate_pids,
    without_utilization,
)
from tests.builders import by_pid, facts, gpu, listed, mig

ALL, NONE = PidTrust(lists=True, rows=True), PidTrust(lists=False, rows=False)
LISTS_ONLY = PidTrust(lists=True, rows=False)


def driver(version: str | None) -> DriverFacts:
    return DriverFacts(version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("570.86.15", (570, 86)),
        ("565.57", (565, 57)),
        ("535.113.01", (535, 113)),
        ("1000.05-beta", (1000, 5)),
        ("", None),
        ("570", None),
        ("570.", None),
        ("570.x", None),
        (".86", None),
        ("v570.86", None),
        ("N/A", None),
        ("570.٨٦", None),
        ("5" * 5000 + ".1", None),
        ("570." + "8" * 5000, None),
    ],
)
def test_a_driver_version_is_parsed_into_branch_and_release(text: str, version: tuple[int, int] | None) -> None:
    assert parse_driver_version(text) == version


@pytest.mark.parametrize("version", [None, "", "470.82.01", "570.86.15"])
@pytest.mark.parametrize("own", [True, False])
def test_on_the_host_all_pids_of_every_driver_are_trusted(version: str | None, own: bool) -> None:
    assert pid_trust(driver(version), ProcessRead(pids_are_own=own)) == ALL
    assert pid_trust(None, ProcessRead(pids_are_own=own)) == ALL


@pytest.mark.parametrize(
    ("version", "trusted"),
    [
        (None, NONE),
        ("unknown", NONE),
        ("470.82.01", NONE),
        ("535.113.01", NONE),
        ("560.94.99", NONE),
        ("565.56.99", NONE),
        ("565.57", LISTS_ONLY),
        ("565.57.01", LISTS_ONLY),
        ("570.85.99", LISTS_ONLY),
        ("570.86.10", ALL),
        ("580.65.06", ALL),
        ("1000.01", ALL),
    ],
)
def test_in_a_private_pid_namespace_the_driver_version_decides(version: str | None, trusted: PidTrust) -> None:
    assert pid_trust(driver(version), ProcessRead(pids_complete=False)) == trusted


def test_in_a_private_pid_namespace_no_pid_is_trusted_against_the_proc_of_another_namespace() -> None:
    assert pid_trust(driver("580.65.06"), ProcessRead(pids_complete=False, pids_are_own=False)) == NONE
    assert pid_trust(None, ProcessRead(pids_complete=False)) == NONE


def test_separated_pids_keep_processes_with_an_open_device_and_list_entries_of_other_pids() -> None:
    known = by_pid(
        facts(1), facts(2, opens={0}), facts(3, uvm=True), facts(4), facts(5, access=[MigAccess(0, 1, None)])
    )
    readings = (
        gpu(0, [listed(1), listed(2), listed(9)], mig=[mig("MIG-1", (1, 0), [listed(5), listed(6)])]),
        gpu(1, None, mig=[mig("MIG-2", (1, 0), None)]),
        gpu(2, [listed(3)]),
    )
    gpus, processes = separate_pids(readings, known)
    assert processes == {pid: known[pid] for pid in (2, 3, 5)}
    assert driver_pids(gpus) == {1, 6, 9}
    assert not driver_pids(gpus) & processes.keys()
    assert (gpus[1].processes, gpus[1].mig) == (readings[1].processes, readings[1].mig)
    assert (gpus[2].processes, gpus[2].mig) == ((), None)


WORKING = UtilizationRead(0, 0, (UtilizationRow(8, 0, 1, 0, 0, 0),))


def test_without_utilization_nothing_else_changes() -> None:
    reading = replace(gpu(0, [listed(7)], energy_mj=5), utilization=WORKING)
    assert without_utilization([reading]) == (replace(reading, utilization=None),)


def test_driver_pids_come_from_every_list_and_from_utilisation_rows() -> None:
    reading = gpu(0, [listed(7), listed(7)], mig=[mig("MIG-1", (1, 0), [listed(6)]), mig("MIG-2", (2, 0), None)])
    assert driver_pids([]) == frozenset()
    assert driver_pids([gpu(0, None)]) == frozenset()
    assert driver_pids([reading]) == {6, 7}
    assert driver_pids([replace(reading, utilization=WORKING), gpu(1, [listed(9)])]) == {6, 7, 8, 9}


def test_a_pid_is_measured_if_every_list_entry_of_it_has_a_figure() -> None:
    lists = gpu(0, [listed(1), listed(2), listed(3, None)]), gpu(1, [listed(2, None)])
    divided = gpu(2, None, mig=[mig("MIG-1", (1, 0), [listed(4), listed(5, None)])])
    assert measured_pids([*lists, divided]) == {1, 4}
    assert measured_pids([]) == measured_pids([gpu(0, None)]) == frozenset()
