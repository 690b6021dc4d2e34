"""Which processes are on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from otel_gpu.attribution.residents import HostProcesses, Resident, find_residents
from otel_gpu.model import GpuReading, MigAccess, MigReading, ProcessFacts, UtilizationRead, UtilizationRow
from tests.builders import by_pid, facts, gpu, listed, memory, mig


def instance(uuid: str, ids: tuple[int | None, int | None], *, used_gib: float | None, holds: int = 0) -> MigReading:
    """A MIG instance of 10 GiB. Pid 1 is listed in it with ``holds`` GiB, if any."""
    device = None if used_gib is None else memory(total_gib=10, used_gib=used_gib, reserved_gib=0)
    return mig(uuid, ids, [listed(1, holds << 30, instance=ids)] if holds else [], memory=device)


def three(*, used_gib: float | None = 4, gpu_used_gib: float = 12) -> GpuReading:
    """A GPU with two compute instances in GPU instance 1, and one in GPU instance 2."""
    instances = [
        instance("MIG-1-0", (1, 0), used_gib=used_gib),
        instance("MIG-1-1", (1, 1), used_gib=used_gib),
        instance("MIG-2-0", (2, 0), used_gib=used_gib),
    ]
    return gpu(0, [], memory=memory(used_gib=gpu_used_gib), mig=instances)


def cuda(access: Collection[tuple[int, int, int | None]] = (), *, pid: int = 7) -> ProcessFacts:
    """A process with CUDA and GPU 0, and with these MIG capabilities open."""
    return facts(pid, opens={0}, uvm=True, access=[MigAccess(*one) for one in access])


def residents(reading: GpuReading, processes: Mapping[int, ProcessFacts]) -> list[Resident]:
    return list(find_residents(reading, HostProcesses.of(processes)).values())


def found(reading: GpuReading, *processes: ProcessFacts) -> dict[int, Resident]:
    """Residents by pid."""
    return {resident.at.process.pid: resident for resident in residents(reading, by_pid(*processes))}


def instance_of(reading: GpuReading, process: ProcessFacts) -> str | None:
    """The MIG instance that an unlisted process is assigned to, "" for the GPU itself; ``None`` without one."""
    resident = found(reading, process).get(process.key.pid)
    if resident is None:
        return None
    assert (resident.listed, resident.memory_bytes, resident.at.device.gpu_uuid) == (False, None, "GPU-0")
    assert resident.sm_count == (14 if resident.at.device.mig_uuid else None)
    return resident.at.device.mig_uuid


# ---------------------------------------------------------------------------- in which instance


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ([(0, 1, None), (0, 1, 1)], "MIG-1-1"),
        ([(0, 1, 0)], "MIG-1-0"),
        ([(0, 2, None), (0, 2, 0)], "MIG-2-0"),
        ([(0, 2, None)], "MIG-2-0"),
    ],
)
def test_an_unlisted_process_is_in_the_one_instance_whose_capability_it_has_open(
    access: list[tuple[int, int, int | None]], expected: str
) -> None:
    assert instance_of(three(), cuda(access)) == expected


@pytest.mark.parametrize(
    "access",
    [
        pytest.param([(0, 1, None)], id="a GPU instance of two"),
        pytest.param([(0, 1, None), (0, 1, 0), (0, 1, 1)], id="both of a GPU instance"),
        pytest.param([(0, 1, None), (0, 1, 0), (0, 2, None), (0, 2, 0)], id="two GPU instances"),
        pytest.param([(0, 1, 0), (0, 2, None)], id="two GPU instances, of one no compute instance"),
        pytest.param([(0, 5, None), (0, 5, 0)], id="an instance that is not there"),
        pytest.param([(0, 2, 3)], id="a compute instance that is not there"),
        pytest.param([(1, 2, None), (1, 2, 0)], id="an instance of another GPU"),
        pytest.param([], id="none known"),
    ],
)
def test_a_process_of_an_unknown_instance_is_on_the_gpu_itself(access: list[tuple[int, int, int | None]]) -> None:
    assert instance_of(three(), cuda(access)) == ""


def test_capabilities_of_other_gpus_do_not_count() -> None:
    assert instance_of(three(), cuda([(0, 2, None), (0, 2, 0), (1, 1, None), (1, 1, 0)])) == "MIG-2-0"


def test_without_known_capabilities_a_process_is_in_the_only_instance_there_is() -> None:
    reading = gpu(0, [], memory=memory(used_gib=4), mig=[instance("MIG-1", (1, 0), used_gib=4)])
    assert instance_of(reading, cuda()) == "MIG-1"
    assert instance_of(reading, cuda([(0, 2, None), (0, 2, 0)])) == ""  # that one was made since the reading


def test_without_mig_or_instances_the_device_is_the_gpu_itself_whatever_is_open() -> None:
    access = [(0, 1, None), (0, 1, 0)]
    assert instance_of(gpu(0, [], memory=memory(used_gib=4)), cuda(access)) == ""
    assert instance_of(gpu(0, [], memory=memory(used_gib=4), mig=[]), cuda(access)) == ""


def test_a_listed_process_is_where_it_is_listed_whatever_it_has_open() -> None:
    reading = gpu(
        0,
        [],
        memory=memory(used_gib=8),
        mig=[instance("MIG-1", (1, 0), used_gib=4, holds=4), instance("MIG-2", (2, 0), used_gib=4)],
    )
    (resident,) = residents(reading, by_pid(cuda([(0, 2, None), (0, 2, 0)], pid=1)))
    assert (resident.at.device.mig_uuid, resident.listed, resident.memory_bytes) == ("MIG-1", True, 4 << 30)


# ---------------------------------------------------------------------------- whether it is there at all


def test_an_instance_without_unexplained_memory_has_no_hidden_user() -> None:
    instances = [
        instance("MIG-1", (1, 0), used_gib=4, holds=4),
        instance("MIG-2", (2, 0), used_gib=0.03),
        instance("MIG-3", (3, 0), used_gib=4),
    ]
    reading = gpu(0, [], memory=memory(used_gib=8), mig=instances)
    hidden = [cuda([(0, number, None), (0, number, 0)], pid=10 + number) for number in (1, 2, 3)]
    assert set(found(reading, *hidden)) == {1, 13}


def test_an_instances_unexplained_memory_is_enough_whatever_the_gpu_says() -> None:
    reading = three(gpu_used_gib=0)
    assert instance_of(reading, cuda([(0, 2, None), (0, 2, 0)])) == "MIG-2-0"
    assert instance_of(reading, cuda()) is None


def test_compute_instances_that_share_memory_explain_each_others() -> None:
    instances = [instance("MIG-1-0", (1, 0), used_gib=4, holds=4), instance("MIG-1-1", (1, 1), used_gib=4)]
    reading = gpu(0, [], memory=memory(used_gib=8), mig=instances)
    assert instance_of(reading, cuda([(0, 1, None), (0, 1, 1)])) is None


def test_an_instance_without_memory_figures_may_have_a_hidden_user() -> None:
    assert instance_of(three(used_gib=None, gpu_used_gib=0), cuda([(0, 2, None)])) == "MIG-2-0"


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(cuda([(0, 2, 0)])._replace(uvm_open=False), id="no CUDA"),
        pytest.param(cuda([(0, 2, 0)])._replace(gpu_minors_open=frozenset({1})), id="another GPU"),
        pytest.param(cuda([(0, 2, 0)])._replace(alive=False), id="a zombie"),
    ],
)
def test_an_open_capability_alone_makes_no_user(process: ProcessFacts) -> None:
    assert instance_of(three(), process) is None


def test_without_mig_a_gpu_whose_memory_is_explained_has_no_hidden_user() -> None:
    device = memory(used_gib=4)
    assert instance_of(gpu(0, [listed(1, 4 << 30)], memory=device), cuda()) is None
    assert instance_of(gpu(0, [listed(1, 3 << 30)], memory=device), cuda()) == ""
    assert instance_of(gpu(0, [], memory=None), cuda()) == ""


def test_a_process_that_worked_is_a_resident_whatever_it_has_open() -> None:
    row = UtilizationRow(7, 0, sm_percent=5, memory_percent=0, encoder_percent=0, decoder_percent=0)
    reading = replace(gpu(0, [], memory=memory(used_gib=0)), utilization=UtilizationRead(0, 0, (row,)))
    assert set(found(reading, facts(7), facts(8))) == {7}


@pytest.mark.parametrize(("used_gib", "pids"), [(1, [1]), (3, [1, 7])])
def test_a_hidden_user_is_a_resident_only_where_memory_is_unexplained(used_gib: int, pids: list[int]) -> None:
    reading = gpu(0, [listed(1, 1 << 30)], memory=memory(used_gib=used_gib, reserved_gib=0))
    assert [resident.at.process.pid for resident in residents(reading, by_pid(facts(1), cuda()))] == pids


@pytest.mark.parametrize(("minor", "pids"), [(0, [1, 7]), (1, [1]), (None, [1])])
def test_a_hidden_user_has_the_minor_of_this_gpu_open(minor: int | None, pids: list[int]) -> None:
    reading = gpu(0, [listed(1, 1 << 30)], memory=memory(used_gib=3, reserved_gib=0))
    reading = replace(reading, identity=replace(reading.identity, minor=minor))
    assert [resident.at.process.pid for resident in residents(reading, by_pid(facts(1), cuda()))] == pids
