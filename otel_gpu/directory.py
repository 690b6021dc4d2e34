"""Who is who: what the sources of names know, put together, and what everybody was given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from otel_gpu.granting import Given, Granted, grants_of
from otel_gpu.model import (
    GpuReading,
    Grant,
    ProcessFacts,
    ProcessKey,
    SourceState,
    WorkloadKey,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import Known, NameRead, PodContainer

_NOBODY: Final[frozenset[WorkloadKey]] = frozenset()
_NO_NAMES: Final = WorkloadNames()
"""Told of who must not have the names that it may have been told under."""

_ENGINES_ID: Final = re.compile(r"[0-9a-f]{64}")
"""What engines call a container. LXC and nspawn have names instead, and nobody here knows what is inside of those."""

_NOBODY_KNOWS_PODS: Final = (
    "containers were given GPUs, and nobody here knows the id of any container of a pod: mount the socket of the "
    "container runtime (--cri-socket), or allow the Kubernetes API (--kubernetes-api always)"
)


@dataclass(frozen=True, slots=True)
class Named:
    """What is known in one cycle. ``names`` are of workloads on a GPU and of those that were given one.

    As long as nobody comes, goes or is told of anew, they are the same object.
    """

    names: Mapping[WorkloadKey, WorkloadNames]
    pending: frozenset[WorkloadKey]
    grants: tuple[Grant, ...]


class Directory:
    """Puts together what the sources know. Where nothing has changed since the last cycle, nothing is done."""

    def __init__(self) -> None:
        self._reads: list[NameRead] = []
        self._gpus: tuple[object, ...] = ()
        self._contested: set[WorkloadKey] = set()
        self._runtimes: Mapping[WorkloadKey, str | None] = {}
        self._known: dict[WorkloadKey, Known] = {}
        self._inside: Mapping[WorkloadKey, WorkloadRef] = {}
        self._granted = Granted((), ())
        self._trouble: list[list[str]] = []
        self._counted: set[tuple[int, str]] = set()
        self._asked: Collection[WorkloadRef] = ()
        self._named = Named(MappingProxyType({}), _NOBODY, ())

    def update(self, reads: Sequence[NameRead], asked: Collection[WorkloadRef], gpus: Sequence[GpuReading]) -> Named:
        """Take up what the sources said, the weightiest first, of these workloads and these GPUs.

        ``asked`` must not change after that: while it is the same object, it stands for the same workloads.
        """
        ids = frozenset().union(*(read.pending for read in reads))
        pending = frozenset(ref.key for ref in asked if ref.id in ids) if ids else _NOBODY
        inside = self._inside if asked is self._asked else _inside(asked)
        if self._put_together(reads, asked, inside, gpus) or asked is not self._asked:
            self._asked = asked
            told = dict.fromkeys((*(ref.key for ref in asked), *(grant.workload.key for grant in self._granted.grants)))
            known = {key: self._known[key].names for key in told if key in self._known}
            names = {key: its_names for key, its_names in known.items() if its_names != _NO_NAMES}
            names |= {ref.key: _NO_NAMES for ref in asked if self._is_impostor(ref)}
            self._named = Named(MappingProxyType(names), pending, self._granted.grants)
        elif pending != self._named.pending:
            self._named = replace(self._named, pending=pending)
        return self._named

    def judged(self, number: int, read: NameRead) -> NameRead:
        """The answer of a source, by its number, with what is wrong with it beside the others' or on this host.

        Every such thing is an error once, for as long as it lasts.
        """
        trouble = self._trouble[number]
        if not trouble and not self._counted:
            return read
        new = {(number, each) for each in trouble} - self._counted
        self._counted = {each for each in self._counted if each[0] != number or each[1] in trouble} | new
        if not trouble:
            return read
        more = f" (and {len(trouble) - 1} more)" if len(trouble) > 1 else ""
        reason = f"{trouble[0]}{more}" if read.reason is None else f"{read.reason}; {trouble[0]}{more}"
        state = SourceState.DEGRADED if read.state is SourceState.OK else read.state
        return replace(read, state=state, reason=reason, errors=read.errors + len(new))

    # -- only when something changed --------------------------------------------------

    def _put_together(
        self,
        reads: Sequence[NameRead],
        refs: Iterable[WorkloadRef],
        inside: Mapping[WorkloadKey, WorkloadRef],
        gpus: Sequence[GpuReading],
    ) -> bool:
        identities = tuple(_identity(gpu) for gpu in gpus)
        contested = {ref.key: ref.runtime for ref in refs if ref.key in self._contested} if self._contested else {}
        same = _same(reads, self._reads) and identities == self._gpus
        if same and contested == self._runtimes and inside == self._inside:
            return False
        runtimes = {ref.key: ref.runtime for ref in refs}
        self._reads, self._gpus, self._inside = list(reads), identities, inside
        self._contested = set()
        self._trouble = [[] for _ in reads]
        self._known = self._merged(reads, runtimes)
        self._know_inside(reads)
        self._runtimes = {key: runtimes[key] for key in self._contested if key in runtimes}
        self._granted = grants_of(self._given(reads), gpus)
        for given in self._granted.unknown:
            self._complain(reads, given)
        return True

    def _merged(
        self, reads: Sequence[NameRead], runtimes: Mapping[WorkloadKey, str | None]
    ) -> dict[WorkloadKey, Known]:
        """Everybody. An id that two claim under different names is whose its cgroup says, else the weightier's."""
        merged: dict[WorkloadKey, Known] = {}
        for number, read in enumerate(reads):
            for id_, known in read.known.items():
                key = known.ref.key
                before = merged.get(key)
                if before is None:
                    merged[key] = known
                    continue
                own = runtimes.get(key)
                is_its_own = own is not None and known.names.runtime == own != before.names.runtime
                first, second = (known, before) if is_its_own else (before, known)
                if _disagree(before, known):
                    self._contested.add(key)
                    self._trouble[number].append(
                        f"{id_[:12]} is {known.names.container!r} here and {before.names.container!r} to another source"
                    )
                    merged[key] = first
                else:
                    merged[key] = _both(first, second)
        return merged

    def _know_inside(self, reads: Sequence[NameRead]) -> None:
        """Who is inside of a container is whom somebody knows by that id, unless anybody knows the outer one.

        An engine's containers stand side by side: inside of one of them, another's id is an impostor's.
        """
        for key, ref in self._inside.items():
            if key in self._known and not any(ref.outer_container_id in read.known for read in reads):
                self._known[ref.key] = replace(self._known.pop(key), ref=ref)

    def _is_impostor(self, ref: WorkloadRef) -> bool:
        """Whether somebody is known by the id of who is inside of a container, and it is somebody else."""
        if ref.outer_container_id is None or ref.key in self._known:
            return False
        return (ref.kind, ref.id) in self._known

    def _given(self, reads: Sequence[NameRead]) -> Iterator[Given]:
        for known in self._known.values():
            if known.running:
                yield from (Given(known.ref, claim, known.since_s) for claim in known.claims)
        if not any(read.pods for read in reads):
            return
        containers = self._containers_of_pods()
        for number, read in enumerate(reads):
            if read.pods and not containers:
                self._trouble[number].append(_NOBODY_KNOWS_PODS)
            for where, claims in read.pods.items():
                holder = containers.get(where)
                if holder is not None and holder.running:
                    yield from (Given(holder.ref, claim, holder.since_s) for claim in claims)

    def _containers_of_pods(self) -> dict[PodContainer, Known]:
        """The container that stands for each now: one that runs before one that has ended, then the younger one."""
        found: dict[PodContainer, Known] = {}
        for known in self._known.values():
            names = known.names
            if names.namespace is None or names.pod is None or names.container is None:
                continue
            where = PodContainer(names.namespace, names.pod, names.container)
            before = found.get(where)
            if before is None or _recency(known) > _recency(before):
                found[where] = known
        return found

    def _complain(self, reads: Sequence[NameRead], given: Given) -> None:
        """A GPU that is not here was given by whoever knows the workload."""
        for number, read in enumerate(reads):
            known = read.known.get(given.workload.id)
            if read.pods or (known is not None and given.claim in known.claims):
                who = known.names.container if known is not None else None
                self._trouble[number].append(
                    f"{who or given.workload.id[:12]} was given {given.claim.device!r}, which is no GPU of this host"
                )
                return


