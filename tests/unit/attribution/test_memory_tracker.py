"""Memory of a GPU and of its MIG instances: every byte is attributed once."""

from __future__ import annotations

import pytest

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import OVERFLOW_WORKLOAD, GpuReading, MigAccess, ProcessFacts, Report, WorkloadRef
from tests.builders import GIB, gpu, listed, memory, mig
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, workload

LEFT, RIGHT, OTHER = "MIG-left", "MIG-right", "MIG-other"
IN_LEFT, IN_RIGHT = MigAccess(0, 1, 0), MigAccess(0, 1, 1)


def hidden(pid: int, ref: WorkloadRef, *access: MigAccess) -> ProcessFacts:
    """A process that has the GPU open and is in no list."""
    return old(pid, ref)._replace(gpu_minors_open=frozenset({0}), uvm_open=True, mig_access=frozenset(access))


def shared_instance(*, used_gib: float = 6, whole: bool = True, left_listed: int | None = None) -> GpuReading:
    """Two compute instances of GPU instance 1, which both report all of its memory, and an empty GPU instance 2."""
    one = memory(total_gib=20, used_gib=used_gib, reserved_gib=0)
    processes = [] if left_listed is None else [listed(left_listed, 2 * GIB)]
    return gpu(
        0,
        (),
        memory=memory(used_gib=used_gib, reserved_gib=0) if whole else None,
        mig=[
            mig(LEFT, (1, 0), processes, memory=one),
            mig(RIGHT, (1, 1), memory=one),
            mig(OTHER, (2, 0), memory=memory(total_gib=20, used_gib=0, reserved_gib=0)),
        ],
    )


def inferred_bytes(report: Report) -> dict[tuple[str, str | None], int | None]:
    return {(each.ref.id, part.mig_uuid): part.inferred_bytes for each in report.workloads for part in each.gpus}


def test_a_hidden_process_in_one_of_two_compute_instances_is_inferred_once() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT)])
    assert inferred_bytes(report) == {("web", LEFT): 6 * GIB}
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 6 * GIB
    assert report.gpus[0].memory.conservation_error_bytes == 0
    (left, right, other) = report.gpus[0].mig or ()
    assert left.memory == right.memory, "they share it, and each reports all of it"
    assert other.memory is not None
    assert (other.memory.inferred_bytes, other.memory.unattributed_bytes) == (0, 0)


def test_hidden_processes_in_both_compute_instances_divide_the_unexplained_memory() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT), hidden(2, JOB, IN_RIGHT)])
    found = inferred_bytes(report)
    assert found.keys() == {("web", LEFT), ("job", RIGHT)}
    assert sum(each or 0 for each in found.values()) == 6 * GIB
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 6 * GIB


def test_a_process_listed_in_one_compute_instance_explains_memory_of_the_other() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(
            shared_instance(left_listed=1), processes=[old(1, WEB), hidden(2, JOB, IN_LEFT), hidden(3, JOB, IN_RIGHT)]
        )
    assert workload(report, "web").measured_bytes == 2 * GIB
    assert sum(each or 0 for each in inferred_bytes(report).values()) == 4 * GIB


def test_instances_are_reported_without_a_figure_of_the_whole_gpu() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(shared_instance(whole=False), processes=[hidden(1, WEB, IN_LEFT)])
    assert report.gpus[0].memory is None
    assert inferred_bytes(report) == {("web", LEFT): 6 * GIB}


@pytest.mark.parametrize("cap", [0, 1])
def test_memory_inferred_for_a_workload_in_the_overflow_belongs_to_the_overflow(cap: int) -> None:
    played = Played(AttributionOptions(max_workloads=cap))
    for _ in range(2):
        report = played.next(gpu_with(used_gib=8), processes=[hidden(1, WEB), hidden(2, JOB)])
    assert sum(each or 0 for each in inferred_bytes(report).values()) == 8 * GIB
    shared = workload(report, OVERFLOW_WORKLOAD.id)
    assert shared.inferred_bytes == (8 * GIB if cap == 0 else 4 * GIB)
    assert shared.confidence is not None


def test_instances_that_are_gone_leave_no_state() -> None:
    played = Played()
    played.next(shared_instance(), processes=[hidden(1, WEB, IN_LEFT)])
    played.next(gpu_with())
    assert set(played.attributor.to_state()["gpus"]["GPU-0"]["holdings"]) == {""}


def test_a_gpu_that_does_not_report_its_memory_has_nothing_inferred_and_nothing_measured() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(gpu(0, [listed(1, None)]), processes=[old(1, WEB)])
    part = workload(report, "web")
    assert (part.measured_bytes, part.inferred_bytes, part.confidence) == (None, None, None)
    assert report.gpus[0].memory is None
