"""Identities of processes, workloads and GPUs, and the names of workloads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias


class ProcessKey(NamedTuple):
    """A process: its pid on the host and its start in clock ticks since boot. A pid alone is reused."""

    pid: int
    start_ticks: int


START_UNKNOWN: Final = -1
"""``ProcessKey.start_ticks`` of a pid that a driver names but ``/proc`` has never shown."""


class WorkloadKind(StrEnum):
    """What a process belongs to, by its cgroup."""

    CONTAINER = "container"
    SLURM_JOB = "slurm_job"
    SYSTEMD_UNIT = "systemd_unit"
    LXC = "lxc"
    HOST = "host"


NAMEABLE_KINDS: Final = frozenset({WorkloadKind.CONTAINER, WorkloadKind.SLURM_JOB})
"""Kinds whose names come from a name source. All others are named by their cgroup."""

WorkloadKey: TypeAlias = tuple[str, str]
"""A workload's kind and id."""

_LONG: Final = 64
_SHORT: Final = 12
"""Digits of an engine's container id, and how many of them the engine lists."""


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """Which workload a process belongs to: enough to identify it, nothing that needs a look-up.

    ``id`` is the container id, Slurm job id, unit name or LXC name. ``outer_container_id`` is the outermost container
    around it (a ``kind`` node, Docker in Docker, LXC), ``user_uid`` the user in whose slice its cgroup is. Either can
    choose everything inside it, also ``id``.
    """

    kind: WorkloadKind
    id: str
    runtime: str | None = None
    pod_uid: str | None = None
    slurm_step: str | None = None
    outer_container_id: str | None = None
    user_uid: int | None = None

    key: WorkloadKey = field(init=False, compare=False, repr=False)
    """Kind and id, with what is around it. Equal ids of another kind, of another user or inside another container are
    other workloads. Stored because most look-ups use it."""

    def __post_init__(self) -> None:
        """Set the key."""
        own_id = self.id if self.outer_id is None else f"{self.outer_id}/{self.id}"
        object.__setattr__(self, "key", (self.kind, own_id))

    @property
    def outer_id(self) -> str | None:
        """What is around the workload and can choose its id: the user's slice, the outer container, or both."""
        if self.user_uid is None:
            return self.outer_container_id
        user = f"user-{self.user_uid}.slice"
        return user if self.outer_container_id is None else f"{user}/{self.outer_container_id}"

    @property
    def id_label(self) -> str:
        """The label of a workload without a name: its id, after what is around it; shortened as engines do."""
        if self.outer_id is None:
            return self.id
        user = None if self.user_uid is None else f"user-{self.user_uid}"
        parts = [each for each in (user, self.outer_container_id, self.id) if each is not None]
        return "/".join(each[:_SHORT] if len(each) == _LONG else each for each in parts)

    def __hash__(self) -> int:
        """Hash the key: equal references have equal keys."""
        return hash(self.key)


HOST_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "host")
"""Every process of the host outside of containers, jobs and units."""

UNIDENTIFIED_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "unidentified")
"""Processes that the driver measured and the agent cannot see. A workload of their own, so no other is billed."""

OVERFLOW_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "overflow")
OVERFLOW_PROCESS: Final = ProcessKey(0, 0)
"""Processes and workloads that came when the ledger was full. They share one account, so that sums stay exact."""


class WorkloadNames(NamedTuple):
    """The names of a workload. An unknown name is ``None``.

    ``title`` is the name that a Slurm job gave itself: views show it. ``extra`` are further attributes of the Resource,
    sorted by key: labels of containers and pods. ``declared`` is text that the workload gave itself, such as the
    account of a Slurm job, sorted by key: it identifies nothing and is on ``gpu.workload.info`` only.
    """

    container: str | None = None
    image: str | None = None
    pod: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None
    runtime: str | None = None
    title: str | None = None
    extra: tuple[tuple[str, str], ...] = ()
    declared: tuple[tuple[str, str], ...] = ()

    def over(self, other: WorkloadNames) -> WorkloadNames:
        """These names; an unknown one is taken from ``other``."""
        return WorkloadNames(
            container=other.container if self.container is None else self.container,
            image=other.image if self.image is None else self.image,
            pod=other.pod if self.pod is None else self.pod,
            namespace=other.namespace if self.namespace is None else self.namespace,
            pod_uid=other.pod_uid if self.pod_uid is None else self.pod_uid,
            runtime=other.runtime if self.runtime is None else self.runtime,
            title=other.title if self.title is None else self.title,
            extra=tuple(sorted((dict(other.extra) | dict(self.extra)).items())),
            declared=tuple(sorted((dict(other.declared) | dict(self.declared)).items())),
        )


def pod_uid_of(ref: WorkloadRef, names: WorkloadNames | None) -> str | None:
    """The uid of a workload's pod, if it is known: by its cgroup, which no name can change, else by its names."""
    return ref.pod_uid or (None if names is None else names.pod_uid)


@dataclass(frozen=True, slots=True)
class Pod:
    """A Kubernetes pod: its uid, its name and namespace, or both."""

    uid: str | None = None
    name: str | None = None
    namespace: str | None = None

    def has(self, ref: WorkloadRef, names: WorkloadNames | None) -> bool:
        """Whether a workload is in this pod: by uid where both are known, since names are reused, else by name."""
        uid = pod_uid_of(ref, names)
        if uid is not None and self.uid is not None:
            return uid == self.uid
        if names is None or self.name is None or self.namespace is None:
            return False
        return (names.pod, names.namespace) == (self.name, self.namespace)

    def __str__(self) -> str:
        """``namespace/name (uid)``, without the unknown parts."""
        name = None if self.name is None else f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{name} ({self.uid})" if name and self.uid else name or self.uid or "unknown"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A physical GPU. Constant while the driver is loaded; ``index`` can change when it is loaded again."""

    index: int
    uuid: str
    name: str
    minor: int | None = None
    pci_bus_id: str | None = None
    serial: str | None = None


class MigAccess(NamedTuple):
    """A capability (MIG) for a GPU instance of the GPU with this device minor, or for one compute instance of it."""

    gpu_minor: int
    gpu_instance_id: int
    compute_instance_id: int | None
