"""Who a workload is, to whoever receives its metrics: the attributes of its Resource."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef

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
"""The keys of an identity, in this order everywhere."""

_NOBODY: Final = WorkloadNames()


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """A workload as its Resource names it: what is known, in the order of ``IDENTITY_KEYS``, then labels and the like.

    The first three are always known. They tell the workload ``host`` (everything in nobody's container, job or unit)
    from the host itself, whose Resource has none of them.
    """

    attributes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, ref: WorkloadRef, names: WorkloadNames | None) -> WorkloadIdentity:
        """The identity of a workload under these names."""
        names = names or _NOBODY
        known = dict(_known(ref, names))
        own = tuple((key, value) for key in IDENTITY_KEYS if (value := known.get(key)))
        return cls(own + tuple((key, value) for key, value in names.extra if value and key not in known))

    def complete(self) -> dict[str, str]:
        """Every key, empty where nothing is known: for Prometheus, where all series of a metric have the same."""
        return dict.fromkeys(IDENTITY_KEYS, "") | dict(self.attributes)


def _known(ref: WorkloadRef, names: WorkloadNames) -> Iterable[tuple[str, str | None]]:
    yield "gpu.workload.kind", ref.kind.value
    yield "gpu.workload.id", ref.id
    yield "gpu.workload.name", names.title or names.container or ref.unnamed
    yield "gpu.workload.outer.id", ref.outer_container_id
    match ref.kind:
        case WorkloadKind.CONTAINER:
            # Inside of another container the id is that one's own word, unless somebody knows a container by it.
            is_known = ref.outer_container_id is None or names != _NOBODY
            yield "container.id", ref.id if is_known else None
            yield "container.name", names.container
        case WorkloadKind.LXC:
            yield "container.name", ref.id  # LXC has names only
        case WorkloadKind.SLURM_JOB:
            yield "slurm.job.id", ref.id
        case WorkloadKind.SYSTEMD_UNIT:
            yield "systemd.unit", ref.id
    yield "container.image.name", names.image
    yield "container.runtime.name", ref.runtime or names.runtime
    pod_uid = names.pod_uid or ref.pod_uid
    yield "k8s.pod.uid", pod_uid
    yield "k8s.pod.name", names.pod
    yield "k8s.namespace.name", names.namespace
    if pod_uid or names.pod:
        yield "k8s.container.name", names.container
