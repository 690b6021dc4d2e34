"""Who and what: processes, workloads, GPUs."""

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
    """What a process belongs to, as far as its cgroup tells."""

    CONTAINER = "container"
    SLURM_JOB = "slurm_job"
    SYSTEMD_UNIT = "systemd_unit"
    LXC = "lxc"
    HOST = "host"


WorkloadKey: TypeAlias = tuple[str, str]
"""A workload's kind and id."""

_LONG: Final = 64
_SHORT: Final = 12
"""Digits of an engine's container id, and how many of them it lists."""


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """Which workload a process belongs to: enough to identify it, nothing that needs a look-up.

    ``id`` is the container id, Slurm job id, unit name or LXC name. ``outer_container_id`` is the outermost container
    around it (a ``kind`` node, Docker in Docker, LXC): what stands inside of that, ``id`` too, may be its own word.
    """

    kind: WorkloadKind
    id: str
    runtime: str | None = None
    pod_uid: str | None = None
    slurm_step: str | None = None
    outer_container_id: str | None = None

    key: WorkloadKey = field(init=False, compare=False, repr=False)
    """What identifies it: a container's id says nothing about a job of that number, nor about one of that id inside of
    another container. Kept: it is asked for often."""

    def __post_init__(self) -> None:
        """Make the key."""
        own_id = self.id if self.outer_container_id is None else f"{self.outer_container_id}/{self.id}"
        object.__setattr__(self, "key", (self.kind, own_id))

    @property
    def key_id(self) -> str:
        """What identifies it among those of its kind."""
        return self.key[1]

    @property
    def unnamed(self) -> str:
        """What it goes by where nobody knows a name: its id; inside of another container both, as engines list them."""
        if self.outer_container_id is None:
            return self.id
        return "/".join(each[:_SHORT] if len(each) == _LONG else each for each in (self.outer_container_id, self.id))

    def __hash__(self) -> int:
        """Of what identifies it: equal ones have the same."""
        return hash(self.key)


HOST_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "host")
"""Everything that runs on the host in nobody's container, job or unit."""

UNIDENTIFIED_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "unidentified")
"""Processes the driver measured but that this agent cannot see: named, so that nobody is billed for them."""

OVERFLOW_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "overflow")
OVERFLOW_PROCESS: Final = ProcessKey(0, 0)
"""Whoever came when the books were full: together under one entry, so that sums stay exact."""


@dataclass(frozen=True, slots=True)
class WorkloadNames:
    """The names people know a workload by. What nobody told stays ``None``.

    ``title`` is the name of what is no container: a Slurm job's. ``extra`` are further attributes of its Resource, in
    the order of their keys: labels of containers and pods, a job's user and account.
    """

    container: str | None = None
    image: str | None = None
    pod: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None
    runtime: str | None = None
    title: str | None = None
    extra: tuple[tuple[str, str], ...] = ()

    def over(self, other: WorkloadNames) -> WorkloadNames:
        """These names, and where they are silent the other's."""
        return WorkloadNames(
            container=other.container if self.container is None else self.container,
            image=other.image if self.image is None else self.image,
            pod=other.pod if self.pod is None else self.pod,
            namespace=other.namespace if self.namespace is None else self.namespace,
            pod_uid=other.pod_uid if self.pod_uid is None else self.pod_uid,
            runtime=other.runtime if self.runtime is None else self.runtime,
            title=other.title if self.title is None else self.title,
            extra=tuple(sorted((dict(other.extra) | dict(self.extra)).items())),
        )


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of Kubernetes: by its uid, by its name and namespace, or by both."""

    uid: str | None = None
    name: str | None = None
    namespace: str | None = None

    def has(self, ref: WorkloadRef, names: WorkloadNames | None) -> bool:
        """Whether a workload is in it: by uids where both are known, since a name may come again, else by names."""
        uid = ref.pod_uid or (None if names is None else names.pod_uid)
        if uid is not None and self.uid is not None:
            return uid == self.uid
        if names is None or self.name is None or self.namespace is None:
            return False
        return (names.pod, names.namespace) == (self.name, self.namespace)

    def __str__(self) -> str:
        """What people call it, and its uid where that is known."""
        name = None if self.name is None else f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{name} ({self.uid})" if name and self.uid else name or self.uid or "unknown"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What does not change about a physical GPU while the driver is loaded. ``index`` may, over reloads."""

    index: int
    uuid: str
    name: str
    minor: int | None = None
    pci_bus_id: str | None = None
    serial: str | None = None


class MigAccess(NamedTuple):
    """A capability to use a GPU instance (MIG) of the GPU with this device minor, or one compute instance of it."""

    gpu_minor: int
    gpu_instance_id: int
    compute_instance_id: int | None
