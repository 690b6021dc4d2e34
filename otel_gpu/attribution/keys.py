"""Keys of everything the ledger keeps accounts of. They sort, so that every division breaks ties the same way."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from otel_gpu.model import ProcessKey, WorkloadRef


class DeviceKey(NamedTuple):
    """A GPU, or one MIG instance of it. ``mig_uuid`` is empty for the GPU itself."""

    gpu_uuid: str
    mig_uuid: str


class ProcessOnDevice(NamedTuple):
    """A process on a GPU or MIG instance."""

    process: ProcessKey
    device: DeviceKey


class WorkloadOnDevice(NamedTuple):
    """A workload on a GPU or MIG instance."""

    kind: str
    id: str
    device: DeviceKey


def workload_on(ref: WorkloadRef, device: DeviceKey) -> WorkloadOnDevice:
    """The key of a workload on a device."""
    return WorkloadOnDevice(ref.kind.value, ref.key[1], device)


class ProcessAccountKey(NamedTuple):
    """The account of a process on a device, under the ``naming`` (0 for the first) of its workload."""

    subject: ProcessOnDevice
    naming: int = 0


class WorkloadAccountKey(NamedTuple):
    """The account of a workload on a device, under one of the namings it has had."""

    subject: WorkloadOnDevice
    naming: int = 0


AccountKey: TypeAlias = ProcessAccountKey | WorkloadAccountKey
