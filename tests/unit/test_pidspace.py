from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import DriverFacts, MigAccess, UtilizationRead, UtilizationRow
from otel_gpu.pidspace import NamedPids, Trust, kept_apart, parse_driver_version, trust, without_rows
from otel_gpu.sources.base import ProcessRead
from tests.builders import by_pid, facts, gpu, listed, mig

ALL, NONE = Trust(lists=True, rows=True), Trust(lists=False, rows=False)
LISTS_ONLY = Trust(lists=True, rows=False)


def driver(version: str | None) -> DriverFacts:
    return DriverFacts(version, None)


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
def test_a_driver_version_is_its_branch_and_release(text: str, version: tuple[int, int] | None) -> None:
    assert parse_driver_version(text) == version


@pytest.mark.parametrize("version", [None, "", "470.82.01", "570.86.15"])
@pytest.mark.parametrize("own", [True, False])
def test_on_the_host_every_drivers_pids_are_those_of_proc(version: str | None, own: bool) -> None:
    assert trust(driver(version), ProcessRead(pids_are_own=own)) == ALL
    assert trust(None, ProcessRead(pids_are_own=own)) == ALL


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
def test_in_a_private_pid_namespace_the_drivers_version_decides(version: str | None, trusted: Trust) -> None:
    assert trust(driver(version), ProcessRead(pids_complete=False)) == trusted


def test_in_a_private_pid_namespace_nothing_matches_a_proc_that_is_not_the_agents_own() -> None:
    assert trust(driver("580.65.06"), ProcessRead(pids_complete=False, pids_are_own=False)) == NONE
    assert trust(None, ProcessRead(pids_complete=False)) == NONE


def test_kept_apart_the_holders_of_devices_stay_and_so_do_all_entries_with_other_pids() -> None:
    known = by_pid(
        facts(1), facts(2, opens={0}), facts(3, uvm=True), facts(4), facts(5, access=[MigAccess(0, 1, None)])
    )
    readings = (
        gpu(0, [listed(1), listed(2), listed(9)], mig=[mig("MIG-1", (1, 0), [listed(5), listed(6)])]),
        gpu(1, None, mig=[mig("MIG-2", (1, 0), None)]),
        gpu(2, [listed(3)]),
    )
    gpus, processes = kept_apart(readings, known)
    assert processes == {pid: known[pid] for pid in (2, 3, 5)}
    assert NamedPids().of(gpus) == {1, 6, 9}
    assert not NamedPids().of(gpus) & processes.keys()
    assert (gpus[1].processes, gpus[1].mig) == (readings[1].processes, readings[1].mig)
    assert (gpus[2].processes, gpus[2].mig) == ((), None)


def test_without_rows_everything_else_is_as_it_was() -> None:
    reading = replace(
        gpu(0, [listed(7)], energy_mj=5), utilization=UtilizationRead(0, 0, (UtilizationRow(8, 0, 1, 0, 0, 0),))
    )
    assert NamedPids().of([reading]) == {7, 8}
    assert without_rows([reading]) == (replace(reading, utilization=None),)


def test_pids_are_the_same_object_while_lists_are_and_rows_are_added_to_them() -> None:
    pids = NamedPids()
    reading = gpu(0, [listed(7)], mig=[mig("MIG-1", (1, 0), [listed(6)])])
    first = pids.of([reading])
    assert first == {6, 7}
    assert pids.of([replace(reading, taken_at_ns=5)]) is first
    working = replace(reading, utilization=UtilizationRead(0, 0, (UtilizationRow(8, 0, 1, 0, 0, 0),)))
    assert pids.of([working]) == {6, 7, 8}
    assert pids.of([replace(reading, processes=(listed(9),))]) == {6, 9}
    assert pids.of([replace(reading, mig=None)]) == {7}
    assert pids.of([]) == set()
