"""Labels of metrics: attributes of points (GPU, device, process) and of Resources (workload, host, agent).

No attribute is empty. What is unknown, or does not apply, has no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.bounded_io import printable
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    ProcessReport,
    WorkloadGpu,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
    pod_uid_of,
)

AttributeValue: TypeAlias = str | int | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]

NO_ATTRIBUTES: Final[Attributes] = {}

IDENTITY_KEYS: Final = (
    "gpu.workload.kind",
    "gpu.workload.id",
    "gpu.workload.name",
    "gpu.workload.outer.id",
    "container.id",
    "container.name",
    "container.image.name",
    "container.runtime.name",
    "k8s.pod.uid",
    "k8s.pod.name",
    "k8s.namespace.name",
    "k8s.container.name",
    "slurm.job.id",
    "systemd.unit",
)
"""The keys of a workload's identity, in the order in which they are exported."""

DECLARED_KEYS: Final = ("slurm.job.name", "slurm.job.user", "slurm.job.account", "slurm.job.partition")
"""What a workload says of itself. It identifies nothing, so it is on ``gpu.workload.info`` only."""
_NOT_EXTRA: Final = frozenset({*IDENTITY_KEYS, *DECLARED_KEYS})

_NO_NAMES: Final = WorkloadNames()


def _printable(text: str) -> str:
    """Text of a workload as OTLP and Prometheus have it: both the same, and nothing that a terminal acts on."""
    return text if text.isprintable() else printable(text)


# ---------------------------------------------------------------------------- points


def gpu_attributes(uuid: str, index: int | None) -> dict[str, AttributeValue]:
    """Attributes of a physical GPU."""
    attributes: dict[str, AttributeValue] = {"hw.id": uuid}
    if index is not None:
        attributes["gpu.index"] = str(index)
    return attributes


def mig_attributes(uuid: str | None, profile: str | None) -> dict[str, AttributeValue]:
    """Attributes of a MIG instance, added to those of its GPU. The GPU as a whole has none."""
    attributes: dict[str, AttributeValue] = {}
    if uuid:
        attributes["gpu.mig.uuid"] = uuid
    if profile:
        attributes["gpu.mig.profile"] = profile
    return attributes


def workload_attributes(part: WorkloadGpu, *, is_overflow: bool) -> dict[str, AttributeValue]:
    """Attributes of a workload's points on one device.

    A GPU or instance that does not answer, or is gone, keeps the index and profile that were last read.
    """
    attributes = gpu_attributes(part.gpu_uuid, part.gpu_index)
    attributes |= mig_attributes(part.mig_uuid, part.mig_profile)
    if is_overflow:
        attributes["otel.metric.overflow"] = True
    return attributes


def process_attributes(process: ProcessReport) -> dict[str, AttributeValue]:
    """Attributes of a process's points on one device."""
    attributes = gpu_attributes(process.gpu_uuid, process.gpu_index)
    attributes |= mig_attributes(process.mig_uuid, process.mig_profile)
    attributes["process.pid"] = process.key.pid
    if process.name:
        attributes["process.executable.name"] = _printable(process.name)
    if process.key == OVERFLOW_PROCESS:
        attributes["otel.metric.overflow"] = True
    return attributes


# ---------------------------------------------------------------------------- Resources


class WorkloadIdentity(NamedTuple):
    """A workload as its Resource names it: known keys in the order of ``IDENTITY_KEYS``, then labels.

    Kind, id and name are always known. They distinguish the workload ``host`` (every process outside containers, jobs
    and units) from the host itself, whose Resource has none of the three.
    """

    attributes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, ref: WorkloadRef, names: WorkloadNames | None) -> WorkloadIdentity:
        """The identity of a workload under these names. Further attributes never replace those of ``IDENTITY_KEYS``."""
        names = names or _NO_NAMES
        pod_uid = pod_uid_of(ref, names)
        is_container = ref.kind is WorkloadKind.CONTAINER
        # A user or an outer container chooses the ids inside it: such an id counts once a source names it.
        has_container_id = is_container and (ref.outer_id is None or names != _NO_NAMES)
        known = (
            ref.kind.value,
            ref.id,
            names.container or ref.id_label,
            ref.outer_id,
            ref.id if has_container_id else None,
            # LXC containers have a name and no id.
            ref.id if ref.kind is WorkloadKind.LXC else names.container if is_container else None,
            names.image,
            ref.runtime or names.runtime,
            pod_uid,
            names.pod,
            names.namespace,
            names.container if pod_uid or names.pod else None,
            ref.id if ref.kind is WorkloadKind.SLURM_JOB else None,
            ref.id if ref.kind is WorkloadKind.SYSTEMD_UNIT else None,
        )
        own = [(key, _printable(value)) for key, value in zip(IDENTITY_KEYS, known, strict=True) if value]
        extra = [(key, _printable(value)) for key, value in names.extra if value and key not in _NOT_EXTRA]
        return cls((*own, *extra))


def declared_attributes(names: WorkloadNames | None) -> dict[str, AttributeValue]:
    """Attributes of a point of ``gpu.workload.info``: what the workload says of itself."""
    declared = {} if names is None else dict(names.declared)
    return {key: _printable(declared[key]) for key in DECLARED_KEYS if declared.get(key)}


@dataclass(frozen=True, slots=True)
class Resources:
    """Attributes of Resources: ``shared`` by all Resources of this host, and those of the ``agent`` itself."""

    shared: Mapping[str, str]
    agent: Mapping[str, str]

    def of(self, workload: WorkloadIdentity | None) -> dict[str, str]:
        """The Resource of a workload; for ``None`` that of the host, which carries GPU and agent metrics."""
        if workload is None:
            return {**self.shared, **self.agent}
        return {**self.shared, **dict(workload.attributes)}