def pids_by_workload(
    processes: Iterable[ProcessFacts], *, also: Iterable[WorkloadRef] = ()
) -> Mapping[WorkloadRef, Collection[int]]:
    """The workloads of these processes, each with its pids; ``also`` those of which nobody is left."""
    found: dict[WorkloadRef, list[int]] = {ref: [] for ref in also}
    for facts in processes:
        found.setdefault(facts.workload, []).append(facts.key.pid)
    return found


class PidsByWorkload:
    """The same, cycle after cycle: the same mapping while the processes and their workloads are the same."""

    def __init__(self) -> None:
        self._processes: Mapping[int, ProcessFacts] | None = None
        self._keys: list[ProcessKey] = []
        self._refs: list[WorkloadRef] = []
        self._also: Collection[WorkloadRef] = ()
        self._found: Mapping[WorkloadRef, Collection[int]] = MappingProxyType({})

    def of(
        self, processes: Mapping[int, ProcessFacts], *, also: Collection[WorkloadRef] = ()
    ) -> Mapping[WorkloadRef, Collection[int]]:
        """Those of this cycle. ``processes`` must not change after that."""
        if processes is self._processes and also == self._also:
            return self._found
        self._processes, told = processes, processes.values()
        keys, refs = [facts.key for facts in told], [facts.workload for facts in told]
        if keys != self._keys or refs != self._refs or also != self._also:
            self._keys, self._refs, self._also = keys, refs, also
            self._found = MappingProxyType(pids_by_workload(told, also=also))
        return self._found


