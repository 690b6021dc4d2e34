"""Whom a source does not know: worked out anew when anything is new, and only then."""

from __future__ import annotations

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.unknown import Unknown, is_container

ONE = WorkloadRef(WorkloadKind.CONTAINER, "one")
TWO = WorkloadRef(WorkloadKind.CONTAINER, "two")
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "one")


def known(*refs: WorkloadRef) -> dict[str, WorkloadInfo]:
    return {ref.id: WorkloadInfo(ref, WorkloadNames(container=ref.id)) for ref in refs}


def test_who_is_not_known_and_could_be_is_unknown() -> None:
    assert Unknown(is_container).among([ONE, TWO, JOB], known(TWO)) == (ONE,)


def test_a_new_workload_and_a_new_mapping_are_looked_at() -> None:
    unknown, somebody = Unknown(is_container), known(ONE)
    assert unknown.among([ONE], somebody) == ()
    assert unknown.among([ONE, TWO], somebody) == (TWO,)
    assert unknown.among([ONE, TWO], known(ONE, TWO)) == ()
    assert unknown.among([ONE, TWO], known()) == (ONE, TWO)


def test_while_both_are_the_same_nobody_is_looked_at() -> None:
    looked_at: list[WorkloadRef] = []

    def may_know(ref: WorkloadRef) -> bool:
        looked_at.append(ref)
        return True

    unknown, nobody, workloads = Unknown(may_know), known(), [ONE, TWO]
    for _ in range(3):
        assert unknown.among(workloads, nobody) == (ONE, TWO)
    assert looked_at == [ONE, TWO]