def _inside(refs: Collection[WorkloadRef]) -> Mapping[WorkloadKey, WorkloadRef]:
    """Workloads inside of an engine's container, by kind and id; not where another one here has the same."""
    nested = [ref for ref in refs if ref.outer_container_id is not None]
    if not nested:
        return {}
    ids = Counter((ref.kind, ref.id) for ref in refs)
    return {
        (ref.kind, ref.id): ref
        for ref in nested
        if ids[ref.kind, ref.id] == 1 and _ENGINES_ID.fullmatch(ref.outer_container_id or "")
    }


def _same(now: Sequence[NameRead], before: Sequence[NameRead]) -> bool:
    """Whether the mappings are the same objects: sources leave a new one for every change."""
    return len(now) == len(before) and all(
        a.known is b.known and a.pods is b.pods for a, b in zip(now, before, strict=True)
    )


def _identity(gpu: GpuReading) -> object:
    instances = None
    if gpu.mig is not None:
        instances = tuple(
            (mig.uuid, mig.index, mig.gpu_instance_id, mig.compute_instance_id, mig.sm_count) for mig in gpu.mig
        )
    return gpu.identity, gpu.answered, gpu.sm_count, instances


def _disagree(one: Known, other: Known) -> bool:
    names = {known.names.container for known in (one, other) if known.names.container is not None}
    pods = {(known.names.namespace, known.names.pod) for known in (one, other) if known.names.pod is not None}
    return len(names) > 1 or len(pods) > 1


def _both(first: Known, second: Known) -> Known:
    return Known(
        ref=first.ref,
        names=first.names.over(second.names),
        running=first.running or second.running,
        since_s=second.since_s if first.since_s is None else first.since_s,
        claims=tuple(dict.fromkeys((*first.claims, *second.claims))),
    )


def _recency(known: Known) -> tuple[bool, float, str]:
    return known.running, known.since_s or 0.0, known.ref.id
